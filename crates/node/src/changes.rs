//! Where sandboxes' changes to their root filesystems lie on this node.
//!
//! ```text
//! btrfs: STATE/changes.img, mounted on STATE/changes:   ID/{upper,work}: a sandbox    POINT/upper: a layer, for snapshots of it
//! copy:  STATE/sandboxes/ID/{upper,work}: a sandbox     STATE/sandboxes/POINT/layer, STATE/templates/NAME/layer-...: a layer to be stacked
//! ```
//!
//! An image layer, the base layer and what was unpacked of a checkpoint are never on the btrfs: overlayfs tells files of two lower layers apart by
//! filesystem and inode number, and subvolumes of one filesystem use the same numbers.

mod image;

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use base::{id::SandboxId, limits::DISK_BYTES_DEFAULT};
use sandbox::UPPER;

use crate::{
    config::{Config, LayerKind, Layers},
    error::{Context, Error, Result, chain},
    state::FORK_LAYER,
};
use image::Image;

/// What new sandboxes' changes are on, and those of before.
pub(crate) struct Changes {
    /// Where the image is mounted.
    root: PathBuf,
    sandboxes: PathBuf,
    /// The image, if there is one.
    image: Option<Mutex<Image>>,
    /// Whether new changes go there.
    is_for_new: bool,
    /// Whether what a sandbox writes is counted, and can be limited.
    counts_bytes: bool,
}

impl Changes {
    /// Finds or makes the image, if changes are to be on btrfs. `is_needed`: sandboxes of an earlier node may have theirs there. Blocks.
    pub(crate) fn open(config: &Config, is_needed: bool) -> Result<Self> {
        let (root, sandboxes) = (config.changes_dir(), config.sandboxes_dir());
        let Layers { kind, bytes_max } = config.layers;
        let place = || image::Place::new(config.changes_image(), root.clone());
        let found = match Image::open(place(), bytes_max) {
            // The files of running sandboxes would be gone.
            Err(error) if is_needed => return Err(error),
            Err(error) => {
                tracing::warn!(error = chain(&error), "what an earlier node left of changes is removed");
                None
            }
            Ok(found) => found,
        };
        if found.is_none() {
            image::unmount(&root);
            place().remove();
        }
        let image = match (found, kind) {
            (Some(image), _) => Some(image),
            (None, LayerKind::Copy) => None,
            (None, LayerKind::Btrfs) => Some(Image::make(place(), bytes_max)?),
            (None, LayerKind::Auto) => Image::make(place(), bytes_max)
                .inspect_err(|error| {
                    let why =
                        "no snapshots of what sandboxes change: their files are copied (`pando doctor` says more)";
                    tracing::warn!(error = chain(error), "{why}");
                })
                .ok(),
        };
        let is_for_new = image.is_some() && kind != LayerKind::Copy;
        let counts_bytes = image.as_ref().is_some_and(Image::counts_bytes);
        Ok(Self { root, sandboxes, image: image.map(Mutex::new), is_for_new, counts_bytes })
    }

    /// The name of what keeps new changes.
    pub(crate) fn kind(&self) -> &'static str {
        if self.is_for_new { "btrfs" } else { "copy" }
    }

    /// The directories that hold one directory per sandbox.
    pub(crate) fn places(&self) -> Vec<PathBuf> {
        vec![self.sandboxes.clone(), self.root.clone()]
    }

    /// Limits as the engine takes them: of the disk only where changes are counted.
    pub(crate) fn limits(&self, limits: &model::Limits, changes: &Path) -> sandbox::Limits {
        let &model::Limits { memory_bytes, pids, cpu_millis, disk_bytes } = limits;
        let is_counted = self.counts_bytes && changes.starts_with(&self.root);
        let disk_bytes = is_counted.then(|| disk_bytes.unwrap_or(DISK_BYTES_DEFAULT));
        sandbox::Limits { memory_bytes, pids, cpu_millis, disk_bytes }
    }

    /// Fails if a limit is wanted that would not hold here.
    pub(crate) fn check_limits(&self, limits: &model::Limits) -> Result<()> {
        if self.counts_bytes && self.is_for_new || limits.disk_bytes.is_none() {
            return Ok(());
        }
        let message = "this node cannot limit what a sandbox writes to its disk".to_owned();
        let hint = Some("leave --disk out, or give the node btrfs with simple quotas (`pando doctor`)".to_owned());
        Err(Error::Invalid { message, hint })
    }

    /// Where those of a sandbox are that was made before.
    pub(crate) fn of(&self, id: &SandboxId) -> PathBuf {
        let own = self.root.join(id.as_str());
        if own.is_dir() { own } else { self.sandboxes.join(id.as_str()) }
    }

    /// Where those of a new sandbox go, if they begin with the snapshot `from`.
    pub(crate) fn of_new(&self, id: &SandboxId, from: Option<&Path>) -> PathBuf {
        let own = from.is_some() || self.is_for_new;
        if own { self.root.join(id.as_str()) } else { self.sandboxes.join(id.as_str()) }
    }

    /// Where a layer of the sandbox `source` goes; `point` names it.
    pub(crate) fn layer(&self, source: &SandboxId, point: &SandboxId) -> PathBuf {
        match self.of(source).starts_with(&self.root) {
            true => self.root.join(point.as_str()).join(UPPER),
            false => self.sandboxes.join(point.as_str()).join(FORK_LAYER),
        }
    }

    /// Where a layer of a new template goes, if that is to be a snapshot.
    pub(crate) fn template_layer(&self, point: &SandboxId) -> Option<PathBuf> {
        self.is_for_new.then(|| self.root.join(point.as_str()).join(UPPER))
    }

    /// What of these layers, topmost first, a sandbox begins with as its own changes, and what its root is stacked on.
    pub(crate) fn split<'a>(&self, layers: &'a [PathBuf]) -> (Option<&'a PathBuf>, &'a [PathBuf]) {
        match layers.split_first() {
            Some((first, below)) if first.starts_with(&self.root) => (Some(first), below),
            Some(_) | None => (None, layers),
        }
    }

    /// Has more room made, if little is left. Tells whether there is enough. Blocks.
    pub(crate) fn grow(&self) -> bool {
        let Some(image) = &self.image else { return true };
        image.lock().unwrap_or_else(PoisonError::into_inner).grow()
    }

    /// Whether there is room for one more sandbox, template or fork.
    pub(crate) fn has_room(&self) -> bool {
        self.image.is_none() || image::room_at(&self.root).is_ok_and(|free| free >= image::ROOM_MIN)
    }

    /// Fails if there is not, and none can be made. Blocks.
    pub(crate) fn make_room(&self) -> Result<()> {
        self.grow();
        if self.has_room() {
            return Ok(());
        }
        let path = self.root.clone();
        let free = image::room_at(&path).at("look at the room in", &path)?;
        Err(Error::NoRoom { path, free })
    }

    /// The node stops. What runs keeps its files, and the next node finds them; if nothing needs them, the image goes.
    pub(crate) fn close(&self, is_needed: bool) {
        image::unmount(&self.root);
        if let Some(image) = self.image.as_ref().filter(|_| !is_needed) {
            image.lock().unwrap_or_else(PoisonError::into_inner).remove();
        }
    }
}
