//! Unpacking a tar archive exactly: owners, modes, set-id bits, extended attributes, access lists, times, links, holes, special files.
//!
//! The archive may be hostile. Every path is resolved below the new directory (openat2(2), `RESOLVE_IN_ROOT`), so links of the archive lead nowhere
//! else; all is bounded ([`crate::limits`]).

mod attributes;
mod target;

use std::{
    ffi::OsStr,
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use base::limits::BUILD_ROOM_MIN;
use rustix::fs::{FileType, Timestamps};
use sys::tree::Partial;
use tar::EntryType;
use tarball::{Extent, Member, Members, Sparse};

pub(crate) use self::target::clean;
use self::{attributes::Attributes, target::Target};
use crate::{
    decompress,
    digest::{Digest, Hashed},
    error::{Context, Error, refused},
    limits::{ARCHIVE_BYTES_MAX, ENTRIES_MAX, FILE_BYTES_MAX},
    reader::open_regular,
};

/// What names that begin with `.wh.` mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Files, as all others.
    Root,
    /// What a layer hides of those below (the whiteouts of OCI's image specification).
    Layer,
}

/// Bytes of the paths of all directories, which are kept in memory until the end.
const PATH_BYTES_MAX: usize = 128 << 20;
/// What a disk gives to a file at once.
const BLOCK_BYTES: u64 = 4_096;

/// What was unpacked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Entries, directories too.
    pub entries: u64,
    /// Bytes that were written.
    pub bytes: u64,
}

/// Unpacks a root filesystem from a tar archive, plain or compressed by gzip, xz or zstd, into the new directory
/// `into`: whole or not at all.
pub fn unpack_tarball(tarball: &Path, into: &Path) -> Result<Unpacked, Error> {
    make_whole(into, |partial| unpack_root(tarball, partial)).map(|(unpacked, _)| unpacked)
}

/// How many bytes are written between two looks at the room: 64 MiB.
const LOOK_BYTES: u64 = 64 << 20;
/// And how many entries.
const LOOK_ENTRIES: u64 = 10_000;

/// The content of a tar archive, plain or compressed by gzip, xz or zstd.
pub fn open_archive(archive: &Path) -> Result<Box<dyn Read>, Error> {
    decompress::content(open_regular(archive)?).map_err(Error::Archive)
}

/// Does so in a directory that is there and empty. Gives the digest of what was unpacked, too.
pub(crate) fn unpack_root(tarball: &Path, into: &Path) -> Result<(Unpacked, Digest), Error> {
    let mut content = Hashed::new(decompress::content(open_regular(tarball)?).map_err(Error::Archive)?);
    let unpacked = unpack(&mut content, into, Kind::Root)?;
    // The end of a compressed file tells whether all of it was right.
    let digest = content.finish().map_err(Error::Archive)?;
    if unpacked.entries == 0 { refused("it has nothing in it") } else { Ok((unpacked, digest)) }
}

/// Makes a directory: whole, also after a crash of the host, or not at all.
pub(crate) fn make_whole<T>(into: &Path, make: impl FnOnce(&Path) -> Result<T, Error>) -> Result<T, Error> {
    let partial = Partial::create(into).at("create", into)?;
    let made = make(partial.path())?;
    partial.complete_durably().at("complete", into)?;
    Ok(made)
}

/// Unpacks into a directory that is there and empty.
pub(crate) fn unpack(content: impl Read, into: &Path, kind: Kind) -> Result<Unpacked, Error> {
    let mut unpacking = Unpacking {
        target: Target::open(into)?,
        place: into.to_owned(),
        kind,
        done: Unpacked::default(),
        directories: Vec::new(),
        path_bytes: 0,
        looked: 0,
    };
    let mut members = Members::new(content);
    while let Some(member) = members.next_member()? {
        if unpacking.done.entries.is_multiple_of(LOOK_ENTRIES) {
            check_room(into).map_err(|source| of(into, source))?;
        }
        unpacking.done.entries += 1;
        if unpacking.done.entries + unpacking.target.implied() > ENTRIES_MAX {
            return refused(format!("it has more than {ENTRIES_MAX} entries"));
        }
        unpacking.add(&member, &mut members)?;
    }
    // Only now: what is made in a directory changes its time.
    for (path, times) in &unpacking.directories {
        unpacking.target.set_directory_times(path, times).map_err(|source| of(path, source))?;
    }
    Ok(unpacking.done)
}

/// Others need the room that is left: fails as a full disk does.
fn check_room(place: &Path) -> std::io::Result<()> {
    let is_enough = sys::file::room_at(place)? >= BUILD_ROOM_MIN;
    if is_enough { Ok(()) } else { Err(std::io::Error::from_raw_os_error(libc::ENOSPC)) }
}

fn of(path: &Path, source: std::io::Error) -> Error {
    Error::Entry { entry: path.display().to_string(), source }
}

struct Unpacking {
    target: Target,
    /// Where that is.
    place: PathBuf,
    kind: Kind,
    done: Unpacked,
    directories: Vec<(PathBuf, Timestamps)>,
    /// Bytes of their paths.
    path_bytes: usize,
    /// How many bytes were there at the last look at the room.
    looked: u64,
}

impl Unpacking {
    fn add(&mut self, member: &Member, members: &mut Members<impl Read>) -> Result<(), Error> {
        let kind = member.header.entry_type();
        let path = target::clean(&member.path)?;
        let fail = |source: std::io::Error| of(&path, source);
        if path.as_os_str().is_empty() {
            // The root itself.
            let attributes = Attributes::of(member, &|file, name| self.target.id_of(file, name))?;
            self.target.finish_root(&attributes).map_err(fail)?;
            self.directories.push((path, attributes.times.clone()));
            return Ok(());
        }
        if self.kind == Kind::Layer && self.hide(&path)? {
            return Ok(());
        }
        let attributes = Attributes::of(member, &|file, name| self.target.id_of(file, name))?;
        let beside: usize = attributes.extended.iter().map(|(_, value)| value.len()).sum();
        self.done.bytes += (member.link.len() + beside) as u64;
        match kind {
            EntryType::Directory => self.add_directory(path, &attributes)?,
            // As the oldest archives have directories.
            EntryType::Regular if member.path.ends_with(b"/") => self.add_directory(path, &attributes)?,
            EntryType::Symlink | EntryType::Link => {
                if member.link.is_empty() {
                    return refused(format!("{} is a link to nothing", path.display()));
                }
                if kind == EntryType::Symlink {
                    self.target.make_symlink(&path, &member.link, &attributes).map_err(fail)?;
                } else {
                    self.target.make_link(&path, &target::clean(&member.link)?).map_err(fail)?;
                }
            }
            EntryType::Fifo => self.target.make_node(&path, FileType::Fifo, 0, &attributes).map_err(fail)?,
            EntryType::Char | EntryType::Block => {
                let header = &member.header;
                let number = |number: std::io::Result<Option<u32>>| number.ok().flatten().unwrap_or(0);
                let device = rustix::fs::makedev(number(header.device_major()), number(header.device_minor()));
                let is_char = kind == EntryType::Char;
                if is_char && device == 0 {
                    return refused(format!("{} is a device 0:0, which would hide what is below", path.display()));
                }
                let file_type = if is_char { FileType::CharacterDevice } else { FileType::BlockDevice };
                self.target.make_node(&path, file_type, device, &attributes).map_err(fail)?;
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let mut file = self.target.make_file(&path).map_err(fail)?;
                self.write(member, members, &mut file, &path)?;
                self.target.finish_file(&path, &file, &attributes).map_err(fail)?;
            }
            other => return refused(format!("{} is of a kind that is not known: {other:?}", path.display())),
        }
        Ok(())
    }

    fn add_directory(&mut self, path: PathBuf, attributes: &Attributes) -> Result<(), Error> {
        self.target.make_directory(&path, attributes).map_err(|source| of(&path, source))?;
        self.path_bytes += path.as_os_str().len();
        if self.path_bytes > PATH_BYTES_MAX {
            return refused(format!("paths of its directories have more than {} MiB", PATH_BYTES_MAX >> 20));
        }
        self.directories.push((path, attributes.times.clone()));
        Ok(())
    }

    /// Whether it was a whiteout.
    fn hide(&self, path: &Path) -> Result<bool, Error> {
        let name = path.file_name().unwrap_or_default().as_bytes();
        let Some(name) = name.strip_prefix(b".wh.") else { return Ok(false) };
        let above = path.parent().unwrap_or(Path::new(""));
        match name {
            b".wh..opq" => self.target.make_opaque(above),
            // Of AUFS's own: nothing that a layer shows.
            name if name.starts_with(b".wh.") => Ok(()),
            b"" | b"." | b".." => return refused(format!("{} hides nothing that could be there", path.display())),
            name => self.target.make_whiteout(&above.join(OsStr::from_bytes(name))),
        }
        .map_err(|source| of(path, source))?;
        Ok(true)
    }

    fn write(
        &mut self,
        member: &Member,
        members: &mut Members<impl Read>,
        file: &mut File,
        path: &Path,
    ) -> Result<(), Error> {
        let fail = |source: std::io::Error| of(path, source);
        let Sparse { extents, size } = members.stretches(member)?;
        if size > FILE_BYTES_MAX {
            return refused(format!("{} has {size} bytes", path.display()));
        }
        let mut buffer = vec![0; 128 << 10];
        for Extent { at, bytes } in extents {
            file.seek(SeekFrom::Start(at)).map_err(fail)?;
            let mut left = bytes;
            while left > 0 {
                let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let part = &mut buffer[..most];
                members.read_exact(&member.path, part)?;
                left -= most as u64;
                // Old archives have holes as zeros.
                if part.iter().all(|byte| *byte == 0) {
                    file.seek_relative(most as i64).map_err(fail)?;
                    continue;
                }
                // A disk gives room by blocks.
                self.done.bytes += (most as u64).next_multiple_of(BLOCK_BYTES);
                if self.done.bytes > ARCHIVE_BYTES_MAX {
                    return refused(format!("it has more than {} GiB", ARCHIVE_BYTES_MAX >> 30));
                }
                if self.done.bytes - self.looked > LOOK_BYTES {
                    self.looked = self.done.bytes;
                    check_room(&self.place).map_err(fail)?;
                }
                file.write_all(part).map_err(fail)?;
            }
        }
        file.set_len(size).map_err(fail)
    }
}
