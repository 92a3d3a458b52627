//! What a recipe begins with: a template, or an image, which is fetched if the node lacks it.

use std::{path::PathBuf, pin::pin, sync::Arc, time::Duration};

use base::text;
use images::Naming;
use model::{BuildLevel, Image, KeptImage, Origin, PullProgress, Recipe, TemplateSpec};
use tokio::sync::watch;

use super::{BuildOptions, temporary};
use crate::{
    error::{Error, Result},
    node::{Node, images::ImageGuard},
};

/// How often a build says how far its download is.
const TOLD: Duration = Duration::from_secs(2);

/// What a build begins with.
pub(super) struct Begun {
    pub(super) spec: TemplateSpec,
    /// Topmost first.
    pub(super) layers: Vec<PathBuf>,
    /// What tells its files from others.
    pub(super) identity: String,
    /// Layers of images stay until it is dropped.
    pub(super) guard: Option<ImageGuard>,
}

impl Node {
    /// Looks it up, or fetches it.
    pub(super) async fn origin(self: &Arc<Self>, recipe: &Recipe, options: &BuildOptions<'_>) -> Result<Begun> {
        let (mut spec, layers, identity, guard) = match &recipe.from {
            Origin::Template(name) => {
                self.warm(name).await?;
                let record = self.state().template_record(name).cloned();
                let record = record.ok_or_else(|| Error::NoTemplate(name.clone()))?;
                let layers = record.layers();
                let identity = record.checkpoint.unwrap_or_else(|| format!("{layers:?}"));
                let mut spec = record.spec;
                if !spec.command.is_empty() {
                    // Its memory is of its own files: on others it begins anew.
                    spec.startup = std::mem::take(&mut spec.command);
                }
                (spec, layers, identity, None)
            }
            Origin::Image(name) => {
                let image = self.image_for(name, options).await?;
                let spec = spec_of(&image, recipe)?;
                let (layers, guard) = self.prepare_image(&spec).await?;
                (spec, layers, image.digest, Some(guard))
            }
        };
        // What the operator gives may have changed since.
        let given: Vec<_> = layers.iter().filter(|layer| self.is_given(layer)).collect();
        let identity = format!("{identity} {given:?} {:?}", self.host.config.given.env);
        if let Some(command) = &recipe.on_fork {
            spec.on_fork = ["/bin/sh", "-c", command].map(str::to_owned).to_vec();
        }
        spec.limits = recipe.limits.clone();
        spec.mount_points.clear();
        if let Some(user) = &recipe.user {
            spec.user = Some(user.clone());
        }
        if let Some(cwd) = &recipe.cwd {
            spec.cwd.clone_from(cwd);
        }
        Ok(Begun { spec, layers, identity, guard })
    }

    /// The image of this name: that of the node, or else that of its registry.
    async fn image_for(self: &Arc<Self>, name: &str, options: &BuildOptions<'_>) -> Result<KeptImage> {
        let kept = self.kept_image(name);
        if options.credentials.is_none() && !matches!(kept, Err(Error::Image(images::Error::NotFound(_)))) {
            return kept;
        }
        options.say(None, BuildLevel::Info, format!("PULL {name}"));
        let (tell, mut told) = watch::channel(None);
        let progress = move |progress: PullProgress| {
            tell.send_replace(Some(progress));
        };
        let naming = if options.credentials.is_some() { Naming::ByDigest } else { Naming::AsAsked };
        let mut pull = pin!(self.pull_image(name, options.credentials.as_ref(), naming, progress));
        let mut cancelled = options.cancelled.clone();
        loop {
            tokio::select! {
                pulled = &mut pull => return pulled,
                Ok(_) = cancelled.wait_for(|cancelled| *cancelled) => return Err(Error::Cancelled),
                () = tokio::time::sleep(TOLD) => {
                    let progress = *told.borrow_and_update();
                    let shown = match progress {
                        Some(PullProgress::Bytes { done, all }) => format!("{} of {}", text::bytes(done), text::bytes(all)),
                        Some(PullProgress::Layers { done, all }) => format!("{done} of {all} layers"),
                        None => continue,
                    };
                    options.say(None, BuildLevel::Info, shown);
                }
            }
        }
    }
}

fn spec_of(image: &KeptImage, recipe: &Recipe) -> Result<TemplateSpec> {
    let KeptImage { name, digest, env, user, working_dir, .. } = image.clone();
    // One that was asked for by digest has that behind its name.
    let name = name.split('@').next().unwrap_or_default();
    Ok(TemplateSpec {
        name: temporary()?,
        image: Image::Named(format!("{name}@{digest}")),
        command: Vec::new(),
        env,
        cwd: Some(working_dir).filter(|path| !path.is_empty()).unwrap_or_else(|| "/".to_owned()),
        ready: recipe.ready.clone(),
        ready_timeout_ms: recipe.ready_timeout_ms,
        limits: recipe.limits.clone(),
        mount_points: Vec::new(),
        user: Some(user).filter(|user| !user.is_empty()).or_else(|| Some("root".to_owned())),
        startup: Vec::new(),
        on_fork: Vec::new(),
    })
}
