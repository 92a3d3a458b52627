//! `/proc/PID/mountinfo`: the mounts that a process sees (proc_pid_mountinfo(5)).

use std::{ffi::OsString, fmt, os::unix::ffi::OsStringExt, path::PathBuf};

use crate::{error::Error, read::read};

/// All mounts that a process sees.
#[derive(Debug)]
pub struct Mounts(String);

/// One mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mount<'a> {
    /// The kernel's number of it, as statx(2) gives it with `STATX_MNT_ID`.
    pub id: u64,
    /// The number of the mount that it is mounted in.
    pub parent: u64,
    /// The device of the filesystem, as `stat` gives it for most.
    pub device: u64,
    root: &'a str,
    at: &'a str,
    /// The filesystem's type, such as `ext4` or `fuse.pando`.
    pub kind: &'a str,
    /// What is mounted: a device or any name, with blanks as `\\040`.
    pub source: &'a str,
    /// Options of the filesystem, which all its mounts share, separated by commas.
    pub options: &'a str,
}

impl Mounts {
    /// Those that a process sees: its number, or `self`. `EINVAL` if it has let go of its mounts, as one does that ends.
    pub fn read(process: impl fmt::Display) -> Result<Self, Error> {
        Ok(Self::of(&String::from_utf8_lossy(&read(&format!("/proc/{process}/mountinfo"))?)))
    }

    /// These lines.
    pub fn of(mountinfo: &str) -> Self {
        Self(mountinfo.to_owned())
    }

    /// Each mount, in the kernel's order. A line of another form is left out.
    pub fn iter(&self) -> impl Iterator<Item = Mount<'_>> {
        self.0.lines().filter_map(Mount::parse)
    }
}

impl<'a> Mount<'a> {
    /// "36 35 98:0 /root /at rw,noatime master:1 - ext3 /dev/root rw,errors=continue"
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, filesystem) = line.split_once(" - ")?;
        let (mut mount, mut filesystem) = (mount.split(' '), filesystem.split(' '));
        let (id, parent) = (mount.next()?.parse().ok()?, mount.next()?.parse().ok()?);
        let (major, minor) = mount.next()?.split_once(':')?;
        Some(Self {
            id,
            parent,
            device: rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?),
            root: mount.next()?,
            at: mount.next()?,
            kind: filesystem.next()?,
            source: filesystem.next()?,
            options: filesystem.next().unwrap_or_default(),
        })
    }

    /// Which directory of the filesystem is mounted: not `/` for a bind mount.
    pub fn root(&self) -> PathBuf {
        unescaped(self.root)
    }

    /// Where it is mounted, from the process's root directory.
    pub fn at(&self) -> PathBuf {
        unescaped(self.at)
    }
}

/// Blanks, tabs, newlines and backslashes are `\` and three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let mut parts = text.split('\\');
    let mut whole = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(3).unwrap_or((part, ""));
        match u8::from_str_radix(digits, 8) {
            Ok(byte) => whole.push(byte),
            Err(_) => whole.extend_from_slice(digits.as_bytes()),
        }
        whole.extend_from_slice(rest.as_bytes());
    }
    PathBuf::from(OsString::from_vec(whole))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_mount_is_read_with_and_without_optional_fields() {
        let mounts = Mounts::of(
            "36 35 98:2 /a\\134b /mnt/a\\040b\\011 rw,noatime - fuse.pando ws rw,user_id=0\n\
             37 36 8:1 / /mnt rw shared:1 master:2 - ext4 /dev/root rw\n\
             no mount\n",
        );
        let found: Vec<Mount<'_>> = mounts.iter().collect();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].id, found[0].parent, found[0].device), (36, 35, rustix::fs::makedev(98, 2)));
        assert_eq!((found[0].root(), found[0].at()), (PathBuf::from("/a\\b"), PathBuf::from("/mnt/a b\t")));
        assert_eq!((found[0].kind, found[0].source, found[0].options), ("fuse.pando", "ws", "rw,user_id=0"));
        assert_eq!((found[1].parent, found[1].kind, found[1].source), (36, "ext4", "/dev/root"));
    }

    #[test]
    fn this_process_sees_a_root() {
        assert!(Mounts::read("self").unwrap().iter().any(|mount| mount.at() == Path::new("/")));
    }
}
