//! What copies and archives of a layer share: reaching an entry by its directory's descriptor, extended attributes.

use std::{
    ffi::CStr,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use rustix::{
    fs::{Mode, OFlags, XattrFlags, lgetxattr, llistxattr, lsetxattr, openat},
    io::Errno,
};

/// Deepest nesting that is carried: each level holds descriptors. PATH_MAX does not bound it, programs can go deeper.
pub(crate) const LEVELS_MAX: usize = 256;

/// The kernel's own limits (XATTR_SIZE_MAX, XATTR_LIST_MAX), in bytes.
pub(crate) const XATTR_BYTES_MAX: usize = 64 << 10;

/// Overlayfs' mark of a directory that hides what is below it.
pub(crate) const OPAQUE: &str = "trusted.overlay.opaque";

pub(crate) fn open_dir(at: impl AsFd, path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    openat(at, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// A name for calls that take only paths; the directory is fixed by its descriptor.
pub(crate) fn entry_path(directory: &OwnedFd, name: &CStr) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.to_bytes());
    path
}

/// How names begin that are settings of btrfs, such as compression. A program makes them, and no other filesystem takes them.
pub(crate) const BTRFS: &[u8] = b"btrfs.";

/// The names of an entry's extended attributes, in order, but for settings of its filesystem.
pub(crate) fn xattr_names(path: &[u8]) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = vec![0; XATTR_BYTES_MAX];
    let length = match llistxattr(path, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => 0,
        length => length?,
    };
    let names = names[..length].split(|byte| *byte == 0);
    let names = names.filter(|name| !name.is_empty() && !name.starts_with(BTRFS));
    let mut names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    names.sort_unstable();
    Ok(names)
}

pub(crate) fn xattr(path: &[u8], name: &[u8]) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0; XATTR_BYTES_MAX];
    let length = lgetxattr(path, name, &mut value[..])?;
    value.truncate(length);
    Ok(value)
}

pub(crate) fn set_xattr(path: &[u8], name: &[u8], value: &[u8]) -> rustix::io::Result<()> {
    lsetxattr(path, name, value, XattrFlags::empty())
}
