//! How the pages of a cluster are packed. The figures behind the choices are in `docs/memory.md` and come from
//! `cargo run --release -p pando-memory --example codecs -- PID`.

use zstd::bulk::{Compressor, Decompressor};

use crate::{
    error::{Damage, Error},
    limits::CHUNK_PAGES_MAX,
    page::PAGE_BYTES,
};

/// Higher levels are at most 5 % smaller on memory and take up to twice as long; some are larger.
const ZSTD_LEVEL: i32 = 1;

/// A cluster that does not lose at least this part of its size is stored raw: it costs nothing to read, and no image gets more than 3 % larger.
const SHRINK_MIN: usize = 32;

/// The encoding of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    /// The pages as they are.
    Raw = 0,
    /// One LZ4 block.
    Lz4 = 1,
    /// One zstd frame.
    Zstd = 2,
}

impl Codec {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Raw, Self::Lz4, Self::Zstd].into_iter().find(|codec| *codec as u8 == byte)
    }
}

/// How data pages are put together and packed. A cluster is what is decoded to have one page, a chunk what is fetched for it. Clusters that
/// do not shrink are stored raw whatever the codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    /// Tried on every cluster.
    pub codec: Codec,
    /// Pages of a cluster.
    pub cluster_pages: u16,
    /// Pages of a chunk.
    pub chunk_pages: u16,
}

impl Packing {
    /// For checkpoints, which are kept and sent.
    pub const SMALL: Self = Self { codec: Codec::Zstd, cluster_pages: 16, chunk_pages: 64 };
    /// For images that are read again soon, on this node.
    pub const FAST: Self = Self { codec: Codec::Lz4, cluster_pages: 16, chunk_pages: 64 };
    /// For working sets, which are read from front to back while a process waits.
    pub const HOT: Self = Self { codec: Codec::Lz4, cluster_pages: 64, chunk_pages: 256 };

    pub(crate) fn check(self) -> Result<Self, Error> {
        let sound = |pages: u16| (1..=CHUNK_PAGES_MAX).contains(&usize::from(pages));
        if sound(self.cluster_pages) && sound(self.chunk_pages) {
            return Ok(self);
        }
        let Self { cluster_pages, chunk_pages, .. } = self;
        Err(Error::Packing { chunk_pages, cluster_pages, most: CHUNK_PAGES_MAX })
    }
}

/// Packs clusters. One per thread: it keeps its working memory.
pub struct Encoder {
    codec: Codec,
    zstd: Option<Compressor<'static>>,
    packed: Vec<u8>,
}

impl Encoder {
    /// An encoder that tries `codec`.
    pub fn new(codec: Codec) -> Result<Self, Error> {
        let compressor = || Compressor::new(ZSTD_LEVEL).map_err(|source| Error::Compression { source });
        let zstd = if codec == Codec::Zstd { Some(compressor()?) } else { None };
        Ok(Self { codec, zstd, packed: Vec::new() })
    }

    /// Appends the packed form of `plain` to `out` and says which it is.
    pub fn encode(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Codec {
        let room = plain.len() - plain.len() / SHRINK_MIN;
        let packed = match (self.codec, &mut self.zstd) {
            (Codec::Lz4, _) => {
                self.packed.resize(lz4_flex::block::get_maximum_output_size(plain.len()), 0);
                lz4_flex::block::compress_into(plain, &mut self.packed).ok()
            }
            (Codec::Zstd, Some(zstd)) => {
                self.packed.resize(room, 0);
                // It fails where the room does not suffice: then the cluster does not shrink.
                zstd.compress_to_buffer(plain, &mut self.packed[..]).ok()
            }
            (Codec::Raw | Codec::Zstd, _) => None,
        };
        match packed {
            Some(length) if length <= room => {
                out.extend_from_slice(&self.packed[..length]);
                self.codec
            }
            _ => {
                out.extend_from_slice(plain);
                Codec::Raw
            }
        }
    }
}

/// Unpacks clusters. One per thread.
pub struct Decoder {
    zstd: Decompressor<'static>,
}

impl Decoder {
    /// A decoder of every codec.
    pub fn new() -> Result<Self, Error> {
        Ok(Self { zstd: Decompressor::new().map_err(|source| Error::Compression { source })? })
    }

    /// Unpacks a cluster, which must fill `plain`.
    pub fn decode(&mut self, codec: Codec, packed: &[u8], plain: &mut [u8]) -> Result<(), Damage> {
        let length = match codec {
            Codec::Raw if packed.len() == plain.len() => {
                plain.copy_from_slice(packed);
                Some(plain.len())
            }
            Codec::Raw => None,
            Codec::Lz4 => lz4_flex::block::decompress_into(packed, plain).ok(),
            Codec::Zstd => self.zstd.decompress_to_buffer(packed, &mut plain[..]).ok(),
        };
        if length == Some(plain.len()) { Ok(()) } else { Err(Damage::Layout("a cluster does not give its pages")) }
    }
}

/// Bytes of the index'th cluster of a chunk of `pages` pages, unpacked.
pub(crate) fn cluster_bytes(index: usize, pages: usize, cluster_pages: usize) -> usize {
    pages.saturating_sub(index * cluster_pages).min(cluster_pages) * PAGE_BYTES
}
