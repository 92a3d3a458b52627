//! Templates from recipes: each step in a sandbox of its own, on the layers that the steps before have left.
//!
//! ```text
//! origin: layers ─► step: sandbox on them ─► its changes, copied: one layer more ─► ... ─► checkpoint of all of them
//!                    └ not if an earlier build has left its layer: BUILDS/KEY
//! ```
//!
//! Nothing that a step has started outlives it. A layer is known by all that has led to it: the origin, the steps before, and what was copied.
//! What a build makes is a checkpoint, so every node can start it: of files, and of what its start command has come to.

mod cache;
mod copy;
mod origin;
mod started;
mod step;

use std::{path::PathBuf, sync::Arc};

use base::{id::TemplateName, limits::BUILD_STEPS_MAX};
use model::{Action, BuildLevel, BuildLine, BuildTimings, Ready, Recipe, Step, TemplateSpec};
use registry::Credentials;
use sandbox::LAYERS_MAX;
use tokio::{runtime::Handle, sync::watch};

use self::{cache::Key, origin::Begun};
use super::{
    KeepProgress, Node,
    checkpoints::{CapturedFiles, write_files},
    cut::Cut,
    files_only::Files,
    images::random_suffix,
    layers::Pinned,
    now_ms,
};
use crate::{
    error::{Context as _, Error, RecipeError, Result, StepName},
    records::TemplateRecord,
};

/// How the names of templates begin that are there while a build runs.
const PREFIX: &str = "build-";
/// Digits of such a name.
const DIGITS: usize = 16;

/// Where the lines of a build go.
pub type BuildLog = dyn Fn(BuildLine) + Send + Sync;

/// How a recipe is built.
pub struct BuildOptions<'a> {
    /// The result of an earlier build of the same recipe will do.
    pub may_reuse: bool,
    /// For the registry of its image, which is asked for it even if the node has it. The image gets no name on the node: others may not use it.
    pub credentials: Option<Credentials>,
    /// Where its lines go.
    pub log: &'a BuildLog,
    /// Becomes true when the client gives the build up.
    pub cancelled: watch::Receiver<bool>,
}

impl std::fmt::Debug for BuildOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuildOptions").field("may_reuse", &self.may_reuse).finish_non_exhaustive()
    }
}

impl BuildOptions<'_> {
    fn say(&self, step: Option<usize>, level: BuildLevel, text: String) {
        (self.log)(BuildLine { at_ms: now_ms(), level, step, text });
    }
}

/// Whether a template is there for a build only.
pub(super) fn is_of_a_build(name: &TemplateName) -> bool {
    let digits = name.as_str().strip_prefix(PREFIX).unwrap_or_default();
    digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What the steps have come to.
struct Building<'a> {
    node: &'a Arc<Node>,
    recipe: &'a Recipe,
    options: &'a BuildOptions<'a>,
    /// The step at work, counted from 1.
    at: Option<usize>,
    /// The template of its sandboxes.
    name: TemplateName,
    /// Of the sandbox of the next step, and in the end of the template.
    spec: TemplateSpec,
    /// Topmost first.
    layers: Vec<PathBuf>,
    /// They stay until the build is over.
    pinned: Vec<Pinned>,
    key: Key,
    /// What sandboxes of the origin begin with, unless the recipe says something else.
    inherited: Startup,
    /// Nothing that follows is taken from an earlier build.
    is_forced: bool,
}

/// A program that sandboxes begin with, and when it is ready.
struct Startup {
    program: Vec<String>,
    ready: Ready,
    timeout_ms: u64,
}

impl Node {
    /// Makes the checkpoint `name` of a recipe, and a template of it here. If an earlier build has come to the same, and it may be reused, it is
    /// that one. Gives which. A step that runs when it is `cancelled` is ended; a build that has done all steps is completed.
    #[tracing::instrument(skip_all, fields(template = %name))]
    pub async fn build_recipe(
        self: &Arc<Self>,
        name: &TemplateName,
        recipe: &Recipe,
        options: &BuildOptions<'_>,
    ) -> std::result::Result<TemplateName, RecipeError> {
        let of = |step: StepName| move |source: Error| RecipeError { step, source: Box::new(source) };
        self.check_room().await.map_err(of(StepName::Base))?;
        check(name, recipe).map_err(of(StepName::Base))?;
        let origin = Box::pin(self.origin(recipe, options)).await.map_err(of(StepName::Base))?;
        let Begun { mut spec, layers, identity, guard } = origin;
        let inherited = Startup {
            program: std::mem::take(&mut spec.startup),
            ready: spec.ready.clone(),
            timeout_ms: spec.ready_timeout_ms,
        };
        let pinned = vec![self.pin(layers.clone())];
        drop(guard);
        let checked = super::check_spec(&spec).and_then(|()| self.host.changes.check_limits(&spec.limits));
        checked.and_then(|()| check_layers(&layers, recipe)).map_err(of(StepName::Base))?;
        let mut building = Building {
            node: self,
            recipe,
            options,
            at: None,
            name: temporary().map_err(of(StepName::Base))?,
            key: Key::of_origin(&recipe.scope, &identity, &spec),
            spec,
            layers,
            pinned,
            inherited,
            is_forced: recipe.force,
        };
        let built = Box::pin(building.build(name)).await;
        building.leave().await;
        self.trim_builds(false).await;
        built
    }

    /// Removes what builds of an earlier node have left.
    pub(super) async fn sweep_builds(self: Arc<Self>) {
        let began_ms = now_ms().saturating_sub(self.host.began.elapsed().as_millis() as u64);
        let sandboxes = self.state().sandboxes().into_iter();
        let left: Vec<_> =
            sandboxes.filter(|found| is_of_a_build(&found.template) && found.created_ms < began_ms).collect();
        for sandbox in left {
            if let Err(error) = self.remove(&sandbox.id).await {
                tracing::warn!(sandbox = %sandbox.id, error = crate::chain(&error), "a sandbox of a build that was cut off stays");
            }
        }
        let templates = self.state().templates().into_iter();
        let left: Vec<_> = templates
            .filter(|found| is_of_a_build(&found.name) && found.created_ms < began_ms)
            .map(|found| found.name)
            .collect();
        for name in &left {
            if let Err(error) = self.remove_template(name).await {
                tracing::warn!(template = %name, error = crate::chain(&error), "what a build has left stays");
            }
        }
        self.trim_builds(true).await;
    }
}

fn invalid(message: String) -> Result<()> {
    Err(Error::Invalid { message, hint: None })
}

/// Names of builds are the node's own.
pub(super) fn check_name(name: &TemplateName) -> Result<()> {
    match is_of_a_build(name) {
        true => invalid(format!("{name} is a name of the node's own: choose another one")),
        false => Ok(()),
    }
}

fn check(name: &TemplateName, recipe: &Recipe) -> Result<()> {
    check_name(name)?;
    match recipe.steps.len() {
        0..=BUILD_STEPS_MAX => Ok(()),
        steps => invalid(format!("the build has {steps} steps, more than {BUILD_STEPS_MAX}")),
    }
}

/// Before any step is done: all of them must find place in one root.
fn check_layers(layers: &[PathBuf], recipe: &Recipe) -> Result<()> {
    let adds = |step: &&Step| matches!(step.action, Action::Run { .. } | Action::Copy { .. } | Action::Directory(_));
    // One for a directory that the origin lacks, or for its own files; one for the sandbox.
    let all = layers.len() + recipe.steps.iter().filter(adds).count() + 2;
    match all {
        0..=LAYERS_MAX => Ok(()),
        _ => invalid(format!(
            "the origin has {} layers, and each step adds one: they would be {all}, and a root has {LAYERS_MAX} at most",
            layers.len()
        )),
    }
}

fn temporary() -> Result<TemplateName> {
    let name = format!("{PREFIX}{}{}", random_suffix(), random_suffix());
    name.parse().map_err(|_| Error::Invalid { message: format!("{name} is no name"), hint: None })
}

impl Building<'_> {
    async fn build(&mut self, name: &TemplateName) -> std::result::Result<TemplateName, RecipeError> {
        let recipe = self.recipe;
        let begun = Box::pin(self.make_first_directory()).await;
        begun.map_err(|source| RecipeError { step: StepName::Base, source: Box::new(source) })?;
        for (index, step) in recipe.steps.iter().enumerate() {
            self.at = Some(index + 1);
            let done = if *self.options.cancelled.borrow() {
                Err(Error::Cancelled)
            } else {
                Box::pin(self.perform(step)).await
            };
            done.map_err(|source| RecipeError { step: StepName::Step(index + 1), source: Box::new(source) })?;
        }
        self.at = None;
        let finished = Box::pin(self.finish(name)).await;
        finished.map_err(|source| RecipeError { step: StepName::Finalize, source: Box::new(source) })
    }

    /// As Docker does: an image may name a working directory that none of its layers has.
    async fn make_first_directory(&mut self) -> Result<()> {
        if step::is_there(&self.layers, &self.spec.cwd) {
            return Ok(());
        }
        let action = Action::Directory(self.spec.cwd.clone());
        self.key = self.key.then(&action);
        self.layer(&format!("WORKDIR {}", self.spec.cwd), &action).await
    }

    fn say(&self, level: BuildLevel, text: impl Into<String>) {
        self.options.say(self.at, level, text.into());
    }

    async fn perform(&mut self, step: &Step) -> Result<()> {
        self.is_forced |= step.force;
        self.key = self.key.then(&step.action);
        match &step.action {
            Action::Env(variables) => {
                for (name, value) in variables {
                    self.spec.env.retain(|(earlier, _)| earlier != name);
                    self.spec.env.push((name.clone(), value.clone()));
                }
                let names: Vec<&str> = variables.iter().map(|(name, _)| name.as_str()).collect();
                self.say(BuildLevel::Info, format!("ENV {}", names.join(" ")));
                super::check_spec(&self.spec)
            }
            Action::User(user) => {
                self.say(BuildLevel::Info, format!("USER {user}"));
                self.spec.user = Some(user.clone());
                self.check_user(user).await
            }
            Action::Directory(path) => {
                self.spec.cwd = step::within(&self.spec.cwd, path);
                let title = format!("WORKDIR {}", self.spec.cwd);
                self.layer(&title, &step.action).await
            }
            Action::Run { command, .. } => {
                let (first, rest) = command.trim().split_once('\n').unwrap_or((command.trim(), ""));
                let title = format!("RUN {}{}", first.trim_end(), if rest.is_empty() { "" } else { " ..." });
                self.layer(&title, &step.action).await
            }
            Action::Copy { source, target, .. } => self.layer(&format!("COPY {source} {target}"), &step.action).await,
        }
    }

    /// Adds the layer of an action: that of an earlier build, or a new one.
    async fn layer(&mut self, title: &str, action: &Action) -> Result<()> {
        let kept = if self.is_forced { None } else { self.node.kept_layer(&self.key) };
        let layer = match kept {
            Some(layer) => {
                self.say(BuildLevel::Info, format!("CACHED {title}"));
                layer
            }
            None => {
                self.say(BuildLevel::Info, title);
                Box::pin(self.make_layer(action)).await?
            }
        };
        // What the origin has on the btrfs is among the changes of what was started on it.
        if self.node.host.changes.split(&self.layers).0.is_some() {
            self.layers.remove(0);
        }
        self.layers.insert(0, layer.path);
        self.pinned.push(layer.pinned);
        self.key = self.key.above(&layer.id);
        Ok(())
    }

    /// A layer of its own for what the origin has on the btrfs, or if there is no other: something must be in the store.
    async fn copy_origin(&mut self) -> Result<()> {
        let is_on_btrfs = self.node.host.changes.split(&self.layers).0.is_some();
        if !is_on_btrfs && !self.node.own_layers(&self.layers).is_empty() {
            return Ok(());
        }
        let nothing = Action::Env(Vec::new());
        self.key = self.key.then(&nothing);
        self.layer("the files of the origin", &nothing).await
    }

    /// All steps are done.
    async fn finish(&mut self, name: &TemplateName) -> Result<TemplateName> {
        let recipe = self.recipe;
        // Before there is a startup: what that writes is not among them.
        Box::pin(self.copy_origin()).await?;
        let own = recipe.startup.as_ref().map(|command| Startup {
            program: step::shell(&self.layers, command),
            ready: recipe.ready.clone(),
            timeout_ms: recipe.ready_timeout_ms,
        });
        let Startup { program, ready, timeout_ms } = own.as_ref().unwrap_or(&self.inherited);
        self.spec.startup.clone_from(program);
        self.spec.ready = ready.clone();
        self.spec.ready_timeout_ms = *timeout_ms;
        super::check_spec(&self.spec)?;
        let result = self.key.result(&self.spec);
        if self.options.may_reuse
            && !self.is_forced
            && let Some(earlier) = self.node.kept_result(&result)
            && self.node.find_checkpoint(&earlier).await.is_ok()
        {
            self.say(BuildLevel::Info, "CACHED: an earlier build has come to the same");
            return Ok(earlier);
        }
        if self.spec.startup.is_empty() || !Box::pin(self.keep_started(name)).await? {
            self.say(BuildLevel::Info, "storing the files");
            Box::pin(self.store(name)).await?;
        }
        self.node.keep_result(&result, name);
        self.say(BuildLevel::Info, "done");
        Ok(name.clone())
    }

    /// Writes the checkpoint, and has a template of it on the same layers.
    async fn store(&self, name: &TemplateName) -> Result<()> {
        let node = self.node;
        let spec = TemplateSpec { name: name.clone(), ..self.spec.clone() };
        let own = node.own_layers(&self.layers);
        let files = Files { pause: std::time::Duration::ZERO, cut: Cut::default() };
        let captured = CapturedFiles { spec: spec.clone(), layers: own, files };
        let commit = node.commit_as(name, true).await?;
        let (durable, runtime) = (node.durable.clone(), Handle::current());
        let write = move || write_files(&durable, &runtime, captured, commit, &KeepProgress::unheard());
        let written = tokio::task::spawn_blocking(write).await.doing("write the template").flatten()?;
        node.supersede(&written).await;
        let [layer, image_layers @ ..] = &self.layers[..] else { return Ok(()) };
        let record = TemplateRecord {
            spec,
            created_ms: written.created_ms,
            image_layers: image_layers.to_vec(),
            layer: layer.clone(),
            timings: BuildTimings::default(),
            checkpoint: Some(written.manifest),
            is_built: true,
            pages: None,
            volumes: Vec::new(),
        };
        let directory = node.host.config.template_dir(name);
        std::fs::create_dir_all(&directory).at("create", &directory)?;
        node.install(record, None).await?;
        node.ledger.changed();
        Ok(())
    }

    /// Removes what was there for the build only.
    async fn leave(&self) {
        match self.node.remove_template(&self.name).await {
            Ok(()) | Err(Error::NoTemplate(_)) => {}
            Err(error) => {
                tracing::warn!(template = %self.name, error = crate::chain(&error), "what a build has left stays until the node starts again");
            }
        }
    }
}
