//! Forking a running sandbox: it goes on, the copies start from that instant.
//!
//! ```text
//! keeper: still of the program, its changes taken into the fork point's layer (the only pause) -> zygote, branched off the
//!         template's: unchanged memory stays shared           volumes that it can write: cut before it goes on (see `cut`)
//! copies: sandboxes on [fork point's layer, layers of the original ...] -> started from that zygote -> zygote dropped
//! ```
//!
//! Without a program there is no zygote: the copies are blank sandboxes on the same layers.
//!
//! The fork point is a directory with a layer and nothing else; it goes with the last sandbox that stands on it.

use std::{
    io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use base::id::{SandboxId, ZygoteId};
use keeper::origin::carried;
use keeper::protocol::{Base, Capture, Purpose};
use model::{BuildTimings, ExitStatus, ForkSpec, Forks, Interpreter, Keep, SandboxState};
use tokio::sync::oneshot;

use super::{
    Node,
    build::Built,
    commands::Along,
    cut::{self, Cut},
    files_only::{Files, without_program},
    in_use::InUse,
    layers::{self, Pinned},
    lifecycle::{Operation, Phase},
    metrics::CaptureFor,
    start::{CopyOf, Source},
    volumes,
};
use crate::{
    error::{Context, Error, Forked, Result},
    records::SandboxRecord,
    state::Blank,
};

/// An instant of a sandbox, or what is left of the attempt to capture one.
struct ForkPoint {
    /// None if copies have files only.
    zygote: Option<ZygoteId>,
    layers: Pinned,
    captured: Result<Captured>,
}

/// What copies are started from.
struct Captured {
    source: Source,
    timings: BuildTimings,
    /// Sandboxes for them that were made meanwhile.
    blanks: Vec<Blank>,
}

impl Node {
    /// Forks copies of a running or paused sandbox. With [`Keep::Files`] they have its files and no processes.
    #[tracing::instrument(skip_all, fields(sandbox = %id))]
    pub async fn fork(self: &Arc<Self>, id: &SandboxId, spec: &ForkSpec) -> Result<Forks> {
        let ForkSpec { count, keep, ref reservation } = *spec;
        let began = Instant::now();
        let phase = self.state().phase(id);
        if matches!(phase, Phase::Paused | Phase::Absent) {
            // On the heap: it is a whole resume, and other forks need no room for it on the stack.
            return Box::pin(self.fork_paused(id, spec)).await;
        }
        self.admits(id, Operation::Capture)?;
        self.check_room().await?;
        let record = self.state().running(id)?.clone();
        let files = self.has_files_only(&record, keep).await?;
        let SandboxRecord { pages, volumes, .. } = record;
        if let Some(pages) = pages.filter(|_| !files) {
            self.pager.wait_filled(&pages).await?;
        }
        // So that little is left to be written while it stands still.
        self.commit_written(id, &volumes).await?;
        let (node, of) = (Arc::clone(self), id.clone());
        let point = self.drive(id, Operation::Capture, async move {
            match files {
                true => node.make_files_point(&of, keep).await,
                false => node.make_fork_point(&of, count).await,
            }
        });
        let point = point.await?;
        let ForkPoint { zygote, layers, captured } = point;
        self.ledger.metrics.captured(CaptureFor::Fork, captured.as_ref().map(|captured| captured.timings.pause_us));
        let forks = match captured {
            Ok(Captured { source, timings, blanks }) => {
                let source = Source { reservation: reservation.clone(), ..source };
                let (sandboxes, failures) = self.start_many(&source, count, blanks).await;
                self.forget_cut(&source.cut).await;
                Ok(Forks {
                    sandboxes,
                    pause_us: timings.pause_us,
                    capture_us: timings.capture_us,
                    build_us: timings.build_us,
                    total_us: began.elapsed().as_micros() as u64,
                    failures: failures.iter().map(Error::failure).collect(),
                })
            }
            Err(error) => Err(error),
        };
        if let Some(zygote) = zygote {
            self.drop_zygote(zygote).await;
        }
        layers.unpin().await;
        forks
    }

    /// Captures a sandbox, alone with it, and builds the zygote of that instant.
    async fn make_fork_point(self: &Arc<Self>, id: &SandboxId, count: u32) -> Result<ForkPoint> {
        let record = self.state().running(id)?.clone();
        let Along { main, without_program, commands, streams } = self.along_with_output(&record).await?;
        let (spec, base, point, zygote) = {
            let mut state = self.state();
            layers::check(&record)?;
            let spec = state.spec_of(&record)?;
            let base = self.use_parked(&mut state, &record.template);
            (spec, base, state.claim(), state.new_zygote())
        };
        let layer = self.host.changes.layer(id, &point);
        let job = Capture {
            zygote,
            source: keeper::protocol::Source {
                sandbox: id.clone(),
                main,
                commands,
                without_program,
                streams,
                earlier_arena: record.arena,
                // The copies have the same volumes, or forks of them.
                mount_points: Vec::new(),
                volumes: volumes::directories(&record.volumes),
            },
            base: Base { zygote: base.as_ref().map(InUse::number), layers: record.layers.clone() },
            layer: layer.clone(),
            purpose: Purpose::Fork(cut::needed(&record.volumes)),
        };
        let layers: Vec<_> = std::iter::once(layer).chain(record.layers.iter().cloned()).collect();
        // From here on the point lives as long as its layer is used; the claim has done its duty.
        let pinned = self.pin(layers.clone());
        self.state().release(&point);
        let (built, blanks) = self.build_beside_blanks(job, &layers, &record, count).await;
        drop(base);
        let captured = match built {
            Ok((Built { zygote: built, timings, .. }, cut)) => {
                let source = Source {
                    template: record.template.clone(),
                    spec,
                    parent: Some(id.clone()),
                    layers,
                    pages: None,
                    limits: record.limits.clone(),
                    copies: Some(CopyOf::new(built, Interpreter::InProcess)),
                    volumes: cut::shared(&record.volumes),
                    // They are in its layers.
                    made: Vec::new(),
                    cut,
                    reservation: None,
                    network: record.network.clone(),
                };
                Ok(Captured { source, timings, blanks })
            }
            Err(error) => {
                self.discard_blanks(blanks).await;
                // What the engine cannot fork may just have ended.
                if main.is_alive() { Err(error) } else { Err(self.has_ended(id)) }
            }
        };
        Ok(ForkPoint { zygote: Some(zygote), layers: pinned, captured })
    }

    /// Captures the files of a sandbox, alone with it.
    async fn make_files_point(self: &Arc<Self>, id: &SandboxId, keep: Keep) -> Result<ForkPoint> {
        let (record, spec, point) = {
            let mut state = self.state();
            let record = state.running(id)?.clone();
            layers::check(&record)?;
            let spec = state.spec_of(&record)?;
            (record, without_program(spec), state.claim())
        };
        let layer = self.host.changes.layer(id, &point);
        let layers: Vec<_> = std::iter::once(layer.clone()).chain(record.layers.iter().cloned()).collect();
        // As of a fork point with a zygote.
        let pinned = self.pin(layers.clone());
        self.state().release(&point);
        let captured = self.take_and_cut(&record, keep, &layer).await.map(|Files { pause, cut }| {
            let us = pause.as_micros() as u64;
            let source = Source {
                template: record.template.clone(),
                spec,
                parent: Some(id.clone()),
                layers,
                pages: None,
                limits: record.limits.clone(),
                copies: None,
                volumes: cut::shared(&record.volumes),
                // They are in its layers.
                made: Vec::new(),
                cut,
                reservation: None,
                network: record.network.clone(),
            };
            let timings = BuildTimings { pause_us: us, capture_us: us, ..BuildTimings::default() };
            Captured { source, timings, blanks: Vec::new() }
        });
        Ok(ForkPoint { zygote: None, layers: pinned, captured })
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

    /// Builds the zygote and, as soon as the layer is whole, cuts the volumes and makes the sandboxes for its copies: those are the keeper's
    /// work, and the zygote is its builder's.
    pub(super) async fn build_beside_blanks(
        self: &Arc<Self>,
        job: Capture,
        layers: &[PathBuf],
        original: &SandboxRecord,
        count: u32,
    ) -> (Result<(Built, Cut)>, Vec<Blank>) {
        let held = self.hold_changes(&original.id).await;
        let (sender, captured) = oneshot::channel();
        let node = Arc::clone(self);
        let (what, holds) = (Forked::Sandbox(job.source.sandbox.clone()), job.purpose.holds());
        let build = async move { node.request_zygote(job, what, Some(sender)).await };
        let build = tokio::spawn(carried(build));
        let captured = captured.await.is_ok();
        let (cut, stood) = if !holds {
            drop(held);
            (Ok(Cut::default()), Duration::ZERO)
        } else if captured {
            self.cut(&original.id, &original.volumes, held).await
        } else {
            // The builder may have died between the freeze and its word. Copies of what it may have built would share the volumes.
            self.thaw(&original.id).await;
            (
                Err(io::Error::other("its builder did not say that it stands still")).doing("fork the volumes"),
                Duration::ZERO,
            )
        };
        let mut blanks = Vec::new();
        if captured && cut.is_ok() {
            while blanks.len() < count as usize && !build.is_finished() {
                match self.create_blank(layers, &original.limits).await {
                    Ok(blank) => blanks.push(blank),
                    // The start that lacks it tries again, and reports what is wrong.
                    Err(_) => break,
                }
            }
        }
        let built = match (build.await.doing("build the zygote").flatten(), cut) {
            (Ok(mut built), Ok(cut)) => {
                built.timings.pause_us += stood.as_micros() as u64;
                Ok((built, cut))
            }
            (Ok(_), Err(error)) => Err(error),
            (Err(error), cut) => {
                self.forget_cut(&cut.unwrap_or_default()).await;
                Err(error)
            }
        };
        (built, blanks)
    }
}
