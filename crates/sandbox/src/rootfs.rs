//! Root filesystems: an overlay of read-only layers, with or without an upper directory.
//!
//! An overlay is made detached (mounted nowhere) and only ever attached inside a sandbox's own mount namespace, so the
//! host never sees it and it ends with the sandbox's last process.

mod base_layer;
mod host_mask;
mod layer;

use std::{
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, open},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
        fsopen,
    },
};

use crate::error::{Context, Error};
pub use base_layer::prepare_base_layer;
pub use host_mask::prepare_host_mask;

/// Most layers of a root filesystem, the image's included: the kernel stacks no more (OVL_MAX_STACK in fs/overlayfs/params.h).
pub const LAYERS_MAX: usize = 500;

/// A read-only overlay of `layers` (topmost first, at least two), mounted nowhere: for opening its files from outside.
pub fn detached_rootfs(layers: &[PathBuf]) -> Result<OwnedFd, Error> {
    overlay(layers, None)
}

/// A writable overlay of `layers` whose changes go to `dir/upper`; mounted nowhere.
pub(crate) fn writable(layers: &[PathBuf], dir: &Path) -> Result<OwnedFd, Error> {
    overlay(layers, Some((&dir.join("upper"), &dir.join("work"))))
}

fn overlay(layers: &[PathBuf], upper: Option<(&Path, &Path)>) -> Result<OwnedFd, Error> {
    let Some((image, above)) = layers.split_last() else { return Err(Error::NoLayer) };
    let mut overlay = Overlay::open()?;
    for layer in above {
        overlay.stack("lowerdir+", layer, open_layer(layer)?)?;
    }
    let image_root =
        if above.iter().any(|layer| lies_in(layer, image)) { stand_in(image)? } else { open_layer(image)? };
    overlay.stack("lowerdir+", image, image_root)?;
    let Some((upper, work)) = upper else { return overlay.mount(MountAttrFlags::MOUNT_ATTR_RDONLY) };
    overlay.stack("upperdir", upper, open_layer(upper)?)?;
    overlay.stack("workdir", work, open_layer(work)?)?;
    // A sandbox's root does not outlive a crash of the host: without this, each end of a sandbox would sync the whole
    // filesystem below it (and each fsync in it would wait for the disk).
    fsconfig_set_flag(&overlay.context, "volatile").doing("make an overlay")?;
    overlay.mount(MountAttrFlags::empty())
}

/// A read-only overlay of `image` alone, as its stand-in below other layers.
///
/// Image `host` is the node's whole root, in which the other layers lie as well; the kernel refuses a layer within a
/// layer (ELOOP), but not if one of them is a filesystem of its own, which this is. It is made anew for each sandbox,
/// because an overlay does not notice what is changed below it afterwards: a node's root changes, an image does not.
/// An overlay needs two layers, so an empty one is put on top. Needs Linux 6.15 (layers that are mounted nowhere).
fn stand_in(image: &Path) -> Result<OwnedFd, Error> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).doing("make an empty layer")?;
    fsconfig_create(&context).doing("make an empty layer")?;
    let empty = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)
        .doing("make an empty layer")?;
    let mut overlay = Overlay::open()?;
    overlay.stack("lowerdir+", Path::new("(empty)"), empty)?;
    overlay.stack("lowerdir+", image, open_layer(image)?)?;
    overlay.mount(MountAttrFlags::MOUNT_ATTR_RDONLY)
}

/// Whether `layer` is a directory inside `image`, on the same filesystem.
fn lies_in(layer: &Path, image: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    let whole = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    whole(layer).starts_with(whole(image)) && device(layer) == device(image)
}

fn open_layer(path: &Path) -> Result<OwnedFd, Error> {
    open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).at("open the layer", path)
}

/// An overlay that is being put together.
struct Overlay {
    context: OwnedFd,
    layers: Vec<OwnedFd>,
}

impl Overlay {
    fn open() -> Result<Self, Error> {
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).doing("make an overlay")?;
        // Renaming a directory of a layer works as on any filesystem; no index, since layers are shared by many overlays.
        for (key, value) in [("redirect_dir", "on"), ("metacopy", "off"), ("index", "off")] {
            fsconfig_set_string(&context, key, value).doing("make an overlay")?;
        }
        Ok(Self { context, layers: Vec::new() })
    }

    /// Adds a layer; `path` is for errors. The kernel is told the descriptor: a path may be longer than the 255 bytes
    /// that fsconfig takes, and what it is told (not the host's path) is what the sandbox reads in its mountinfo.
    fn stack(&mut self, key: &str, path: &Path, layer: OwnedFd) -> Result<(), Error> {
        let name = format!("/proc/self/fd/{}", layer.as_raw_fd());
        self.layers.push(layer);
        fsconfig_set_string(&self.context, key, name.as_str()).at("stack the layer", path)
    }

    fn mount(self, attributes: MountAttrFlags) -> Result<OwnedFd, Error> {
        fsconfig_create(&self.context).doing("make an overlay of the layers")?;
        let attributes = attributes | MountAttrFlags::MOUNT_ATTR_NOSUID;
        fsmount(&self.context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).doing("mount an overlay")
    }
}
