//! Root filesystems: an overlay of read-only layers, with or without an upper directory.
//!
//! An overlay is made detached (mounted nowhere) and only ever attached inside a sandbox's own mount namespace, so the
//! host never sees it and it ends with the sandbox's last process. A kernel before 6.15 takes no layer that is mounted nowhere; there an overlay
//! with such a layer is made in a mount namespace of its own, in which the layer is mounted meanwhile ([`Place`]).

mod base_layer;
mod host_mask;
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
    fs::{CWD, Mode, OFlags, open},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, fsconfig_create,
        fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount,
    },
    process::{chroot, fchdir},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
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
                way_back.take().doing("leave the mount namespace of layers")?;
                made
            }
        }
    }
}

/// What a thread that has left its mount namespace needs to come back.
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
    match mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE) {
        Ok(()) => Ok(way_back),
        Err(error) => way_back.take().and(Err(error)),
    }
}

impl WayBack {
    fn take(self) -> rustix::io::Result<()> {
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
                overlay.mount(MountAttrFlags::MOUNT_ATTR_RDONLY)
            };
            made().is_ok()
        })
}

fn overlay(layers: &[PathBuf], upper: Option<(&Path, &Path)>) -> Result<OwnedFd, Error> {
    let Some((image, above)) = layers.split_last() else { return Err(Error::NoLayer) };
    if above.iter().any(|layer| lies_in(layer, image)) {
        return overlay_on_stand_in(image, above, upper, Place::here());
    }
    stack_all(above, (image, open_layer(image)?), upper)
}

fn overlay_on_stand_in(
    image: &Path,
    above: &[PathBuf],
    upper: Option<(&Path, &Path)>,
    place: Place,
) -> Result<OwnedFd, Error> {
    place.run(|| stack_all(above, (image, stand_in(image, place)?), upper))
}

fn stack_all(
    above: &[PathBuf],
    (image, image_root): (&Path, OwnedFd),
    upper: Option<(&Path, &Path)>,
) -> Result<OwnedFd, Error> {
    let mut overlay = Overlay::open()?;
    for layer in above {
        overlay.stack("lowerdir+", layer, open_layer(layer)?)?;
    }
    overlay.stack("lowerdir+", image, image_root)?;
    let Some((upper, work)) = upper else { return overlay.mount(MountAttrFlags::MOUNT_ATTR_RDONLY) };
    overlay.stack("upperdir", upper, open_layer(upper)?)?;
    overlay.stack("workdir", work, open_layer(work)?)?;
    // A sandbox's root does not outlive a crash of the host: without this, each end of a sandbox would sync the whole
    // filesystem below it (and each fsync in it would wait for the disk).
    fsconfig_set_flag(&overlay.context, "volatile").doing("make an overlay")?;
    // Its /dev becomes a mount of its own, in which there are devices.
    overlay.mount(MountAttrFlags::MOUNT_ATTR_NODEV)
}

/// A read-only overlay of `image` alone, as its stand-in below other layers.
///
/// Image `host` is the node's whole root, in which the other layers lie as well; the kernel refuses a layer within a
/// layer (ELOOP), but not if one of them is a filesystem of its own, which this is. It is made anew for each sandbox,
/// because an overlay does not notice what is changed below it afterwards: a node's root changes, an image does not.
/// An overlay needs two layers, so an empty one is put on top.
fn stand_in(image: &Path, place: Place) -> Result<OwnedFd, Error> {
    let mut overlay = Overlay::open()?;
    overlay.stack("lowerdir+", Path::new("(empty)"), place.put(empty_layer()?)?)?;
    overlay.stack("lowerdir+", image, open_layer(image)?)?;
    place.put(overlay.mount(MountAttrFlags::MOUNT_ATTR_RDONLY)?)
}

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

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::openat;

    use super::*;

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
            let [upper, work] = ["upper", "work"].map(|name| dir.join(name));
            for path in [&upper, &work] {
                fs::create_dir_all(path).unwrap();
            }
            let above = std::slice::from_ref(&above);
            let root = overlay_on_stand_in(image.path(), above, Some((&upper, &work)), place).unwrap();
            let read = |path: &str| {
                let file = openat(&root, path, OFlags::RDONLY, Mode::empty()).unwrap();
                std::io::read_to_string(fs::File::from(file)).unwrap()
            };
            assert_eq!([read("below.txt"), read("above.txt")], ["below", "above"], "{place:?}");
            let flags = OFlags::CREATE | OFlags::WRONLY;
            drop(openat(&root, "new.txt", flags, Mode::from_raw_mode(0o644)).unwrap());
            assert!(upper.join("new.txt").exists(), "{place:?}");
            assert_eq!(seen(), here, "{place:?}");
            assert_eq!(fs::read_to_string("/proc/thread-self/mountinfo").unwrap(), before, "{place:?}");
            let only = overlay_on_stand_in(image.path(), above, None, place).unwrap();
            assert!(openat(&only, "above.txt", OFlags::RDONLY, Mode::empty()).is_ok());
            assert!(openat(&only, "another.txt", flags, Mode::from_raw_mode(0o644)).is_err());
        }
    }
}
