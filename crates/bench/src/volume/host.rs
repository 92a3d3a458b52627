//! Files on the host: written, read back, compared.

use std::{
    fs::{self, File},
    io::{ErrorKind, Read, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::mount::{UnmountFlags, unmount};

/// Bytes of each small file.
pub(super) const FILE_BYTES: usize = 4096;
const FILES_IN_A_DIRECTORY: u64 = 1000;
const THREADS: u64 = 8;
/// Bytes written and read at a time.
pub(super) const BLOCK_BYTES: usize = 1 << 20;
const LONG_FILE: &str = "long";

/// An empty directory of the host. Whatever is mounted there and all that is in it is removed when it is dropped.
pub(super) struct Directory(PathBuf);

impl Directory {
    pub(super) fn new(name: &str) -> Result<Self> {
        Ok(Self(base::scratch::make(&format!("bench-{name}"))?))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Takes off what is mounted there, although no process serves it any more.
    pub(super) fn unmount(&self) -> Result<()> {
        loop {
            match unmount(&self.0, UnmountFlags::DETACH) {
                Ok(()) => {}
                Err(rustix::io::Errno::INVAL) => return Ok(()),
                Err(error) => return Err(error).with_context(|| format!("cannot unmount {}", self.0.display())),
            }
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let removed = self.unmount().and_then(|()| Ok(fs::remove_dir_all(&self.0)?));
        if let Err(error) = removed {
            tracing::warn!(dir = %self.0.display(), error = format!("{error:#}"), "a directory of the bench stays behind");
        }
    }
}

/// Bytes that follow from `number` and cannot be compressed (splitmix64).
pub(super) fn content(number: u64, bytes: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut word = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).to_le_bytes()
    };
    (0..bytes.div_ceil(8)).flat_map(|_| word()).take(bytes).collect()
}

fn directory_of(place: &Path, number: u64) -> PathBuf {
    place.join((number / FILES_IN_A_DIRECTORY).to_string())
}

fn file_of(place: &Path, number: u64) -> PathBuf {
    directory_of(place, number).join(number.to_string())
}

/// Has threads do something with every number below `count`; the sum of what they give.
fn by_threads(count: u64, work: impl Fn(u64) -> Result<u64> + Sync) -> Result<u64> {
    let work = &work;
    std::thread::scope(|scope| {
        let one = |thread: u64| (thread..count).step_by(THREADS as usize).map(work).sum::<Result<u64>>();
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || one(thread))).collect();
        threads.into_iter().map(|thread| thread.join().ok().context("a thread has failed")?).sum()
    })
}

/// Writes and closes so many files, and syncs.
pub(super) fn write_files(place: &Path, count: u64) -> Result<Duration> {
    let began = Instant::now();
    for first in (0..count).step_by(FILES_IN_A_DIRECTORY as usize) {
        fs::create_dir(directory_of(place, first))?;
    }
    by_threads(count, |number| {
        let path = file_of(place, number);
        fs::write(&path, content(number, FILE_BYTES)).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(0)
    })?;
    sync(place)?;
    Ok(began.elapsed())
}

/// Puts all that was closed where `fsync` promises it. (`syncfs` does not reach a FUSE filesystem.)
pub(super) fn sync(place: &Path) -> Result<()> {
    Ok(File::open(place)?.sync_all()?)
}

/// Whether a file is there and has what was written.
pub(super) fn read_file(place: &Path, number: u64) -> Result<bool> {
    match fs::read(file_of(place, number)) {
        Ok(bytes) => Ok(bytes == content(number, FILE_BYTES)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).context("cannot read a file"),
    }
}

/// How many of so many files are missing or have something else in them.
pub(super) fn wrong_files(place: &Path, count: u64) -> Result<u64> {
    by_threads(count, |number| Ok(u64::from(!read_file(place, number)?)))
}

/// Writes a file in order, in place of an earlier one, and syncs it.
pub(super) fn long_write(place: &Path, bytes: u64) -> Result<Duration> {
    let path = place.join(LONG_FILE);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut block = content(1, BLOCK_BYTES);
    let mut file = File::create(&path)?;
    let began = Instant::now();
    for number in 0..bytes / BLOCK_BYTES as u64 {
        // No two blocks are the same.
        block[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&block)?;
    }
    file.sync_all()?;
    Ok(began.elapsed())
}

/// Reads it in order.
pub(super) fn long_read(place: &Path, bytes: u64) -> Result<Duration> {
    let mut file = File::open(place.join(LONG_FILE))?;
    let mut block = vec![0; BLOCK_BYTES];
    let began = Instant::now();
    for number in 0..bytes / BLOCK_BYTES as u64 {
        file.read_exact(&mut block)?;
        ensure!(block[..8] == number.to_le_bytes(), "block {number} of the long file is wrong");
    }
    Ok(began.elapsed())
}
