//! Reading single pages of an image, and finding all of them.

use std::{
    num::NonZeroUsize,
    ops::{Deref, Range},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lru::LruCache;

use crate::{
    chunk::Chunk,
    chunks::{ChunkId, ChunkSource},
    codec::Decoder,
    error::{Damage, Error},
    image::{Kind, Leaf, PageImage, Run},
    limits::{LAYERS_MAX, OPEN_CHUNKS_MAX},
    page::{PAGE_BYTES, PageRun},
};

/// Reads an image together with those it builds on. Keeps the chunks it used last, and what it decoded of them. For any number of threads.
pub struct PageReader<S> {
    layers: Vec<PageImage>,
    pub(crate) source: S,
    open: Mutex<LruCache<ChunkId, Arc<Chunk>>>,
    decoders: Mutex<Vec<Decoder>>,
}

/// Where the bytes of pages are, in whichever layer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    Zero,
    Data { id: ChunkId, ordinal: usize },
}

/// What an image has at a page.
#[derive(Debug)]
pub enum Fetched {
    /// Nothing: the page is not the process's own.
    Absent,
    /// Zeros, here and in the pages around it.
    Zero(PageRun),
    /// Bytes of these pages: the one asked for and its neighbours in the same cluster.
    Data(PageRun, ClusterPages),
}

/// The bytes of decoded pages, shared with the reader's cache.
#[derive(Debug, Clone)]
pub struct ClusterPages {
    plain: Arc<Vec<u8>>,
    place: Range<usize>,
}

impl Deref for ClusterPages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.plain[self.place.clone()]
    }
}

impl<S: ChunkSource> PageReader<S> {
    /// A reader of the first of `layers`; each must be followed by the image it was dumped against.
    pub fn new(layers: Vec<PageImage>, source: S) -> Result<Self, Error> {
        if layers.len() > LAYERS_MAX {
            return Err(Error::TooManyLayers { have: layers.len() - 1, most: LAYERS_MAX });
        }
        let chunks = const { NonZeroUsize::new(OPEN_CHUNKS_MAX).expect("more than none") };
        Ok(Self { layers, source, open: Mutex::new(LruCache::new(chunks)), decoders: Mutex::default() })
    }

    /// The page with number `page`, and what comes with it for nothing.
    pub fn fetch(&self, page: u64) -> Result<Fetched, Error> {
        match self.locate(page)? {
            None => Ok(Fetched::Absent),
            Some((pages, Place::Zero)) => Ok(Fetched::Zero(pages)),
            Some((pages, Place::Data { id, ordinal })) => {
                self.fetch_data(page, pages, &id, ordinal + (page - pages.first) as usize)
            }
        }
    }

    fn fetch_data(&self, page: u64, run: PageRun, id: &ChunkId, ordinal: usize) -> Result<Fetched, Error> {
        let chunk = self.chunk(id)?;
        if ordinal >= chunk.pages() {
            return Err(Damage::Layout("a page beyond the end of its chunk").of("index"));
        }
        let (cluster, ordinals) = chunk.cluster_of(ordinal);
        let before = ((ordinal - ordinals.start) as u64).min(page - run.first);
        let after = ((ordinals.end - ordinal) as u64).min(run.end() - page);
        let start = (ordinal - before as usize - ordinals.start) * PAGE_BYTES;
        let pages = PageRun::between(page - before, page + after);
        let plain = self.with_decoder(|decoder| chunk.cluster(cluster, decoder))?;
        Ok(Fetched::Data(pages, ClusterPages { plain, place: start..start + pages.bytes() as usize }))
    }

    /// Whether this chunk is kept.
    pub(crate) fn has_open(&self, id: &ChunkId) -> bool {
        lock(&self.open).contains(id)
    }

    fn chunk(&self, id: &ChunkId) -> Result<Arc<Chunk>, Error> {
        if let Some(chunk) = lock(&self.open).get(id) {
            return Ok(Arc::clone(chunk));
        }
        let bytes = self.source.read(id).map_err(|source| Error::Read { id: *id, source })?;
        let chunk = Arc::new(Chunk::open(bytes)?);
        lock(&self.open).put(*id, Arc::clone(&chunk));
        Ok(chunk)
    }

    /// A decoder is dear to make and cheap to keep; there are as many as threads that decode at once.
    fn with_decoder<T>(&self, decode: impl FnOnce(&mut Decoder) -> Result<T, Error>) -> Result<T, Error> {
        let kept = lock(&self.decoders).pop();
        let mut decoder = kept.map_or_else(Decoder::new, Ok)?;
        let result = decode(&mut decoder);
        lock(&self.decoders).push(decoder);
        result
    }

    /// The run that has `page`, as far as all layers agree on it, and its place.
    pub(crate) fn locate(&self, page: u64) -> Result<Option<(PageRun, Place)>, Error> {
        let mut agreed = PageRun::ALL;
        for (level, layer) in self.layers.iter().enumerate() {
            let Some((leaf, run)) = self.run_at(layer, page)? else {
                return if level == 0 { Ok(None) } else { Err(missing_in_parent()) };
            };
            agreed = agreed.overlap(run.pages());
            if let Some(place) = place(&leaf, run, agreed)? {
                return Ok(Some((agreed, place)));
            }
        }
        Err(Error::NoParent { page })
    }

    fn run_at(&self, layer: &PageImage, page: u64) -> Result<Option<(Arc<Leaf>, Run)>, Error> {
        let index = layer.leaf_from(page);
        if layer.leaf_start(index).is_none_or(|first| first > page) {
            return Ok(None);
        }
        let leaf = layer.leaf(index, &self.source)?;
        let run = leaf.runs.get(leaf.run_from(page)).filter(|run| run.first <= page).copied();
        Ok(run.map(|run| (leaf, run)))
    }

    /// Calls `visit` with all pages in `within` that the image has, in order.
    pub(crate) fn walk(&self, within: PageRun, visit: &mut Visit<'_>) -> Result<(), Error> {
        self.walk_layer(0, within, visit).map(drop)
    }

    /// Returns the pages visited.
    fn walk_layer(&self, level: usize, within: PageRun, visit: &mut Visit<'_>) -> Result<u64, Error> {
        let Some(layer) = self.layers.get(level) else { return Err(Error::NoParent { page: within.first }) };
        let mut visited = 0;
        for index in layer.leaf_from(within.first).. {
            if layer.leaf_start(index).is_none_or(|first| first >= within.end()) {
                break;
            }
            let leaf = layer.leaf(index, &self.source)?;
            for run in &leaf.runs[leaf.run_from(within.first)..] {
                let pages = run.pages().overlap(within);
                if pages.count == 0 {
                    break;
                }
                match place(&leaf, *run, pages)? {
                    Some(place) => visit(pages, place)?,
                    None if self.walk_layer(level + 1, pages, visit)? == pages.count => {}
                    None => return Err(missing_in_parent()),
                }
                visited += pages.count;
            }
        }
        Ok(visited)
    }
}

pub(crate) type Visit<'a> = dyn FnMut(PageRun, Place) -> Result<(), Error> + 'a;

/// The place of `pages`, which are in `run` of `leaf`; none if it is the parent's to say.
fn place(leaf: &Leaf, run: Run, pages: PageRun) -> Result<Option<Place>, Error> {
    match run.kind {
        Kind::Zero => Ok(Some(Place::Zero)),
        Kind::Parent => Ok(None),
        Kind::Data { chunk, ordinal } => {
            let unnamed = || Damage::Layout("a chunk without a name").of("index");
            let id = *leaf.chunks.get(chunk as usize).ok_or_else(unnamed)?;
            let ordinal = usize::from(ordinal) + (pages.first - run.first) as usize;
            Ok(Some(Place::Data { id, ordinal }))
        }
    }
}

fn missing_in_parent() -> Error {
    Damage::Layout("a page that its parent should have is not there").of("index")
}

/// What these locks guard is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
