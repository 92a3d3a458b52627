//! An archive into a volume's tree.
//!
//! An archive may be anybody's: paths stay below the directory that it is unpacked into and lead through no symbolic link, and the volume's quota
//! bounds what `tarball` does not. What is there already is replaced, directories are joined. An import that fails
//! leaves what it has done.

use std::io::Read;

use rustix::io::Errno;
use tar::EntryType;
use tarball::{
    Extent, Member, Members,
    pax::{self, XATTR},
};

use super::{ArchiveError, KIND, SOCKET};
use crate::{
    engine::Engine,
    inode::{Ino, Kind, Time},
    limits::ARCHIVE_READ_BYTES,
    op::{Changes, New, Rename, SetXattr},
};

/// A path of the archive, as far as it was taken apart.
struct Place {
    directory: Ino,
    name: Vec<u8>,
}

struct Importer<'a, R> {
    engine: &'a Engine,
    top: Ino,
    members: Members<R>,
    /// Times of directories come last: what is put into them changes them.
    times: Vec<(Ino, Changes)>,
    buffer: Vec<u8>,
}

/// Unpacks an archive into `directory`. How many members it had.
pub fn import(engine: &Engine, directory: Ino, archive: impl Read) -> Result<u64, ArchiveError> {
    let (members, buffer) = (Members::new(archive), vec![0; ARCHIVE_READ_BYTES]);
    let mut importer = Importer { engine, top: directory, members, times: Vec::new(), buffer };
    let mut count = 0;
    while let Some(member) = importer.members.next_member()? {
        importer.member(&member)?;
        count += 1;
    }
    for (ino, changes) in importer.times {
        match engine.change(ino, changes) {
            // A later member took its place.
            Ok(_) | Err(Errno::STALE) => {}
            Err(errno) => return Err(ArchiveError::volume("changed", b".")(errno)),
        }
    }
    Ok(count)
}

impl<R: Read> Importer<'_, R> {
    fn member(&mut self, member: &Member) -> Result<(), ArchiveError> {
        let path = &member.path;
        let place = self.place(path)?;
        if let (EntryType::Link, Some(place)) = (member.header.entry_type(), &place) {
            return self.link(member, place);
        }
        let new = new(member)?;
        let Some(place) = place else {
            // The directory itself.
            return self.attributes(self.top, member, &new, true);
        };
        let failed = || ArchiveError::volume("made", path);
        match member.header.entry_type() {
            EntryType::Directory => {
                let made = self.engine.make(place.directory, &place.name, new);
                let ino = match made {
                    Ok(made) => made.ino,
                    Err(Errno::EXIST) => self.directory_at(&place).map_err(failed())?,
                    Err(errno) => return Err(failed()(errno)),
                };
                self.attributes(ino, member, &new, true)
            }
            _ => {
                let hold = self.engine.make_unnamed(place.directory, new).map_err(failed())?;
                if new.kind == Kind::File {
                    self.data(hold.ino(), member)?;
                }
                self.attributes(hold.ino(), member, &new, false)?;
                self.engine.place(hold.ino(), place.directory, &place.name).map_err(failed())
            }
        }
    }

    /// Where a path of the archive leads: directories above it are made, symbolic links are not followed. `None` for the top.
    fn place(&self, path: &[u8]) -> Result<Option<Place>, ArchiveError> {
        let mut parts: Vec<&[u8]> = Vec::new();
        for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
            if part == b".." {
                return Err(ArchiveError::refused(path, "it leads out of the archive"));
            }
            parts.push(part);
        }
        let Some((name, above)) = parts.split_last() else { return Ok(None) };
        let mut directory = self.top;
        for part in above {
            directory = self.enter(directory, part).map_err(ArchiveError::volume("reached", path))?;
        }
        Ok(Some(Place { directory, name: name.to_vec() }))
    }

    fn enter(&self, directory: Ino, name: &[u8]) -> Result<Ino, Errno> {
        let found = match self.engine.lookup(directory, name) {
            Err(Errno::NOENT) => {
                let inode = self.engine.attributes(directory)?.inode;
                let (uid, gid) = (inode.uid, inode.gid);
                let new = New { kind: Kind::Directory, mode: 0o755, uid, gid, device: 0, target: b"" };
                self.engine.make(directory, name, new)?
            }
            found => found?,
        };
        if found.inode.is_directory() { Ok(found.ino) } else { Err(Errno::NOTDIR) }
    }

    fn directory_at(&self, place: &Place) -> Result<Ino, Errno> {
        let found = self.engine.lookup(place.directory, &place.name)?;
        if found.inode.is_directory() { Ok(found.ino) } else { Err(Errno::NOTDIR) }
    }

    fn link(&mut self, member: &Member, place: &Place) -> Result<(), ArchiveError> {
        let failed = || ArchiveError::volume("linked", &member.path);
        let Some(target) = self.place(&member.link)? else { return Err(failed()(Errno::PERM)) };
        let target = self.engine.lookup(target.directory, &target.name).map_err(failed())?;
        match self.engine.link(target.ino, place.directory, &place.name) {
            Err(Errno::EXIST) => {}
            linked => return linked.map(drop).map_err(failed()),
        }
        // Under a name of its own first, so that no moment is without either.
        let there = self.engine.lookup(place.directory, &place.name).map_err(failed())?;
        if there.ino == target.ino {
            return Ok(());
        }
        let name = format!(".import-{}", target.ino.0);
        let linked = self.engine.link(target.ino, place.directory, name.as_bytes()).map_err(failed());
        linked?;
        let replace = Rename::Replace;
        self.engine.rename(place.directory, name.as_bytes(), place.directory, &place.name, replace).map_err(failed())
    }

    fn data(&mut self, ino: Ino, member: &Member) -> Result<(), ArchiveError> {
        let Some(sparse) = self.members.map(member)? else {
            return self.copy(ino, &member.path, 0, member.size);
        };
        for Extent { at, bytes } in sparse.extents {
            self.copy(ino, &member.path, at, bytes)?;
        }
        let changes = Changes { size: Some(sparse.size), ..Changes::default() };
        self.engine.change(ino, changes).map(drop).map_err(ArchiveError::volume("written", &member.path))
    }

    fn copy(&mut self, ino: Ino, path: &[u8], offset: u64, length: u64) -> Result<(), ArchiveError> {
        let mut done = 0;
        while done < length {
            let bytes = (length - done).min(self.buffer.len() as u64) as usize;
            self.members.read_exact(path, &mut self.buffer[..bytes])?;
            let written = self.engine.write(ino, offset + done, &self.buffer[..bytes], false);
            written.map_err(ArchiveError::volume("written", path))?;
            done += bytes as u64;
        }
        Ok(())
    }

    /// What was not given when an inode was made.
    fn attributes(&mut self, ino: Ino, member: &Member, new: &New<'_>, directory: bool) -> Result<(), ArchiveError> {
        let failed = || ArchiveError::volume("changed", &member.path);
        for (key, value) in member.records() {
            if let Some(name) = key.strip_prefix(XATTR.as_bytes()) {
                self.engine.set_xattr(ino, name, value, SetXattr::Either).map_err(failed())?;
            }
        }
        let to_time = |text| pax::to_time(text).map(|(seconds, nanos)| Time { seconds, nanos });
        let time = |key| member.record(key).map(to_time);
        let malformed = || ArchiveError::refused(&member.path, "its times are malformed");
        let seconds = || Time { seconds: member.header.mtime().unwrap_or(0) as i64, nanos: 0 };
        let modified = time("mtime").unwrap_or_else(|| Some(seconds())).ok_or_else(malformed)?;
        let accessed = time("atime").unwrap_or(Some(modified)).ok_or_else(malformed)?;
        let times = Changes { modified: Some(modified), accessed: Some(accessed), ..Changes::default() };
        let owned = Changes { mode: Some(new.mode), uid: Some(new.uid), gid: Some(new.gid), ..Changes::default() };
        if directory {
            self.times.push((ino, times));
            return self.engine.change(ino, owned).map(drop).map_err(failed());
        }
        let all = Changes { modified: times.modified, accessed: times.accessed, ..owned };
        self.engine.change(ino, all).map(drop).map_err(failed())
    }
}

/// What a member shall be.
fn new(member: &Member) -> Result<New<'_>, ArchiveError> {
    let header = &member.header;
    let malformed = || ArchiveError::refused(&member.path, "its header is malformed");
    let kind = match header.entry_type() {
        EntryType::Regular | EntryType::Continuous if member.record(KIND) == Some(SOCKET) => Kind::Socket,
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => Kind::File,
        EntryType::Directory => Kind::Directory,
        EntryType::Symlink => Kind::Symlink,
        EntryType::Fifo => Kind::Fifo,
        EntryType::Char => Kind::CharDevice,
        EntryType::Block => Kind::BlockDevice,
        _ => return Err(ArchiveError::refused(&member.path, "it is of a kind that volumes do not have")),
    };
    let id = |key: &str, header: std::io::Result<u64>| match member.record(key) {
        Some(_) => member.number(key),
        None => header.ok(),
    };
    let id = |key: &str, header| id(key, header).and_then(|id| u32::try_from(id).ok()).ok_or_else(malformed);
    let device = match kind {
        Kind::CharDevice | Kind::BlockDevice => {
            let number = |number: std::io::Result<Option<u32>>| number.ok().flatten().ok_or_else(malformed);
            let (major, minor) = (number(header.device_major())?, number(header.device_minor())?);
            u32::try_from(rustix::fs::makedev(major, minor)).map_err(|_| malformed())?
        }
        _ => 0,
    };
    Ok(New {
        kind,
        mode: (header.mode().map_err(|_| malformed())? & 0o7777) as u16,
        uid: id("uid", header.uid())?,
        gid: id("gid", header.gid())?,
        device,
        target: if kind == Kind::Symlink { &member.link } else { b"" },
    })
}
