//! Starting sandboxes from a template: the path that has to be fast.
//!
//! ```text
//! run -> template ready? (lost: build again; building: wait) -> count x start, side by side; a single one in its turn
//! start: blank from the pool, or made now -> volumes -> keeper: Start, or Release of its parked copy -> record -> running
//! ```

mod source;

use std::{os::fd::OwnedFd, path::PathBuf, sync::Arc, time::Instant};

use base::id::{SandboxId, TemplateName, ZygoteId};
use keeper::origin::carried;
use keeper::{
    Spawned,
    protocol::{self, CreateBare, CreateSandbox, Created, Furnish, StartCopy},
};
use model::{Interpreter, RunSpec, SandboxState, Started};
use sandbox::{Hides, Machine, ProcessIdentity};
use tokio::task::JoinSet;

pub(super) use source::{CopyOf, Running, Source};

use super::{Node, in_use::InUse, metrics::StartKind, now_ms, volumes};
use crate::{
    config::RECORD,
    error::{Context, Error, Result, chain},
    records::{self, NOBODY, SandboxRecord},
    state::{Blank, Readiness, Startable},
};

/// Whether the start failed only because the zygote, or the keeper that holds it, died under it, or is of a checkpoint that was replaced.
fn lost_its_zygote(error: &Error) -> bool {
    matches!(error, Error::ZygoteGone { .. } | Error::KeeperLost { .. } | Error::StateGone { .. })
}

/// What the user is told of a template that had no zygote.
fn built_again(name: &TemplateName, replaced: bool, began: Instant) -> String {
    let ms = began.elapsed().as_millis();
    match replaced {
        true => format!("checkpoint {name} was replaced: what it is now was restored on this node in {ms} ms"),
        false => format!(
            "the zygote of template {name} was gone (the node or its keeper was restarted, or it was killed) and was built again in {ms} ms"
        ),
    }
}

/// Counts a start as under way while it lives, so that the pool keeps out of its way.
pub(super) struct InFlight<'a>(&'a Node);

impl<'a> InFlight<'a> {
    pub(super) fn new(node: &'a Node) -> Self {
        node.state().start_begins();
        Self(node)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.state().start_ends();
        self.0.ledger.pool_work.notify_one();
        self.0.ledger.limits_work.notify_one();
    }
}

impl Node {
    /// Starts `request.count` sandboxes. Failures of single starts are in the response.
    #[tracing::instrument(skip_all, fields(template = %name))]
    pub async fn run(self: &Arc<Self>, name: &TemplateName, request: &RunSpec) -> Result<Started> {
        let network = self.sealed(request.network.clone()).await?;
        let request = &RunSpec { network, ..request.clone() };
        let (startable, _in_use, notices) = self.startable(name).await?;
        volumes::check(&startable.record.spec.mount_points, &startable.record.volumes, request)?;
        let began = Instant::now();
        let source = Source::of_template(startable, request);
        let (sandboxes, failures) = self.start_many(&source, request.count, Vec::new()).await;
        let total_us = began.elapsed().as_micros() as u64;
        let (lost, failed): (Vec<_>, Vec<_>) = failures.into_iter().partition(lost_its_zygote);
        let failures = failed.iter().map(Error::failure).collect();
        let response = Started { sandboxes, total_us, notices, failures };
        if lost.is_empty() { Ok(response) } else { Ok(self.run_again(name, request, lost, response).await) }
    }

    /// The zygote died under some of the starts: once it is built again they are tried once more.
    async fn run_again(
        self: &Arc<Self>,
        name: &TemplateName,
        request: &RunSpec,
        lost: Vec<Error>,
        mut response: Started,
    ) -> Started {
        let (startable, _in_use, notices) = match self.startable(name).await {
            Ok(again) => again,
            Err(error) => {
                response.failures.extend(std::iter::repeat_n(error.failure(), lost.len()));
                return response;
            }
        };
        response.notices.push(format!(
            "{} of the sandboxes had to be started again: {}",
            lost.len(),
            lost.first().map(|error| chain(error)).unwrap_or_default()
        ));
        response.notices.extend(notices);
        let began = Instant::now();
        let source = Source::of_template(startable, request);
        let (sandboxes, failures) = self.start_many(&source, lost.len() as u32, Vec::new()).await;
        response.total_us += began.elapsed().as_micros() as u64;
        response.sandboxes.extend(sandboxes);
        response.failures.extend(failures.iter().map(Error::failure));
        response
    }

    /// Has a template's zygote, or a checkpoint's, ready on this node; starts nothing.
    #[tracing::instrument(skip_all, fields(template = %name))]
    pub async fn warm(self: &Arc<Self>, name: &TemplateName) -> Result<model::Template> {
        self.startable(name).await?;
        self.state().template(name)
    }

    /// The template as soon as it is ready, and what the user should know about it.
    pub(super) async fn startable(
        self: &Arc<Self>,
        name: &TemplateName,
    ) -> Result<(Startable, Option<InUse>, Vec<String>)> {
        let mut notices = Vec::new();
        let mut changes = self.ledger.changes.subscribe();
        loop {
            changes.mark_unchanged();
            let readiness = self.readiness(name);
            if let Err(Error::NoTemplate(_)) = readiness {
                let began = Instant::now();
                match self.restore(name).await {
                    Ok(Some(())) => {
                        let ms = began.elapsed().as_millis();
                        notices.push(format!("checkpoint {name} was restored on this node in {ms} ms"));
                    }
                    // Someone else was faster.
                    Err(Error::TemplateBusy(_)) => {}
                    Ok(None) => return Err(self.nothing_to_run(name)),
                    Err(error) => return Err(error),
                }
                continue;
            }
            let (readiness, in_use) = readiness?;
            match readiness {
                Readiness::Ready(startable) => return Ok((*startable, in_use, notices)),
                Readiness::Building => drop(changes.changed().await),
                Readiness::Lost { record, replaced } => {
                    let began = Instant::now();
                    match self.rebuild(*record).await {
                        Ok(()) => notices.push(built_again(name, replaced, began)),
                        // Someone else was faster.
                        Err(Error::TemplateBusy(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }

    /// Nothing has this name; a sandbox may have it as its id.
    fn nothing_to_run(&self, name: &TemplateName) -> Error {
        let id = name.as_str().parse::<SandboxId>().ok();
        match id.and_then(|id| self.state().running(&id).err()) {
            Some(paused @ Error::NotRunning { state: SandboxState::Paused, .. }) => paused,
            Some(_) | None => Error::NothingToRun(name.clone()),
        }
    }

    /// Starts `count` copies side by side, in `blanks` as far as they go; the layers stay meanwhile.
    pub(super) async fn start_many(
        self: &Arc<Self>,
        source: &Source,
        count: u32,
        blanks: Vec<Blank>,
    ) -> (Vec<model::Sandbox>, Vec<Error>) {
        let layers = self.pin(source.layers.clone());
        let (mut sandboxes, mut failures) = (Vec::new(), Vec::new());
        let mut take = |started: Result<model::Sandbox>| match started {
            Ok(sandbox) => sandboxes.push(sandbox),
            Err(error) => failures.push(error),
        };
        let mut blanks = blanks.into_iter();
        let began = Instant::now();
        if count == 1 {
            // Alone it needs no task of its own, and no thread has to be woken for that.
            // Letting a copy go that was forked ahead takes next to nothing; of many in one request all are waited for, whichever is first.
            let forked_ahead = self.state().has_parked(&source.template, &source.layers, source.parked());
            let start = self.start_one(source, blanks.next(), began);
            take(match &source.copies {
                Some(CopyOf { zygote, .. }) if !forked_ahead => self.keepers.turns.take(*zygote, start).await,
                Some(_) | None => start.await,
            });
        } else {
            let mut starts = JoinSet::new();
            for _ in 0..count {
                let (node, source, blank) = (Arc::clone(self), source.clone(), blanks.next());
                let start = async move { node.start_one(&source, blank, began).await };
                starts.spawn(carried(start));
            }
            while let Some(started) = starts.join_next().await {
                take(started.doing("finish the start").flatten());
            }
        }
        for blank in blanks {
            self.discard(blank.id).await;
        }
        layers.unpin().await;
        (sandboxes, failures)
    }

    #[tracing::instrument(skip_all, fields(template = %source.template, sandbox = tracing::field::Empty))]
    async fn start_one(
        self: &Arc<Self>,
        source: &Source,
        blank: Option<Blank>,
        began: Instant,
    ) -> Result<model::Sandbox> {
        let mut kind = StartKind::Made;
        let mut started = self.start_with(source, blank, began, &mut kind).await;
        if let Ok(sandbox) = &started
            && source.parent.is_none()
            && !source.spec.startup.is_empty()
            // What its template begins is among what it is a copy of.
            && source.copies.is_none()
            // On the heap: most starts have none, and keep their place on the stack small.
            && let Err(error) = Box::pin(self.begin_startup(sandbox, &source.spec)).await
        {
            started = Err(error);
        }
        let kind = if source.parent.is_some() { StartKind::Fork } else { kind };
        self.ledger.metrics.started(kind, began.elapsed(), &started);
        started
    }

    /// As [`Node::start_one`]; tells what it found prepared.
    async fn start_with(
        self: &Arc<Self>,
        source: &Source,
        blank: Option<Blank>,
        began: Instant,
        kind: &mut StartKind,
    ) -> Result<model::Sandbox> {
        let in_flight = InFlight::new(self);
        let taken = blank.or_else(|| self.state().take_blank(&source.template, &source.layers, source.parked()));
        let mut blank = match taken {
            Some(blank) => {
                *kind = if blank.parked.is_some() { StartKind::Ahead } else { StartKind::Blank };
                blank
            }
            None => self.create_blank(&source.layers, &source.limits).await?,
        };
        tracing::Span::current().record("sandbox", tracing::field::display(&blank.id));
        let was_parked = blank.parked.is_some();
        let mut started = self.start_in(source, &mut blank, began).await;
        if let Err(error) = &started
            && was_parked
            && blank.parked.is_none()
            && !lost_its_zygote(error)
        {
            tracing::warn!(sandbox = %blank.id, error = chain(error), "a copy forked ahead could not be used");
            self.discard(blank.id.clone()).await;
            self.remove_own_volumes(&blank.id, &source.cut).await;
            *kind = StartKind::Made;
            blank = self.create_blank(&source.layers, &source.limits).await?;
            started = self.start_in(source, &mut blank, began).await;
        }
        drop(in_flight);
        if started.is_ok() {
            self.trust(&blank.id).await;
        }
        if let Err(error) = started {
            started = Err(self.explain_failed_start(source, error).await);
        }
        if let Err(error) = &started {
            if let Some(CopyOf { zygote, .. }) = &source.copies {
                self.heed_lost_zygote(*zygote, error).await;
            }
            tracing::warn!(sandbox = %blank.id, template = %source.template, error = chain(error), "a start failed");
            self.discard(blank.id.clone()).await;
            self.remove_own_volumes(&blank.id, &source.cut).await;
        }
        started
    }

    async fn heed_lost_zygote(self: &Arc<Self>, zygote: ZygoteId, error: &Error) {
        if let Error::StateGone { .. } = error {
            self.zygote_lost(zygote, "the checkpoint that it is of was replaced or removed");
            self.drop_zygote(zygote).await;
        } else if lost_its_zygote(error) {
            // Its end may have been reported before anyone knew that it belongs to the template.
            self.zygote_lost(zygote, "a start found it dead");
        }
    }

    async fn start_in(self: &Arc<Self>, source: &Source, blank: &mut Blank, began: Instant) -> Result<model::Sandbox> {
        // The program finds its volumes where it goes on.
        let hides = if source.copies.is_some() { Hides::Nothing } else { Hides::Anything };
        self.make_room(&blank.id, source.made.clone(), hides).await?;
        let own = self.own_volumes(&blank.id, &source.cut).await?;
        let volumes = [&source.volumes[..], &own].concat();
        self.attach_volumes(&blank.id, &volumes).await?;
        self.apply_network(&blank.id, &source.network).await?;
        let on_fork = source.runs_on_fork();
        if let (Some(of), true, None) = (&source.copies, on_fork, &blank.parked) {
            // Only a parked copy can be held.
            self.park(blank, of.zygote, &of.engine).await?;
        }
        let running = match (blank.parked.take(), &source.copies) {
            (Some(parked), _) => Some(self.release(parked, on_fork).await?),
            (None, Some(of)) => Some(self.fork_into(of, blank).await?),
            (None, None) => None,
        };
        let (program, commands, held) =
            running.map_or((None, None, None), |Running { program, commands, held }| (program, Some(commands), held));
        let (main, ended) = program.unzip();
        let record = SandboxRecord {
            id: blank.id.clone(),
            template: source.template.clone(),
            parent: source.parent.clone(),
            layers: self.host.changes.split(&source.layers).1.to_vec(),
            pages: source.pages.clone(),
            limits: source.limits.clone(),
            init: blank.init,
            main: main.unwrap_or(NOBODY),
            arena: source.copies.as_ref().map(|of| of.engine.arena),
            created_ms: now_ms(),
            start_us: began.elapsed().as_micros() as u64,
            state: SandboxState::Running,
            reason: None,
            spec: Some(source.spec.clone()),
            paused_ms: None,
            held: None,
            volumes,
            reservation: source.reservation.clone(),
            network: source.network.clone(),
            kept: None,
            fork_points: self.fork_points(source),
        };
        blank.record.finish(&record)?;
        self.show_own_volumes(&blank.id, &source.cut)?;
        let sandbox = record.to_model();
        self.state().started(record);
        match ended {
            Some(ended) => {
                self.monitor(blank.id.clone(), ended);
                self.learn_later(&blank.id);
            }
            None => self.watch_idle(&blank.id),
        }
        if let Some((streams, spawned)) = commands {
            self.hold_forked(&blank.id, streams, spawned).await?;
        }
        if on_fork {
            // On the heap: most starts have none.
            Box::pin(self.run_on_fork(&blank.id, &source.spec)).await?;
        }
        drop(held);
        Ok(sandbox)
    }

    /// Forks a copy into a blank sandbox.
    pub(super) async fn fork_into(
        &self,
        CopyOf { zygote, engine, interpreter }: &CopyOf,
        blank: &Blank,
    ) -> Result<Running> {
        let output = &*blank.output;
        let (theirs, streams) = self.make_streams(engine, blank.init.pid, [&self.host.null, output, output])?;
        let start = self.state().new_start();
        let interpreter = match interpreter {
            Interpreter::InProcess => protocol::Interpreter::InProcess,
            Interpreter::Stepping => protocol::Interpreter::Stepping,
        };
        let copy = StartCopy { zygote: *zygote, sandbox: blank.id.clone(), start, interpreter };
        let Spawned { process, ended, commands, .. } = self.keepers.call(copy, theirs.iter().collect()).await?;
        let program = (!engine.without_program).then_some((process, ended));
        Ok(Running { program, commands: (streams, commands), held: None })
    }

    /// Makes a sandbox without a program, of a bare one if there is one. A failure leaves nothing.
    pub(super) async fn create_blank(self: &Arc<Self>, layers: &[PathBuf], limits: &model::Limits) -> Result<Blank> {
        self.check_room().await?;
        let _turn = self.keepers.creation().await;
        let bare = self.state().take_bare();
        let id = bare.as_ref().map_or_else(|| self.state().claim(), |bare| bare.id.clone());
        let created = match bare {
            Some(bare) => self.furnish(bare, layers, limits).await,
            None => self.try_create(&id, layers, limits, None).await,
        };
        if created.is_err() {
            self.discard(id).await;
        }
        created
    }

    /// Makes a sandbox that lacks a root filesystem. A failure leaves nothing.
    pub(super) async fn create_bare(self: &Arc<Self>) -> Result<Blank> {
        let _turn = self.keepers.creation().await;
        let id = self.state().claim();
        let bare = CreateBare { sandbox: id.clone(), dir: self.host.config.sandbox_dir(&id) };
        let created = match self.create_connected(&id, bare, []).await {
            // Its directory is there from here on.
            Ok(Created { init }) => self
                .make_output(&id)
                .and_then(|(output, carriage)| self.blank(&id, init, &[], output).map(|blank| (blank, carriage)))
                .map(|(blank, carriage)| Blank { carriage: Some(carriage), ..blank }),
            Err(error) => Err(error),
        };
        if created.is_err() {
            self.discard(id).await;
        }
        created
    }

    async fn furnish(&self, mut bare: Blank, layers: &[PathBuf], limits: &model::Limits) -> Result<Blank> {
        let furnish = Furnish { spec: self.spec(&bare.id, layers, limits) };
        let carriage =
            bare.carriage.take().ok_or(std::io::ErrorKind::NotFound).doing("take the output of a bare sandbox")?;
        self.keepers.call(furnish, carriage.descriptors()).await?;
        Ok(Blank { layers: layers.to_vec(), ..bare })
    }

    /// Makes a sandbox without a program, as `machine` if it has been there before. After a failure some of it may be left.
    pub(super) async fn try_create(
        &self,
        id: &SandboxId,
        layers: &[PathBuf],
        limits: &model::Limits,
        machine: Option<Machine>,
    ) -> Result<Blank> {
        let create = CreateSandbox { spec: self.spec(id, layers, limits), machine };
        let (output, carriage) = self.make_output(id)?;
        let Created { init } = self.create_connected(id, create, carriage.descriptors()).await?;
        self.blank(id, init, layers, output)
    }

    pub(super) fn spec(&self, id: &SandboxId, layers: &[PathBuf], limits: &model::Limits) -> sandbox::Spec {
        let (from, below) = self.host.changes.split(layers);
        let changes = self.host.changes.of_new(id, from.map(PathBuf::as_path));
        let (dir, from, layers) = (self.host.config.sandbox_dir(id), from.cloned(), below.to_vec());
        let (users, limits) = (sandbox::Users::of(&layers), self.host.changes.limits(limits, &changes));
        let dns = self.host.network.as_ref().map(|_| network::GATEWAY);
        sandbox::Spec { id: id.clone(), dir, changes, from, layers, limits, users, dns }
    }

    fn blank(&self, id: &SandboxId, init: ProcessIdentity, layers: &[PathBuf], output: OwnedFd) -> Result<Blank> {
        let record = Arc::new(records::Draft::create(&self.host.config.sandbox_dir(id).join(RECORD))?);
        let (id, layers, output) = (id.clone(), layers.to_vec(), Arc::new(output));
        Ok(Blank { id, init, layers, output, carriage: None, record, parked: None })
    }
}
