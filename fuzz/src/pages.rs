//! Page images and working sets.

use memory::{
    BoxError, ChunkId, ChunkSource, Known, PAGE_BYTES, PageImage, PageReader, PageRun, PageTarget,
    codec::{Codec, Decoder},
    hot::HotSet,
};

use crate::parts::{framed, packed, pieces};

const ROOT: u16 = 0x4d01;
const LEAF: u16 = 0x4d02;
const CHUNK: u16 = 0x4d03;
const HOT_SET: u16 = 0x4d04;
const HOT_CHUNK: u16 = 0x4d05;
const CONTENTS: u16 = 0x4d06;
const CONTENTS_PIECE: u16 = 0x4d07;

/// Chunks by the first byte of their names.
struct Chunks(Vec<Vec<u8>>);

impl Chunks {
    fn of(kind: u16, payloads: &[&[u8]]) -> Self {
        Self(payloads.iter().map(|payload| framed(kind, payload)).collect())
    }
}

impl ChunkSource for Chunks {
    fn read(&self, id: &ChunkId) -> Result<Vec<u8>, BoxError> {
        let number = id.as_bytes().first().ok_or("no name")?;
        Ok(self.0.get(usize::from(*number)).ok_or("no such chunk")?.clone())
    }
}

/// Whole pages, all of them within the address space.
struct Anywhere;

impl PageTarget for Anywhere {
    fn data(&self, first: u64, bytes: &[u8]) -> Result<(), BoxError> {
        assert!(!bytes.is_empty() && bytes.len().is_multiple_of(PAGE_BYTES));
        self.zero(PageRun { first, count: (bytes.len() / PAGE_BYTES) as u64 })
    }

    fn zero(&self, pages: PageRun) -> Result<(), BoxError> {
        assert!(pages.count > 0 && pages.end() <= memory::limits::PAGE_NUMBER_END);
        Ok(())
    }
}

fn read_all(root: &[u8], chunks: &Chunks) {
    let Ok(image) = PageImage::open(root) else { return };
    let reader = PageReader::new(vec![image], chunks).expect("one layer");
    let runs = reader.runs();
    let restored = reader.restore(PageRun::ALL, 1, &Anywhere);
    assert!(restored.is_err() || runs.is_ok(), "an image that is restored has an index");
    for run in runs.unwrap_or_default().iter().take(16) {
        for page in [run.first, run.end() - 1] {
            assert!(restored.is_err() || reader.fetch(page).is_ok(), "page {page} was restored, and cannot be fetched");
        }
    }
}

/// The payload of a root; its leaves have checksums of their own.
pub(crate) fn image_root(data: &[u8]) {
    read_all(&framed(ROOT, data), &Chunks(Vec::new()));
}

/// The columns of a leaf, which the root places as they say, then chunks.
pub(crate) fn page_image(data: &[u8]) {
    let pieces = pieces(data);
    let Some((leaf, chunks)) = pieces.split_first() else { return };
    read_all(&root_of(leaf), &Chunks::of(CHUNK, chunks));
}

/// The root of an image with this one leaf.
fn root_of(columns: &[u8]) -> Vec<u8> {
    let word =
        |at: usize| columns.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
    let half =
        |at: usize| columns.get(at..at + 4).map_or(0, |half| u32::from_le_bytes(half.try_into().expect("4 bytes")));
    let runs = (half(0) as usize).min(columns.len() / 8);
    let sum =
        |end: u64, run: usize| end.wrapping_add(word(8 + run * 8)).wrapping_add(half(8 + runs * 8 + run * 4).into());
    let (first, end) = (word(8), (0..runs).fold(0u64, sum));
    let leaf = packed(LEAF, columns);
    let mut root = vec![0; 48];
    root.extend_from_slice(&1u32.to_le_bytes());
    root.extend_from_slice(&first.to_le_bytes());
    root.extend_from_slice(&end.to_le_bytes());
    root.push(0);
    root.extend_from_slice(&(leaf.len() as u32).to_le_bytes());
    root.extend_from_slice(&leaf);
    framed(ROOT, &root)
}

/// A chunk of which all pages are wanted, as many as it says.
pub(crate) fn chunk(data: &[u8]) {
    let pages = data.first_chunk().map_or(1, |pages| u16::from_le_bytes(*pages)).clamp(1, 1024);
    let mut leaf = Vec::new();
    leaf.extend_from_slice(&1u32.to_le_bytes());
    leaf.extend_from_slice(&1u32.to_le_bytes());
    leaf.extend_from_slice(&10u64.to_le_bytes());
    leaf.extend_from_slice(&u32::from(pages).to_le_bytes());
    leaf.push(2);
    leaf.extend_from_slice(&[0; 6]);
    leaf.extend_from_slice(&[1, 0]);
    read_all(&root_of(&leaf), &Chunks::of(CHUNK, &[data]));
}

/// One cluster: how many pages, the codec, the packed bytes.
pub(crate) fn cluster(data: &[u8]) {
    let [pages, codec, packed @ ..] = data else { return };
    let codec = [Codec::Raw, Codec::Lz4, Codec::Zstd][usize::from(*codec) % 3];
    let mut plain = vec![0; (usize::from(*pages) % 64 + 1) * PAGE_BYTES];
    drop(Decoder::new().expect("there is memory").decode(codec, packed, &mut plain));
}

/// The list of a working set, then its chunks.
pub(crate) fn hot_set(data: &[u8]) {
    let pieces = pieces(data);
    let Some((set, chunks)) = pieces.split_first() else { return };
    let Ok(set) = HotSet::open(&framed(HOT_SET, set)) else { return };
    drop(set.read(&Chunks::of(HOT_CHUNK, chunks), &Anywhere));
}

/// A list of contents, then its pieces.
pub(crate) fn contents(data: &[u8]) {
    let chunks = pieces(data);
    let Some((list, chunks)) = chunks.split_first() else { return };
    drop(Known::read([&framed(CONTENTS, list)[..]], &Chunks::of(CONTENTS_PIECE, chunks)));
}
