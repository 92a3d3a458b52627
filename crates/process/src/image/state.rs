//! The file form of a program's image: all of a program apart from its memory, as bytes that another node understands.
//!
//! The bytes are one frame (`base::frame`) around zstd around postcard. A reader refuses what is damaged or newer.

mod sections;
mod sound;

use std::{collections::BTreeSet, io::Read};

use base::frame::{self, FrameError};
use serde::{Deserialize, Serialize};
use sys::remote::Range;

use super::{ClockOffsets, ProgramImage, Tree};

/// Of the frame.
const KIND: u16 = 0x5001;
const VERSION_1: u16 = 1;
/// The same, and the locks that the program holds.
const VERSION_WITH_LOCKS: u16 = 2;
/// As version 1, and [`sections`].
const VERSION: u16 = 3;
/// Fast, and its size hardly matters beside the memory's.
const ZSTD_LEVEL: i32 = 3;
/// Largest state that is read, decompressed: bounds what damaged or hostile bytes can ask for. Shared objects (256 MiB each at most) are the
/// only large part of it.
const STATE_BYTES_MAX: usize = 1 << 30;
/// Most bytes that room is made for before they are there.
const ROOM_BYTES_MAX: usize = 64 << 20;

/// Why bytes are not a program's state.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum StateError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("the state cannot be decompressed")]
    Compression(#[source] std::io::Error),
    #[error("the state cannot be decoded")]
    Encoding(#[source] postcard::Error),
    #[error("the state of the program has more than {max} bytes")]
    TooLarge { max: usize },
    #[error("version {0} of the state never was")]
    Version(u16),
    #[error("the state has a part (number {0}) that this version of pando does not know: use a newer one")]
    Section(u16),
    #[error("no program has this state: {0}")]
    Impossible(&'static str),
}

/// All of a program but its memory.
#[derive(Debug, Serialize, Deserialize)]
pub struct ProgramState {
    /// Written down as its first process; [`sections`] has the others.
    #[serde(with = "first")]
    pub(crate) tree: Tree,
    pub(crate) host: Host,
    /// What the program's clocks showed; the image had offsets instead before version 3.
    pub(crate) clocks: ClockOffsets,
    /// Of every file that is mapped.
    pub(crate) files: Vec<FileIdentity>,
    /// Pages of private mappings of files that the program has changed, in order.
    pub(crate) file_pages: Vec<Pages>,
}

/// Consecutive pages.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pages {
    pub(crate) start: u64,
    #[serde(with = "serde_bytes")]
    pub(crate) bytes: Vec<u8>,
}

impl Pages {
    pub(crate) fn range(&self) -> Range {
        Range { start: self.start, end: self.start + self.bytes.len() as u64 }
    }
}

/// A file that the program has mapped, as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileIdentity {
    pub(crate) path: Vec<u8>,
    pub(crate) bytes: u64,
    pub(crate) content: FileContent,
}

/// What tells that a file is the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FileContent {
    BuildId(Vec<u8>),
    Hash([u8; 32]),
}

/// The processor and the kernel that the program ran on.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Host {
    /// `uname -r`
    pub(crate) kernel: String,
    /// Of the bytes of the vDSO.
    pub(crate) vdso: [u8; 32],
    /// The instruction sets that programs look for and the processor has, as /proc/cpuinfo calls them.
    pub(crate) features: BTreeSet<String>,
}

impl ProgramState {
    /// As bytes.
    pub fn encode(&self) -> Result<Vec<u8>, StateError> {
        let plain = postcard::to_stdvec(&(self, sections::of(&self.tree)?)).map_err(StateError::Encoding)?;
        if plain.len() > STATE_BYTES_MAX {
            return Err(StateError::TooLarge { max: STATE_BYTES_MAX });
        }
        let packed = zstd::bulk::compress(&plain, ZSTD_LEVEL).map_err(StateError::Compression)?;
        Ok(frame::encode(KIND, VERSION, &packed)?)
    }

    /// From bytes. No more than 1 GiB is decompressed. A state that no capture makes is refused.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let (version, packed) = frame::decode(bytes, KIND, VERSION)?;
        let plain = decompress(packed)?;
        let (mut state, mut rest): (Self, _) = postcard::take_from_bytes(&plain).map_err(StateError::Encoding)?;
        match version {
            VERSION_1 => {}
            VERSION_WITH_LOCKS => {
                (state.tree.members[0].image.locks, rest) =
                    postcard::take_from_bytes(rest).map_err(StateError::Encoding)?;
            }
            VERSION => {
                let (sections, after) = postcard::take_from_bytes(rest).map_err(StateError::Encoding)?;
                sections::apply(sections, &mut state.tree)?;
                rest = after;
            }
            _ => return Err(StateError::Version(version)),
        }
        if !rest.is_empty() {
            return Err(StateError::Impossible("bytes follow it"));
        }
        state.tree.members.iter_mut().for_each(|member| member.image.clocks = state.clocks);
        sound::check(&state).map_err(StateError::Impossible)?;
        Ok(state)
    }

    /// The address ranges whose pages are kept beside the state.
    pub fn memory_ranges(&self) -> Vec<(u64, u64)> {
        self.tree.anonymous().iter().map(|range| (range.start, range.end)).collect()
    }

    /// Of the pages that a checkpoint has, the mappings whose pages arrive by fault, in order.
    pub fn by_fault(&self, pages: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let runs: Vec<Range> = pages.iter().map(|&(start, end)| Range { start, end }).collect();
        self.tree.by_fault(&runs).iter().map(|range| (range.start, range.end)).collect()
    }
}

/// A program by its first process.
mod first {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{ProgramImage, Tree};

    pub(super) fn serialize<S: Serializer>(tree: &Tree, serializer: S) -> Result<S::Ok, S::Error> {
        tree.first().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Tree, D::Error> {
        ProgramImage::deserialize(deserializer).map(Tree::of)
    }
}

fn decompress(packed: &[u8]) -> Result<Vec<u8>, StateError> {
    // In one go into room for all of it, which saves copying; unless the bytes ask for more room than is usual, and may lie.
    let told = zstd::bulk::Decompressor::upper_bound(packed);
    if let Some(told) = told.filter(|told| *told <= ROOM_BYTES_MAX) {
        return zstd::bulk::decompress(packed, told).map_err(StateError::Compression);
    }
    let decoder = zstd::stream::Decoder::new(packed).map_err(StateError::Compression)?;
    let mut plain = Vec::new();
    let most = STATE_BYTES_MAX as u64 + 1;
    decoder.take(most).read_to_end(&mut plain).map_err(StateError::Compression)?;
    if plain.len() > STATE_BYTES_MAX { Err(StateError::TooLarge { max: STATE_BYTES_MAX }) } else { Ok(plain) }
}
