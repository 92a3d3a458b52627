//! Eager restore: all pages of an image, on several threads, each chunk fetched and each cluster decoded once.

use std::{
    collections::HashMap,
    mem,
    sync::{Mutex, PoisonError, mpsc},
    thread,
};

use crate::{
    chunk::Chunk,
    chunks::{ChunkId, ChunkSource},
    codec::Decoder,
    error::{BoxError, Damage, Error},
    limits::CHUNKS_PER_READ,
    page::{PAGE_BYTES, PageRun},
    reader::{PageReader, Place},
};

/// Runs gathered before their chunks are asked for: pages that share a chunk are mostly this close.
const RUNS_GATHERED: usize = 1024;

/// Takes pages, from several threads at once and in no order, each once.
pub trait PageTarget: Sync {
    /// `bytes` are the pages from number `first` on.
    fn data(&self, first: u64, bytes: &[u8]) -> Result<(), BoxError>;
    /// These pages are zeros, and must be put in place as such.
    fn zero(&self, pages: PageRun) -> Result<(), BoxError>;
}

/// A chunk and the pages that are wanted of it: where they go and where they lie.
type Wanted = (ChunkId, Vec<(PageRun, usize)>);

impl<S: ChunkSource> PageReader<S> {
    /// Gives all pages in `within` to `target`, decoded on `threads` threads. Each thread holds the chunks of one request (2 MiB) and one
    /// chunk decoded.
    pub fn restore(&self, within: PageRun, threads: usize, target: &dyn PageTarget) -> Result<(), Error> {
        let threads = threads.max(1);
        // One request in waiting for each thread.
        let (requests, waiting) = mpsc::sync_channel::<Vec<Wanted>>(threads);
        let waiting = Mutex::new(waiting);
        thread::scope(|scope| {
            let run = || self.place(&waiting, target);
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
            let asked = self.ask(within, target, requests);
            // A worker's error comes first: it is why asking ended.
            let ended = workers.into_iter().map(|worker| worker.join());
            let results = ended.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            results.fold(Ok(()), Result::and).and(asked)
        })
    }

    fn ask(
        &self,
        within: PageRun,
        target: &dyn PageTarget,
        requests: mpsc::SyncSender<Vec<Wanted>>,
    ) -> Result<(), Error> {
        let mut gathered = Gathered::default();
        self.walk(within, &mut |pages, place| match place {
            Place::Zero => target.zero(pages).map_err(|error| unplaced(pages.first, error)),
            Place::Data { id, ordinal } => {
                gathered.add(id, pages, ordinal);
                if gathered.runs == RUNS_GATHERED { gathered.send(&requests) } else { Ok(()) }
            }
        })?;
        gathered.send(&requests)
    }

    fn place(&self, requests: &Mutex<mpsc::Receiver<Vec<Wanted>>>, target: &dyn PageTarget) -> Result<(), Error> {
        let mut decoder = Decoder::new()?;
        let mut plain = Vec::new();
        loop {
            let request = requests.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(request) = request else { return Ok(()) };
            let placed = self.place_all(request, &mut decoder, &mut plain, target);
            if placed.is_err() {
                // Nothing more is worth doing: what waits is taken and dropped, so that all threads end soon.
                requests.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(drop);
                return placed;
            }
        }
    }

    fn place_all(
        &self,
        request: Vec<Wanted>,
        decoder: &mut Decoder,
        plain: &mut Vec<u8>,
        target: &dyn PageTarget,
    ) -> Result<(), Error> {
        let ids: Vec<ChunkId> = request.iter().map(|(id, _)| *id).collect();
        let chunks = read_many(&self.source, &ids)?;
        for (bytes, (_, wanted)) in chunks.into_iter().zip(request) {
            let chunk = Chunk::open(bytes)?;
            let end = |(pages, at): &(PageRun, usize)| at + pages.count as usize;
            let first = wanted.iter().map(|(_, at)| *at).min().unwrap_or(0);
            let last = wanted.iter().map(end).max().unwrap_or(0);
            let start = chunk.decode(first..last, decoder, plain)?;
            for (pages, at) in wanted {
                let from = (at - start) * PAGE_BYTES;
                let bytes = &plain[from..from + pages.bytes() as usize];
                target.data(pages.first, bytes).map_err(|error| unplaced(pages.first, error))?;
            }
        }
        Ok(())
    }
}

/// Several chunks; a source that gives another number of them is refused.
pub(crate) fn read_many(source: &impl ChunkSource, ids: &[ChunkId]) -> Result<Vec<Vec<u8>>, Error> {
    let Some(first) = ids.first() else { return Ok(Vec::new()) };
    let chunks = source.read_many(ids).map_err(|source| Error::Read { id: *first, source })?;
    if chunks.len() == ids.len() { Ok(chunks) } else { Err(Damage::Layout("chunks are missing").of("chunk")) }
}

pub(crate) fn unplaced(page: u64, source: BoxError) -> Error {
    Error::Place { address: page * PAGE_BYTES as u64, source }
}

/// Runs sorted by the chunk they lie in; chunks in the order they were first met, which is the order they were written in.
#[derive(Default)]
struct Gathered {
    wanted: Vec<Wanted>,
    places: HashMap<ChunkId, usize>,
    runs: usize,
}

impl Gathered {
    fn add(&mut self, id: ChunkId, pages: PageRun, ordinal: usize) {
        let place = *self.places.entry(id).or_insert(self.wanted.len());
        if place == self.wanted.len() {
            self.wanted.push((id, Vec::new()));
        }
        self.wanted[place].1.push((pages, ordinal));
        self.runs += 1;
    }

    fn send(&mut self, requests: &mpsc::SyncSender<Vec<Wanted>>) -> Result<(), Error> {
        self.places.clear();
        self.runs = 0;
        let mut wanted = mem::take(&mut self.wanted).into_iter().peekable();
        while wanted.peek().is_some() {
            // Without receivers all workers have failed, and say why.
            let _ = requests.send(wanted.by_ref().take(CHUNKS_PER_READ).collect());
        }
        Ok(())
    }
}
