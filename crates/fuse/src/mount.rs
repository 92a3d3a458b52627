//! A superblock that is attached nowhere, and clones of its tree that can be attached: by anybody, in any mount namespace.
//!
//! The superblock lives as long as a clone, the tree or something opened in it does. Then reads of the device fail with `ENODEV`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::{
    fs::{Access as Permission, AtFlags, Mode, OFlags, StatxFlags, accessat, statx},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create, fsconfig_reconfigure,
        fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, fspick, open_tree,
    },
};

use crate::error::{Doing, FuseError};

/// Four requests, answered side by side, of eight chunks each, fetched together. More would be faster still where the store is far (8 MiB: a fifth),
/// but a touched page of a mapping brings as much, a hundred times over before the kernel sees that they are touched at random.
const READ_AHEAD_BYTES: u32 = 4 << 20;

/// The type that `mount` and `mountinfo` show for volumes.
pub const FILESYSTEM: &str = "fuse.pando";
const SUBTYPE: &str = FILESYSTEM.split_at("fuse.".len()).1;

/// A new superblock. Whoever holds both descriptors can go on with it when the process that serves it has died.
#[derive(Debug)]
pub struct Mount {
    /// Where requests come from.
    pub device: OwnedFd,
    /// The detached mount of its root.
    pub tree: OwnedFd,
}

/// What is allowed through one clone of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the words say it
pub enum Access {
    ReadOnly,
    ReadWrite,
}

/// Makes a superblock. Nobody serves it yet: what asks it waits. `source` is what `mount` shows for the device.
///
/// Permissions are checked by the kernel, for all users. No device is usable through it, no set-user-id bit has an effect, and reading
/// changes no time of access.
pub fn mount(source: &str) -> Result<Mount, FuseError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty()).doing("open the FUSE device")?;
    let tree = superblock(source, device.as_fd()).doing("make a FUSE superblock")?;
    Ok(Mount { device, tree })
}

/// A mount of the superblock of `device`, which is made if the device has none.
fn superblock(source: &str, device: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let context = context.as_fd();
    fsconfig_set_string(context, "source", source)?;
    fsconfig_set_string(context, "subtype", SUBTYPE)?;
    // As text: kernels of 6.18 refuse FSCONFIG_SET_FD here.
    fsconfig_set_string(context, "fd", device.as_raw_fd().to_string())?;
    for (key, value) in [("rootmode", "40000"), ("user_id", "0"), ("group_id", "0")] {
        fsconfig_set_string(context, key, value)?;
    }
    fsconfig_set_flag(context, "default_permissions")?;
    fsconfig_set_flag(context, "allow_other")?;
    fsconfig_create(context)?;
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOATIME;
    fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Has the kernel read ahead so far in files that are read in order. Its default, 128 KiB, is one chunk of a volume: each would be waited for alone.
/// For a superblock that is served already: its first answer sets this back. Fails where sysfs cannot be written; then readers in order wait more often.
pub fn set_read_ahead(tree: BorrowedFd<'_>) -> Result<(), FuseError> {
    let found = statx(tree, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::empty());
    let found = found.doing("find the device of a mount")?;
    let place = format!("/sys/class/bdi/{}:{}/read_ahead_kb", found.stx_dev_major, found.stx_dev_minor);
    std::fs::write(place, (READ_AHEAD_BYTES >> 10).to_string()).doing("set how far is read ahead")
}

/// Undoes what `mount -o remount,ro` of one mount does to all others; whether there was anything to undo. The one mount stays read-only by a flag of its own.
///
/// Such a remount sets the flag of the superblock, too, and FUSE neither refuses that nor tells the server. Asks the kernel only, not who serves.
pub fn keep_writable(tree: BorrowedFd<'_>) -> Result<bool, FuseError> {
    // The superblock's flag is looked at before anything of the file; the tree's own mount is never read-only.
    if accessat(tree, ".", Permission::WRITE_OK, AtFlags::empty()) != Err(Errno::ROFS) {
        return Ok(false);
    }
    make_writable(tree).doing("make a volume writable again that was remounted read-only")?;
    Ok(true)
}

fn make_writable(tree: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let context = fspick(tree, "", FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH)?;
    fsconfig_set_flag(context.as_fd(), "rw")?;
    fsconfig_reconfigure(context.as_fd())
}

/// One more mount of the superblock with this device and tree, to be attached with `move_mount`. `source` is what [`mount`] was told.
pub fn clone_tree(
    source: &str,
    device: BorrowedFd<'_>,
    tree: BorrowedFd<'_>,
    access: Access,
) -> Result<OwnedFd, FuseError> {
    let clone = match clone_attached_nowhere(tree) {
        // Before Linux 6.15 a mount that is attached nowhere cannot be cloned.
        Err(Errno::INVAL) => return mount_again(source, device, access),
        clone => clone.doing("clone a mount")?,
    };
    with_access(clone, access)
}

/// Whether a tree can be cloned that is attached nowhere.
pub(crate) fn clones_trees(tree: BorrowedFd<'_>) -> bool {
    clone_attached_nowhere(tree).is_ok()
}

fn clone_attached_nowhere(tree: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    open_tree(
        tree,
        "",
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH,
    )
}

/// The same on every kernel that has the device's superblock mounted by a second context, as since Linux 5.16. [`clone_tree`] is preferred: this one
/// waits for a `sync` that is under way.
pub fn mount_again(source: &str, device: BorrowedFd<'_>, access: Access) -> Result<OwnedFd, FuseError> {
    with_access(superblock(source, device).doing("mount a FUSE superblock once more")?, access)
}

fn with_access(mount: OwnedFd, access: Access) -> Result<OwnedFd, FuseError> {
    match access {
        Access::ReadOnly => sys::mount::set_read_only(&mount).doing("make a mount read-only")?,
        Access::ReadWrite => {}
    }
    Ok(mount)
}
