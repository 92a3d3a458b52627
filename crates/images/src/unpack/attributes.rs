//! What an entry says of its file beside its content.

use std::collections::BTreeMap;

use rustix::fs::{Timespec, Timestamps};
use tarball::{
    Member,
    pax::{self, XATTR},
};

use crate::error::{Error, refused, shown};

/// Of one file.
#[derive(Debug, Clone)]
pub(super) struct Attributes {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) times: Timestamps,
    /// Names and values of extended attributes.
    pub(super) extended: Vec<(String, Vec<u8>)>,
}

/// Most entries of an access list.
const ENTRIES_MAX: usize = 1_000;
/// Access lists as texts, and the attributes that the kernel has them in.
const LISTS: [(&str, &str); 2] =
    [("SCHILY.acl.access", "system.posix_acl_access"), ("SCHILY.acl.default", "system.posix_acl_default")];

impl Attributes {
    /// `id_of` finds the number of a name in a file of the image's: `etc/passwd`, `etc/group`.
    pub(super) fn of(member: &Member, id_of: &dyn Fn(&str, &str) -> Option<u32>) -> Result<Self, Error> {
        let header = &member.header;
        let text = |key: &str| member.text(key);
        let id = |key: &str, plain: std::io::Result<u64>| {
            let id = text(key).map_or(Some(plain.unwrap_or(0)), |text| text.trim().parse().ok());
            id.and_then(|id| u32::try_from(id).ok()).filter(|id| *id < u32::MAX)
        };
        let (Some(uid), Some(gid)) = (id("uid", header.uid()), id("gid", header.gid())) else {
            return refused("the owner of a file is no number that a kernel has");
        };
        let plain = || header.mtime().ok().map(|seconds| Timespec { tv_sec: seconds.cast_signed(), tv_nsec: 0 });
        let time = |key: &str| {
            let (seconds, nanos) = pax::to_time(member.record(key)?)?;
            Some(Timespec { tv_sec: seconds, tv_nsec: nanos.into() })
        };
        let modified = time("mtime").or_else(plain).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
        let accessed = time("atime").unwrap_or(modified);
        let times = Timestamps { last_access: accessed, last_modification: modified };
        let mode = header.mode().unwrap_or(0) & 0o7777;
        Ok(Self { mode, uid, gid, times, extended: attributes(member, id_of)? })
    }
}

/// Those that a file may have. Markers of overlayfs would hide or forge what is in other layers; other namespaces are the host's business.
fn attributes(member: &Member, id_of: &dyn Fn(&str, &str) -> Option<u32>) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let mut found = BTreeMap::new();
    for (key, value) in member.records() {
        let Some(name) = str::from_utf8(key).ok().and_then(|key| key.strip_prefix(XATTR)) else { continue };
        let is_users = name.starts_with("user.") && !name.starts_with("user.overlay.");
        let is_kernels = ["security.capability", "system.posix_acl_access", "system.posix_acl_default"].contains(&name);
        if is_users || is_kernels {
            found.insert(name.to_owned(), value.to_vec());
        }
    }
    for (key, name) in LISTS {
        if let Some(text) = member.text(key).filter(|text| !text.is_empty()) {
            match access_list(text, id_of) {
                Some(list) => drop(found.insert(name.to_owned(), list)),
                None => {
                    return refused(format!(
                        "an access list names users or groups that the image has not: {:?}",
                        shown(text)
                    ));
                }
            }
        }
    }
    Ok(found.into_iter().collect())
}

/// An access list as the kernel has it (posix_acl_xattr.h): version, then a tag, permissions and an id for each entry.
fn access_list(text: &str, id_of: &dyn Fn(&str, &str) -> Option<u32>) -> Option<Vec<u8>> {
    const VERSION: u32 = 2;
    const NO_ID: u32 = u32::MAX;
    let mut entries = Vec::new();
    for entry in text
        .split([',', '\n'])
        .take(ENTRIES_MAX * 2)
        .map(str::trim)
        .filter(|entry| !entry.is_empty() && !entry.starts_with('#'))
    {
        let mut parts = entry.split(':');
        let (kind, whom, rights) = (parts.next()?, parts.next()?, parts.next()?);
        // star adds the number behind a name.
        let whom = parts.next().unwrap_or(whom);
        let names = if kind.starts_with('g') { "etc/group" } else { "etc/passwd" };
        let id = match whom {
            "" => None,
            whom => Some(whom.parse().ok().or_else(|| id_of(names, whom))?),
        };
        let tag: u16 = match (kind, id) {
            ("user" | "u", None) => 0x01,
            ("user" | "u", Some(_)) => 0x02,
            ("group" | "g", None) => 0x04,
            ("group" | "g", Some(_)) => 0x08,
            ("mask" | "m", None) => 0x10,
            ("other" | "o", None) => 0x20,
            _ => return None,
        };
        let right = |(letter, bit): (char, u16)| if rights.contains(letter) { bit } else { 0 };
        let bits = [('r', 4), ('w', 2), ('x', 1)].into_iter().map(right).sum::<u16>();
        entries.push((tag, id.unwrap_or(NO_ID), bits));
    }
    if entries.len() > ENTRIES_MAX {
        return None;
    }
    // The kernel wants them in this order.
    entries.sort_unstable();
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for (tag, id, bits) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(bits.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    Some(bytes)
}
