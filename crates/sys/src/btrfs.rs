//! Subvolumes of btrfs, and its simple quotas, by ioctls (linux/btrfs.h): no program of btrfs is needed.

use std::{
    ffi::OsStr,
    io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::ffi::OsStrExt,
    },
};

/// As statfs(2) tells it.
const MAGIC: i64 = 0x9123_683E;
/// The inode number of every subvolume's root.
const ROOT_INODE: u64 = 256;

const SUBVOL_CREATE: u64 = request(WRITE, 14, size_of::<Named>());
const SNAP_DESTROY: u64 = request(WRITE, 15, size_of::<Named>());
const SNAP_CREATE_V2: u64 = request(WRITE, 23, size_of::<Snapshot>());
const RESIZE: u64 = request(WRITE, 3, size_of::<Named>());
const QUOTA_CTL: u64 = request(READ | WRITE, 40, size_of::<QuotaControl>());
const FS_INFO: u64 = request(READ, 31, size_of::<FilesystemInfo>());
const QGROUP_LIMIT: u64 = request(READ, 43, size_of::<QuotaLimit>());

const WRITE: u64 = 1;
const READ: u64 = 2;

const fn request(direction: u64, number: u64, bytes: usize) -> u64 {
    direction << 30 | (bytes as u64) << 16 | 0x94 << 8 | number
}

const NAME_MAX: usize = 255;

/// `btrfs_ioctl_vol_args`.
#[repr(C)]
struct Named {
    fd: i64,
    name: [u8; 4088],
}

/// `btrfs_ioctl_vol_args_v2`.
#[repr(C)]
struct Snapshot {
    source: i64,
    transaction: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; 4040],
}

/// `btrfs_ioctl_quota_ctl_args`.
#[repr(C)]
struct QuotaControl {
    command: u64,
    status: u64,
}

/// `btrfs_ioctl_qgroup_limit_args`.
#[repr(C)]
struct QuotaLimit {
    /// 0: of the subvolume that the descriptor is in.
    group: u64,
    flags: u64,
    referenced_max: u64,
    exclusive_max: u64,
    reserved: [u64; 2],
}

/// `btrfs_ioctl_fs_info_args`.
#[repr(C)]
struct FilesystemInfo {
    devices: [u64; 2],
    id: [u8; 16],
    others: [u8; 992],
}

const _: () = assert!(size_of::<FilesystemInfo>() == 1024);
const _: () = assert!(size_of::<Named>() == 4096 && size_of::<Snapshot>() == 4096 && size_of::<QuotaLimit>() == 48);

/// Whether a directory is on btrfs.
pub fn is_here(directory: impl AsFd) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(directory)?.f_type as i64 == MAGIC)
}

/// Whether a directory is the root of a subvolume.
pub fn is_subvolume(directory: impl AsFd) -> io::Result<bool> {
    let directory = directory.as_fd();
    Ok(rustix::fs::fstat(directory)?.st_ino == ROOT_INODE && is_here(directory)?)
}

/// Makes an empty subvolume `name` in the directory `parent`.
pub fn create_subvolume(parent: impl AsFd, name: &OsStr) -> io::Result<()> {
    // SAFETY: the request's argument is a `btrfs_ioctl_vol_args`.
    unsafe { control(parent, SUBVOL_CREATE, &mut named(0, name)?) }
}

/// Makes a writable snapshot of the subvolume `source` in the directory `parent` of the same filesystem. Dirty data of
/// `source` is written to the device first.
pub fn snapshot(source: impl AsFd, parent: impl AsFd, name: &OsStr) -> io::Result<()> {
    let source = i64::from(source.as_fd().as_raw_fd());
    let mut arguments = Snapshot { source, transaction: 0, flags: 0, unused: [0; 4], name: text(name)? };
    // SAFETY: the request's argument is a `btrfs_ioctl_vol_args_v2`; `source` is open while it is borrowed.
    unsafe { control(parent, SNAP_CREATE_V2, &mut arguments) }
}

/// Removes the subvolume `name` of the directory `parent`, with all that is in it. Its room comes back later. Files of it that are open stay.
pub fn destroy(parent: impl AsFd, name: &OsStr) -> io::Result<()> {
    // SAFETY: the request's argument is a `btrfs_ioctl_vol_args`.
    unsafe { control(parent, SNAP_DESTROY, &mut named(0, name)?) }
}

/// Has the filesystem take all of its device, which has grown.
pub fn grow(filesystem: impl AsFd) -> io::Result<()> {
    // SAFETY: the request's argument is a `btrfs_ioctl_vol_args`.
    unsafe { control(filesystem, RESIZE, &mut named(0, OsStr::new("max"))?) }
}

/// Has the filesystem count what each subvolume holds, by who wrote it (simple quotas, Linux 6.7).
pub fn count_bytes(filesystem: impl AsFd) -> io::Result<()> {
    const ENABLE_SIMPLE: u64 = 4;
    let mut arguments = QuotaControl { command: ENABLE_SIMPLE, status: 0 };
    // SAFETY: the request's argument is a `btrfs_ioctl_quota_ctl_args`.
    unsafe { control(filesystem, QUOTA_CTL, &mut arguments) }
}

/// Bounds what a subvolume holds, metadata included. Beyond, writes fail with `EDQUOT`.
pub fn limit(subvolume: impl AsFd, bytes: u64) -> io::Result<()> {
    const MAX_REFERENCED: u64 = 1;
    let mut arguments =
        QuotaLimit { group: 0, flags: MAX_REFERENCED, referenced_max: bytes, exclusive_max: 0, reserved: [0; 2] };
    // SAFETY: the request's argument is a `btrfs_ioctl_qgroup_limit_args`.
    unsafe { control(subvolume, QGROUP_LIMIT, &mut arguments) }
}

/// The number by which the kernel has a filesystem below `/sys/fs/btrfs`.
pub fn id(filesystem: impl AsFd) -> io::Result<[u8; 16]> {
    let mut arguments = FilesystemInfo { devices: [0; 2], id: [0; 16], others: [0; 992] };
    // SAFETY: the request's argument is a `btrfs_ioctl_fs_info_args`.
    unsafe { control(filesystem, FS_INFO, &mut arguments) }?;
    Ok(arguments.id)
}

fn named(fd: i64, name: &OsStr) -> io::Result<Named> {
    Ok(Named { fd, name: text(name)? })
}

fn text<const N: usize>(name: &OsStr) -> io::Result<[u8; N]> {
    let (bytes, mut text) = (name.as_bytes(), [0; N]);
    if bytes.len() > NAME_MAX || bytes.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    text[..bytes.len()].copy_from_slice(bytes);
    Ok(text)
}

/// # Safety
///
/// `T` is the request's argument.
unsafe fn control<T>(file: impl AsFd, request: u64, arguments: &mut T) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the kernel reads and writes a `T`, as the caller promises.
    let result = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), request as _, std::ptr::from_mut(arguments)) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
