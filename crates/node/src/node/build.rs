//! Building a template: its program in a sandbox of its own, until it is ready; then a zygote of it; then the sandbox is gone.

use std::{os::fd::OwnedFd, path::PathBuf, pin::Pin, sync::Arc, time::Instant};

use base::id::{SandboxId, TemplateName, ZygoteId};
use keeper::{
    NewZygote,
    protocol::{Base, Call, Capture, CreateSandbox, Created, Purpose, Source},
};
use model::{BuildProgress, BuildStage, BuildTimings, TemplateSpec};
use tokio::sync::{mpsc, oneshot};

use super::{
    Node,
    exec::command,
    images::{random_suffix, remove_quietly},
    now_ms,
    users::program_account,
};
use crate::{
    config::RECORD,
    error::{Context, Error, Forked, Result},
    records::{self, Durability, TemplateRecord},
    state::ZygoteRef,
};

/// Where a build tells how far it is, and learns that its client has left.
pub struct Progress {
    began: Instant,
    listener: Option<Listener>,
}

struct Listener {
    tell: Box<dyn Fn(BuildProgress) + Send + Sync>,
    left: Box<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>,
}

impl Progress {
    /// For the client at the other end of `listener`.
    pub fn to<E: Send + 'static>(
        listener: mpsc::UnboundedSender<E>,
        event: impl Fn(BuildProgress) -> E + Send + Sync + 'static,
    ) -> Self {
        let client = listener.clone();
        let tell = Box::new(move |progress| {
            // A client that has left is noticed by `abandoned`.
            let _ = listener.send(event(progress));
        });
        let left = Box::new(move || {
            let client = client.clone();
            Box::pin(async move { client.closed().await }) as Pin<Box<dyn Future<Output = ()> + Send>>
        });
        Self { began: Instant::now(), listener: Some(Listener { tell, left }) }
    }

    /// For no client in particular: such a build is not cancelled.
    pub fn unheard() -> Self {
        Self { began: Instant::now(), listener: None }
    }

    fn stage(&self, stage: BuildStage) {
        if let Some(listener) = &self.listener {
            (listener.tell)(BuildProgress { stage, elapsed_ms: self.began.elapsed().as_millis() as u64 });
        }
    }

    async fn abandoned(&self) {
        match &self.listener {
            Some(listener) => (listener.left)().await,
            None => std::future::pending().await,
        }
    }
}

/// Gives the template back its former state unless the build finishes.
pub(super) struct Admitted<'a> {
    node: &'a Node,
    name: &'a TemplateName,
}

impl<'a> Admitted<'a> {
    pub(super) fn new(node: &'a Node, name: &'a TemplateName) -> Self {
        Self { node, name }
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.node.state().abandon_build(self.name);
        self.node.ledger.changed();
    }
}

/// A zygote of a running program.
pub(super) struct Built {
    pub(super) zygote: ZygoteRef,
    pub(super) timings: BuildTimings,
    /// A file that holds the program's description, if that was wanted.
    pub(super) description: Option<OwnedFd>,
}

/// What a build is made of and leaves.
struct Job {
    spec: TemplateSpec,
    source: SandboxId,
    zygote: ZygoteId,
    image_layers: Vec<PathBuf>,
    layer: PathBuf,
}

impl Node {
    /// Builds a template, or builds it anew.
    #[tracing::instrument(skip_all, fields(template = %spec.name))]
    pub async fn build(self: &Arc<Self>, spec: TemplateSpec, progress: &Progress) -> Result<model::Template> {
        super::builder::check_name(&spec.name)?;
        self.host.changes.check_limits(&spec.limits)?;
        self.check_room().await?;
        let spec = self.with_digest(spec)?;
        self.state().begin_build(&spec)?;
        let admitted = Admitted::new(self, &spec.name);
        self.ledger.changed();
        progress.stage(BuildStage::PreparingImage);
        let (image_layers, _guard) = self.prepare_image(&spec).await?;
        let built = match program_account(&spec, &image_layers) {
            Ok(_) => self.build_admitted(&spec, image_layers.clone(), progress).await,
            Err(error) => Err(error),
        };
        drop(admitted);
        if built.is_err() {
            let own = image_layers.into_iter().filter(|layer| layer.starts_with(self.host.config.images_dir()));
            for layer in own {
                remove_quietly(&layer).await;
            }
        }
        built?;
        self.state().template(&spec.name)
    }

    /// Builds the lost zygote of a template again.
    pub(super) async fn rebuild(self: &Arc<Self>, record: TemplateRecord) -> Result<()> {
        if record.checkpoint.is_some() {
            return match self.restore(&record.spec.name).await? {
                Some(()) => Ok(()),
                None => Err(Error::NoCheckpoint(record.spec.name)),
            };
        }
        self.state().begin_again(&record.spec)?;
        let _admitted = Admitted::new(self, &record.spec.name);
        self.ledger.changed();
        self.build_admitted(&record.spec, record.image_layers, &Progress::unheard()).await
    }

    async fn build_admitted(
        self: &Arc<Self>,
        spec: &TemplateSpec,
        image_layers: Vec<PathBuf>,
        progress: &Progress,
    ) -> Result<()> {
        let directory = self.host.config.template_dir(&spec.name);
        std::fs::create_dir_all(&directory).at("create", &directory)?;
        let (source, point, zygote) = {
            let mut state = self.state();
            (state.claim(), state.claim(), state.new_zygote())
        };
        // An idle one has no changes.
        let snapshot = self.host.changes.template_layer(&point).filter(|_| !spec.command.is_empty());
        let layer = snapshot.unwrap_or_else(|| directory.join(format!("layer-{}", random_suffix())));
        let finished = self.build_into(layer, (source, zygote), spec, image_layers, progress).await;
        self.state().release(&point);
        if finished.is_err() {
            // Only if nothing else is in it: an earlier build stays.
            let _ = std::fs::remove_dir(&directory);
        }
        finished
    }

    /// Builds it with its changes in the new directory `layer`, which a failure leaves out.
    async fn build_into(
        self: &Arc<Self>,
        layer: PathBuf,
        (source, zygote): (SandboxId, ZygoteId),
        spec: &TemplateSpec,
        image_layers: Vec<PathBuf>,
        progress: &Progress,
    ) -> Result<()> {
        let job = Job { spec: spec.clone(), source, zygote, image_layers, layer };
        if spec.command.is_empty() {
            return self.finish_idle(&job, progress).await;
        }
        let built = tokio::select! {
            biased;
            built = self.build_zygote(&job, progress) => built,
            () = progress.abandoned() => Err(Error::Cancelled),
        };
        if built.is_ok() {
            progress.stage(BuildStage::RemovingSource);
        } else {
            self.drop_zygote(job.zygote).await;
        }
        self.discard(job.source.clone()).await;
        let finished = match built {
            Ok((zygote, timings)) => self.finish_build(&job, Some(zygote), timings, progress).await,
            Err(error) => Err(error),
        };
        if finished.is_err() {
            self.remove_layers(vec![job.layer.clone()]).await;
        }
        self.ledger.metrics.built(&finished);
        finished
    }

    /// Without a program there is nothing to start and nothing to capture: sandboxes of it are blank ones.
    async fn finish_idle(self: &Arc<Self>, job: &Job, progress: &Progress) -> Result<()> {
        self.state().release(&job.source);
        std::fs::create_dir_all(&job.layer).at("create", &job.layer)?;
        let finished = self.finish_build(job, None, BuildTimings::default(), progress).await;
        if finished.is_err() {
            remove_quietly(&job.layer).await;
        }
        self.ledger.metrics.built(&finished);
        finished
    }

    async fn build_zygote(self: &Arc<Self>, job: &Job, progress: &Progress) -> Result<(ZygoteRef, BuildTimings)> {
        progress.stage(BuildStage::StartingProgram);
        let spec = &job.spec;
        let account = program_account(spec, &job.image_layers)?;
        let create = self.spec(&job.source, &job.image_layers, &spec.limits);
        let (output, carriage) = self.make_output(&job.source)?;
        let create = CreateSandbox { spec: create, machine: None };
        let Created { init } = self.create_connected(&job.source, create, carriage.descriptors()).await?;

        self.make_mount_points(&job.source, &spec.mount_points).await?;

        let streams = self.streams(&job.source, init)?;
        let spawned = Instant::now();
        let main = command(&self.host.config.given, spec, &account, spec.command.clone(), &[], None);
        let (main, mut ended) = self.spawn(&job.source, main, true, [&self.host.null, &output, &output]).await?;
        progress.stage(BuildStage::WaitingUntilReady);
        let ready = self.wait_until_ready(spec, &job.source, &account, (init, main), &mut ended).await?;
        let ready_us = ready.duration_since(spawned).as_micros() as u64;

        progress.stage(BuildStage::BuildingZygote);
        let request = Capture {
            zygote: job.zygote,
            source: Source {
                sandbox: job.source.clone(),
                main,
                commands: Vec::new(),
                without_program: false,
                streams,
                earlier_arena: None,
                mount_points: spec.mount_points.iter().map(PathBuf::from).collect(),
                volumes: Vec::new(),
            },
            base: Base { zygote: None, layers: job.image_layers.clone() },
            layer: job.layer.clone(),
            purpose: Purpose::Template,
        };
        let what = Forked::Template(spec.name.clone());
        match self.request_zygote(request, what, None).await {
            Ok(Built { zygote, timings, .. }) => Ok((zygote, BuildTimings { ready_us, ..timings })),
            Err(error) => Err(self.or_its_end(&job.source, (init, main), &mut ended, error).await),
        }
    }

    /// Has the keeper build a zygote. `captured` resolves as soon as sandboxes can be made on its layer.
    pub(super) async fn request_zygote(
        &self,
        request: Capture,
        what: Forked,
        captured: Option<oneshot::Sender<()>>,
    ) -> Result<Built> {
        let number = request.zygote;
        let keeper = self.keepers.get(Capture::ACTION).await?;
        match keeper.call_capture(request, [], captured).await? {
            Ok(NewZygote { facts, pause_us, capture_us, build_us, file }) => {
                let timings = BuildTimings { ready_us: 0, pause_us, capture_us, build_us, total_us: 0 };
                let zygote = ZygoteRef::new(number, facts, timings.clone());
                Ok(Built { zygote, timings, description: file })
            }
            Err(refusals) => {
                self.ledger.metrics.refused(&refusals);
                let refusals = refusals.into_iter().map(|refusal| refusal.reason).collect();
                Err(Error::CannotFork { what, refusals })
            }
        }
    }

    async fn finish_build(
        self: &Arc<Self>,
        job: &Job,
        mut zygote: Option<ZygoteRef>,
        mut timings: BuildTimings,
        progress: &Progress,
    ) -> Result<()> {
        timings.total_us = progress.began.elapsed().as_micros() as u64;
        if let Some(zygote) = &mut zygote {
            zygote.facts.timings = timings.clone();
        }
        let earlier = self.state().template_record(&job.spec.name).map(|earlier| earlier.created_ms);
        let record = TemplateRecord {
            spec: job.spec.clone(),
            created_ms: earlier.unwrap_or_else(now_ms),
            image_layers: job.image_layers.clone(),
            layer: job.layer.clone(),
            timings,
            checkpoint: None,
            is_built: false,
            pages: None,
            volumes: Vec::new(),
        };
        self.install(record, zygote).await
    }

    /// A template is ready, and takes the place of what was there.
    pub(super) async fn install(self: &Arc<Self>, record: TemplateRecord, zygote: Option<ZygoteRef>) -> Result<()> {
        let earlier = self.state().template_record(&record.spec.name).cloned();
        let path = self.host.config.template_dir(&record.spec.name).join(RECORD);
        // What was restored can be again.
        let durability = if record.checkpoint.is_some() { Durability::Process } else { Durability::Machine };
        if let Err(error) = records::write(&path, &record, durability) {
            if let Some(zygote) = zygote {
                self.drop_zygote(zygote.number).await;
            }
            return Err(error);
        }
        let (unused, blanks) = self.state().finish_build(record, zygote);
        for zygote in unused {
            self.retire_zygote(zygote.number).await;
        }
        self.discard_blanks(blanks).await;
        let unused = earlier.map(|earlier| earlier.layers()).unwrap_or_default();
        let unused = self.state().unused(unused);
        self.remove_layers(unused).await;
        Ok(())
    }

    /// Removes a template that no sandbox uses.
    #[tracing::instrument(skip_all, fields(template = %name))]
    pub async fn remove_template(self: &Arc<Self>, name: &TemplateName) -> Result<()> {
        let (layers, removed) = {
            let mut state = self.state();
            let layers = state.template_record(name).map(TemplateRecord::layers).unwrap_or_default();
            (layers, state.remove_template(name)?)
        };
        let (zygote, blanks) = removed;
        let directory = self.host.config.template_dir(name);
        let _ = std::fs::remove_file(directory.join(RECORD));
        if let Some(zygote) = zygote {
            self.retire_zygote(zygote.number).await;
        }
        self.discard_blanks(blanks).await;
        // A start that is under way keeps the layers that it stands on.
        let left = std::fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let unused = self.state().unused(layers.into_iter().chain(left).collect());
        self.remove_layers(unused).await;
        let _ = std::fs::remove_dir(&directory);
        self.ledger.changed();
        Ok(())
    }
}
