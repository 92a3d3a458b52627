//! Writing an image while it is read.
//!
//! ```text
//!  front (1 thread)            packers (n threads)       back (the caller's thread)
//!  pieces ─► read ─► classify ──► compress ────────────► append in order ─► index
//!     ▲                                                        │
//!     └──────────────────── buffers ◄──────────────────────────┘
//! ```
//!
//! A fixed number of buffers goes round, so memory is bounded whatever the image and however slow the sink: per thread four times a chunk
//! (256 KiB) and its packed form; beside them the pages remembered by [`crate::classify`] and known from older images, the names of recent
//! chunks, one leaf and one piece of the list of contents.

mod back;
mod front;

use std::{
    sync::{Mutex, PoisonError, mpsc},
    thread,
};

use crate::{
    chunk,
    chunks::ChunkSink,
    classify::Place,
    codec::{Encoder, Packing},
    content::{Hash, Known, KnownPlace},
    error::Error,
    image::Totals,
    page::{PAGE_BYTES, PageRun},
    read::PageSource,
    scan::Piece,
};

/// How to dump.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How pages are packed.
    pub packing: Packing,
    /// Threads that compress; one more reads.
    pub threads: usize,
}

/// A written image.
#[derive(Debug)]
pub struct Dump {
    /// The root of its index, for [`crate::PageImage::open`].
    pub root: Vec<u8>,
    /// What it holds.
    pub totals: Totals,
    /// The list of contents of its own chunks, for [`Known::read`].
    pub contents: Vec<u8>,
    /// How many of the parent's pages lie in chunks that were known: the image is read without that parent's if these are all.
    pub known_pages: u64,
}

/// Where a run of pages goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goes {
    Zero,
    Parent,
    Known(KnownPlace),
    To(Place),
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    pages: PageRun,
    goes: Goes,
}

/// The pages of one chunk, and all runs since the chunk before. Without pages there is no chunk.
#[derive(Debug)]
struct Job {
    number: u32,
    plain: Vec<u8>,
    /// Of the pages in `plain`.
    hashes: Vec<Hash>,
    entries: Vec<Entry>,
}

impl Job {
    fn new(number: u32, plain: Vec<u8>) -> Self {
        Self { number, plain, hashes: Vec::new(), entries: Vec::new() }
    }
}

#[derive(Debug)]
struct Packed {
    job: Job,
    bytes: Vec<u8>,
}

/// Writes an image of `pieces` (in order) to `sink`, with the bytes from `source`. Pages that are `known` are not written again: the image
/// refers to the chunks they are in, which must be kept as long. With pieces that are as in a parent, it can be read only together with that.
pub fn dump(
    source: &dyn PageSource,
    pieces: impl Iterator<Item = Result<Piece, Error>> + Send,
    sink: &mut dyn ChunkSink,
    options: Options,
    known: &Known,
) -> Result<Dump, Error> {
    let packing = options.packing.check()?;
    let threads = options.threads.max(1);
    let encoders: Result<Vec<Encoder>, Error> = (0..threads).map(|_| Encoder::new(packing.codec)).collect();
    let encoders = encoders?;
    let (jobs, to_pack) = mpsc::channel();
    let to_pack = Mutex::new(to_pack);
    let (packed, to_append) = mpsc::channel();
    let (free, buffers) = mpsc::channel();
    for _ in 0..2 * threads + 2 {
        let buffer = Vec::with_capacity(usize::from(packing.chunk_pages) * PAGE_BYTES);
        free.send(buffer).expect("both ends are here");
    }
    thread::scope(|scope| {
        let to_pack = &to_pack;
        for encoder in encoders {
            let packed = packed.clone();
            scope.spawn(move || pack(to_pack, packing, encoder, &packed));
        }
        scope.spawn(move || {
            if let Err(front::Halt::Failed(error)) = front::run(source, pieces, packing, known, jobs, buffers) {
                // Without a receiver the back has failed and says so itself.
                let _ = packed.send(Err(error));
            }
        });
        // It owns the ends it uses: when it returns early they close, and the other threads end.
        back::run(to_append, free, known, sink)
    })
}

fn pack(
    jobs: &Mutex<mpsc::Receiver<Job>>,
    packing: Packing,
    mut encoder: Encoder,
    packed: &mpsc::Sender<Result<Packed, Error>>,
) {
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
    while let Ok(job) = next() {
        let bytes =
            if job.plain.is_empty() { Ok(Vec::new()) } else { chunk::encode(&job.plain, packing, &mut encoder) };
        if packed.send(bytes.map(|bytes| Packed { job, bytes })).is_err() {
            return;
        }
    }
}
