//! Making entries. Everything is reached by the descriptor of its directory and one name, and no link is followed.

use std::{ffi::CString, os::fd::OwnedFd};

use rustix::{
    fs::{
        AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, chmodat, chownat, ftruncate, linkat, mkdirat,
        mknodat, openat, symlinkat, utimensat,
    },
    io::{Errno, fcntl_dupfd_cloexec, pwrite},
};

use super::record::{Attributes, Node};
use crate::attributes::{entry_path, open_dir, set_xattr};

/// A name in a directory, without slashes.
pub(super) struct Place<'a> {
    pub(super) dir: &'a OwnedFd,
    pub(super) name: &'a [u8],
}

/// An entry that was made and is not finished: its owner is set, its mode and times are not.
pub(super) struct Made {
    /// Where it is; of a directory, itself.
    dir: OwnedFd,
    name: CString,
    file: Option<OwnedFd>,
    attributes: Attributes,
    symlink: bool,
}

impl Place<'_> {
    /// Makes what must not be there yet.
    pub(super) fn make(&self, node: &Node<'_>, attributes: Attributes) -> rustix::io::Result<Made> {
        let name = CString::new(self.name).map_err(|_| Errno::INVAL)?;
        let (mut file, mut symlink) = (None, false);
        match node {
            Node::Directory => {
                mkdirat(self.dir, &name, Mode::RWXU)?;
                return Made::directory(open_dir(self.dir, &name)?, attributes);
            }
            Node::File { size } => file = Some(self.make_file(*size)?),
            Node::Symlink { target } => {
                symlinkat(*target, self.dir, &name)?;
                symlink = true;
            }
            Node::Pipe => self.make_special(FileType::Fifo)?,
            Node::Socket => self.make_special(FileType::Socket)?,
            Node::Whiteout => self.make_special(FileType::CharacterDevice)?,
        }
        Made { dir: clone(self.dir)?, name, file, attributes, symlink }.owned()
    }

    fn make_file(&self, size: u64) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(self.dir, self.name, flags, Mode::RUSR | Mode::WUSR)?;
        // The size first: it makes the hole that data is then put into.
        ftruncate(&file, size)?;
        Ok(file)
    }

    /// Device number 0:0, which makes a character device a whiteout.
    fn make_special(&self, kind: FileType) -> rustix::io::Result<()> {
        mknodat(self.dir, self.name, kind, Mode::RUSR | Mode::WUSR, 0)
    }

    /// Makes another name of what is at the path `first` below `root`. Component by component: the path may be longer
    /// than the kernel takes at once, and what is on it may be a link.
    pub(super) fn link(&self, root: &OwnedFd, first: &[u8]) -> rustix::io::Result<()> {
        let mut names = first.split(|byte| *byte == b'/');
        let Some(file) = names.next_back() else { return Err(Errno::INVAL) };
        let mut dir = clone(root)?;
        for name in names {
            dir = open_dir(&dir, name)?;
        }
        linkat(&dir, file, self.dir, self.name, AtFlags::empty())
    }
}

impl Made {
    /// A directory of our own, open.
    pub(super) fn directory(dir: OwnedFd, attributes: Attributes) -> rustix::io::Result<Self> {
        Self { dir, name: c".".to_owned(), file: None, attributes, symlink: false }.owned()
    }

    /// The owner before all other attributes: a change of owner clears mode bits and file capabilities.
    fn owned(self) -> rustix::io::Result<Self> {
        let (uid, gid) = (Uid::from_raw(self.attributes.uid), Gid::from_raw(self.attributes.gid));
        chownat(&self.dir, &self.name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(self)
    }

    /// Where entries of a directory are made.
    pub(super) fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// Writes into a file.
    pub(super) fn write(&self, mut at: u64, mut bytes: &[u8]) -> rustix::io::Result<()> {
        let file = self.file.as_ref().ok_or(Errno::INVAL)?;
        while !bytes.is_empty() {
            let written = match pwrite(file, bytes, at) {
                Err(Errno::INTR) => continue,
                written => written?,
            };
            bytes = &bytes[written..];
            at += written as u64;
        }
        Ok(())
    }

    pub(super) fn set_xattr(&self, name: &[u8], value: &[u8]) -> rustix::io::Result<()> {
        set_xattr(&entry_path(&self.dir, &self.name), name, value)
    }

    /// Mode and times last: neither would survive what comes before.
    pub(super) fn finish(self) -> rustix::io::Result<()> {
        let Attributes { mode, seconds, nanoseconds, .. } = self.attributes;
        // A link has no mode of its own.
        if !self.symlink {
            chmodat(&self.dir, &self.name, Mode::from_raw_mode(mode.into()), AtFlags::empty())?;
        }
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(&self.dir, &self.name, &times, AtFlags::SYMLINK_NOFOLLOW)
    }
}

fn clone(dir: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    fcntl_dupfd_cloexec(dir, 0)
}
