//! Forking a running sandbox: it goes on, the copies start from that instant.
//!
//! ```text
//! keeper: still of the program, upper directory copied into the fork point's layer (the only pause) -> zygote
//! copies: sandboxes on [fork point's layer, layers of the original ...] -> started from that zygote -> zygote dropped
//! ```
//!
//! The fork point is a directory with a layer and nothing else; it goes with the last sandbox that stands on it.

use std::{sync::Arc, time::Instant};

use api::{ForkRequest, ForkResponse, Interpreter};
use base::id::SandboxId;

use super::{Node, images::remove_quietly, start::Source};
use crate::{
    error::{Context, Result},
    http::error_detail,
    keeper::message::BuildZygote,
    state::FORK_LAYER,
};

impl Node {
    /// Forks `request.count` copies of a running sandbox.
    pub(crate) async fn fork(self: &Arc<Self>, id: &SandboxId, request: &ForkRequest) -> Result<ForkResponse> {
        let began = Instant::now();
        let (record, point, zygote) = {
            let mut state = self.state();
            let record = state.running(id)?.clone();
            (record, state.claim(), state.number())
        };
        let directory = self.config.sandbox_dir(&point);
        let layer = directory.join(FORK_LAYER);
        std::fs::create_dir_all(&directory).at("create", &directory)?;
        let job = BuildZygote {
            zygote,
            id: id.clone(),
            main: record.main,
            streams: self.streams(&self.open_output(id)?)?,
            earlier_arena: record.arena,
            layers: record.layers.clone(),
            layer_dest: layer.clone(),
            huge_pages: false,
        };
        let layers: Vec<_> = std::iter::once(layer).chain(record.layers.iter().cloned()).collect();
        // From here on the point lives as long as its layer is used; the claim has done its duty.
        self.state().hold(&layers);
        self.state().release(&point);
        let built = self.request_zygote(job, format!("sandbox {id}")).await;
        let response = match built {
            Ok((built, timings)) => {
                let source = Source {
                    template: record.template.clone(),
                    parent: Some(id.clone()),
                    layers: layers.clone(),
                    limits: record.limits.clone(),
                    zygote,
                    arena: built.arena,
                    interpreter: Interpreter::InProcess,
                };
                let (sandboxes, failures) = self.start_many(&source, request.count).await;
                Ok(ForkResponse {
                    sandboxes,
                    pause_us: timings.pause_us,
                    capture_us: timings.capture_us,
                    build_us: timings.build_us,
                    total_us: began.elapsed().as_micros() as u64,
                    failures: failures.iter().map(error_detail).collect(),
                })
            }
            Err(error) => Err(error),
        };
        self.drop_zygote(zygote).await;
        let unused = self.state().unhold(&layers);
        self.remove_layers(unused).await;
        if response.is_err() {
            remove_quietly(&directory).await;
        }
        response
    }
}
