//! The directory that is unpacked into. All is done below it, whatever links are there.

use std::{
    cell::Cell,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timestamps, Uid, XattrFlags, chmodat, chownat, fchmod,
        fchown, fsetxattr, fstat, futimens, linkat, lsetxattr, mkdirat, mknodat, open, openat, openat2, readlinkat,
        statat, symlinkat, unlinkat, utimensat,
    },
    io::Errno,
};

use super::attributes::Attributes;
use crate::error::{Context, Error, refused, shown};

const OPAQUE: &str = "trusted.overlay.opaque";
const HIDDEN: u64 = 0;

/// Most parts of a path.
const DEPTH_MAX: usize = 256;
/// Longest path: the kernel's own bound.
const NAME_BYTES_MAX: usize = 4_096;
/// Of a file with names of users or groups, as much as is read.
const NAMES_BYTES_MAX: u64 = 1 << 20;
/// Links to nothing that are followed to make a directory.
const LINKS_MAX: usize = 8;

pub(super) struct Target {
    root: OwnedFd,
    /// Directories that no entry has named.
    implied: Cell<u64>,
}

/// A path of an archive, without a root and without detours. It must not lead above the root.
pub(crate) fn clean(bytes: &[u8]) -> Result<PathBuf, Error> {
    let path = PathBuf::from(OsString::from_vec(bytes.to_vec()));
    if bytes.len() > NAME_BYTES_MAX {
        return refused(format!("{}... has more than {NAME_BYTES_MAX} bytes", shown(&path.to_string_lossy())));
    }
    if bytes.contains(&0) {
        return refused(format!("{} has a zero in its name", shown(&path.to_string_lossy())));
    }
    let mut clean = PathBuf::new();
    if path.components().count() > DEPTH_MAX {
        return refused(format!("{}... has more than {DEPTH_MAX} parts", shown(&path.to_string_lossy())));
    }
    for part in path.components() {
        match part {
            Component::Normal(part) => clean.push(part),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            Component::ParentDir => return refused(format!("{} leads above the root", shown(&path.to_string_lossy()))),
        }
    }
    Ok(clean)
}

/// Where a link in a directory leads to, by its text: never above the root.
fn beyond(above: &Path, link: &Path) -> PathBuf {
    let mut path = if link.is_absolute() { PathBuf::new() } else { above.to_owned() };
    for part in link.components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::ParentDir => drop(path.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    path
}

impl Target {
    pub(super) fn open(into: &Path) -> Result<Self, Error> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { root: open(into, flags, Mode::empty()).at("open", into)?, implied: Cell::new(0) })
    }

    /// How many directories were made that no entry has named.
    pub(super) fn implied(&self) -> u64 {
        self.implied.get()
    }

    fn resolve(&self, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        openat2(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    /// The directory at a path; what is missing of it is made, also behind a link.
    fn directory(&self, path: &Path) -> io::Result<OwnedFd> {
        self.directory_behind(path, LINKS_MAX)
    }

    fn directory_behind(&self, path: &Path, links: usize) -> io::Result<OwnedFd> {
        match self.resolve(path, OFlags::PATH | OFlags::DIRECTORY) {
            Err(Errno::NOENT) => {}
            found => return Ok(found?),
        }
        let (parent, name) = (path.parent(), path.file_name());
        let (parent, name) = parent.zip(name).ok_or(io::ErrorKind::NotFound)?;
        let above = self.directory_behind(parent, links)?;
        match mkdirat(&above, name, Mode::from_raw_mode(0o755)) {
            Err(Errno::EXIST) if links > 0 => {
                let link = readlinkat(&above, name, Vec::new())?;
                let target = beyond(parent, Path::new(OsStr::from_bytes(link.to_bytes())));
                return self.directory_behind(&target, links - 1);
            }
            made => made?,
        }
        self.implied.set(self.implied.get() + 1);
        Ok(openat(&above, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// The number of a name in `etc/passwd` or `etc/group`, if that is there by now.
    pub(super) fn id_of(&self, file: &str, name: &str) -> Option<u32> {
        // A device of the archive must not even be opened.
        let found = self.resolve(Path::new(file), OFlags::PATH).ok()?;
        if FileType::from_raw_mode(fstat(&found).ok()?.st_mode) != FileType::RegularFile {
            return None;
        }
        let file = File::open(format!("/proc/self/fd/{}", found.as_raw_fd())).ok()?;
        let mut text = String::new();
        file.take(NAMES_BYTES_MAX).read_to_string(&mut text).ok()?;
        let of_name =
            |line: &str| line.split(':').nth(2).filter(|_| line.split(':').next() == Some(name))?.parse().ok();
        text.lines().find_map(of_name)
    }

    /// The directory that an entry goes into, and its name there, where nothing is any more.
    fn place<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let (above, name) = self.above(path)?;
        match unlinkat(&above, name, AtFlags::empty()) {
            Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => {
                sys::tree::remove(&by_descriptor(above.as_fd(), name))?;
            }
            removed => removed?,
        }
        Ok((above, name))
    }

    fn above<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Ok((self.directory(path.parent().unwrap_or(Path::new("")))?, name))
    }

    pub(super) fn finish_root(&self, attributes: &Attributes) -> io::Result<()> {
        let root = self.resolve(Path::new(""), OFlags::RDONLY | OFlags::DIRECTORY)?;
        set(&File::from(root), attributes)
    }

    pub(super) fn make_directory(&self, path: &Path, attributes: &Attributes) -> io::Result<()> {
        let (above, name) = self.above(path)?;
        let is_there = statat(&above, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory);
        let hides = statat(&above, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| is_whiteout(&found));
        if !is_there {
            let (above, name) = self.place(path)?;
            mkdirat(&above, name, Mode::RWXU)?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = File::from(openat(&above, name, flags, Mode::empty())?);
        if hides {
            // Entries of lower layers stay hidden.
            fsetxattr(&directory, OPAQUE, b"y", XattrFlags::empty())?;
        }
        set(&directory, attributes)
    }

    pub(super) fn set_directory_times(&self, path: &Path, times: &Timestamps) -> io::Result<()> {
        match self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW) {
            // A later entry took its place.
            Err(Errno::NOTDIR | Errno::NOENT | Errno::LOOP) => Ok(()),
            directory => Ok(futimens(directory?, times)?),
        }
    }

    pub(super) fn make_file(&self, path: &Path) -> io::Result<File> {
        let (above, name) = self.place(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&above, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    pub(super) fn finish_file(&self, _path: &Path, file: &File, attributes: &Attributes) -> io::Result<()> {
        set(file, attributes)?;
        Ok(futimens(file, &attributes.times)?)
    }

    pub(super) fn make_symlink(&self, path: &Path, to: &[u8], attributes: &Attributes) -> io::Result<()> {
        let (above, name) = self.place(path)?;
        symlinkat(OsStr::from_bytes(to), &above, name)?;
        finish_by_name(above.as_fd(), name, attributes, None)
    }

    pub(super) fn make_link(&self, path: &Path, to: &Path) -> io::Result<()> {
        let target = self.resolve(to, OFlags::PATH | OFlags::NOFOLLOW)?;
        let (above, name) = self.above(path)?;
        // The same name twice: it is there already.
        let (old, new) = (statat(&above, name, AtFlags::SYMLINK_NOFOLLOW), fstat(&target)?);
        if old.is_ok_and(|old| (old.st_dev, old.st_ino) == (new.st_dev, new.st_ino)) {
            return Ok(());
        }
        let (above, name) = self.place(path)?;
        Ok(linkat(&target, "", &above, name, AtFlags::EMPTY_PATH)?)
    }

    pub(super) fn make_node(
        &self,
        path: &Path,
        kind: FileType,
        device: u64,
        attributes: &Attributes,
    ) -> io::Result<()> {
        let (above, name) = self.place(path)?;
        mknodat(&above, name, kind, Mode::RUSR, device)?;
        finish_by_name(above.as_fd(), name, attributes, Some(attributes.mode))
    }

    /// One that the layer has itself stays: only what is below in other layers is hidden.
    pub(super) fn make_whiteout(&self, path: &Path) -> io::Result<()> {
        let (above, name) = self.above(path)?;
        match statat(&above, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => {
                return self.make_opaque(path);
            }
            Ok(_) => return Ok(()),
            Err(_) => {}
        }
        let (above, name) = self.place(path)?;
        Ok(mknodat(&above, name, FileType::CharacterDevice, Mode::empty(), HIDDEN)?)
    }

    pub(super) fn make_opaque(&self, path: &Path) -> io::Result<()> {
        self.directory(path)?;
        let directory = self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(fsetxattr(directory, OPAQUE, b"y", XattrFlags::empty())?)
    }
}

/// The owner first: a change of owner clears mode bits and capabilities.
fn set(file: &File, attributes: &Attributes) -> io::Result<()> {
    fchown(file, Some(Uid::from_raw(attributes.uid)), Some(Gid::from_raw(attributes.gid)))?;
    fchmod(file, Mode::from_raw_mode(attributes.mode))?;
    for (name, value) in &attributes.extended {
        tolerate(fsetxattr(file, name.as_str(), value, XattrFlags::empty()))?;
    }
    Ok(())
}

fn finish_by_name(above: BorrowedFd<'_>, name: &OsStr, attributes: &Attributes, mode: Option<u32>) -> io::Result<()> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    chownat(above, name, Some(Uid::from_raw(attributes.uid)), Some(Gid::from_raw(attributes.gid)), flags)?;
    if let Some(mode) = mode {
        chmodat(above, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
    }
    for (attribute, value) in &attributes.extended {
        tolerate(lsetxattr(by_descriptor(above, name), attribute.as_str(), value, XattrFlags::empty()))?;
    }
    Ok(utimensat(above, name, &attributes.times, flags)?)
}

fn is_whiteout(found: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice && found.st_rdev == HIDDEN
}

/// For calls that take a path only.
fn by_descriptor(above: BorrowedFd<'_>, name: &OsStr) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", above.as_raw_fd())).join(name)
}

/// Attributes of users are for files and directories only.
fn tolerate(set: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match set {
        Err(Errno::PERM | Errno::OPNOTSUPP) => Ok(()),
        set => set,
    }
}
