//! A program apart from its memory, as bytes that another node understands.
//!
//! ```text
//! capture --describe--> ProgramState --encode--> bytes ... bytes --decode--> ProgramState --restore--> zygote
//!                                                                                |
//!                                        pages of memory, kept elsewhere: arrive by fault
//! ```
//!
//! Changed pages of mapped files are part of the state: they cannot arrive by fault, and are needed before there is a zygote.
//!
//! A restored zygote is like one built from a still: the same script starts copies of it. What the state takes for granted is written down in
//! it (`host`, `files`) and looked at before anything is made: [`Error::Unfit`] names all that differs.
//!
//! The bytes are one frame (`base::frame`) around zstd around postcard. A reader refuses what is damaged or newer.

mod files;
mod host;
mod sections;
mod sound;

use std::{fs::File, io::Read, os::fd::BorrowedFd};

use base::{
    frame::{self, FrameError},
    limits::RESTORED_ADDRESS_BYTES_MAX,
};
use serde::{Deserialize, Serialize};
use sys::{
    remote::{self, Range},
    uffd::Uffd,
};

use crate::{
    capture::Capture,
    error::{Context, Error},
    image::{
        Backing, ClockOffsets, Image, Mapping,
        xstate::{self, Format, Lacking},
    },
    refusal::{Refusal, Unfit},
    script::PAGE,
    still::Still,
    zygote::{self, RestoreSpec, Restored},
};
use files::FileIdentity;
use host::Host;

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
    image: Image,
    host: Host,
    /// What the program's clocks showed; the image had offsets instead before version 3.
    clocks: ClockOffsets,
    /// Of every file that is mapped.
    files: Vec<FileIdentity>,
    /// Pages of private mappings of files that the program has changed, in order.
    file_pages: Vec<Pages>,
}

/// Consecutive pages.
#[derive(Debug, Serialize, Deserialize)]
struct Pages {
    start: u64,
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
}

impl Pages {
    fn range(&self) -> Range {
        Range { start: self.start, end: self.start + self.bytes.len() as u64 }
    }
}

impl ProgramState {
    /// Describes a captured program, whose files are those of the root filesystem `rootfs`.
    pub fn describe(capture: Capture, rootfs: BorrowedFd<'_>) -> Result<Self, Error> {
        let Capture { mut image, still, .. } = capture;
        let host = Host::of(&image)?;
        let files = files::identify(&image, rootfs)?;
        let path = format!("/proc/{}/pagemap", still.pid());
        let pagemap = File::open(&path).on("open", path)?;
        restorable(&image, &pagemap, still.pid())?;
        image.arguments = arguments(&image, &still, &pagemap)?;
        let mut file_pages = Vec::new();
        for mapping in image.mappings.iter().filter(|mapping| is_of_file(mapping)) {
            for run in remote::private_pages(&pagemap, mapping.range).of("scan the page map", still.pid())? {
                let mut bytes = vec![0; (run.end - run.start) as usize];
                still.read(run.start, &mut bytes)?;
                file_pages.push(Pages { start: run.start, bytes });
            }
        }
        let clocks = image.clocks;
        Ok(Self { image, host, clocks, files, file_pages })
    }

    /// As bytes.
    pub fn encode(&self) -> Result<Vec<u8>, StateError> {
        let plain = postcard::to_stdvec(&(self, sections::of(&self.image)?)).map_err(StateError::Encoding)?;
        if plain.len() > STATE_BYTES_MAX {
            return Err(StateError::TooLarge { max: STATE_BYTES_MAX });
        }
        let packed = zstd::bulk::compress(&plain, ZSTD_LEVEL).map_err(StateError::Compression)?;
        Ok(frame::encode(KIND, VERSION, &packed)?)
    }

    /// From bytes, of which no more than 1 GiB are decompressed. A state that no capture makes is refused.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let (version, packed) = frame::decode(bytes, KIND, VERSION)?;
        let plain = decompress(packed)?;
        let (mut state, mut rest): (Self, _) = postcard::take_from_bytes(&plain).map_err(StateError::Encoding)?;
        match version {
            VERSION_1 => {}
            VERSION_WITH_LOCKS => {
                (state.image.locks, rest) = postcard::take_from_bytes(rest).map_err(StateError::Encoding)?;
            }
            VERSION => {
                let (sections, after) = postcard::take_from_bytes(rest).map_err(StateError::Encoding)?;
                sections::apply(sections, &mut state.image)?;
                rest = after;
            }
            _ => return Err(StateError::Version(version)),
        }
        if !rest.is_empty() {
            return Err(StateError::Impossible("bytes follow it"));
        }
        state.image.clocks = state.clocks;
        sound::check(&state).map_err(StateError::Impossible)?;
        Ok(state)
    }

    /// The address ranges whose pages are kept beside the state.
    pub fn memory_ranges(&self) -> Vec<(u64, u64)> {
        zygote::anonymous(&self.image).map(|range| (range.start, range.end)).collect()
    }

    /// Of the pages that a checkpoint has, the mappings whose pages arrive by fault, in order.
    pub fn by_fault(&self, pages: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let runs: Vec<Range> = pages.iter().map(|&(start, end)| Range { start, end }).collect();
        let ranges = zygote::by_fault(&self.image, &runs).map(|range| (range.start, range.end));
        ranges.collect()
    }

    /// Restores the zygote. Everything that this host or its files lack is in [`Error::Unfit`], and nothing is made then.
    pub fn restore(&mut self, spec: &RestoreSpec<'_>) -> Result<Restored, Error> {
        let mut unfit = self.host.unfit(&self.image)?;
        unfit.extend(files::unfit(&self.files, spec.rootfs)?);
        let here = Format::here().on("look for", "extended registers")?;
        let shown_here = Format::shown_here().on("look for", "extended registers")?;
        if let Err(Lacking(components)) = xstate::fit(&mut self.image, here, shown_here) {
            unfit.push(Unfit::ExtendedRegisters { components });
        }
        if !unfit.is_empty() {
            return Err(Error::Unfit(unfit));
        }
        let files: Vec<Range> = self.file_pages.iter().map(Pages::range).collect();
        let restored = zygote::restore(&self.image, spec, &files, &mut |at, bytes| self.read_file_page(at, bytes))?;
        self.fill_arguments(restored)
    }

    /// Before anybody else fills anything: a page that is there already is left alone.
    fn fill_arguments(&self, restored: Restored) -> Result<Restored, Error> {
        let Restored { zygote, faults } = restored;
        let Some(faults) = faults.map(Uffd::from) else { return Ok(Restored { zygote, faults: None }) };
        for (address, bytes) in &self.image.arguments {
            for (n, page) in bytes.chunks_exact(PAGE as usize).enumerate() {
                // Where nothing arrives by fault it is there already.
                faults.copy(address + n as u64 * PAGE, page).of("fill the arguments of zygote", zygote.facts.pid)?;
            }
        }
        Ok(Restored { zygote, faults: Some(faults.into()) })
    }

    fn read_file_page(&self, at: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let after = self.file_pages.partition_point(|pages| pages.start <= at);
        let pages = self.file_pages[..after].last().filter(|pages| at + bytes.len() as u64 <= pages.range().end);
        let pages = pages.ok_or(Error::MissingPage { address: at })?;
        let from = (at - pages.start) as usize;
        bytes.copy_from_slice(&pages.bytes[from..from + bytes.len()]);
        Ok(())
    }
}

/// The pages of arguments and environment that the program has.
fn arguments(image: &Image, still: &Still, pagemap: &File) -> Result<Vec<(u64, Vec<u8>)>, Error> {
    let mut pages = Vec::new();
    let inside = |range: &Range| zygote::anonymous(image).any(|own| own.start <= range.start && range.end <= own.end);
    for range in image.layout.arguments().into_iter().filter(inside) {
        for run in remote::private_pages(pagemap, range).of("scan the page map", still.pid())? {
            let mut bytes = vec![0; (run.end - run.start) as usize];
            still.read(run.start, &mut bytes)?;
            pages.push((run.start, bytes));
        }
    }
    Ok(pages)
}

/// Refuses what could be captured and never restored: the pager has a bit for each page of the mappings that it serves.
fn restorable(image: &Image, pagemap: &File, pid: i32) -> Result<(), Error> {
    let length = |range: &Range| range.end - range.start;
    let max = RESTORED_ADDRESS_BYTES_MAX;
    if zygote::anonymous(image).map(|range| length(&range)).sum::<u64>() <= max {
        return Ok(());
    }
    let mut bytes = 0;
    for range in zygote::anonymous(image) {
        let pages = remote::private_pages(pagemap, range).of("scan the page map", pid)?;
        bytes += if pages.is_empty() { 0 } else { length(&range) };
    }
    if bytes <= max { Ok(()) } else { Err(Error::Refused(vec![Refusal::TooManyAddresses { bytes, max }])) }
}

fn is_of_file(mapping: &Mapping) -> bool {
    matches!(mapping.backing, Backing::File { .. }) && !mapping.flags.wipe_on_fork
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
