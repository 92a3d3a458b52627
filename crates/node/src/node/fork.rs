//! Forking a running sandbox: it goes on, the copies start from that instant.
//!
//! ```text
//! keeper: still of the program, upper directory copied into the fork point's layer (the only pause) -> zygote, branched off the
//!         template's: unchanged memory stays shared
//! copies: sandboxes on [fork point's layer, layers of the original ...] -> started from that zygote -> zygote dropped
//! ```
//!
//! The fork point is a directory with a layer and nothing else; it goes with the last sandbox that stands on it.

use std::{path::PathBuf, sync::Arc, time::Instant};

use api::{BuildTimings, ExitStatus, ForkRequest, ForkResponse, Interpreter, SandboxState};
use base::id::SandboxId;
use tokio::sync::oneshot;

use super::{Node, images::remove_quietly, start::Source, volumes};
use crate::{
    error::{Context, Error, Result},
    http::error_detail,
    keeper::message::BuildZygote,
    state::{Blank, FORK_LAYER, ZygoteRef},
};

impl Node {
    /// Forks `request.count` copies of a running sandbox.
    pub(crate) async fn fork(self: &Arc<Self>, id: &SandboxId, request: &ForkRequest) -> Result<ForkResponse> {
        let began = Instant::now();
        let pages = {
            let state = self.state();
            let record = state.running(id)?;
            volumes::refuse_written(record)?;
            record.pages.clone()
        };
        if let Some(pages) = pages {
            self.wait_filled(&pages).await?;
        }
        let (record, base, point, zygote) = {
            let mut state = self.state();
            let record = state.running(id)?.clone();
            let base = state.parked_zygote(&record.template);
            (record, base, state.claim(), state.number())
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
            base,
            layers: record.layers.clone(),
            layer_dest: layer.clone(),
            state_dest: None,
            // The copies have the same volumes.
            mount_points: Vec::new(),
            huge_pages: false,
            hold: false,
        };
        let layers: Vec<_> = std::iter::once(layer).chain(record.layers.iter().cloned()).collect();
        // From here on the point lives as long as its layer is used; the claim has done its duty.
        self.state().hold(&layers);
        self.state().release(&point);
        let (built, blanks) = self.build_beside_blanks(job, &layers, &record.limits, request.count).await;
        let response = match built {
            Ok((built, timings)) => {
                let source = Source {
                    template: record.template.clone(),
                    parent: Some(id.clone()),
                    layers: layers.clone(),
                    pages: None,
                    limits: record.limits.clone(),
                    zygote,
                    arena: built.arena,
                    interpreter: Interpreter::InProcess,
                    volumes: record.volumes.clone(),
                };
                let (sandboxes, failures) = self.start_many(&source, request.count, blanks).await;
                Ok(ForkResponse {
                    sandboxes,
                    pause_us: timings.pause_us,
                    capture_us: timings.capture_us,
                    build_us: timings.build_us,
                    total_us: began.elapsed().as_micros() as u64,
                    failures: failures.iter().map(error_detail).collect(),
                })
            }
            Err(error) => {
                self.discard_blanks(blanks).await;
                // What the engine cannot fork may just have ended.
                if record.main.is_alive() { Err(error) } else { Err(self.has_ended(id)) }
            }
        };
        self.drop_zygote(zygote).await;
        let unused = self.state().unhold(&layers);
        self.remove_layers(unused).await;
        if response.is_err() {
            remove_quietly(&directory).await;
        }
        response
    }

    fn has_ended(&self, id: &SandboxId) -> Error {
        let state = self.state().sandbox(id).map(|record| record.state);
        match state {
            // Its end is not in the records yet.
            Ok(SandboxState::Running) => {
                Error::NotRunning { id: id.clone(), state: SandboxState::Exited(ExitStatus::Unknown) }
            }
            Ok(state) => Error::NotRunning { id: id.clone(), state },
            Err(error) => error,
        }
    }

    /// Builds the zygote and, as soon as the layer is whole, the sandboxes for its copies: those are the keeper's work, and
    /// the zygote is its builder's.
    async fn build_beside_blanks(
        self: &Arc<Self>,
        job: BuildZygote,
        layers: &[PathBuf],
        limits: &api::Limits,
        count: u32,
    ) -> (Result<(ZygoteRef, BuildTimings)>, Vec<Blank>) {
        let (sender, captured) = oneshot::channel();
        let node = Arc::clone(self);
        let what = format!("sandbox {}", job.id);
        let build = tokio::spawn(async move { node.request_zygote(job, what, Some(sender)).await });
        let mut blanks = Vec::new();
        if captured.await.is_ok() {
            while blanks.len() < count as usize && !build.is_finished() {
                match self.create_blank(layers, limits).await {
                    Ok(blank) => blanks.push(blank),
                    // The start that lacks it tries again, and reports what is wrong.
                    Err(_) => break,
                }
            }
        }
        (build.await.doing("build the zygote").flatten(), blanks)
    }
}
