//! A store in memory, memory that is a map, and a target that is one.
#![allow(dead_code)] // each test file uses its part

use std::{
    collections::BTreeMap,
    sync::Mutex,
    sync::atomic::{AtomicUsize, Ordering},
};

use memory::{
    BoxError, ChunkId, ChunkSink, ChunkSource, Error, Known, Options, PAGE_BYTES, PageImage, PageReader, PageRun,
    PageSource, PageTarget, codec::Packing, scan::Piece,
};

pub(crate) type Pages = BTreeMap<u64, Vec<u8>>;

#[derive(Default)]
pub(crate) struct Chunks {
    pub(crate) chunks: Vec<Vec<u8>>,
    pub(crate) reads: AtomicUsize,
}

impl Chunks {
    pub(crate) fn of(chunks: Vec<Vec<u8>>) -> Self {
        Self { chunks, reads: AtomicUsize::new(0) }
    }
}

impl ChunkSink for Chunks {
    fn append(&mut self, bytes: &[u8]) -> Result<ChunkId, BoxError> {
        self.chunks.push(bytes.to_vec());
        Ok(ChunkId::new(&(self.chunks.len() as u32 - 1).to_le_bytes()).unwrap())
    }
}

impl ChunkSource for Chunks {
    fn read(&self, id: &ChunkId) -> Result<Vec<u8>, BoxError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let index = u32::from_le_bytes(id.as_bytes().try_into()?);
        Ok(self.chunks.get(index as usize).ok_or("no such chunk")?.clone())
    }
}

pub(crate) struct Source<'a>(pub(crate) &'a Pages);

impl PageSource for Source<'_> {
    fn read(&self, runs: &[PageRun], into: &mut [u8]) -> Result<(), Error> {
        let pages = runs.iter().flat_map(|run| run.first..run.end());
        assert_eq!(pages.clone().count() * PAGE_BYTES, into.len());
        for (page, place) in pages.zip(into.chunks_mut(PAGE_BYTES)) {
            place.copy_from_slice(&self.0[&page]);
        }
        Ok(())
    }
}

/// The keys of `pages` as runs, parent pages where `same` says so.
pub(crate) fn pieces(pages: &Pages, same: impl Fn(u64) -> bool) -> Vec<Result<Piece, Error>> {
    let mut pieces: Vec<Piece> = Vec::new();
    for page in pages.keys() {
        let run = PageRun { first: *page, count: 1 };
        match (pieces.last_mut(), same(*page)) {
            (Some(Piece::Parent(last)), true) if last.end() == *page => last.count += 1,
            (Some(Piece::Own(last)), false) if last.end() == *page => last.count += 1,
            (_, true) => pieces.push(Piece::Parent(run)),
            (_, false) => pieces.push(Piece::Own(run)),
        }
    }
    pieces.into_iter().map(Ok).collect()
}

/// The root of an image of `pages`.
pub(crate) fn dump(pages: &Pages, chunks: &mut Chunks, packing: Packing, same: impl Fn(u64) -> bool) -> memory::Dump {
    dump_against(&Known::default(), pages, chunks, packing, same)
}

/// The same, with pages that are known already.
pub(crate) fn dump_against(
    known: &Known,
    pages: &Pages,
    chunks: &mut Chunks,
    packing: Packing,
    same: impl Fn(u64) -> bool,
) -> memory::Dump {
    let options = Options { packing, threads: 2 };
    memory::dump(&Source(pages), pieces(pages, same).into_iter(), chunks, options, known).unwrap()
}

pub(crate) fn reader<'a>(roots: &[&[u8]], chunks: &'a Chunks) -> Result<PageReader<&'a Chunks>, Error> {
    let layers: Result<Vec<PageImage>, Error> = roots.iter().map(|root| PageImage::open(root)).collect();
    PageReader::new(layers?, chunks)
}

/// Collects pages; a page that comes twice is an error.
#[derive(Default)]
pub(crate) struct Target {
    pub(crate) pages: Mutex<Pages>,
    pub(crate) calls: Mutex<Vec<PageRun>>,
}

impl Target {
    fn put(&self, page: u64, bytes: &[u8]) -> Result<(), BoxError> {
        let before = self.pages.lock().unwrap().insert(page, bytes.to_vec());
        match before {
            None => Ok(()),
            Some(_) => Err("a page comes twice".into()),
        }
    }
}

impl PageTarget for Target {
    fn data(&self, first: u64, bytes: &[u8]) -> Result<(), BoxError> {
        self.calls.lock().unwrap().push(PageRun { first, count: (bytes.len() / PAGE_BYTES) as u64 });
        (first..).zip(bytes.chunks(PAGE_BYTES)).try_for_each(|(page, bytes)| self.put(page, bytes))
    }

    fn zero(&self, pages: PageRun) -> Result<(), BoxError> {
        self.calls.lock().unwrap().push(pages);
        (pages.first..pages.end()).try_for_each(|page| self.put(page, &[0; PAGE_BYTES]))
    }
}

/// All pages of the image.
pub(crate) fn restore(reader: &PageReader<&Chunks>, threads: usize) -> Result<Pages, Error> {
    let target = Target::default();
    reader.restore(PageRun::ALL, threads, &target)?;
    Ok(target.pages.into_inner().unwrap())
}
