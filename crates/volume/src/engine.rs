//! The filesystem of one open volume, for its adapters: FUSE, HTTP, tests.
//!
//! Every operation is one step on the [`State`] under one lock, and a record in the log. What is not in memory is read without
//! the lock, and the step repeated. Functions block; they are for threads of the adapter, not of an async runtime.
//!
//! The engine checks no permissions and keeps no locks on files: the kernel does both before it asks (`default_permissions`), and one
//! volume is written by one node.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use rustix::io::Errno;
use store::segment::ChunkRef;

use crate::{
    VolumeError,
    apply::{Outcome, Plan},
    extents::{Piece, Source},
    inode::{Ino, Inode},
    limits,
    loader::Loader,
    op::{Op, Record},
    pressure::Pressure,
    request::{self, Done, Requests},
    state::{State, Step, Stop},
    wal::Wal,
};

mod change;
mod look;
mod traffic;
mod walk;

pub use self::{
    change::Hold,
    look::{Listed, Usage},
    traffic::Traffic,
    walk::Links,
};

/// An inode by its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Its number.
    pub ino: Ino,
    /// What it was when it was asked for.
    pub inode: Inode,
}

/// What a volume may hold in memory.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// What is in memory and in the log only at which changes wait for a commit, as [`Engine::dirty_bytes`] counts it.
    pub dirty_bytes_max: u64,
    /// Inodes above which a commit lets clean ones go.
    pub inodes_max: usize,
}

impl Default for Memory {
    fn default() -> Self {
        Self { dirty_bytes_max: limits::DIRTY_BYTES, inodes_max: limits::INODES_IN_MEMORY }
    }
}

/// How many this process has had.
static ENGINES: AtomicU64 = AtomicU64::new(0);

/// See the module.
pub struct Engine {
    state: Mutex<State>,
    loader: Loader,
    /// Absent where nothing may be changed.
    wal: Option<Wal>,
    /// Somebody else writes the volume now, or the log cannot be written.
    read_only: AtomicBool,
    memory: Memory,
    pressure: Pressure,
    /// Of the log that was replayed.
    requests: Requests,
    /// Which one of this process it is.
    number: u64,
    counters: traffic::Counters,
}

impl Engine {
    /// A filesystem in which nothing can be changed.
    pub(crate) fn new(state: State, loader: Loader, memory: Memory) -> Self {
        let (read_only, pressure) = (AtomicBool::new(true), Pressure::new(memory.dirty_bytes_max));
        let (requests, counters) = Default::default();
        let number = ENGINES.fetch_add(1, Ordering::Relaxed);
        Self { state: Mutex::new(state), loader, wal: None, read_only, memory, pressure, requests, number, counters }
    }

    /// Which one of this process it is.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn loader(&self) -> &Loader {
        &self.loader
    }

    pub(crate) fn wal(&self) -> Option<&Wal> {
        self.wal.as_ref()
    }

    /// Lets changes happen, which go to this log.
    pub(crate) fn attach(&mut self, wal: Wal) {
        self.wal = Some(wal);
        self.read_only = AtomicBool::new(false);
    }

    /// Refuses all changes from now on. Nobody commits any more, so nobody waits for it.
    pub(crate) fn forbid_changes(&self) {
        self.read_only.store(true, Ordering::Release);
        self.pressure.set_committing(false);
    }

    /// Are changes refused: because it was opened so, because another node has taken the volume over, or because the log failed?
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    pub(crate) fn memory(&self) -> Memory {
        self.memory
    }

    pub(crate) fn pressure(&self) -> &Pressure {
        &self.pressure
    }

    /// A step of an earlier thread that panicked may have done half of its work: nobody goes on from there.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, State>, Errno> {
        self.state.lock().map_err(|_| Errno::IO)
    }

    /// Makes what was done so far durable on this node's disk. What the volume promises is [`crate::Volume::sync`]'s business.
    pub fn sync(&self) -> Result<(), Errno> {
        let Some(wal) = &self.wal else { return Ok(()) };
        wal.sync().map_err(|error| self.wal_failed(error))
    }

    /// Hands what was done so far to the kernel: it survives this process.
    pub fn write_log(&self) -> Result<(), Errno> {
        let Some(wal) = &self.wal else { return Ok(()) };
        wal.write().map_err(|error| self.wal_failed(error))
    }

    /// Asks the state, and reads what it misses until it knows.
    fn ask<T>(&self, mut step: impl FnMut(&mut State) -> Step<T>) -> Result<T, Errno> {
        self.counters.operation();
        loop {
            let (missed, base) = {
                let mut state = self.lock()?;
                match step(&mut state) {
                    Ok(answer) => return Ok(answer),
                    Err(Stop::Errno(errno)) => return Err(errno),
                    Err(Stop::Miss(key)) => (key, state.base()),
                }
            };
            let page = self.loader.page(&base.tree, missed).map_err(|error| io_error(&error))?;
            let mut state = self.lock()?;
            state.admit(base, missed, page)?;
            // Whoever only reads makes no commits, which let go otherwise.
            state.evict_if_grown(self.memory.inodes_max);
        }
    }

    /// Performs a change and logs it; `with` sees the state right after it. Waits before it while too much is dirty and a
    /// [`crate::Committer`] works on it.
    fn perform<T>(&self, op: &Op<'_>, with: impl Fn(&mut State, crate::apply::Outcome) -> Step<T>) -> Result<T, Errno> {
        self.perform_if(op, |_| Ok(()), with)
    }

    /// As [`Engine::perform`], if `may` does not refuse. Nothing else changes the volume in between.
    fn perform_if<T>(
        &self,
        op: &Op<'_>,
        may: impl Fn(&State) -> Step<()>,
        with: impl Fn(&mut State, crate::apply::Outcome) -> Step<T>,
    ) -> Result<T, Errno> {
        request::wait_before_changes(|| self.pressure.wait());
        self.perform_at_once(op, may, with)
    }

    fn perform_at_once<T>(
        &self,
        op: &Op<'_>,
        may: impl Fn(&State) -> Step<()>,
        with: impl Fn(&mut State, crate::apply::Outcome) -> Step<T>,
    ) -> Result<T, Errno> {
        let wal = match &self.wal {
            Some(wal) if !self.is_read_only() => wal,
            Some(_) | None => return Err(Errno::ROFS),
        };
        request::changes();
        let (answer, full, dirty_bytes) = self.ask(|state| {
            may(state)?;
            let outcome = state.apply(op)?;
            let request = request::current();
            let record = Record { request, op: *op, outcome: (request != 0).then_some(outcome) };
            let full = wal.append(state.next_sequence(), &record);
            // It has happened and is logged: whatever comes now, it must not be repeated.
            let answer = with(state, outcome).map_err(|_| Stop::Errno(Errno::IO))?;
            Ok((answer, full, state.dirty_bytes()))
        })?;
        if self.pressure.concerns(dirty_bytes) {
            self.pressure.set(dirty_bytes);
        }
        if full {
            self.write_log()?;
        }
        Ok(answer)
    }

    /// Repeats an operation of the log.
    pub(crate) fn replay(&mut self, sequence: u64, record: &Record<'_>) -> Result<(), VolumeError> {
        let replayed = self.ask(|state| {
            state.set_replaying(true);
            let applied = state.apply(&record.op);
            state.set_replaying(false);
            let outcome = applied?;
            state.next_sequence();
            Ok(outcome)
        });
        let outcome = replayed.map_err(|source| VolumeError::Replay { sequence, source })?;
        self.remember(record, Some(outcome));
        Ok(())
    }

    /// What became of a request, also of one that a commit has, and that is not to be repeated.
    pub(crate) fn remember(&mut self, record: &Record<'_>, replayed: Option<Outcome>) {
        match (record.op, replayed.or(record.outcome)) {
            (Op::Mounted, _) => self.requests = Requests::default(),
            (_, Some(outcome)) => self.requests.add(record.request, outcome),
            (_, None) => {}
        }
    }

    /// Does `work`, which answers the kernel's request `number`. One request makes one change that matters: the first. What a request has done is told to
    /// the kernel once, so the log has its number, and a commit leaves the log until it is answered.
    pub fn serving<T>(&self, number: u64, work: impl FnOnce() -> T) -> T {
        request::serving(self.number, number, work)
    }

    /// The kernel has a new superblock of the volume: numbers of its requests ([`Engine::serving`]) say nothing of earlier ones.
    pub fn mounted(&self) -> Result<(), Errno> {
        match self.perform_at_once(&Op::Mounted, |_| Ok(()), |_, _| Ok(())) {
            // Nothing is changed here, so nothing is asked that was done already.
            Err(Errno::ROFS) => Ok(()),
            logged => logged.and_then(|()| self.write_log()),
        }
    }

    /// What the kernel's request `number` did before this process took a volume over, if it did: see [`Engine::serving`].
    pub fn done(&self, number: u64) -> Option<Done> {
        self.requests.get(number)
    }

    /// Fetches the data that a read needs, and puts it together.
    fn fetch(&self, plan: &Plan) -> Result<Vec<u8>, Errno> {
        let chunk = |(_, piece): &(usize, Piece)| match piece.source {
            Source::Chunk { chunk, .. } => Some(chunk),
            Source::Memory { .. } => None,
        };
        let chunks: Vec<ChunkRef> = plan.pieces.iter().filter_map(chunk).collect();
        let data = match chunks.is_empty() {
            true => HashMap::new(),
            false => self.loader.runtime().block_on(self.loader.data(&chunks)).map_err(|error| io_error(&error))?,
        };
        self.counters.read(plan.length);
        // In their order, so that only holes are cleared.
        let mut bytes = Vec::with_capacity(plan.length);
        for (place, piece) in &plan.pieces {
            let part = piece.bytes(&data).ok_or(Errno::IO)?;
            if *place < bytes.len() || *place + part.len() > plan.length {
                return Err(Errno::IO);
            }
            bytes.resize(*place, 0);
            bytes.extend_from_slice(part);
        }
        bytes.resize(plan.length, 0);
        Ok(bytes)
    }

    fn wal_failed(&self, error: crate::WalError) -> Errno {
        self.forbid_changes();
        io_error(&error)
    }
}

impl Piece {
    /// Its bytes, among opened chunks.
    pub(crate) fn bytes<'a>(&'a self, data: &'a HashMap<ChunkRef, Bytes>) -> Option<&'a [u8]> {
        let (buffer, offset): (&[u8], u32) = match &self.source {
            Source::Memory { buffer, offset } => (buffer, *offset),
            Source::Chunk { chunk, offset } => (data.get(chunk)?, *offset),
        };
        buffer.get(offset as usize..offset as usize + self.length as usize)
    }
}

/// The program sees `EIO`; the log of this process has the reason.
fn io_error(error: &(dyn std::error::Error + 'static)) -> Errno {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        message = format!("{message}: {source}");
        cause = source.source();
    }
    tracing::error!(message, "a volume cannot answer");
    Errno::IO
}
