//! The working set: the pages that a restored process used first, in that order, in chunks of their own, so that a later restore reads one
//! stretch from front to back instead of asking for page after page.

use std::collections::HashSet;

use base::frame;

use crate::{
    chunk::{self, Chunk, check_frame},
    chunks::{ChunkSink, ChunkSource},
    codec::{Decoder, Encoder, Packing},
    error::{Damage, Error},
    limits::{CHUNKS_PER_READ, HOT_PAGES_MAX, PAGE_NUMBER_END},
    list::ChunkList,
    page::{PAGE_BYTES, PageRun},
    reader::{Fetched, PageReader},
    restore::{PageTarget, read_many, unplaced},
};

/// Kinds of the frames around the list of chunks and around a chunk.
const KIND_SET: u16 = 0x4d04;
const KIND_CHUNK: u16 = 0x4d05;
/// Beside a page's number: it is zeros, and has no bytes in the chunk.
const ZERO: u64 = 1 << 63;

const WHAT: &str = "working set";

/// The chunks of a working set, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HotSet(ChunkList);

/// Writes the pages with numbers `order` of an image, in that order; pages that occur again or that the image has not are left out.
pub fn write<S: ChunkSource>(reader: &PageReader<S>, order: &[u64], sink: &mut dyn ChunkSink) -> Result<HotSet, Error> {
    let mut set = HotSet::default();
    set.extend(reader, order, sink)?;
    Ok(set)
}

impl HotSet {
    /// Writes more pages of the same image behind those that it has, as [`write()`] does. Those that it has already must not be among them.
    pub fn extend<S: ChunkSource>(
        &mut self,
        reader: &PageReader<S>,
        order: &[u64],
        sink: &mut dyn ChunkSink,
    ) -> Result<(), Error> {
        if order.len() as u64 + self.pages() > HOT_PAGES_MAX as u64 {
            return Err(Error::TooLarge("its working set has too many pages"));
        }
        let mut encoder = Encoder::new(Packing::HOT.codec)?;
        let mut seen = HashSet::new();
        let (mut numbers, mut plain) = (Vec::new(), Vec::new());
        for page in order.iter().filter(|page| seen.insert(**page)) {
            match reader.fetch(*page)? {
                Fetched::Absent => continue,
                Fetched::Zero(_) => numbers.push(page | ZERO),
                Fetched::Data(pages, bytes) => {
                    let from = (page - pages.first) as usize * PAGE_BYTES;
                    plain.extend_from_slice(&bytes[from..from + PAGE_BYTES]);
                    numbers.push(*page);
                }
            }
            if numbers.len() == usize::from(Packing::HOT.chunk_pages) {
                self.append(&mut numbers, &mut plain, &mut encoder, sink)?;
            }
        }
        if !numbers.is_empty() {
            self.append(&mut numbers, &mut plain, &mut encoder, sink)?;
        }
        Ok(())
    }

    fn append(
        &mut self,
        numbers: &mut Vec<u64>,
        plain: &mut Vec<u8>,
        encoder: &mut Encoder,
        sink: &mut dyn ChunkSink,
    ) -> Result<(), Error> {
        let mut payload = (numbers.len() as u32).to_le_bytes().to_vec();
        numbers.iter().for_each(|number| payload.extend_from_slice(&number.to_le_bytes()));
        if !plain.is_empty() {
            chunk::append(plain, Packing::HOT, encoder, &mut payload);
        }
        let framed = frame::encode(KIND_CHUNK, 1, &payload).map_err(|error| Damage::from(error).of(WHAT))?;
        self.0.chunks.push(sink.append(&framed).map_err(|source| Error::Write { source })?);
        self.0.pages += numbers.len() as u64;
        numbers.clear();
        plain.clear();
        Ok(())
    }

    /// Pages in it, zero pages included.
    pub fn pages(&self) -> u64 {
        self.0.pages
    }

    /// The numbers of its pages.
    pub fn numbers(&self, source: &impl ChunkSource) -> Result<HashSet<u64>, Error> {
        let mut all = HashSet::new();
        for ids in self.0.chunks.chunks(CHUNKS_PER_READ) {
            for bytes in read_many(source, ids)? {
                let (numbers, _) = open_chunk(bytes)?;
                all.extend(numbers.into_iter().map(|number| number & !ZERO));
            }
        }
        Ok(all)
    }

    /// The framed list of chunks.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        self.0.encode(KIND_SET, WHAT)
    }

    /// Checks a framed list of chunks.
    pub fn open(framed: &[u8]) -> Result<Self, Error> {
        ChunkList::decode(framed, KIND_SET, WHAT, HOT_PAGES_MAX as u64).map(Self)
    }

    /// Gives the pages to `target`, in order, from this thread.
    pub fn read(&self, source: &impl ChunkSource, target: &dyn PageTarget) -> Result<(), Error> {
        let mut decoder = Decoder::new()?;
        let mut plain = Vec::new();
        for ids in self.0.chunks.chunks(CHUNKS_PER_READ) {
            for bytes in read_many(source, ids)? {
                let (numbers, pages) = open_chunk(bytes)?;
                if let Some(chunk) = pages {
                    chunk.decode(0..chunk.pages(), &mut decoder, &mut plain)?;
                }
                place(&numbers, &plain, target)?;
            }
        }
        Ok(())
    }
}

/// The numbers in a chunk, and the chunk of those that have bytes.
fn open_chunk(bytes: Vec<u8>) -> Result<(Vec<u64>, Option<Chunk>), Error> {
    let damaged = |what| Damage::Layout(what).of(WHAT);
    let at = check_frame(&bytes, KIND_CHUNK, WHAT)?;
    let numbers = || {
        let (count, rest) = bytes[at..].split_first_chunk()?;
        let (numbers, rest) = rest.split_at_checked(u32::from_le_bytes(*count) as usize * 8)?;
        let numbers: Vec<u64> = numbers.as_chunks().0.iter().map(|number| u64::from_le_bytes(*number)).collect();
        Some((numbers, bytes.len() - rest.len()))
    };
    let (numbers, at) = numbers().ok_or_else(|| damaged("the list of pages is cut off"))?;
    if numbers.iter().any(|number| number & !ZERO >= PAGE_NUMBER_END) {
        return Err(damaged("a page beyond all address spaces"));
    }
    let with_bytes = numbers.iter().filter(|number| *number & ZERO == 0).count();
    let chunk = match bytes.len() - at {
        0 => None,
        _ => Some(Chunk::parse(bytes, at).map_err(|damage| damage.of(WHAT))?),
    };
    if chunk.as_ref().map_or(0, Chunk::pages) != with_bytes {
        return Err(damaged("it has other pages than it lists"));
    }
    Ok((numbers, chunk))
}

/// Gives pages to `target`, neighbours together.
fn place(numbers: &[u64], mut plain: &[u8], target: &dyn PageTarget) -> Result<(), Error> {
    for run in numbers.chunk_by(|a, b| a + 1 == *b) {
        let pages = PageRun { first: run[0] & !ZERO, count: run.len() as u64 };
        let placed = if run[0] & ZERO != 0 {
            target.zero(pages)
        } else {
            let (bytes, rest) = plain.split_at(pages.bytes() as usize);
            plain = rest;
            target.data(pages.first, bytes)
        };
        placed.map_err(|error| unplaced(pages.first, error))?;
    }
    Ok(())
}
