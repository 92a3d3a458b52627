//! Files on their way into a volume: under names of their own in one directory at its top, until they are whole. The directory is there only
//! as long as something is in it, and what a crash has left is removed when the volume is opened.

use rustix::io::Errno;
use volume::{Attributes, Engine, Ino, Kind, New, ROOT, Rename};

use crate::walk::remove_all;

const DIRECTORY: &[u8] = b".pando-uploads";

/// One of them. Blocks, also when it is dropped.
pub(crate) struct Upload<'e> {
    engine: &'e Engine,
    directory: Ino,
    name: String,
    ino: Ino,
    size: u64,
}

impl<'e> Upload<'e> {
    pub(crate) fn begin(engine: &'e Engine, mode: u16, uid: u32, gid: u32) -> Result<Self, Errno> {
        let mut number = [0; 8];
        base::id::fill_random(&mut number);
        let name = base::id::hex(&number);
        let new = New { kind: Kind::File, mode, uid, gid, device: 0, target: b"" };
        loop {
            let directory = directory(engine)?;
            match engine.make(directory, name.as_bytes(), new) {
                // The last other one has just taken the directory away.
                Err(Errno::NOENT | Errno::STALE) => {}
                made => return Ok(Self { engine, directory, name, ino: made?.ino, size: 0 }),
            }
        }
    }

    /// Adds to its end.
    pub(crate) fn write(&mut self, data: &[u8]) -> Result<(), Errno> {
        self.engine.write(self.ino, self.size, data, false)?;
        self.size += data.len() as u64;
        Ok(())
    }

    /// Puts it in its place, also if something is there.
    pub(crate) fn place(self, directory: Ino, name: &[u8]) -> Result<Attributes, Errno> {
        self.engine.rename(self.directory, self.name.as_bytes(), directory, name, Rename::Replace)?;
        self.engine.attributes(self.ino)
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        // In its place it has another name; what cannot be removed now is when the volume is opened next.
        let _ = self.engine.unlink(self.directory, self.name.as_bytes());
        let _ = self.engine.remove_directory(ROOT, DIRECTORY);
    }
}

fn directory(engine: &Engine) -> Result<Ino, Errno> {
    let new = New { kind: Kind::Directory, mode: 0o700, uid: 0, gid: 0, device: 0, target: b"" };
    match engine.make(ROOT, DIRECTORY, new) {
        Err(Errno::EXIST) => {
            let found = engine.lookup(ROOT, DIRECTORY)?;
            if found.inode.is_directory() { Ok(found.ino) } else { Err(Errno::NOTDIR) }
        }
        made => made.map(|made| made.ino),
    }
}

/// Removes what a crash has left. Blocks.
pub(crate) fn remove_left(engine: &Engine) -> Result<(), Errno> {
    match engine.lookup(ROOT, DIRECTORY) {
        Err(Errno::NOENT) => Ok(()),
        Ok(found) if found.inode.is_directory() => remove_all(engine, ROOT, DIRECTORY, found.ino).map(drop),
        other => other.map(drop),
    }
}
