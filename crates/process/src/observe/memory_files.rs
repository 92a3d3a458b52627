//! Reading files in memory: the directory for shared memory (`/dev/shm`), where every sandbox has a filesystem of its own.
//!
//! No layer contains these files, so they travel with the program. They are read in the pause, and each copy makes them before it opens or
//! maps anything. All of them belong to the program's user: no other user of a sandbox writes there.

use std::{
    collections::HashMap,
    ffi::CStr,
    fs::File,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::FileExt},
    },
    path::Path,
};

use base::limits;
use procfs::Fields;
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
};

use crate::{
    error::{Context, Error},
    image::{MemoryFile, MemoryFileKind, MemoryFiles, Part},
    observe::{
        objects::{attributes, data_ranges},
        root,
    },
    refusal::Refusal,
};

/// The kernel's bound of a path that is given to it, with the zero at its end.
const PATH_BYTES_MAX: usize = 4_096;

/// Reads what process `pid`, which stands still, sees in `directory`. Nothing unless a filesystem in memory is mounted there: what lies in the
/// root filesystem travels with its layers.
pub(crate) fn read(pid: i32, directory: &Path, refusals: &mut Vec<Refusal>) -> Result<MemoryFiles, Error> {
    let root = root::open_root(pid)?;
    let path = directory.as_os_str().as_bytes();
    if !is_mounted(root.as_fd(), path).on("look at", directory.display().to_string())? {
        return Ok(MemoryFiles::new());
    }
    let mut reader = Reader { pid, root, owner: None, names: HashMap::new(), bytes: 0, found: MemoryFiles::new() };
    let mut directories = vec![path.to_vec()];
    while let Some(path) = directories.pop() {
        if let Some(refusal) = reader.list(&path, &mut directories)? {
            refusals.push(refusal);
            return Ok(MemoryFiles::new());
        }
    }
    Ok(reader.found)
}

fn is_mounted(root: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<bool> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    match root::open_inside(root, path) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
        place => {
            let place = place?;
            let device = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map(|stat| stat.st_dev);
            Ok(device(place.as_fd())? != device(root)? && rustix::fs::fstatfs(&place)?.f_type as u64 == TMPFS_MAGIC)
        }
    }
}

struct Reader {
    pid: i32,
    root: OwnedFd,
    /// User and group of the program.
    owner: Option<(u64, u64)>,
    /// Files with several names: inode, and place of the first name.
    names: HashMap<u64, usize>,
    /// Content so far.
    bytes: u64,
    found: MemoryFiles,
}

impl Reader {
    /// Reads what is in one directory; those in it are added to `directories`. A reason why it cannot be carried ends it.
    fn list(&mut self, path: &[u8], directories: &mut Vec<Vec<u8>>) -> Result<Option<Refusal>, Error> {
        let shown = String::from_utf8_lossy(path).into_owned();
        let directory = self.open_directory(path).on("open", &shown)?;
        for entry in Dir::read_from(&directory).on("list", &shown)? {
            let entry = entry.on("list", &shown)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let path = [path, b"/", name.to_bytes()].concat();
            let stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).on("look at", lossy(&path))?;
            if let Some(refusal) = self.refusal(&path, &stat)? {
                return Ok(Some(refusal));
            }
            let file = self.file(&directory, name, path, &stat)?;
            if file.kind == MemoryFileKind::Directory {
                directories.push(file.path.clone());
            }
            self.found.push(file);
            if self.bytes > limits::SHARED_MEMORY_BYTES_MAX {
                let (what, max) = (format!("the files in {shown}"), limits::SHARED_MEMORY_BYTES_MAX);
                return Ok(Some(Refusal::TooMuchContent { what, bytes: self.bytes, max }));
            }
        }
        Ok(None)
    }

    fn open_directory(&self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        let place = root::open_inside(self.root.as_fd(), path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOATIME;
        rustix::fs::openat(&place, c".", flags, Mode::empty())
    }

    /// Why a copy, which has the rights of the program, could not make a file.
    fn refusal(&mut self, path: &[u8], stat: &Stat) -> Result<Option<Refusal>, Error> {
        let what = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile | FileType::Directory | FileType::Symlink | FileType::Fifo | FileType::Socket => None,
            FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => Some("is a device"),
        };
        let what = match what {
            None if path.len() >= PATH_BYTES_MAX => Some("has a path that is too long"),
            None if self.owner()? != (stat.st_uid.into(), stat.st_gid.into()) => Some("belongs to another user"),
            what => what,
        };
        if let Some(what) = what {
            return Ok(Some(Refusal::MemoryFile { path: lossy(path), what: what.to_owned() }));
        }
        let (found, max) = (self.found.len() + 1, limits::SHARED_MEMORY_FILES_MAX);
        Ok((found > max).then(|| Refusal::TooMany { what: "files in memory".into(), found, max }))
    }

    fn owner(&mut self) -> Result<(u64, u64), Error> {
        if let Some(owner) = self.owner {
            return Ok(owner);
        }
        let status = Fields::read(format!("/proc/{}/status", self.pid))?;
        let owner = (status.effective("Uid")?, status.effective("Gid")?);
        self.owner = Some(owner);
        Ok(owner)
    }

    fn file(&mut self, directory: &OwnedFd, name: &CStr, path: Vec<u8>, stat: &Stat) -> Result<MemoryFile, Error> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        let first = (stat.st_nlink > 1 && kind != FileType::Directory)
            .then(|| *self.names.entry(stat.st_ino).or_insert(self.found.len()))
            .filter(|first| *first != self.found.len());
        let mut attributes = Vec::new();
        let kind = match (first, kind) {
            (Some(of), _) => MemoryFileKind::Name { of },
            (None, FileType::Symlink) => {
                let to = rustix::fs::readlinkat(directory, name, Vec::new()).on("read", lossy(&path))?;
                MemoryFileKind::Link { to: to.into_bytes() }
            }
            (None, FileType::Directory | FileType::RegularFile) => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOATIME;
                let opened = rustix::fs::openat(directory, name, flags, Mode::empty()).on("open", lossy(&path))?;
                let opened = File::from(opened);
                attributes = attributes::read(&opened, self.pid).on("read", lossy(&path))?;
                match kind {
                    FileType::Directory => MemoryFileKind::Directory,
                    _ => self.regular(&opened, &path, stat.st_size as u64)?,
                }
            }
            (None, _) => MemoryFileKind::Special { kind: stat.st_mode & libc::S_IFMT },
        };
        let times = [(stat.st_atime, stat.st_atime_nsec), (stat.st_mtime, stat.st_mtime_nsec)];
        Ok(MemoryFile { path, kind, mode: stat.st_mode & 0o7777, times, attributes })
    }

    fn regular(&mut self, file: &File, path: &[u8], size: u64) -> Result<MemoryFileKind, Error> {
        let mut content = Vec::new();
        for (offset, end) in data_ranges(file).on("read", lossy(path))? {
            self.bytes += end - offset;
            if self.bytes > limits::SHARED_MEMORY_BYTES_MAX {
                break;
            }
            let mut bytes = vec![0; (end - offset) as usize];
            file.read_exact_at(&mut bytes, offset).on("read", lossy(path))?;
            content.push(Part { offset, bytes });
        }
        Ok(MemoryFileKind::Regular { size, content })
    }
}

fn lossy(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
