//! What is kept of one command: a file in memory (memfd) that the holder, its spare and every node can read.
//!
//! ```text
//! 0       header     words of 8 bytes, little-endian: see [`Word`]
//! 4096    meta data  JSON of [`Meta`], then zeros up to a page
//!         rings      one or two of the same capacity: standard output or the terminal, standard error
//! ```
//!
//! The node that starts the command makes the file, with all that does not change. The holder alone writes afterwards.
//! A word that says that something is complete is written last.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::Ordering::{Acquire, Release},
};

use base::limits::{COMMAND_BYTES_MAX, COMMAND_OUTPUT_KEPT_BYTES};
use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create},
    io::{pread, pwrite},
};
use serde::{Deserialize, Serialize};
use sys::mapping::Mapping;

use crate::ring::{self, Next, Span};

/// "PANDOCM" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"PANDOCM\x01");
/// Bytes before the meta data.
const HEADER_BYTES: u64 = 4096;
/// A command of [`COMMAND_BYTES_MAX`] is at most six times as long as JSON, and the rest is short.
const META_BYTES_MAX: u64 = COMMAND_BYTES_MAX as u64 * 6 + (64 << 10);
/// Most bytes of a ring that a reader of the file believes.
const RING_BYTES_MAX: u64 = 1 << 30;
/// Outputs of a command: standard output and standard error.
pub(crate) const OUTPUTS_MAX: usize = 2;

/// A word of the header, by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    Magic = 0,
    MetaBytes = 1,
    RingBytes = 2,
    Rings = 3,
    /// Pid inside of the sandbox.
    Inside = 4,
    /// Pid as the host sees it.
    Outside = 5,
    StartTicks = 6,
    /// 1: standard input was closed.
    InputClosed = 7,
    /// 0 none, 1 the time limit, 2 its client left.
    Reason = 8,
    /// Kind in the upper half (1 code, 2 signal, 3 unknown), value in the lower.
    Status = 9,
    EndedMs = 10,
    /// 1: the command has ended, and all of the above is complete.
    Ended = 11,
    /// 1: a node has done what is to be done after the end.
    Settled = 12,
    /// Bytes of output so far, of each ring.
    Total = 16,
    /// Bytes of output at the end, of each ring.
    TotalAtEnd = 18,
}

/// Words that are read together.
const WORDS: usize = 20;

/// What does not change of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Name of the command, and of its control group: unique on a host.
    pub key: String,
    /// The sandbox that it runs in.
    pub sandbox: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The environment that the client gave.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub cwd: String,
    /// The client's name for it.
    pub tag: Option<String>,
    /// Name of the user inside of the sandbox.
    pub user: String,
    /// Its output is a terminal's.
    pub terminal: bool,
    /// It can be sent input.
    pub stdin: bool,
    /// It ends with the client that started it.
    pub foreground: bool,
    /// When it was started, in milliseconds since 1970.
    pub started_ms: u64,
    /// When its time is up, in nanoseconds of the host's monotonic clock.
    pub deadline_ns: Option<u64>,
    /// How much time it had, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Device and inode of its standard input, output and error at its start, as its process has them; of a terminal once.
    #[serde(default)]
    pub streams: Vec<(u64, u64)>,
    /// The number of its terminal in its sandbox.
    #[serde(default)]
    pub terminal_number: Option<u32>,
}

impl Meta {
    fn rings(&self) -> usize {
        if self.terminal { 1 } else { OUTPUTS_MAX }
    }
}

/// The process of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its pid inside of the sandbox.
    pub inside: i32,
    /// Its pid as the host sees it.
    pub outside: i32,
    /// Field 22 of its `/proc/PID/stat`.
    pub start_ticks: u64,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// Nothing could take note of its status.
    Unknown,
}

impl Status {
    /// Of a status as wait(2) encodes it.
    pub fn of_wait(status: i32) -> Self {
        match status & 0x7f {
            0 => Self::Code((status >> 8) & 0xff),
            signal => Self::Signal(signal),
        }
    }

    fn word(self) -> u64 {
        let (kind, value) = match self {
            Self::Code(code) => (1, code),
            Self::Signal(signal) => (2, signal),
            Self::Unknown => (3, 0),
        };
        kind << 32 | u64::from(value as u32)
    }

    fn of_word(word: u64) -> Self {
        let value = word as u32 as i32;
        match word >> 32 {
            1 => Self::Code(value),
            2 => Self::Signal(value),
            _ => Self::Unknown,
        }
    }
}

/// Why a command was ended, if it did not end by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// Its time limit.
    TimedOut,
    /// The client that started it in the foreground left.
    ClientLeft,
}

impl Reason {
    fn of_word(word: u64) -> Option<Self> {
        match word {
            1 => Some(Self::TimedOut),
            2 => Some(Self::ClientLeft),
            _ => None,
        }
    }
}

/// The end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// How it ended.
    pub status: Status,
    /// Why it was ended, if it did not end by itself.
    pub reason: Option<Reason>,
    /// When, in milliseconds since 1970.
    pub ended_ms: u64,
}

/// Makes the file of a command that is about to start, or that goes on: it keeps the end of the output `before`.
pub(crate) fn create(meta: &Meta, before: &[Vec<u8>]) -> io::Result<OwnedFd> {
    create_with(meta, before, COMMAND_OUTPUT_KEPT_BYTES)
}

fn create_with(meta: &Meta, before: &[Vec<u8>], ring_bytes: u64) -> io::Result<OwnedFd> {
    let json = serde_json::to_vec(meta)?;
    let rings = meta.rings() as u64;
    let length = rings_at(json.len() as u64) + rings * ring_bytes;
    let file = memfd_create("pando-command", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, length)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let mut words = [0; WORDS];
    let shape = [
        (Word::Magic, MAGIC),
        (Word::MetaBytes, json.len() as u64),
        (Word::RingBytes, ring_bytes),
        (Word::Rings, rings),
    ];
    shape.into_iter().for_each(|(word, value)| words[word as usize] = value);
    for (ring, bytes) in before.iter().enumerate().take(rings as usize) {
        let kept = &bytes[bytes.len().saturating_sub(ring_bytes as usize)..];
        words[Word::Total as usize + ring] = kept.len() as u64;
        write_at(&file, kept, rings_at(json.len() as u64) + ring as u64 * ring_bytes)?;
    }
    let header: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    write_at(&file, &header, 0)?;
    write_at(&file, &json, HEADER_BYTES)?;
    Ok(file)
}

fn rings_at(meta_bytes: u64) -> u64 {
    (HEADER_BYTES + meta_bytes).next_multiple_of(HEADER_BYTES)
}

fn write_at(file: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = pwrite(file, bytes, offset)?;
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

fn read_at(file: BorrowedFd<'_>, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match pread(file, &mut bytes[done..], offset + done as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => done += read,
        }
    }
    Ok(())
}

/// What a file says now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What does not change.
    pub meta: Meta,
    /// Its process.
    pub process: Process,
    /// Its end, if it has ended.
    pub end: Option<End>,
    /// Whether a node has done what is to be done after the end.
    pub settled: bool,
    /// Bytes of each output so far.
    pub totals: Vec<u64>,
    /// Whether a client has closed its standard input.
    pub input_closed: bool,
}

impl Entry {
    /// Reads a file, which may be another program's: nothing of it is believed unseen.
    pub fn read(file: impl AsFd) -> io::Result<Self> {
        let file = file.as_fd();
        let words = words(file)?;
        let shape = Shape::of(file, &words)?;
        let mut json = vec![0; words[Word::MetaBytes as usize] as usize];
        read_at(file, &mut json, HEADER_BYTES)?;
        let meta: Meta = serde_json::from_slice(&json)?;
        if meta.rings() != shape.rings {
            return Err(damaged("its meta data and its rings do not agree"));
        }
        let word = |word: Word| words[word as usize];
        let process = Process {
            inside: word(Word::Inside) as i32,
            outside: word(Word::Outside) as i32,
            start_ticks: word(Word::StartTicks),
        };
        let end = (word(Word::Ended) != 0).then(|| End {
            status: Status::of_word(word(Word::Status)),
            reason: Reason::of_word(word(Word::Reason)),
            ended_ms: word(Word::EndedMs),
        });
        let totals = words[Word::Total as usize..][..shape.rings].to_vec();
        let [settled, input_closed] = [Word::Settled, Word::InputClosed].map(|flag| word(flag) != 0);
        Ok(Self { meta, process, end, settled, totals, input_closed })
    }
}

/// The end of each output so far, at most `most` bytes. What is written meanwhile may be missing.
pub(crate) fn last_output(file: impl AsFd, most: u64) -> io::Result<Vec<Vec<u8>>> {
    let file = file.as_fd();
    let words = words(file)?;
    let shape = Shape::of(file, &words)?;
    let output = |ring: usize| {
        let total = words[Word::Total as usize + ring];
        let mut position = total.saturating_sub(most.min(shape.capacity));
        let mut bytes = Vec::new();
        while let Some(span) = ring::next(total, shape.capacity, position, most).span {
            let begin = bytes.len();
            bytes.resize(begin + span.length as usize, 0);
            let place = shape.rings_at + ring as u64 * shape.capacity + span.offset;
            read_at(file, &mut bytes[begin..], place)?;
            position += span.length;
        }
        Ok(bytes)
    };
    (0..shape.rings).map(output).collect()
}

fn words(file: BorrowedFd<'_>) -> io::Result<[u64; WORDS]> {
    let mut bytes = [0; WORDS * 8];
    read_at(file, &mut bytes, 0)?;
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    }
    Ok(words)
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the record of a command is damaged: {what}"))
}

/// Where the rings are.
#[derive(Debug, Clone, Copy)]
struct Shape {
    rings: usize,
    capacity: u64,
    rings_at: u64,
}

impl Shape {
    fn of(file: BorrowedFd<'_>, words: &[u64; WORDS]) -> io::Result<Self> {
        let word = |word: Word| words[word as usize];
        let (meta_bytes, capacity, rings) = (word(Word::MetaBytes), word(Word::RingBytes), word(Word::Rings));
        if word(Word::Magic) != MAGIC {
            return Err(damaged("it is none, or of a newer version"));
        }
        let fits = meta_bytes <= META_BYTES_MAX
            && (1..=OUTPUTS_MAX as u64).contains(&rings)
            && (1..=RING_BYTES_MAX).contains(&capacity);
        let length = fits.then(|| rings_at(meta_bytes) + rings * capacity);
        if length != Some(fstat(file)?.st_size as u64) {
            return Err(damaged("its sizes are wrong"));
        }
        Ok(Self { rings: rings as usize, capacity, rings_at: rings_at(meta_bytes) })
    }
}

/// A file as the holder has it: mapped, and written.
#[derive(Debug)]
pub(crate) struct Record {
    file: OwnedFd,
    mapping: Mapping,
    shape: Shape,
}

impl Record {
    pub(crate) fn open(file: OwnedFd) -> io::Result<Self> {
        let shape = Shape::of(file.as_fd(), &words(file.as_fd())?)?;
        let length = shape.rings_at + shape.rings as u64 * shape.capacity;
        let mapping = Mapping::new(&file, length as usize)?;
        Ok(Self { file, mapping, shape })
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn outputs(&self) -> usize {
        self.shape.rings
    }

    fn get(&self, word: Word, ring: usize) -> u64 {
        self.mapping.word(word as usize + ring).load(Acquire)
    }

    fn set(&self, word: Word, ring: usize, value: u64) {
        self.mapping.word(word as usize + ring).store(value, Release);
    }

    pub(crate) fn set_process(&self, process: Process) {
        self.set(Word::Inside, 0, process.inside as u64);
        self.set(Word::StartTicks, 0, process.start_ticks);
        self.set(Word::Outside, 0, process.outside as u64);
    }

    pub(crate) fn process(&self) -> Process {
        Process {
            inside: self.get(Word::Inside, 0) as i32,
            outside: self.get(Word::Outside, 0) as i32,
            start_ticks: self.get(Word::StartTicks, 0),
        }
    }

    pub(crate) fn close_input(&self) {
        self.set(Word::InputClosed, 0, 1);
    }

    pub(crate) fn is_input_closed(&self) -> bool {
        self.get(Word::InputClosed, 0) != 0
    }

    /// Of two reasons the first counts.
    pub(crate) fn set_reason(&self, reason: Reason) {
        if self.get(Word::Reason, 0) == 0 {
            let word = match reason {
                Reason::TimedOut => 1,
                Reason::ClientLeft => 2,
            };
            self.set(Word::Reason, 0, word);
        }
    }

    pub(crate) fn set_end(&self, status: Status, ended_ms: u64) {
        for ring in 0..self.shape.rings {
            self.set(Word::TotalAtEnd, ring, self.total(ring));
        }
        self.set(Word::EndedMs, 0, ended_ms);
        self.set(Word::Status, 0, status.word());
        self.set(Word::Ended, 0, 1);
    }

    pub(crate) fn end(&self) -> Option<End> {
        (self.get(Word::Ended, 0) != 0).then(|| End {
            status: Status::of_word(self.get(Word::Status, 0)),
            reason: Reason::of_word(self.get(Word::Reason, 0)),
            ended_ms: self.get(Word::EndedMs, 0),
        })
    }

    pub(crate) fn settle(&self) {
        self.set(Word::Settled, 0, 1);
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.get(Word::Settled, 0) != 0
    }

    pub(crate) fn total(&self, ring: usize) -> u64 {
        self.get(Word::Total, ring)
    }

    pub(crate) fn total_at_end(&self, ring: usize) -> u64 {
        self.get(Word::TotalAtEnd, ring)
    }

    /// Position of the oldest byte that is kept.
    pub(crate) fn oldest(&self, ring: usize) -> u64 {
        ring::oldest(self.total(ring), self.shape.capacity)
    }

    /// Bytes of output that are kept.
    pub(crate) fn kept(&self) -> u64 {
        (0..self.shape.rings).map(|ring| self.total(ring) - self.oldest(ring)).sum()
    }

    /// Where the next output goes; see [`ring::room`].
    pub(crate) fn room(&self, ring: usize, fastest: Option<u64>, most: u64) -> Option<Span> {
        ring::room(self.total(ring), self.shape.capacity, fastest, most)
    }

    /// Reads output into its place. A holder that is killed between the read and the count loses these bytes and
    /// nothing else.
    pub(crate) fn read_from(&self, ring: usize, from: BorrowedFd<'_>, span: Span) -> io::Result<usize> {
        let read = self.mapping.read_from(from, self.place(ring, span), span.length as usize)?;
        self.set(Word::Total, ring, self.total(ring) + read as u64);
        Ok(read)
    }

    /// What a reader at `position` gets next.
    pub(crate) fn next(&self, ring: usize, position: u64, most: u64) -> Next {
        ring::next(self.total(ring), self.shape.capacity, position, most)
    }

    pub(crate) fn copy_out(&self, ring: usize, span: Span) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; span.length as usize];
        self.mapping.copy_out(self.place(ring, span), &mut bytes)?;
        Ok(bytes)
    }

    fn place(&self, ring: usize, span: Span) -> usize {
        (self.shape.rings_at + ring as u64 * self.shape.capacity + span.offset) as usize
    }
}

#[cfg(test)]
#[path = "record/tests.rs"]
mod tests;
