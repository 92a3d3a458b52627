//! Starting sandboxes from a template: the path that has to be fast.
//!
//! ```text
//! run -> template ready? (lost: build again; building: wait) -> count x start, side by side
//! start: blank from the pool, or made now -> output file -> keeper: Start -> record -> running
//! ```

use std::{path::PathBuf, sync::Arc, time::Instant};

use api::{Interpreter, RunRequest, RunResponse, SandboxState};
use base::id::{SandboxId, TemplateName};
use tokio::task::JoinSet;

use super::{CREATE_DEADLINE, Node, START_DEADLINE, engine_limits, now_ms, unexpected};
use crate::{
    config::RECORD,
    error::{Context, Error, Result},
    http::error_detail,
    keeper::message::{Reply, Request},
    records::{self, Durability, SandboxRecord},
    state::{Blank, Readiness, Startable, ZygoteRef},
};

/// What all starts of one request have in common.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) template: TemplateName,
    pub(super) parent: Option<SandboxId>,
    pub(super) layers: Vec<PathBuf>,
    pub(super) limits: api::Limits,
    pub(super) zygote: u64,
    pub(super) arena: (u64, u64),
    pub(super) interpreter: Interpreter,
}

/// Counts a start as under way while it lives, so that the pool keeps out of its way.
struct InFlight<'a>(&'a Node);

impl<'a> InFlight<'a> {
    fn new(node: &'a Node) -> Self {
        node.state().start_begins();
        Self(node)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.state().start_ends();
        self.0.pool_work.notify_one();
        self.0.limits_work.notify_one();
    }
}

impl Node {
    /// Starts `request.count` sandboxes. Failures of single starts are in the response.
    pub(crate) async fn run(self: &Arc<Self>, name: &TemplateName, request: &RunRequest) -> Result<RunResponse> {
        let (startable, notices) = self.startable(name).await?;
        let Startable { record, zygote: ZygoteRef { number, arena, .. } } = startable;
        let source = Source {
            template: name.clone(),
            parent: None,
            layers: record.layers(),
            limits: record.spec.limits.clone(),
            zygote: number,
            arena,
            interpreter: request.interpreter,
        };
        let began = Instant::now();
        let (sandboxes, failures) = self.start_many(&source, request.count).await;
        let total_us = began.elapsed().as_micros() as u64;
        let failures = failures.iter().map(error_detail).collect();
        Ok(RunResponse { sandboxes, total_us, notices, failures })
    }

    /// Removes what a request started whose client has gone.
    pub(crate) async fn undo_starts(self: &Arc<Self>, sandboxes: &[api::Sandbox]) {
        tracing::info!(count = sandboxes.len(), "the client went away: removing what it started");
        self.discard_all(sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect()).await;
    }

    /// The template as soon as it is ready, and what the user should know about it.
    async fn startable(self: &Arc<Self>, name: &TemplateName) -> Result<(Startable, Vec<String>)> {
        let mut notices = Vec::new();
        let mut changes = self.changes.subscribe();
        loop {
            changes.mark_unchanged();
            let readiness = self.state().readiness(name)?;
            match readiness {
                Readiness::Ready(startable) => return Ok((*startable, notices)),
                Readiness::Building => drop(changes.changed().await),
                Readiness::Lost(record) => {
                    let began = Instant::now();
                    match self.rebuild(*record).await {
                        Ok(()) => notices.push(format!(
                            "the zygote of template {name} was gone (the node or its keeper was restarted, or it was killed) and was built again in {} ms",
                            began.elapsed().as_millis()
                        )),
                        // Someone else was faster.
                        Err(Error::TemplateBusy(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }

    /// Starts `count` copies side by side; the layers stay meanwhile.
    pub(super) async fn start_many(self: &Arc<Self>, source: &Source, count: u32) -> (Vec<api::Sandbox>, Vec<Error>) {
        self.state().hold(&source.layers);
        let mut starts = JoinSet::new();
        for _ in 0..count {
            let (node, source) = (Arc::clone(self), source.clone());
            starts.spawn(async move { node.start_one(&source).await });
        }
        let (mut sandboxes, mut failures) = (Vec::new(), Vec::new());
        while let Some(started) = starts.join_next().await {
            match started.doing("finish the start") {
                Ok(Ok(sandbox)) => sandboxes.push(sandbox),
                Ok(Err(error)) | Err(error) => failures.push(error),
            }
        }
        let unused = self.state().unhold(&source.layers);
        self.remove_layers(unused).await;
        (sandboxes, failures)
    }

    async fn start_one(self: &Arc<Self>, source: &Source) -> Result<api::Sandbox> {
        let in_flight = InFlight::new(self);
        let began = Instant::now();
        let pooled = self.state().take_blank(&source.template, &source.layers);
        let blank = match pooled {
            Some(blank) => blank,
            None => self.create_blank(&source.layers, &source.limits).await?,
        };
        let started = self.start_in(source, &blank, began).await;
        drop(in_flight);
        if let Err(error) = &started {
            if matches!(error, Error::ZygoteGone { .. }) {
                // Its end may have been reported before anyone knew that it belongs to the template.
                self.zygote_lost(source.zygote, "a start found it dead");
            }
            tracing::warn!(sandbox = %blank.id, template = %source.template, error = crate::chain(error), "a start failed");
            self.discard(blank.id).await;
        }
        started
    }

    async fn start_in(self: &Arc<Self>, source: &Source, blank: &Blank, began: Instant) -> Result<api::Sandbox> {
        let output = self.open_output(&blank.id)?.into();
        let number = self.state().number();
        let stepping = source.interpreter == Interpreter::Stepping;
        let request = Request::Start { zygote: source.zygote, id: blank.id.clone(), start: number, stepping };
        let keeper = self.keeper("start the sandbox").await?;
        let answer = keeper.call("start the sandbox", request, &[&self.null, &output, &output], START_DEADLINE).await?;
        let (Reply::Started { main }, Some(ended)) = (&answer.reply, answer.ended) else {
            return Err(unexpected("start the sandbox", &answer.reply));
        };
        let record = SandboxRecord {
            id: blank.id.clone(),
            template: source.template.clone(),
            parent: source.parent.clone(),
            layers: source.layers.clone(),
            limits: source.limits.clone(),
            init: blank.init,
            main: *main,
            arena: Some(source.arena),
            created_ms: now_ms(),
            start_us: began.elapsed().as_micros() as u64,
            state: SandboxState::Running,
        };
        records::write(&self.config.sandbox_dir(&blank.id).join(RECORD), &record, Durability::Process)?;
        let sandbox = record.to_api();
        self.state().started(record);
        self.monitor(blank.id.clone(), ended);
        Ok(sandbox)
    }

    /// Makes a sandbox without a program. A failure leaves nothing.
    pub(super) async fn create_blank(self: &Arc<Self>, layers: &[PathBuf], limits: &api::Limits) -> Result<Blank> {
        let id = self.state().claim();
        match self.try_create(&id, layers, limits).await {
            Ok(blank) => Ok(blank),
            Err(error) => {
                self.discard(id).await;
                Err(error)
            }
        }
    }

    async fn try_create(&self, id: &SandboxId, layers: &[PathBuf], limits: &api::Limits) -> Result<Blank> {
        let dir = self.config.sandbox_dir(id);
        let spec = sandbox::Spec { id: id.clone(), dir, layers: layers.to_vec(), limits: engine_limits(limits) };
        let keeper = self.keeper("make a sandbox").await?;
        let answer = keeper.call("make a sandbox", Request::CreateSandbox { spec }, &[], CREATE_DEADLINE).await?;
        match answer.reply {
            Reply::Created { init } => Ok(Blank { id: id.clone(), init, layers: layers.to_vec() }),
            other => Err(unexpected("make a sandbox", &other)),
        }
    }
}
