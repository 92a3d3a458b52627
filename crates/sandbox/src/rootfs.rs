//! Root filesystems: an overlay of read-only layers, with or without an upper directory.
//!
//! An overlay is made detached (mounted nowhere) and only ever attached inside a sandbox's own mount namespace, so the
//! host never sees it and it ends with the sandbox's last process.
//!
//! A writable one is for one sandbox, in whose user namespace its files have the ids that they have on the disk: its layers are idmapped mounts
//! (mount_setattr(2), `MOUNT_ATTR_IDMAP`). So layers, snapshots and checkpoints are the same for every sandbox.
//!
//! A kernel before 6.15 takes no layer that is mounted nowhere; there an overlay
//! with such a layer is made in a mount namespace of its own, in which the layer is mounted meanwhile ([`Place`]).

mod base_layer;
mod given_layer;
mod host_mask;
mod image_file;
mod layer;

use std::{
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    sync::OnceLock,
};

use rustix::{
    fs::{CWD, Mode, OFlags, open, openat},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
        fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree,
    },
    process::{chroot, fchdir},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};

use crate::{
    error::{Context, Error},
    namespaces::Inside,
};
pub(crate) use base_layer::place_of;
pub use base_layer::prepare_base_layer;
pub use given_layer::{GivenFile, is_given_layer, prepare_given_layer};
pub use host_mask::prepare_host_mask;
pub use image_file::read_of_image;

/// Most layers of a root filesystem, the image's included: the kernel stacks no more (OVL_MAX_STACK in fs/overlayfs/params.h).
pub const LAYERS_MAX: usize = 500;

/// A read-only overlay of `layers` (topmost first, at least two), mounted nowhere: for opening its files from outside.
pub fn detached_rootfs(layers: &[PathBuf]) -> Result<OwnedFd, Error> {
    overlay(layers, None)
}

/// A writable overlay of `layers` whose changes go to `dir/upper`; mounted nowhere. Files have the ids in the sandbox that they have on the disk,
/// in all of these.
pub(crate) fn writable(layers: &[PathBuf], dir: &Path, sandbox: Inside<'_>) -> Result<OwnedFd, Error> {
    overlay(layers, Some(Own { dir, sandbox }))
}

/// What a writable overlay has that is a sandbox's own.
#[derive(Clone, Copy)]
struct Own<'a> {
    /// Has the directories `upper` and `work`.
    dir: &'a Path,
    sandbox: Inside<'a>,
}

/// Where the layers of an overlay are that are no directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Mounted nowhere.
    Nowhere,
    /// Mounted one on the other in a mount namespace that only the calling thread is in.
    OwnNamespace,
}

impl Place {
    /// What can be mounted on: it is there on every host, and no layer is below it.
    const POINT: &str = "/sys";

    /// Where they can be here.
    fn here() -> Self {
        if takes_detached_layers() { Self::Nowhere } else { Self::OwnNamespace }
    }

    fn put(self, mount: OwnedFd) -> Result<OwnedFd, Error> {
        if self == Self::OwnNamespace {
            move_mount(&mount, "", CWD, Self::POINT, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
                .doing("mount a layer in a namespace of its own")?;
        }
        Ok(mount)
    }

    /// Runs `make` where [`Self::put`] works. Descriptors of directories that were opened outside are of no use in it.
    ///
    /// Not by a thread: a process that forks must have none, and one that was joined is still counted for a moment.
    fn run<T>(self, make: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        match self {
            Self::Nowhere => make(),
            Self::OwnNamespace => {
                let way_back = leave().doing("make a mount namespace for layers")?;
                let made = make();
                drop(way_back);
                made
            }
        }
    }
}

/// Brings a thread that has left its mount namespace back when it is dropped, so that a panic does, too.
struct WayBack {
    namespace: OwnedFd,
    root: OwnedFd,
    directory: OwnedFd,
}

/// The calling thread gets a mount namespace of its own. Nothing that is mounted in it is seen elsewhere, and it ends with the way back.
#[allow(deprecated, reason = "deprecated for CLONE_FILES only, which is not used")]
fn leave() -> rustix::io::Result<WayBack> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let way_back = WayBack {
        namespace: open("/proc/thread-self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?,
        root: open("/", flags, Mode::empty())?,
        directory: open(".", flags, Mode::empty())?,
    };
    rustix::thread::unshare(UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    Ok(way_back)
}

impl Drop for WayBack {
    fn drop(&mut self) {
        if let Err(error) = self.take() {
            tracing::error!(%error, "cannot leave the mount namespace of layers: aborting");
            std::process::abort();
        }
    }
}

impl WayBack {
    fn take(&self) -> rustix::io::Result<()> {
        move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
        // The kernel has set both to the namespace's own root.
        fchdir(&self.root)?;
        chroot(".")?;
        fchdir(&self.directory)
    }
}

/// Whether overlays can have layers that are mounted nowhere (Linux 6.15). Asks the kernel once.
pub fn takes_detached_layers() -> bool {
    static TAKEN: OnceLock<bool> = OnceLock::new();
    !sys::kernel::is_old()
        && *TAKEN.get_or_init(|| {
            let made = || {
                let mut overlay = Overlay::open()?;
                for _ in 0..2 {
                    overlay.stack("lowerdir+", Path::new("(empty)"), empty_layer()?)?;
                }
                overlay.mount(MountAttrFlags::MOUNT_ATTR_RDONLY, None)
            };
            made().is_ok()
        })
}

fn overlay(layers: &[PathBuf], own: Option<Own<'_>>) -> Result<OwnedFd, Error> {
    let (image, above) = layers.split_last().ok_or(Error::NoLayer)?;
    let layers = Layers { own, place: Place::here() };
    if above.iter().any(|layer| lies_in(layer, image)) {
        layers.stack_on_stand_in(image, above)
    } else {
        layers.stack(image, above)
    }
}

/// How the layers of an overlay come to it.
#[derive(Clone, Copy)]
struct Layers<'a> {
    own: Option<Own<'a>>,
    place: Place,
}

impl Layers<'_> {
    fn stack(self, image: &Path, above: &[PathBuf]) -> Result<OwnedFd, Error> {
        // Only layers with the ids of a sandbox are mounts that have to be somewhere.
        let place = if self.own.is_some() { self.place } else { Place::Nowhere };
        place.run(|| self.stack_all(image, self.open(image)?, above))
    }

    fn stack_on_stand_in(self, image: &Path, above: &[PathBuf]) -> Result<OwnedFd, Error> {
        self.place.run(|| self.stack_all(image, self.stand_in(image)?, above))
    }

    fn stack_all(self, image: &Path, image_root: OwnedFd, above: &[PathBuf]) -> Result<OwnedFd, Error> {
        let mut overlay = Overlay::open()?;
        for layer in above {
            overlay.stack("lowerdir+", layer, self.open(layer)?)?;
        }
        overlay.stack("lowerdir+", image, image_root)?;
        let Some(Own { dir, .. }) = self.own else { return overlay.mount(MountAttrFlags::MOUNT_ATTR_RDONLY, None) };
        if is_other_filesystem(image, dir) {
            // Else files of the two show devices of their own, and a directory another inode number after each mount.
            fsconfig_set_string(&overlay.context, "xino", "on").doing("make an overlay")?;
        }
        // Both in one mount, or the kernel does not take them.
        let both = self.open(dir)?;
        for (key, name) in [("upperdir", "upper"), ("workdir", "work")] {
            let path = dir.join(name);
            overlay.stack(key, &path, openat(&both, name, LAYER, Mode::empty()).at("open the layer", &path)?)?;
        }
        // A sandbox's root does not outlive a crash of the host: without this, each end of a sandbox would sync the whole
        // filesystem below it (and each fsync in it would wait for the disk).
        fsconfig_set_flag(&overlay.context, "volatile").doing("make an overlay")?;
        // Its /dev becomes a mount of its own, in which there are devices.
        overlay.mount(MountAttrFlags::MOUNT_ATTR_NODEV, self.own)
    }

    /// A read-only overlay of `image` alone, as its stand-in below other layers.
    ///
    /// Image `host` is the node's whole root, in which the other layers lie as well; the kernel refuses a layer within a
    /// layer (ELOOP), but not if one of them is a filesystem of its own, which this is. It is made anew for each sandbox,
    /// because an overlay does not notice what is changed below it afterwards: a node's root changes, an image does not.
    /// An overlay needs two layers, so an empty one is put on top. It cannot be given other ids itself: what is below it is.
    fn stand_in(self, image: &Path) -> Result<OwnedFd, Error> {
        let mut overlay = Overlay::open()?;
        overlay.stack("lowerdir+", Path::new("(empty)"), self.place.put(empty_layer()?)?)?;
        overlay.stack("lowerdir+", image, self.open(image)?)?;
        self.place.put(overlay.mount(MountAttrFlags::MOUNT_ATTR_RDONLY, self.own)?)
    }

    /// A directory, or a mount of it with the sandbox's ids.
    fn open(self, path: &Path) -> Result<OwnedFd, Error> {
        let Some(Own { sandbox, .. }) = self.own else {
            return open(path, LAYER, Mode::empty()).at("open the layer", path);
        };
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let mount = open_tree(CWD, path, flags).at("open the layer", path)?;
        sandbox.map(&mount, path)?;
        self.place.put(mount)
    }
}

const LAYER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn empty_layer() -> Result<OwnedFd, Error> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).doing("make an empty layer")?;
    fsconfig_create(&context).doing("make an empty layer")?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY).doing("make an empty layer")
}

/// Whether `layer` is a directory inside `image`, on the same filesystem.
fn lies_in(layer: &Path, image: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    let whole = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    whole(layer).starts_with(whole(image)) && device(layer) == device(image)
}

fn is_other_filesystem(one: &Path, other: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    device(one) != device(other)
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

    /// Works below as root of the sandbox: the host's root has no id in layers with other ids, and could make nothing there.
    fn mount(self, attributes: MountAttrFlags, own: Option<Own<'_>>) -> Result<OwnedFd, Error> {
        const STEP: &str = "make an overlay of the layers";
        let create = || fsconfig_create(&self.context);
        let created = match own {
            Some(own) => sys::ids::act_as(own.sandbox.ids.outside(0), create).doing(STEP)?,
            None => create(),
        };
        created.doing(STEP)?;
        fsmount(&self.context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).doing("mount an overlay")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use procfs::ProcessIdentity;

    use crate::{ids::Ids, spec::Users};

    /// As before Linux 6.15: the same root, and nothing of it is mounted where others see it.
    #[test]
    fn an_overlay_is_the_same_when_its_layers_are_mounted_meanwhile() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // Inside the image, on its filesystem, as a node's layers are inside the node's root.
        let image = tempfile::tempdir_in("/var/tmp").unwrap();
        let above = image.path().join("above");
        fs::create_dir(&above).unwrap();
        fs::write(image.path().join("below.txt"), "below").unwrap();
        fs::write(above.join("above.txt"), "above").unwrap();
        let before = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let seen = || {
            ["/proc/thread-self/ns/mnt", "/proc/thread-self/cwd", "/proc/thread-self/root"]
                .map(|link| fs::read_link(link).unwrap())
        };
        let here = seen();
        for (n, place) in [Place::Nowhere, Place::OwnNamespace].into_iter().enumerate() {
            if place == Place::Nowhere && !takes_detached_layers() {
                continue;
            }
            let dir = image.path().join(format!("changes-{n}"));
            for name in ["upper", "work"] {
                fs::create_dir_all(dir.join(name)).unwrap();
            }
            let above = std::slice::from_ref(&above);
            // This process is in the host's user namespace.
            let own = ProcessIdentity::of(std::process::id() as i32).unwrap();
            let null = fs::File::open("/dev/null").unwrap();
            let sandbox =
                Inside { init: null.as_fd(), ids: Ids::of(own).unwrap(), users: Users::All, processors: None };
            let layers = |own| Layers { own, place };
            let root = layers(Some(Own { dir: &dir, sandbox })).stack_on_stand_in(image.path(), above).unwrap();
            let read = |path: &str| {
                let file = openat(&root, path, OFlags::RDONLY, Mode::empty()).unwrap();
                std::io::read_to_string(fs::File::from(file)).unwrap()
            };
            assert_eq!([read("below.txt"), read("above.txt")], ["below", "above"], "{place:?}");
            let flags = OFlags::CREATE | OFlags::WRONLY;
            drop(openat(&root, "new.txt", flags, Mode::from_raw_mode(0o644)).unwrap());
            assert!(dir.join("upper/new.txt").exists(), "{place:?}");
            assert_eq!(seen(), here, "{place:?}");
            assert_eq!(fs::read_to_string("/proc/thread-self/mountinfo").unwrap(), before, "{place:?}");
            let only = layers(None).stack_on_stand_in(image.path(), above).unwrap();
            assert!(openat(&only, "above.txt", OFlags::RDONLY, Mode::empty()).is_ok());
            assert!(openat(&only, "another.txt", flags, Mode::from_raw_mode(0o644)).is_err());
        }
    }
}
