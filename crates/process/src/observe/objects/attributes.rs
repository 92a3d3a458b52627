//! Extended attributes of files that become memfds.

use std::{fs::File, io, os::fd::AsFd};

use rustix::fs::{MemfdFlags, XattrFlags};

/// Most bytes of all names, or of one value (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const BYTES_MAX: usize = 64 << 10;

type Attribute = (Vec<u8>, Vec<u8>);

/// Those that a program without privileges sets: its own, and access lists.
pub(crate) fn read(file: &File) -> io::Result<Vec<Attribute>> {
    match rustix::fs::flistxattr_query(file) {
        // Most have none, and need no room.
        Ok(0) | Err(rustix::io::Errno::OPNOTSUPP) => return Ok(Vec::new()),
        length => length?,
    };
    let mut room = vec![0; BYTES_MAX];
    let length = rustix::fs::flistxattr(file, &mut room[..])?;
    let names = room[..length].to_vec();
    let is_carried = |name: &&[u8]| name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_");
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(is_carried) {
        let length = rustix::fs::fgetxattr(file, name, &mut room[..])?;
        let value = room[..length].to_vec();
        found.push((name.to_vec(), value));
    }
    Ok(found)
}

/// Whether a memfd can have these attributes here (those of users: Linux 6.6).
pub(super) fn try_on_a_memfd(attributes: &[Attribute]) -> io::Result<()> {
    if attributes.is_empty() {
        return Ok(());
    }
    let memfd = rustix::fs::memfd_create("pando-attributes", MemfdFlags::CLOEXEC)?;
    for (name, value) in attributes {
        rustix::fs::fsetxattr(memfd.as_fd(), &name[..], value, XattrFlags::empty())?;
    }
    Ok(())
}
