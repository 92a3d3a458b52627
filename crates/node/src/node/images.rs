//! From an image to overlay layers.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use images::{Config, Images, Kept, Naming};
use model::{Image, PullProgress, TemplateSpec};
use network::{Network, Outside};
use registry::{Credentials, Fetched, Registry};

use super::Node;
use crate::error::{Context, Error, Result, chain};

/// How long a removal of layers waits for builds.
const BUILDS_MAX: Duration = Duration::from_secs(30);
/// How often it looks.
const BUILDS_LOOK: Duration = Duration::from_millis(50);

/// How often a pull looks for layers that a removal took away under it.
const ROUNDS_MAX: usize = 4;

/// The node's registry client. It connects to what sandboxes may reach.
pub(super) fn registry(config: &crate::Config, network: Option<&Network>) -> Result<Registry> {
    let outside = Outside::of(&config.network.settings, network.map(Network::range));
    Ok(Registry::new(config.registry.clone(), outside, config.image_store().join("pulls"))?)
}

/// See [`Node::prepare_image`].
pub(super) type ImageGuard = tokio::sync::OwnedRwLockReadGuard<()>;

impl Node {
    /// The layers of the template's image, topmost first. A tarball is unpacked to a directory of its own for each build,
    /// because sandboxes of an earlier build may still stand on the earlier one.
    ///
    /// No layer is removed while the guard lives: it does until something that is known stands on them.
    pub(super) async fn prepare_image(&self, spec: &TemplateSpec) -> Result<(Vec<PathBuf>, ImageGuard)> {
        let guard = Arc::clone(&self.image_users).read_owned().await;
        Ok((self.layers_of_image(spec).await?, guard))
    }

    async fn layers_of_image(&self, spec: &TemplateSpec) -> Result<Vec<PathBuf>> {
        let path = match &spec.image {
            Image::Host => return Ok(vec![self.host.config.host_mask(), PathBuf::from("/")]),
            Image::Path(path) => path.clone(),
            Image::Named(name) => {
                let store = self.images()?;
                let image = store.find(name)?;
                return self.on_base(store.layers_of(&image));
            }
        };
        let found = std::fs::metadata(&path).at("open the image", &path)?;
        if found.is_dir() {
            return self.on_base(vec![path]);
        }
        if !found.is_file() {
            let message = format!("the image {} is neither a directory nor a tarball", path.display());
            return Err(Error::Invalid { message, hint: None });
        }
        let into = self.host.config.images_dir().join(format!("{}-{}", spec.name, random_suffix()));
        // Whole or not at all, so a failure leaves nothing here.
        unpack(path, into.clone()).await?;
        self.on_base(vec![into])
    }

    /// The spec with the digest of its image: its checkpoints must not start on what has the name later.
    pub(super) fn with_digest(&self, mut spec: TemplateSpec) -> Result<TemplateSpec> {
        if let Image::Named(name) = &mut spec.image {
            let image = self.images()?.find(name)?;
            *name = image.pinned();
        }
        Ok(spec)
    }

    fn images(&self) -> Result<Images> {
        Ok(Images::open(&self.host.config.image_store())?)
    }

    /// Images that the node has, by name.
    pub fn kept_images(&self) -> Result<Vec<model::KeptImage>> {
        Ok(self.images()?.list()?.iter().map(to_model).collect())
    }

    /// One of them.
    pub fn kept_image(&self, name: &str) -> Result<model::KeptImage> {
        Ok(to_model(&self.images()?.find(name)?))
    }

    /// Takes in an image from an archive. `progress` is told how many layers are there, of how many.
    pub async fn import_image(
        self: &Arc<Self>,
        from: PathBuf,
        name: Option<String>,
        mut progress: impl FnMut(usize, usize) + Send + 'static,
    ) -> Result<model::KeptImage> {
        let (store, turn) = (self.images()?, Arc::clone(&self.importing).lock_owned().await);
        let import = move || {
            // One at a time: two would make the same layer.
            let _turn = turn;
            store.import(&from, name.as_deref(), &mut progress)
        };
        let kept = tokio::task::spawn_blocking(import).await.doing("take in the image")??;
        Ok(to_model(&kept))
    }

    /// Takes in an image from its registry. `progress` is told how far it is.
    ///
    /// It may be dropped at any time: the next pull goes on with what is downloaded by then. An image that is being unpacked by then is taken in.
    pub async fn pull_image(
        self: &Arc<Self>,
        name: &str,
        credentials: Option<&Credentials>,
        naming: Naming,
        progress: impl Fn(PullProgress) + Clone + Send + Sync + 'static,
    ) -> Result<model::KeptImage> {
        let (store, name) = (self.images()?, name.to_owned());
        let reference = self.registry.reference(&name)?;
        let told = progress.clone();
        let tell = move |done, all| told(PullProgress::Bytes { done, all });
        let mut rounds = 0;
        let (fetched, turn) = loop {
            let fetched = self.registry.fetch(&reference, credentials, &store, &tell).await?;
            let turn = Arc::clone(&self.importing).lock_owned().await;
            rounds += 1;
            if rounds == ROUNDS_MAX || fetched.layout().is_complete(&store)? {
                break (fetched, turn);
            }
        };
        let import = move || {
            let _turn = turn;
            let mut progress = |done, all| progress(PullProgress::Layers { done, all });
            let kept = store.import_pulled(fetched.layout(), &name, naming, &mut progress);
            if kept.as_ref().err().is_none_or(|error| !error.is_of_host()) {
                remove_fetched(fetched);
            }
            kept
        };
        let kept = tokio::task::spawn_blocking(import).await.doing("take in the image")??;
        tracing::info!(image = kept.name, digest = kept.digest, "an image was pulled");
        Ok(to_model(&kept))
    }

    /// Forgets an image. Templates that were built of it stay, and so do the layers that they stand on.
    pub async fn remove_image(&self, name: &str) -> Result<()> {
        let _turn = self.importing.lock().await;
        Ok(self.images()?.remove(name)?)
    }

    /// Removes images that lost their names, layers that no image has, unless something stands on them, and interrupted
    /// downloads. Gives how many layers, and how many downloads.
    pub async fn prune_images(self: &Arc<Self>) -> Result<(usize, usize)> {
        let (node, store, turn) = (Arc::clone(self), self.images()?, Arc::clone(&self.importing).lock_owned().await);
        let builds = self.no_image_users().await?;
        let prune = move || {
            let _until_done = (turn, builds);
            let layers = store.prune(&|layer| node.state().uses_layer(layer))?;
            // Of files that have changed since.
            let found = std::fs::read_dir(node.host.config.layers_dir()).into_iter().flatten().flatten();
            let given = found.map(|entry| entry.path()).filter(|path| node.is_given(path));
            let unused = given.filter(|layer| !node.state().uses_layer(layer));
            unused.for_each(|layer| drop(sandbox::remove_directory(&layer)));
            Ok((layers, node.registry.prune()?))
        };
        tokio::task::spawn_blocking(prune).await.doing("remove layers")?
    }

    /// Waits until nothing is about to stand on layers of images. It asks again and again: one that waited in line would hold up resumes.
    async fn no_image_users(&self) -> Result<tokio::sync::OwnedRwLockWriteGuard<()>> {
        let began = Instant::now();
        while began.elapsed() < BUILDS_MAX {
            if let Ok(guard) = Arc::clone(&self.image_users).try_write_owned() {
                return Ok(guard);
            }
            tokio::time::sleep(BUILDS_LOOK).await;
        }
        let deadline_ms = BUILDS_MAX.as_millis() as u64;
        Err(Error::Deadline { action: "remove layers beside the builds of templates", deadline_ms })
    }

    /// Whether a layer has files that the operator gives.
    pub(super) fn is_given(&self, layer: &Path) -> bool {
        layer.starts_with(self.host.config.layers_dir()) && sandbox::is_given_layer(layer)
    }

    /// An image's layers, topmost first, with what a root needs beside them.
    fn on_base(&self, mut layers: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
        let bases = self.host.config.layers_dir();
        std::fs::create_dir_all(&bases).at("create", &bases)?;
        if !self.host.config.given.files.is_empty() {
            let given = sandbox::prepare_given_layer(&bases, &layers, &self.host.config.given.read()?)?;
            layers.insert(0, given);
        }
        let base = sandbox::prepare_base_layer(&bases, &layers)?;
        layers.insert(0, base);
        Ok(layers)
    }
}

/// All layers are taken in, or the image is refused.
fn remove_fetched(fetched: Fetched) {
    if let Err(error) = fetched.remove() {
        tracing::warn!(error = chain(&error), "a download that has served stays until it is old");
    }
}

fn to_model(kept: &Kept) -> model::KeptImage {
    let Config { env, user, working_dir, entrypoint, command, ports } = kept.config.clone();
    let (name, digest, created_ms, bytes) = (kept.name.clone(), kept.digest.clone(), kept.created_ms, kept.bytes);
    let layers = kept.layer_count();
    model::KeptImage { name, digest, created_ms, bytes, layers, env, user, working_dir, entrypoint, command, ports }
}

/// Eight hexadecimal digits that make a name unique.
pub(super) fn random_suffix() -> String {
    let mut bytes = [0; 4];
    base::id::fill_random(&mut bytes);
    base::id::hex(&bytes)
}

async fn unpack(tarball: PathBuf, into: PathBuf) -> Result<()> {
    let unpacked = tokio::task::spawn_blocking(move || images::unpack_tarball(&tarball, &into));
    unpacked.await.doing("unpack the image")??;
    Ok(())
}

/// Removes what a failure left; the failure itself is what the user hears of.
pub(super) async fn remove_quietly(path: &Path) {
    let of = path.to_owned();
    let remove = move || Ok(sandbox::remove_directory(&of)?);
    if let Err(error) = tokio::task::spawn_blocking(remove).await.doing("remove a leftover").flatten() {
        tracing::warn!(path = %path.display(), error = crate::chain(&error), "a leftover could not be removed");
    }
}
