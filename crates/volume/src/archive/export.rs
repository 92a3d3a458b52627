//! A volume's tree into an archive.

use std::{collections::HashMap, io::Write};

use tar::{EntryType, Header};
use tarball::{
    BLOCK, padding,
    pax::{self, SPARSE_MAJOR, SPARSE_MINOR, SPARSE_NAME, SPARSE_REALSIZE, XATTR},
};

use super::{ArchiveError, KIND, SOCKET};
use crate::{
    engine::{Attributes, Engine, Listed},
    inode::{Ino, Inode, Kind, Time},
    limits::ARCHIVE_READ_BYTES,
};

/// Longest name, and largest number, that every reader finds in a header itself.
const NAME_BYTES: usize = 100;
const SIZE_MAX: u64 = 0o77_777_777_777;
const ID_MAX: u32 = 0o7_777_777;
/// Names that are listed at once.
const LISTED: usize = 256;

struct Exporter<'a, W> {
    engine: &'a Engine,
    out: W,
    /// The path under which an inode with several names is in the archive.
    written: HashMap<Ino, Vec<u8>>,
}

/// A directory whose entries are being written.
struct Open {
    ino: Ino,
    path: Vec<u8>,
    /// Behind the last entry that was listed.
    cookie: u64,
    listed: std::vec::IntoIter<Listed>,
}

/// Writes all that is below `directory`, and it itself as `./`.
pub fn export(engine: &Engine, directory: Ino, out: impl Write) -> Result<(), ArchiveError> {
    let mut exporter = Exporter { engine, out, written: HashMap::new() };
    let top = engine.attributes(directory).map_err(ArchiveError::volume("read", b"."))?;
    exporter.member(b".", &top)?;
    let open = |ino, path| Open { ino, path, cookie: 0, listed: Vec::new().into_iter() };
    let mut stack = vec![open(directory, b".".to_vec())];
    while let Some(last) = stack.last_mut() {
        let Some(entry) = last.next(engine)? else {
            stack.pop();
            continue;
        };
        let path = [&last.path[..], b"/", &entry.name].concat();
        let Some(found) = exporter.attributes(&path, entry.ino)? else { continue };
        exporter.member(&path, &found)?;
        if found.inode.is_directory() {
            stack.push(open(entry.ino, path));
        }
    }
    exporter.bytes(&[0; 2 * BLOCK])
}

impl Open {
    fn next(&mut self, engine: &Engine) -> Result<Option<Listed>, ArchiveError> {
        loop {
            match self.listed.next() {
                Some(entry) if entry.name == b"." || entry.name == b".." => {}
                Some(entry) => return Ok(Some(entry)),
                None => {
                    let listed = engine.list(self.ino, self.cookie, LISTED);
                    let listed = listed.map_err(ArchiveError::volume("listed", &self.path))?;
                    let Some(last) = listed.last() else { return Ok(None) };
                    self.cookie = last.cookie;
                    self.listed = listed.into_iter();
                }
            }
        }
    }
}

impl<W: Write> Exporter<'_, W> {
    /// `None` for what was removed since it was listed.
    fn attributes(&self, path: &[u8], ino: Ino) -> Result<Option<Attributes>, ArchiveError> {
        match self.engine.attributes(ino) {
            Ok(found) => Ok(Some(found)),
            Err(rustix::io::Errno::STALE) => Ok(None),
            Err(errno) => Err(ArchiveError::volume("read", path)(errno)),
        }
    }

    fn member(&mut self, path: &[u8], Attributes { ino, inode }: &Attributes) -> Result<(), ArchiveError> {
        let mut records = Vec::new();
        let mut header = Header::new_ustar();
        if inode.links > 1 && !inode.is_directory() {
            if let Some(first) = self.written.get(ino) {
                let first = first.clone();
                about(&mut header, &mut records, inode);
                header.set_entry_type(EntryType::Link);
                link(&mut header, &mut records, &first);
                return self.head(path, header, 0, records);
            }
            self.written.insert(*ino, path.to_vec());
        }
        about(&mut header, &mut records, inode);
        self.xattrs(path, *ino, &mut records)?;
        match inode.kind {
            Kind::File if inode.allocated < inode.size => self.sparse(path, *ino, inode, header, records),
            Kind::File => {
                self.head(path, header, inode.size, records)?;
                self.data(path, *ino, 0, inode.size)?;
                self.bytes(&[0; BLOCK][..padding(inode.size)])
            }
            _ => self.head(path, header, 0, records),
        }
    }

    fn xattrs(&self, path: &[u8], ino: Ino, records: &mut Vec<u8>) -> Result<(), ArchiveError> {
        for name in self.engine.xattrs(ino).map_err(ArchiveError::volume("read", path))? {
            // Some readers cannot take the sign in a name; it ends the key for all of them.
            if !name.contains(&b'=') {
                let value = self.engine.xattr(ino, &name).map_err(ArchiveError::volume("read", path))?;
                pax::push(records, &[XATTR.as_bytes(), &name].concat(), &value);
            }
        }
        Ok(())
    }

    /// A file with holes: what is none of them, as offsets and lengths, and then that.
    fn sparse(
        &mut self,
        path: &[u8],
        ino: Ino,
        inode: &Inode,
        header: Header,
        mut records: Vec<u8>,
    ) -> Result<(), ArchiveError> {
        let parts = self.parts(path, ino, inode.size)?;
        let mut map = format!("{}\n", parts.len());
        parts.iter().for_each(|(start, length)| map.push_str(&format!("{start}\n{length}\n")));
        map.push_str(&"\0".repeat(padding(map.len() as u64)));
        let size = map.len() as u64 + parts.iter().map(|(_, length)| length).sum::<u64>();
        let texts = [(SPARSE_MAJOR, "1"), (SPARSE_MINOR, "0"), (SPARSE_REALSIZE, &inode.size.to_string())];
        texts.iter().for_each(|(key, value)| pax::push(&mut records, key.as_bytes(), value.as_bytes()));
        pax::push(&mut records, SPARSE_NAME.as_bytes(), path);
        // Who does not know sparse files shall not take this for the file.
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        self.head(&[b"./GNUSparseFile.0/", name].concat(), header, size, records)?;
        self.bytes(map.as_bytes())?;
        for (start, length) in parts {
            self.data(path, ino, start, length)?;
        }
        self.bytes(&[0; BLOCK][..padding(size)])
    }

    fn parts(&self, path: &[u8], ino: Ino, size: u64) -> Result<Vec<(u64, u64)>, ArchiveError> {
        let (mut parts, mut at) = (Vec::new(), 0);
        loop {
            let start = match self.engine.seek_data(ino, at) {
                Ok(start) => start,
                Err(rustix::io::Errno::NXIO) => break,
                Err(errno) => return Err(ArchiveError::volume("read", path)(errno)),
            };
            at = self.engine.seek_hole(ino, start).map_err(ArchiveError::volume("read", path))?;
            parts.push((start, at - start));
        }
        // The end of a file that ends in a hole.
        if at < size {
            parts.push((size, 0));
        }
        Ok(parts)
    }

    /// A file that is changed meanwhile is padded with zeros: its header is written.
    fn data(&mut self, path: &[u8], ino: Ino, mut offset: u64, length: u64) -> Result<(), ArchiveError> {
        let end = offset + length;
        while offset < end {
            let wanted = (end - offset).min(ARCHIVE_READ_BYTES as u64) as usize;
            let read = self.engine.read(ino, offset, wanted as u32).map_err(ArchiveError::volume("read", path))?;
            self.bytes(&read)?;
            self.bytes(&vec![0; wanted - read.len()])?;
            offset += wanted as u64;
        }
        Ok(())
    }

    /// The header, and an extended one before it if there is something to say.
    fn head(&mut self, path: &[u8], mut header: Header, size: u64, mut records: Vec<u8>) -> Result<(), ArchiveError> {
        let directory = header.entry_type() == EntryType::Directory;
        let path = if directory { [path, b"/"].concat() } else { path.to_vec() };
        if path.len() > NAME_BYTES {
            pax::push(&mut records, b"path", &path);
        }
        if size > SIZE_MAX {
            pax::push(&mut records, b"size", size.to_string().as_bytes());
        }
        header.set_size(size.min(SIZE_MAX));
        if !records.is_empty() {
            let mut extended = Header::new_ustar();
            extended.set_entry_type(EntryType::XHeader);
            extended.set_size(records.len() as u64);
            extended.set_mode(0o644);
            self.header(extended, b"./PaxHeaders/x")?;
            self.bytes(&records)?;
            self.bytes(&[0; BLOCK][..padding(records.len() as u64)])?;
        }
        self.header(header, &path)
    }

    fn header(&mut self, mut header: Header, path: &[u8]) -> Result<(), ArchiveError> {
        let name = &path[..path.len().min(NAME_BYTES)];
        header.as_mut_bytes()[..name.len()].copy_from_slice(name);
        header.set_cksum();
        self.bytes(header.as_bytes())
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        self.out.write_all(bytes).map_err(ArchiveError::Write)
    }
}

/// What an inode is, but for its data.
fn about(header: &mut Header, records: &mut Vec<u8>, inode: &Inode) {
    header.set_mode(inode.mode.into());
    header.set_uid(inode.uid.min(ID_MAX).into());
    header.set_gid(inode.gid.min(ID_MAX).into());
    header.set_mtime(inode.modified.seconds.clamp(0, SIZE_MAX as i64) as u64);
    pax::push(records, b"mtime", moment(inode.modified).as_bytes());
    pax::push(records, b"atime", moment(inode.accessed).as_bytes());
    for (key, id) in [(b"uid", inode.uid), (b"gid", inode.gid)] {
        if id > ID_MAX {
            pax::push(records, key, id.to_string().as_bytes());
        }
    }
    header.set_entry_type(match inode.kind {
        Kind::File | Kind::Socket => EntryType::Regular,
        Kind::Directory => EntryType::Directory,
        Kind::Symlink => EntryType::Symlink,
        Kind::Fifo => EntryType::Fifo,
        Kind::CharDevice => EntryType::Char,
        Kind::BlockDevice => EntryType::Block,
    });
    match inode.kind {
        Kind::Symlink => link(header, records, &inode.target),
        Kind::Socket => pax::push(records, KIND.as_bytes(), SOCKET),
        Kind::CharDevice | Kind::BlockDevice => {
            let device = u64::from(inode.device);
            // The header is a new ustar one, which has these fields.
            let _ = header.set_device_major(rustix::fs::major(device));
            let _ = header.set_device_minor(rustix::fs::minor(device));
        }
        Kind::File | Kind::Directory | Kind::Fifo => {}
    }
}

fn moment(time: Time) -> String {
    pax::from_time(time.seconds, time.nanos)
}

fn link(header: &mut Header, records: &mut Vec<u8>, target: &[u8]) {
    const AT: usize = 157;
    let short = &target[..target.len().min(NAME_BYTES)];
    header.as_mut_bytes()[AT..AT + short.len()].copy_from_slice(short);
    if target.len() > NAME_BYTES {
        pax::push(records, b"linkpath", target);
    }
}
