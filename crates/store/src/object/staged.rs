//! A file that has no name yet, written part by part.
//!
//! Parts go to the disk past the page cache (O_DIRECT): whoever writes an object has its contents in memory already, and filling new pages
//! with them takes several times as long as the disk does. What is written as a whole, at most [`PART_BYTES`], is read soon, and is cached.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use object_store::Result;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::directory::{blocking, failed};
use crate::limits::PART_BYTES;

/// Of memory, offsets and lengths: as much as any disk asks for (STATX_DIOALIGN).
pub(super) const ALIGNMENT: usize = 4096;

/// See the module.
#[derive(Clone)]
pub(super) struct Staged(Arc<Mutex<Stage>>);

/// Of one writer at a time: the kernel lets no more into a file, and has the others spin.
pub(super) struct Stage {
    pub(super) file: File,
    /// For parts that are not where the disk wants them.
    aligned: Vec<u8>,
}

impl Staged {
    pub(super) fn new(file: File) -> Self {
        Self(Arc::new(Mutex::new(Stage { file, aligned: Vec::new() })))
    }

    /// Writes an object as a whole.
    pub(super) async fn write(&self, bytes: Bytes) -> Result<()> {
        self.with(move |stage| stage.file.write_all_at(&bytes, 0)).await
    }

    /// Writes part `number` (from 0); all but the last have [`PART_BYTES`].
    pub(super) async fn write_part(&self, number: usize, bytes: Bytes) -> Result<()> {
        self.with(move |stage| stage.write_direct(&bytes, (number * PART_BYTES) as u64)).await
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Stage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn with(&self, write: impl FnOnce(&mut Stage) -> io::Result<()> + Send + 'static) -> Result<()> {
        let staged = self.clone();
        blocking(move || {
            let wrote = write(&mut staged.lock());
            wrote.map_err(|source| failed("write to", Path::new("a file without a name"), source))
        })
        .await
    }
}

impl Stage {
    /// Writes past the page cache, where the filesystem can.
    fn write_direct(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let flags = fcntl_getfl(&self.file)?;
        if fcntl_setfl(&self.file, flags | OFlags::DIRECT).is_err() {
            return self.file.write_all_at(bytes, offset);
        }
        let wrote = self.write_aligned(bytes, offset);
        fcntl_setfl(&self.file, flags)?;
        match wrote {
            // Some filesystems refuse only now.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => self.file.write_all_at(bytes, offset),
            // The last part need not end where a block does.
            Ok(()) if !bytes.len().is_multiple_of(ALIGNMENT) => self.file.set_len(offset + bytes.len() as u64),
            wrote => wrote,
        }
    }

    fn write_aligned(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if bytes.as_ptr().align_offset(ALIGNMENT) == 0 && bytes.len().is_multiple_of(ALIGNMENT) {
            return self.file.write_all_at(bytes, offset);
        }
        // A copy in the right place, with zeros after what is too short for a block.
        let length = bytes.len().next_multiple_of(ALIGNMENT);
        self.aligned.resize(PART_BYTES + ALIGNMENT, 0);
        let start = self.aligned.as_ptr().align_offset(ALIGNMENT);
        let blocks = &mut self.aligned[start..start + length];
        blocks[..bytes.len()].copy_from_slice(bytes);
        blocks[bytes.len()..].fill(0);
        self.file.write_all_at(blocks, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: usize, bytes: usize) -> Bytes {
        (0..bytes).map(|at| (at * 7 + at / 4096 + number) as u8).collect()
    }

    /// In memory (tmpfs) and on the disk that tests are run from: one of them is what the other is not in what it takes.
    #[tokio::test]
    async fn parts_come_together_in_whatever_order_they_are_written() {
        let here = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        for folder in [here.path(), Path::new("/dev/shm")] {
            for last in [1, ALIGNMENT, 3 * ALIGNMENT + 17, PART_BYTES] {
                let staged = Staged::new(crate::unnamed::create(folder).unwrap());
                let parts = [part(0, PART_BYTES), part(1, PART_BYTES), part(2, last)];
                for number in [2, 0, 1] {
                    staged.write_part(number, parts[number].clone()).await.unwrap();
                }
                let file = &staged.lock().file;
                let mut found = vec![0; file.metadata().unwrap().len() as usize];
                file.read_exact_at(&mut found, 0).unwrap();
                assert!(found == parts.concat(), "{} with a last part of {last} bytes", folder.display());
            }
        }
    }
}
