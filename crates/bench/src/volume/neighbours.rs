//! A volume in which little is done, alone and beside one in which much is done, of the same worker.
//!
//! By turns, so that what else the machine does meanwhile is in both.

use std::{
    fs::{self, File},
    io::ErrorKind,
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rustix::fs::{Advice, fadvise};

use super::host::{BLOCK_BYTES, FILE_BYTES, content, sync};

/// Threads of the busy program.
const THREADS: u64 = 8;
/// Blocks of the file that each of them writes and reads.
const BLOCKS: u64 = 64;
/// Times alone, and as many beside.
const TURNS: usize = 6;
const TURN: Duration = Duration::from_secs(1);
/// Between two steps of the quiet program.
const PAUSE: Duration = Duration::from_millis(3);
/// Between two turns: the busy volume is committed.
const REST: Duration = Duration::from_secs(2);
/// Names that each program uses over again.
const NAMES: u64 = 500;

/// What the busy program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// Writes files in order, over and over.
    Write,
    /// Reads files in order that the kernel has forgotten.
    Read,
    /// Makes, renames and removes files.
    Names,
}

impl Load {
    pub(super) const ALL: [Self; 3] = [Self::Write, Self::Read, Self::Names];
}

/// How long the quiet program's steps took.
#[derive(Debug, Default)]
pub(super) struct Steps {
    pub(super) alone: Vec<Duration>,
    pub(super) beside: Vec<Duration>,
}

pub(super) fn measure(quiet: &Path, busy: &Path, load: Load) -> Result<Steps> {
    for thread in 0..THREADS {
        let file = File::create(file_of(busy, thread))?;
        (0..BLOCKS).try_for_each(|block| write_block(&file, thread, block))?;
    }
    sync(busy)?;
    thread::sleep(REST);
    let mut steps = Steps::default();
    for _ in 0..TURNS {
        steps_for(quiet, &mut steps.alone)?;
        let stop = &AtomicBool::new(false);
        let stepped = thread::scope(|scope| {
            let threads: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || work(busy, thread, load, stop))).collect();
            let stepped = steps_for(quiet, &mut steps.beside);
            stop.store(true, Ordering::Relaxed);
            let worked = threads.into_iter().map(|thread| thread.join().ok().context("a thread has failed")?);
            worked.collect::<Result<Vec<()>>>().and(stepped)
        });
        stepped?;
        thread::sleep(REST);
    }
    Ok(steps)
}

fn file_of(place: &Path, thread: u64) -> std::path::PathBuf {
    place.join(format!("long-{thread}"))
}

fn write_block(file: &File, thread: u64, number: u64) -> Result<()> {
    Ok(file.write_all_at(&content(thread * BLOCKS + number, BLOCK_BYTES), number * BLOCK_BYTES as u64)?)
}

/// A small file is written, renamed, and one looked for that is not there, until the turn is over.
fn steps_for(place: &Path, took: &mut Vec<Duration>) -> Result<()> {
    let (end, bytes) = (Instant::now() + TURN, content(1, FILE_BYTES));
    let mut number = took.len() as u64;
    while Instant::now() < end {
        number += 1;
        let (new, named) = (place.join(format!("new-{}", number % NAMES)), place.join(format!("{}", number % NAMES)));
        let absent = place.join(format!("absent-{number}"));
        let began = Instant::now();
        fs::write(&new, &bytes)?;
        fs::rename(&new, &named)?;
        let found = fs::metadata(&absent).map_err(|error| error.kind());
        took.push(began.elapsed());
        anyhow::ensure!(matches!(found, Err(ErrorKind::NotFound)), "{} is there", absent.display());
        thread::sleep(PAUSE);
    }
    Ok(())
}

fn work(place: &Path, thread: u64, load: Load, stop: &AtomicBool) -> Result<()> {
    let file = File::options().read(true).write(true).open(file_of(place, thread))?;
    let mut block = content(thread, BLOCK_BYTES);
    let names = place.join(format!("names-{thread}"));
    if load == Load::Names {
        fs::create_dir(&names)?;
    }
    for round in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (number, name) = (round % BLOCKS, round % NAMES);
        match load {
            Load::Write => {
                block[..8].copy_from_slice(&round.to_le_bytes());
                file.write_all_at(&block, number * BLOCK_BYTES as u64)?;
            }
            Load::Read => {
                if number == 0 {
                    fadvise(&file, 0, None, Advice::DontNeed)?;
                }
                file.read_exact_at(&mut block, number * BLOCK_BYTES as u64)?;
            }
            Load::Names => {
                let (new, named) = (names.join(format!("new-{name}")), names.join(format!("{name}")));
                fs::write(&new, &block[..100])?;
                fs::rename(&new, &named)?;
                if round % 3 == 0 {
                    fs::remove_file(&named)?;
                }
            }
        }
    }
    if load == Load::Names {
        fs::remove_dir_all(&names)?;
    }
    Ok(())
}
