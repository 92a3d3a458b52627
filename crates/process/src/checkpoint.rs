//! A program apart from its memory, as bytes that another node understands.
//!
//! ```text
//! capture --describe--> ProgramState --encode--> bytes ... bytes --decode--> ProgramState --restore--> zygote
//!                                                                                |
//!                          pages of memory, kept elsewhere: by fault, or written from outside
//! ```
//!
//! A restored zygote is like one built from a still: the same script starts copies of it. What the state takes for granted is written down in
//! it (`host`, `files`) and looked at before anything is made: [`Error::Unfit`] names all that differs.
//!
//! The bytes are one frame (`base::frame`) around zstd around postcard. A reader refuses what is damaged or newer.

mod files;
mod host;

use std::{
    fmt,
    io::Read,
    os::fd::{BorrowedFd, OwnedFd},
};

use base::frame::{self, FrameError};
use serde::{Deserialize, Serialize};
use sys::remote::Range;

use crate::{
    capture::Capture,
    error::Error,
    image::{Backing, Image},
    zygote::{self, Zygote},
};
use files::FileIdentity;
use host::Host;

/// Of the frame.
const KIND: u16 = 0x5001;
const VERSION: u16 = 1;
/// Fast, and its size hardly matters beside the memory's.
const ZSTD_LEVEL: i32 = 3;
/// Largest state that is read, decompressed: bounds what damaged or hostile bytes can ask for. Shared objects (256 MiB each at most) are the
/// only large part of it.
const STATE_BYTES_MAX: usize = 1 << 30;

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
}

/// Why a checkpoint cannot be restored on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // of fields: the messages say it
pub enum Unfit {
    /// A file that the program has mapped is not there.
    MissingFile { path: String },
    /// It is there, and has another content.
    AlteredFile { path: String },
    /// The program may use instructions that this processor does not have.
    ProcessorFeatures { missing: Vec<String> },
    /// The program holds addresses of functions in the kernel's vDSO, which is another one here.
    Vdso { kernel: String, here: String },
    /// The program was checkpointed under a newer kernel.
    OlderKernel { kernel: String, here: String },
}

impl Unfit {
    /// A code for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::MissingFile { .. } => "missing_file",
            Self::AlteredFile { .. } => "altered_file",
            Self::ProcessorFeatures { .. } => "processor_features",
            Self::Vdso { .. } => "vdso",
            Self::OlderKernel { .. } => "older_kernel",
        }
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingFile { path } => {
                write!(f, "{path}, which the program has mapped, is not in the root filesystem")
            }
            Self::AlteredFile { path } => write!(f, "{path}, which the program has mapped, has another content here"),
            Self::ProcessorFeatures { missing } => {
                write!(f, "this processor lacks {}", missing.join(", "))
            }
            Self::Vdso { kernel, here } => {
                write!(
                    f,
                    "the vDSO of this kernel ({here}) is not that of kernel {kernel}, under which the program ran"
                )
            }
            Self::OlderKernel { kernel, here } => {
                write!(f, "this kernel ({here}) is older than {kernel}, under which the program ran")
            }
        }
    }
}

/// All of a program but its memory.
#[derive(Debug, Serialize, Deserialize)]
pub struct ProgramState {
    image: Image,
    host: Host,
    /// Of every file that is mapped.
    files: Vec<FileIdentity>,
}

/// What a zygote is restored with.
#[derive(Debug)]
pub struct RestoreSpec<'a> {
    /// A root filesystem with the same files as the source's.
    pub rootfs: BorrowedFd<'a>,
    /// The seccomp filter of copies, one classic BPF instruction a word.
    pub seccomp: &'a [u64],
    /// The pages that the checkpoint has, in order: begin and end of each run.
    pub pages: &'a [(u64, u64)],
}

/// Gives the bytes at an address of the program.
pub type ReadPages<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> Result<(), Error>;

/// A restored zygote.
#[derive(Debug)]
pub struct Restored {
    /// Copies can be forked from it at once.
    pub zygote: Zygote,
    /// The userfaultfd of its address space, none if nothing arrives by fault. Pages that are not served in time make every toucher
    /// wait; if it is closed they read as zeros.
    pub faults: Option<OwnedFd>,
}

impl ProgramState {
    /// Describes a captured program, whose files are those of the root filesystem `rootfs`.
    pub fn describe(capture: Capture, rootfs: BorrowedFd<'_>) -> Result<Self, Error> {
        let Capture { image, .. } = capture;
        let host = Host::of(&image)?;
        let files = files::identify(&image, rootfs)?;
        Ok(Self { image, host, files })
    }

    /// As bytes.
    pub fn encode(&self) -> Result<Vec<u8>, StateError> {
        let plain = postcard::to_stdvec(self).map_err(StateError::Encoding)?;
        if plain.len() > STATE_BYTES_MAX {
            return Err(StateError::TooLarge { max: STATE_BYTES_MAX });
        }
        let packed = zstd::bulk::compress(&plain, ZSTD_LEVEL).map_err(StateError::Compression)?;
        Ok(frame::encode(KIND, VERSION, &packed)?)
    }

    /// From bytes. Nothing is allocated beyond 1 GiB, whatever they say.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let (_, packed) = frame::decode(bytes, KIND, VERSION)?;
        let plain = decompress(packed)?;
        postcard::from_bytes(&plain).map_err(StateError::Encoding)
    }

    /// The address ranges whose pages are the program's own.
    pub fn private_ranges(&self) -> Vec<(u64, u64)> {
        let private = self.image.mappings.iter().filter(|mapping| mapping.is_private() && !mapping.flags.wipe_on_fork);
        private.map(|mapping| (mapping.range.start, mapping.range.end)).collect()
    }

    /// Of the pages that a checkpoint has, the mappings whose pages arrive by fault, in order.
    pub fn by_fault(&self, pages: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let runs: Vec<Range> = pages.iter().map(|&(start, end)| Range { start, end }).collect();
        let ranges = zygote::by_fault(&self.image, &runs).map(|range| (range.start, range.end));
        ranges.collect()
    }

    /// Of the pages that a checkpoint has, those that are needed before the zygote exists: changed pages of mapped files.
    pub fn needed_first(&self, pages: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let of_files = self.image.mappings.iter().filter(|mapping| matches!(mapping.backing, Backing::File { .. }));
        let runs: Vec<Range> = pages.iter().map(|&(start, end)| Range { start, end }).collect();
        of_files.flat_map(|mapping| zygote::within(&runs, mapping.range)).map(|run| (run.start, run.end)).collect()
    }

    /// Restores the zygote. `read` gives the bytes of pages that are [needed first](Self::needed_first). Everything that this host or its
    /// files lack is in [`Error::Unfit`], and nothing is made then.
    pub fn restore(&self, spec: &RestoreSpec<'_>, read: ReadPages<'_>) -> Result<Restored, Error> {
        let mut unfit = self.host.unfit(&self.image)?;
        unfit.extend(files::unfit(&self.files, spec.rootfs)?);
        if !unfit.is_empty() {
            return Err(Error::Unfit(unfit));
        }
        zygote::restore(&self.image, spec, read)
    }
}

fn decompress(packed: &[u8]) -> Result<Vec<u8>, StateError> {
    let decoder = zstd::stream::Decoder::new(packed).map_err(StateError::Compression)?;
    let mut plain = Vec::new();
    let most = STATE_BYTES_MAX as u64 + 1;
    decoder.take(most).read_to_end(&mut plain).map_err(StateError::Compression)?;
    if plain.len() > STATE_BYTES_MAX { Err(StateError::TooLarge { max: STATE_BYTES_MAX }) } else { Ok(plain) }
}
