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
pub(super) struct Staged(Arc<Mutex<File>>);

impl Staged {
    pub(super) fn new(file: File) -> Self {
        Self(Arc::new(Mutex::new(file)))
    }

    /// Writes an object as a whole.
    pub(super) async fn write(&self, bytes: Bytes) -> Result<()> {
        self.with(move |file| file.write_all_at(&bytes, 0)).await
    }

    /// Writes part `number` (from 0); all but the last have [`PART_BYTES`].
    pub(super) async fn write_part(&self, number: usize, bytes: Bytes) -> Result<()> {
        self.with(move |file| write_part(file, &bytes, (number * PART_BYTES) as u64)).await
    }

    /// For one at a time: the kernel lets no more write to a file, and has the others spin.
    pub(super) fn file(&self) -> MutexGuard<'_, File> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn with(&self, write: impl FnOnce(&File) -> io::Result<()> + Send + 'static) -> Result<()> {
        let staged = self.clone();
        blocking(move || {
            let wrote = write(&staged.file());
            wrote.map_err(|source| failed("write to", Path::new("a file without a name"), source))
        })
        .await
    }
}

/// Whole blocks go past the page cache, where the filesystem can do that; what is left of the last part does not.
fn write_part(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let (blocks, rest) = bytes.split_at(bytes.len() - bytes.len() % ALIGNMENT);
    let flags = fcntl_getfl(file)?;
    let direct = !blocks.is_empty() && fcntl_setfl(file, flags | OFlags::DIRECT).is_ok();
    let wrote = if direct { write_aligned(file, blocks, offset) } else { file.write_all_at(blocks, offset) };
    fcntl_setfl(file, flags)?;
    match wrote {
        // Some filesystems refuse only now.
        Err(error) if direct && error.kind() == io::ErrorKind::InvalidInput => file.write_all_at(blocks, offset)?,
        wrote => wrote?,
    }
    file.write_all_at(rest, offset + blocks.len() as u64)
}

/// Writes blocks from where the disk can take them.
fn write_aligned(file: &File, blocks: &[u8], offset: u64) -> io::Result<()> {
    if blocks.as_ptr().align_offset(ALIGNMENT) == 0 {
        return file.write_all_at(blocks, offset);
    }
    let mut memory = vec![0; blocks.len() + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    let aligned = &mut memory[start..start + blocks.len()];
    aligned.copy_from_slice(blocks);
    file.write_all_at(aligned, offset)
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
                let file = staged.file();
                let mut found = vec![0; file.metadata().unwrap().len() as usize];
                file.read_exact_at(&mut found, 0).unwrap();
                assert!(found == parts.concat(), "{} with a last part of {last} bytes", folder.display());
            }
        }
    }
}
