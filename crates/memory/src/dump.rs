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
//! (256 KiB) and its packed form; beside them the pages remembered by [`crate::classify`], the names of recent chunks and one leaf.

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
    /// The root of its index, for [`crate::Image::open`].
    pub root: Vec<u8>,
    /// What it holds.
    pub totals: Totals,
}

/// Where a run of pages goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goes {
    Zero,
    Parent,
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
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Packed {
    job: Job,
    bytes: Vec<u8>,
}

/// Writes an image of `pieces` (in order) to `sink`, with the bytes from `source`. With pieces that are as in a parent, the image can be read
/// only together with that.
pub fn dump(
    source: &dyn PageSource,
    pieces: impl Iterator<Item = Result<Piece, Error>> + Send,
    sink: &mut dyn ChunkSink,
    options: Options,
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
            if let Err(front::Halt::Failed(error)) = front::run(source, pieces, packing, jobs, buffers) {
                // Without a receiver the back has failed and says so itself.
                let _ = packed.send(Err(error));
            }
        });
        // It owns the ends it uses: when it returns early they close, and the other threads end.
        back::run(to_append, free, sink)
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
