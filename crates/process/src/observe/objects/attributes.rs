//! Extended attributes of files that become memfds.

use std::{fs::File, io, os::fd::AsFd};

use procfs::IdMaps;
use rustix::fs::{MemfdFlags, XattrFlags};

/// Most bytes of all names, or of one value (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const BYTES_MAX: usize = 64 << 10;

type Attribute = (Vec<u8>, Vec<u8>);

/// Those that a program without privileges sets: its own, and access lists, with the ids that process `pid` sees.
pub(crate) fn read(file: &File, pid: i32) -> io::Result<Vec<Attribute>> {
    match rustix::fs::flistxattr_query(file) {
        // Most have none, and need no room.
        Ok(0) | Err(rustix::io::Errno::OPNOTSUPP) => return Ok(Vec::new()),
        length => length?,
    };
    let mut room = vec![0; BYTES_MAX];
    let length = rustix::fs::flistxattr(file, &mut room[..])?;
    let names = room[..length].to_vec();
    let is_list = |name: &[u8]| name.starts_with(b"system.posix_acl_");
    let is_carried = |name: &&[u8]| name.starts_with(b"user.") || is_list(name);
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(is_carried) {
        let length = rustix::fs::fgetxattr(file, name, &mut room[..])?;
        let mut value = room[..length].to_vec();
        if is_list(name) {
            let ids = IdMaps::of(pid).map_err(io::Error::other)?;
            translate(&mut value, |user| ids.user_inside(user), |group| ids.group_inside(group));
        }
        found.push((name.to_vec(), value));
    }
    Ok(found)
}

/// Makes the ids in an access list those of a user namespace. The kernel shows them as the reader's (acl(5); `struct posix_acl_xattr_entry`).
fn translate(list: &mut [u8], user: impl Fn(u32) -> u32, group: impl Fn(u32) -> u32) {
    const HEADER_BYTES: usize = 4;
    const ENTRY_BYTES: usize = 8;
    const ACL_USER: u16 = 2;
    const ACL_GROUP: u16 = 8;
    let entries = list.get_mut(HEADER_BYTES..).unwrap_or_default();
    for entry in entries.as_chunks_mut::<ENTRY_BYTES>().0 {
        let [tag_low, tag_high, _, _, id @ ..] = entry;
        let outside = u32::from_le_bytes(*id);
        match u16::from_le_bytes([*tag_low, *tag_high]) {
            ACL_USER => *id = user(outside).to_le_bytes(),
            ACL_GROUP => *id = group(outside).to_le_bytes(),
            _ => {}
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_users_and_groups_of_a_list_have_ids() {
        let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &[6, 0], &id.to_le_bytes()].concat();
        let list = |user: u32, group: u32| {
            [&[2, 0, 0, 0][..], &entry(1, u32::MAX), &entry(2, user), &entry(8, group), &[1, 2, 3]].concat()
        };
        let mut translated = list(70, 90);
        translate(&mut translated, |user| user / 10, |group| group / 30);
        assert_eq!(translated, list(7, 3));
        for mut short in [vec![], vec![2, 0]] {
            translate(&mut short, |_| 0, |_| 0);
        }
    }
}
