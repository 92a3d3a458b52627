//! System V objects, as data.

use serde::{Deserialize, Serialize};
use sys::{
    remote::{PAGE, Range},
    system_v::Kind,
};

use base::limits;

use super::{Backing, Mapping, Part, ProgramImage};

/// Flags of a segment above its bits of access (`linux/shm.h`).
const SHM_DEST: u32 = 0o1000;
const SHM_LOCKED: u32 = 0o2000;

/// An object of the sandbox's ipc namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SystemV {
    pub(crate) kind: Kind,
    /// Its identifier, which processes know.
    pub(crate) number: i32,
    pub(crate) key: i32,
    /// User and group, as the sandbox numbers them.
    pub(crate) owner: [u32; 2],
    pub(crate) creator: [u32; 2],
    pub(crate) mode: u32,
    pub(crate) content: SystemVContent,
}

/// What is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SystemVContent {
    /// Of a segment: its size in bytes, and what is no hole.
    Memory { size: u64, parts: Vec<Part> },
    /// Of each semaphore.
    Values(Vec<u16>),
    /// Messages with their types, the first first.
    Messages(Vec<(i64, Vec<u8>)>),
}

impl SystemV {
    /// It ends with the last that is attached.
    pub(crate) fn is_removed(&self) -> bool {
        self.kind == Kind::Segment && self.mode & SHM_DEST != 0
    }

    /// It is not paged out.
    pub(crate) fn is_locked(&self) -> bool {
        self.kind == Kind::Segment && self.mode & SHM_LOCKED != 0
    }

    /// Bytes of a segment, semaphores of a set.
    pub(crate) fn amount(&self) -> u64 {
        match &self.content {
            SystemVContent::Memory { size, .. } => *size,
            SystemVContent::Values(values) => values.len() as u64,
            SystemVContent::Messages(_) => 0,
        }
    }

    /// Bytes that are carried.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.content {
            SystemVContent::Memory { parts, .. } => parts.iter().map(|part| part.bytes.len() as u64).sum(),
            SystemVContent::Values(values) => 2 * values.len() as u64,
            SystemVContent::Messages(messages) => messages.iter().map(|(_, bytes)| bytes.len() as u64).sum(),
        }
    }

    /// Whether the kernel can take it.
    fn is_sound(&self) -> bool {
        let fits = match (&self.content, self.kind) {
            (SystemVContent::Memory { size, parts }, Kind::Segment) => {
                let ends =
                    |part: &Part| part.offset.checked_add(part.bytes.len() as u64).is_some_and(|end| end <= *size);
                *size > 0 && *size <= limits::SYSTEM_V_BYTES_MAX && parts.iter().all(ends)
            }
            (SystemVContent::Values(values), Kind::Semaphores) => !values.is_empty(),
            (SystemVContent::Messages(_), Kind::Queue) => true,
            _ => false,
        };
        fits && self.number >= 0
    }
}

/// Where a process has a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attachment<'a> {
    pub(crate) number: i32,
    /// One after the other, from the segment's first byte on.
    pub(crate) mappings: &'a [Mapping],
}

impl Attachment<'_> {
    pub(crate) fn range(&self) -> Range {
        let end = self.mappings.last().map_or(0, |mapping| mapping.range.end);
        Range { start: self.mappings.first().map_or(0, |mapping| mapping.range.start), end }
    }

    /// Whether it is all of one of these segments: what is attached can only be attached whole.
    pub(crate) fn is_whole(&self, objects: &[SystemV]) -> bool {
        let Range { start, end } = self.range();
        let lies = |mapping: &Mapping| shown(mapping) == Some((self.number, mapping.range.start - start));
        let segment = |object: &&SystemV| object.kind == Kind::Segment && object.number == self.number;
        self.mappings.iter().all(lies)
            && objects.iter().find(segment).is_some_and(|object| object.amount().next_multiple_of(PAGE) == end - start)
    }
}

/// The segment that a mapping shows, and from where on.
fn shown(mapping: &Mapping) -> Option<(i32, u64)> {
    match mapping.backing {
        Backing::Segment { number, offset, .. } => Some((number, offset)),
        _ => None,
    }
}

/// All segments that the process has.
pub(crate) fn attachments(image: &ProgramImage) -> impl Iterator<Item = Attachment<'_>> {
    let follows = |one: &Mapping, next: &Mapping| match (shown(one), shown(next)) {
        (Some((number, _)), Some((other, offset))) => {
            number == other && offset != 0 && one.range.end == next.range.start
        }
        (None, None) => true,
        _ => false,
    };
    image.mappings.chunk_by(follows).filter_map(|mappings| {
        let (number, _) = shown(mappings.first()?)?;
        Some(Attachment { number, mappings })
    })
}

/// Whether the kernel can make all of them.
pub(crate) fn are_sound(objects: &[SystemV]) -> bool {
    let total: u64 = objects.iter().map(SystemV::amount).fold(0, u64::saturating_add);
    objects.len() <= limits::SYSTEM_V_OBJECTS_MAX
        && objects.iter().all(SystemV::is_sound)
        && total <= limits::SYSTEM_V_BYTES_MAX
}
