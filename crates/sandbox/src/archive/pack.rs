//! Reading a layer into records: depth first, each directory's entries in the order of their names.

use std::{
    collections::HashMap,
    ffi::{CStr, CString, OsStr},
    io::Write,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    vec,
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, Stat, fstat, openat, readlinkat, seek, statat},
    io::{Errno, pread},
};

use super::{
    ArchiveTotals,
    limits::{BLOCK_BYTES, ENTRIES_MAX, FILE_BYTES_MAX, HELD_BYTES_MAX, HELD_OVERHEAD_BYTES, WINDOW_BYTES},
    record::{Attributes, Node, Record, Sink, refused_mark},
};
use crate::{
    attributes::{LEVELS_MAX, entry_path, open_dir, xattr, xattr_names},
    error::{Context, Error},
    machine::{IDENTITY_FILES, is_one_of},
};

static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

pub(super) fn pack(dir: &Path, out: &mut dyn Write) -> Result<ArchiveTotals, Error> {
    let mut packer = Packer {
        top: dir,
        sink: Sink::new(out),
        links: HashMap::new(),
        held: 0,
        window: vec![0; WINDOW_BYTES],
        entries: 0,
        data_bytes: 0,
    };
    let root = open_dir(CWD, dir).at("open", dir)?;
    let stat = fstat(&root).at("look at", dir)?;
    let mut levels = vec![packer.enter(root, &stat, b"", Vec::new())?];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.names.next() else {
            packer.leave(level)?;
            levels.pop();
            continue;
        };
        let deeper = packer.entry(level, &name)?;
        levels.extend(deeper);
        if levels.len() > LEVELS_MAX {
            return Err(Error::TooDeep { path: dir.to_owned(), levels: LEVELS_MAX });
        }
    }
    packer.sink.finish(packer.entries, packer.data_bytes)
}

/// A directory that is being packed.
struct Level {
    dir: OwnedFd,
    /// Below the layer, with a slash at its end unless empty.
    path: Vec<u8>,
    names: vec::IntoIter<CString>,
    /// What its names take of [`HELD_BYTES_MAX`].
    held: usize,
}

/// The first name of a file that has more.
struct First {
    path: Vec<u8>,
    /// How many more; some of them may lie outside the layer.
    more: u64,
}

struct Packer<'a> {
    top: &'a Path,
    sink: Sink<'a>,
    /// By device and inode; a file is here until all its names were seen.
    links: HashMap<(u64, u64), First>,
    held: usize,
    window: Vec<u8>,
    entries: u64,
    data_bytes: u64,
}

impl Packer<'_> {
    /// Begins a directory, whose path ends with a slash unless it is the layer.
    fn enter(&mut self, dir: OwnedFd, stat: &Stat, name: &[u8], path: Vec<u8>) -> Result<Level, Error> {
        self.begin(name, stat, Node::Directory)?;
        let (room, mut names, mut held) = (HELD_BYTES_MAX - self.held, Vec::new(), 0);
        let listed = sys::tree::each(&dir, |name| {
            held += name.to_bytes().len() + HELD_OVERHEAD_BYTES;
            names.push(name.to_owned());
            if held > room { Err(Errno::TOOBIG) } else { Ok(()) }
        });
        if held > room {
            return Err(self.refused(&path, "its directory has too many names"));
        }
        listed.at("list", &self.full(&path))?;
        self.held += held;
        names.sort_unstable();
        Ok(Level { dir, path, names: names.into_iter(), held })
    }

    fn leave(&mut self, level: &Level) -> Result<(), Error> {
        self.held -= level.held;
        self.end(&level.dir, c".", &level.path, true)
    }

    /// Packs one entry; a directory is only begun and returned, to be gone through next.
    fn entry(&mut self, level: &Level, name: &CString) -> Result<Option<Level>, Error> {
        let mut path = [&level.path, name.to_bytes()].concat();
        let stat = statat(&level.dir, name, AtFlags::SYMLINK_NOFOLLOW).at("look at", &self.full(&path))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            let dir = open_dir(&level.dir, name).at("open", &self.full(&path))?;
            path.push(b'/');
            return self.enter(dir, &stat, name.to_bytes(), path).map(Some);
        }
        // Whoever gets the layer has its own.
        if is_one_of(&IDENTITY_FILES, &path) || self.further_name(name, &stat)? {
            return Ok(None);
        }
        match kind {
            FileType::RegularFile => self.file(level, name, &stat, &path)?,
            FileType::Symlink => {
                let target = readlinkat(&level.dir, name, Vec::new()).at("read the link", &self.full(&path))?;
                self.begin(name.to_bytes(), &stat, Node::Symlink { target: target.to_bytes() })?;
            }
            FileType::Fifo => self.begin(name.to_bytes(), &stat, Node::Pipe)?,
            FileType::Socket => self.begin(name.to_bytes(), &stat, Node::Socket)?,
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                self.begin(name.to_bytes(), &stat, Node::Whiteout)?;
            }
            _ => return Err(self.refused(&path, "it is a device")),
        }
        self.end(&level.dir, name, &path, false)?;
        self.remember(&stat, path)?;
        Ok(None)
    }

    /// Whether it is a further name of a file that was packed.
    fn further_name(&mut self, name: &CStr, stat: &Stat) -> Result<bool, Error> {
        let key = (stat.st_dev, stat.st_ino);
        let Some(first) = self.links.get_mut(&key) else { return Ok(false) };
        self.sink.put(&Record::Link { name: name.to_bytes(), first: &first.path })?;
        first.more -= 1;
        if first.more == 0 {
            self.held -= first.path.len() + HELD_OVERHEAD_BYTES;
            self.links.remove(&key);
        }
        self.count().map(|()| true)
    }

    fn remember(&mut self, stat: &Stat, path: Vec<u8>) -> Result<(), Error> {
        if stat.st_nlink < 2 {
            return Ok(());
        }
        self.held += path.len() + HELD_OVERHEAD_BYTES;
        if self.held > HELD_BYTES_MAX {
            return Err(self.refused(&path, "too many files have several names"));
        }
        self.links.insert((stat.st_dev, stat.st_ino), First { path, more: stat.st_nlink - 1 });
        Ok(())
    }

    fn count(&mut self) -> Result<(), Error> {
        self.entries += 1;
        if self.entries > ENTRIES_MAX { Err(self.refused(b"", "it has too many entries")) } else { Ok(()) }
    }

    fn begin(&mut self, name: &[u8], stat: &Stat, node: Node<'_>) -> Result<(), Error> {
        self.count()?;
        let attributes = Attributes {
            mode: (stat.st_mode & 0o7777) as u16,
            uid: stat.st_uid,
            gid: stat.st_gid,
            seconds: stat.st_mtime,
            nanoseconds: stat.st_mtime_nsec as u32,
        };
        self.sink.put(&Record::Entry { name, attributes, node })
    }

    fn end(&mut self, dir: &OwnedFd, name: &CStr, path: &[u8], directory: bool) -> Result<(), Error> {
        let entry = entry_path(dir, name);
        for name in xattr_names(&entry).at("list the attributes of", &self.full(path))? {
            let value = xattr(&entry, &name).at("read an attribute of", &self.full(path))?;
            if let Some(reason) = refused_mark(&name, &value, directory) {
                return Err(self.refused(path, reason));
            }
            self.sink.put(&Record::Xattr { name: &name, value: &value })?;
        }
        self.sink.put(&Record::End)
    }

    fn file(&mut self, level: &Level, name: &CStr, stat: &Stat, path: &[u8]) -> Result<(), Error> {
        // Not to wait for the writer of a pipe, if a program that does not stand still put one here.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&level.dir, name, flags, Mode::empty()).at("open", &self.full(path))?;
        let opened = fstat(&file).at("look at", &self.full(path))?;
        if (opened.st_dev, opened.st_ino) != (stat.st_dev, stat.st_ino) {
            return Err(self.refused(path, "it was replaced meanwhile"));
        }
        let size = stat.st_size as u64;
        if size > FILE_BYTES_MAX {
            return Err(self.refused(path, "it is too large"));
        }
        self.begin(name.to_bytes(), stat, Node::File { size })?;
        self.data(&file, size, path)
    }

    /// Where a filesystem keeps holes only says where to look: the same bytes give the same records.
    fn data(&mut self, file: &OwnedFd, size: u64, path: &[u8]) -> Result<(), Error> {
        let mut at = 0;
        while at < size {
            let data = match seek(file, SeekFrom::Data(at)) {
                Err(Errno::NXIO) => return Ok(()),
                data => data.at("read", &self.full(path))?,
            };
            at = data - data % WINDOW_BYTES as u64;
            let wanted = size.saturating_sub(at).min(WINDOW_BYTES as u64) as usize;
            let read = read_at(file, &mut self.window[..wanted], at).at("read", &self.full(path))?;
            self.put_window(at, read)?;
            at += WINDOW_BYTES as u64;
        }
        Ok(())
    }

    /// Puts the first `length` bytes of the window, without blocks of zeros.
    fn put_window(&mut self, at: u64, length: usize) -> Result<(), Error> {
        let window = &self.window[..length];
        let is_hole = |at: usize| {
            let block = &window[at..length.min(at + BLOCK_BYTES)];
            block == &ZEROS[..block.len()]
        };
        let mut begin = 0;
        while begin < length {
            let hole = is_hole(begin);
            let mut end = begin + BLOCK_BYTES;
            while end < length && is_hole(end) == hole {
                end += BLOCK_BYTES;
            }
            let bytes = &window[begin..end.min(length)];
            if !hole {
                self.sink.put(&Record::Data { at: at + begin as u64, bytes })?;
                self.data_bytes += bytes.len() as u64;
            }
            begin = end;
        }
        Ok(())
    }

    fn full(&self, path: &[u8]) -> PathBuf {
        self.top.join(OsStr::from_bytes(path))
    }

    fn refused(&self, path: &[u8], reason: &'static str) -> Error {
        Error::NotCarried { path: self.full(path), reason }
    }
}

/// Less than the buffer only if the file was cut meanwhile; the rest becomes a hole.
fn read_at(file: &OwnedFd, mut buffer: &mut [u8], mut at: u64) -> rustix::io::Result<usize> {
    let mut total = 0;
    while !buffer.is_empty() {
        let read = match pread(file, &mut *buffer, at) {
            Ok(0) => break,
            Err(Errno::INTR) => continue,
            read => read?,
        };
        buffer = &mut buffer[read..];
        (total, at) = (total + read, at + read as u64);
    }
    Ok(total)
}
