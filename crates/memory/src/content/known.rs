//! Pages that are in images already, found by their hashes.

use super::{Hash, KIND_LIST, Piece, WHAT};
use crate::{
    chunks::{ChunkId, ChunkSource},
    error::Error,
    limits::{KNOWN_CHUNKS_MAX, KNOWN_PAGES_MAX, PIECES_PER_READ},
    list::ChunkList,
    restore::read_many,
};

/// Bits of a hash by which pages are in buckets: about a dozen in each when there are as many as there may be.
const BUCKET_BITS: usize = 16;

/// A page of an image that exists: number of its chunk in [`Known`], and of the page in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownPlace {
    pub(crate) chunk: u16,
    pub(crate) ordinal: u16,
}

/// A hash and where the page is, in 20 bytes.
type Entry = [u8; 20];

/// Pages of images that a dump may refer to instead of storing them again. Takes 20 bytes of memory for each page, 49 for each chunk; pages
/// beyond [`KNOWN_PAGES_MAX`] are not known, and stored again.
#[derive(Debug, Default)]
pub struct Known {
    chunks: Vec<ChunkId>,
    /// Sorted: by hash, then by age.
    entries: Vec<Entry>,
    /// Where the entries of each bucket begin, and where the last one's end. Empty if there are none.
    buckets: Vec<u32>,
}

impl Known {
    /// Reads lists of contents as [`crate::dump`] returned them, the one that is to be preferred first.
    pub fn read<'a>(lists: impl IntoIterator<Item = &'a [u8]>, source: &impl ChunkSource) -> Result<Self, Error> {
        let mut known = Self::default();
        for framed in lists {
            let list = ChunkList::decode(framed, KIND_LIST, WHAT, u64::MAX)?;
            known.entries.reserve_exact((list.pages as usize).min(KNOWN_PAGES_MAX - known.entries.len()));
            for ids in list.chunks.chunks(PIECES_PER_READ) {
                for bytes in read_many(source, ids)? {
                    known.take(&Piece::open(bytes)?);
                }
                if known.is_full() {
                    break;
                }
            }
        }
        known.sort();
        Ok(known)
    }

    /// How many pages it knows.
    pub fn pages(&self) -> usize {
        self.entries.len()
    }

    fn is_full(&self) -> bool {
        self.entries.len() == KNOWN_PAGES_MAX || self.chunks.len() == KNOWN_CHUNKS_MAX
    }

    fn take(&mut self, piece: &Piece) {
        let mut hashes = piece.hashes.as_chunks::<{ size_of::<Hash>() }>().0.iter();
        for (id, pages) in &piece.chunks {
            if self.is_full() {
                return;
            }
            let room = KNOWN_PAGES_MAX - self.entries.len();
            let chunk = self.chunks.len() as u16;
            for (ordinal, hash) in hashes.by_ref().take(usize::from(*pages)).enumerate().take(room) {
                let mut entry = Entry::default();
                entry[..16].copy_from_slice(hash);
                // High bytes first, so that of equal pages the one of the first list is first.
                entry[16..18].copy_from_slice(&chunk.to_be_bytes());
                entry[18..].copy_from_slice(&(ordinal as u16).to_be_bytes());
                self.entries.push(entry);
            }
            self.chunks.push(*id);
        }
    }

    fn sort(&mut self) {
        self.entries.sort_unstable();
        if self.entries.is_empty() {
            return;
        }
        self.buckets = vec![0; (1 << BUCKET_BITS) + 1];
        for entry in &self.entries {
            self.buckets[bucket_of(entry) + 1] += 1;
        }
        for bucket in 0..1 << BUCKET_BITS {
            self.buckets[bucket + 1] += self.buckets[bucket];
        }
    }

    /// Where there is a page with this hash.
    pub(crate) fn find(&self, hash: &Hash) -> Option<KnownPlace> {
        let bucket = bucket_of(hash);
        let (start, end) = (*self.buckets.get(bucket)?, *self.buckets.get(bucket + 1)?);
        let entries = &self.entries[start as usize..end as usize];
        let entry = entries.get(entries.partition_point(|entry| entry[..16] < hash[..]))?;
        let [.., a, b, c, d] = *entry;
        let place = KnownPlace { chunk: u16::from_be_bytes([a, b]), ordinal: u16::from_be_bytes([c, d]) };
        (entry[..16] == hash[..]).then_some(place)
    }

    /// The name of a place's chunk.
    pub(crate) fn chunk(&self, place: KnownPlace) -> Option<ChunkId> {
        self.chunks.get(usize::from(place.chunk)).copied()
    }
}

fn bucket_of(hash: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([hash[0], hash[1]]))
}

#[cfg(test)]
mod tests {
    use super::{super::Writer, *};
    use crate::{BoxError, ChunkSink};

    #[derive(Default)]
    struct Chunks(Vec<Vec<u8>>);

    impl ChunkSink for Chunks {
        fn append(&mut self, bytes: &[u8]) -> Result<ChunkId, BoxError> {
            self.0.push(bytes.to_vec());
            Ok(id(self.0.len() as u32 - 1))
        }
    }

    impl ChunkSource for Chunks {
        fn read(&self, id: &ChunkId) -> Result<Vec<u8>, BoxError> {
            let index = u32::from_le_bytes(id.as_bytes().try_into()?);
            Ok(self.0.get(index as usize).ok_or("no such chunk")?.clone())
        }
    }

    fn id(number: u32) -> ChunkId {
        ChunkId::new(&number.to_le_bytes()).unwrap()
    }

    /// Of `chunks` chunks with 1024 pages each, from number `first` on, whose pages have no two the same hash.
    fn list(first: u32, chunks: u32, sink: &mut Chunks) -> Vec<u8> {
        let mut writer = Writer::default();
        for chunk in first..first + chunks {
            let hashes: Vec<Hash> = (0..1024).map(|page| hash(chunk, page)).collect();
            writer.add(&id(chunk), &hashes, sink).unwrap();
        }
        writer.finish(sink).unwrap()
    }

    fn hash(chunk: u32, page: u32) -> Hash {
        super::super::hash_of(&(u64::from(chunk) << 32 | u64::from(page)).to_le_bytes())
    }

    #[test]
    fn every_page_of_every_list_is_found_where_it_is() {
        let mut sink = Chunks::default();
        let lists = [list(7, 3, &mut sink), list(5000, 130, &mut sink), list(9, 1, &mut sink)];
        let known = Known::read(lists.iter().map(|list| &list[..]), &sink).unwrap();
        assert_eq!(known.pages(), 134 * 1024);
        for chunk in (7..10).chain(5000..5130) {
            for page in 0..1024 {
                let place = known.find(&hash(chunk, page)).unwrap();
                assert_eq!((known.chunk(place), place.ordinal), (Some(id(chunk)), page as u16));
            }
        }
        assert_eq!(known.find(&hash(10, 0)), None);
        assert_eq!(known.find(&[0; 16]), None);
        assert_eq!(known.find(&[0xff; 16]), None);
        assert_eq!(Known::default().find(&hash(7, 0)), None);
    }

    #[test]
    fn of_equal_pages_the_first_lists_is_taken() {
        let mut sink = Chunks::default();
        let (older, newer) = (hash(1, 1), hash(1, 2));
        let mut one = |name: u32, hashes: &[Hash]| {
            let mut writer = Writer::default();
            writer.add(&id(name), hashes, &mut sink).unwrap();
            writer.finish(&mut sink).unwrap()
        };
        let lists = [one(300, &[newer, older]), one(2, &[older])];
        let known = Known::read(lists.iter().map(|list| &list[..]), &sink).unwrap();
        let place = known.find(&older).unwrap();
        assert_eq!((known.chunk(place), place.ordinal), (Some(id(300)), 1));
    }

    #[test]
    fn what_is_too_much_is_not_known() {
        let mut sink = Chunks::default();
        let chunks = (KNOWN_PAGES_MAX / 1024) as u32;
        let list = list(0, chunks + 2, &mut sink);
        let known = Known::read([&list[..]], &sink).unwrap();
        assert_eq!(known.pages(), KNOWN_PAGES_MAX);
        assert!(known.find(&hash(chunks - 1, 1023)).is_some());
        assert_eq!(known.find(&hash(chunks + 1, 0)), None);
    }

    #[test]
    fn every_truncation_and_every_bit_flip_is_refused() {
        let mut sink = Chunks::default();
        let mut writer = Writer::default();
        for chunk in 0..3 {
            writer.add(&id(chunk), &[hash(chunk, 0), hash(chunk, 1)], &mut sink).unwrap();
        }
        let list = writer.finish(&mut sink).unwrap();
        let piece = sink.0[0].clone();
        let damaged = |whole: &[u8]| {
            let flip = |bit: usize| {
                let mut damaged = whole.to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                damaged
            };
            let cut = (0..whole.len()).map(|length| whole[..length].to_vec());
            cut.chain((0..whole.len() * 8).map(flip)).collect::<Vec<_>>()
        };
        assert!(damaged(&list).iter().all(|list| Known::read([&list[..]], &sink).is_err()));
        for piece in damaged(&piece) {
            assert!(Known::read([&list[..]], &Chunks(vec![piece])).is_err());
        }
        assert_eq!(Known::read([&list[..]], &sink).unwrap().pages(), 6);
    }

    #[test]
    fn sizes_behind_a_sound_checksum_are_checked() {
        let mut sink = Chunks::default();
        let list = list(0, 1, &mut sink);
        let payload = base::frame::decode(&sink.0[0], super::super::KIND_PIECE, 1).unwrap().1.to_vec();
        // Count of chunks, length of the name, pages.
        for at in [0, 3, 4, 9, 10] {
            for byte in [1, 0x7f, 0xff] {
                let mut payload = payload.clone();
                payload[at] ^= byte;
                let framed = base::frame::encode(super::super::KIND_PIECE, 1, &payload).unwrap();
                assert!(Known::read([&list[..]], &Chunks(vec![framed])).is_err(), "byte {at} by {byte}");
            }
        }
    }
}
