use proptest::prelude::*;

use super::*;
use crate::{BoxError, ChunkId, ChunkSink, PageRun, limits};

#[derive(Default)]
struct Chunks(Vec<Vec<u8>>);

impl ChunkSink for Chunks {
    fn append(&mut self, bytes: &[u8]) -> Result<ChunkId, BoxError> {
        self.0.push(bytes.to_vec());
        Ok(chunk_id(self.0.len() as u32 - 1))
    }
}

impl ChunkSource for Chunks {
    fn read(&self, id: &ChunkId) -> Result<Vec<u8>, BoxError> {
        let index = u32::from_le_bytes(id.as_bytes().try_into()?);
        Ok(self.0.get(index as usize).ok_or("no such chunk")?.clone())
    }
}

fn chunk_id(index: u32) -> ChunkId {
    ChunkId::new(&index.to_le_bytes()).unwrap()
}

fn run(first: u64, count: u64) -> PageRun {
    PageRun { first, count }
}

/// Runs with gaps before them, of all kinds.
fn runs(count: usize) -> impl Strategy<Value = Vec<(PageRun, What)>> {
    let what = prop_oneof![
        Just(What::Zero),
        Just(What::Parent),
        (0u32..50, 0u16..900).prop_map(|(chunk, ordinal)| What::Data { id: chunk_id(chunk), ordinal }),
    ];
    let gaps = prop::collection::vec((0u64..3, 1u64..100, what), 0..count);
    gaps.prop_map(|gaps| {
        let mut end = 0;
        let place = |(gap, count, what)| {
            let pages = run(end + gap, count);
            end = pages.end();
            (pages, what)
        };
        gaps.into_iter().map(place).collect()
    })
}

/// All pages of the image, one by one.
fn pages(image: &PageImage, chunks: &Chunks) -> Vec<(u64, What)> {
    let mut pages = Vec::new();
    for index in 0..image.root.leaves.len() {
        let leaf = image.leaf(index, chunks).unwrap();
        for run in &leaf.runs {
            pages.extend(run.pages().each().map(|page| (page, what_at(&leaf, *run, page))));
        }
    }
    pages
}

fn what_at(leaf: &Leaf, run: Run, page: u64) -> What {
    match run.kind {
        Kind::Zero => What::Zero,
        Kind::Parent => What::Parent,
        Kind::Data { chunk, ordinal } => {
            What::Data { id: leaf.chunks[chunk as usize], ordinal: ordinal + (page - run.first) as u16 }
        }
    }
}

impl PageRun {
    fn each(self) -> std::ops::Range<u64> {
        self.first..self.end()
    }
}

fn build(runs: &[(PageRun, What)], chunks: &mut Chunks) -> Vec<u8> {
    let mut builder = Builder::default();
    for (pages, what) in runs {
        builder.push(*pages, *what, chunks).unwrap();
    }
    builder.finish(chunks).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_index_gives_back_its_runs(runs in runs(300)) {
        let mut chunks = Chunks::default();
        let image = PageImage::open(&build(&runs, &mut chunks)).unwrap();
        let each = |(pages, what): &(PageRun, What)| {
            let (first, what) = (pages.first, *what);
            pages.each().map(move |page| match what {
                What::Data { id, ordinal } => (page, What::Data { id, ordinal: ordinal + (page - first) as u16 }),
                what => (page, what),
            })
        };
        let expected: Vec<(u64, What)> = runs.iter().flat_map(each).collect();
        prop_assert_eq!(pages(&image, &chunks), expected);
    }

    #[test]
    fn bytes_that_are_no_index_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
        prop_assert!(Leaf::decode(&bytes).is_err());
        prop_assert!(PageImage::open(&bytes).is_err());
        let framed = |kind, payload: &[u8]| base::frame::encode(kind, 1, payload).unwrap();
        let packed = zstd::bulk::compress(&bytes, 1).unwrap();
        // Sound frames around noise: only the checks of the fields are left. No panic, and hardly ever a leaf.
        let _ = Leaf::decode(&framed(leaf::KIND, &packed));
        let _ = Leaf::decode(&framed(leaf::KIND, &bytes));
    }
}

#[test]
fn large_indexes_continue_in_chunks() {
    // Names without a pattern, so that leaves do not shrink away.
    let id = |page: u64| ChunkId::new(blake3::hash(&page.to_le_bytes()).as_bytes()).unwrap();
    let mut chunks = Chunks::default();
    let mut builder = Builder::default();
    let count = 10 * limits::LEAF_RUNS_MAX as u64;
    for page in 0..count {
        builder.push(run(3 * page, 1), What::Data { id: id(page), ordinal: 5 }, &mut chunks).unwrap();
    }
    let root = builder.finish(&mut chunks).unwrap();
    assert!(root.len() < limits::ROOT_INLINE_BYTES_MAX + 4096 && !chunks.0.is_empty(), "{} bytes", root.len());
    let image = PageImage::open(&root).unwrap();
    let found = pages(&image, &chunks);
    assert!(found.into_iter().eq((0..count).map(|page| (3 * page, What::Data { id: id(page), ordinal: 5 }))));
    // A sound leaf in the wrong place is found out.
    let swapped = Chunks(chunks.0.iter().rev().cloned().collect());
    let last = image.root.leaves.len() - 1;
    let again = PageImage::open(&root).unwrap();
    assert!(again.leaf(last, &swapped).is_err());
}

#[test]
fn runs_out_of_order_are_refused() {
    let mut builder = Builder::default();
    builder.push(run(10, 5), What::Zero, &mut Chunks::default()).unwrap();
    assert!(matches!(builder.push(run(14, 1), What::Zero, &mut Chunks::default()), Err(Error::Order { .. })));
}

#[test]
fn every_truncation_and_every_bit_flip_of_an_index_is_refused() {
    let mut chunks = Chunks::default();
    let data = What::Data { id: chunk_id(3), ordinal: 2 };
    let root = build(&[(run(1, 4), What::Zero), (run(9, 4), data), (run(20, 4), What::Parent)], &mut chunks);
    let load = |root: &[u8]| PageImage::open(root).and_then(|image| image.leaf(0, &chunks).map(drop));
    load(&root).unwrap();
    for length in 0..root.len() {
        assert!(load(&root[..length]).is_err(), "cut to {length}");
    }
    for bit in 0..root.len() * 8 {
        let mut damaged = root.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(load(&damaged).is_err(), "bit {bit}");
    }
}

/// A place that gives chunks numbers in the order in which it first hears of them.
#[derive(Default)]
struct Elsewhere {
    index: Chunks,
    old: Vec<ChunkId>,
}

impl ChunkSink for Elsewhere {
    fn append(&mut self, bytes: &[u8]) -> Result<ChunkId, BoxError> {
        self.index.append(bytes)
    }
}

impl ChunkMover for Elsewhere {
    fn names(&mut self, chunks: &[ChunkId]) -> Result<Vec<ChunkId>, BoxError> {
        let number = |id: &ChunkId| {
            let known = self.old.iter().rposition(|old| old == id);
            let number = known.unwrap_or_else(|| {
                self.old.push(*id);
                self.old.len() - 1
            });
            chunk_id(number as u32)
        };
        Ok(chunks.iter().map(number).collect())
    }
}

#[test]
fn a_moved_image_has_the_same_pages_in_renamed_chunks() {
    let id = |page: u64| ChunkId::new(blake3::hash(&(page / 5).to_le_bytes()).as_bytes()).unwrap();
    let mut chunks = Chunks::default();
    let mut builder = Builder::default();
    for page in 0..9 * limits::LEAF_RUNS_MAX as u64 {
        let what = if page % 7 == 0 { What::Zero } else { What::Data { id: id(page), ordinal: page as u16 % 5 } };
        builder.push(run(3 * page, 1), what, &mut chunks).unwrap();
    }
    let root = builder.finish(&mut chunks).unwrap();
    let image = PageImage::open(&root).unwrap();
    let mut elsewhere = Elsewhere::default();
    let moved = PageImage::open(&image.moved(&chunks, &mut elsewhere).unwrap()).unwrap();
    assert_eq!(moved.totals(), image.totals());
    let back = |(page, what)| match what {
        What::Data { id, ordinal } => {
            let number = u32::from_le_bytes(id.as_bytes().try_into().unwrap());
            (page, What::Data { id: elsewhere.old[number as usize], ordinal })
        }
        what => (page, what),
    };
    assert_eq!(pages(&moved, &elsewhere.index).into_iter().map(back).collect::<Vec<_>>(), pages(&image, &chunks));
}
