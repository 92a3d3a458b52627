//! Mappings and shared memory of a program. The content of private memory is not here: it stays in the still.

use procfs::MappingFlags;
use serde::{Deserialize, Serialize};
use sys::remote::{PAGE, Range};

/// What a mapping shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Backing {
    /// Private memory of no file.
    Anonymous,
    /// A private view of a file of the root filesystem.
    File { path: Vec<u8>, offset: u64 },
    /// A shared view of a file of the root filesystem.
    SharedFile { path: Vec<u8>, offset: u64, writable: bool },
    /// A shared view of an object of [`objects`](super::ProgramImage::objects).
    Object { object: usize, offset: u64 },
    /// A shared view of an object that another process makes and hands down by this number.
    Handed { number: i32, offset: u64 },
    /// A part of a System V segment, which was attached for writing or for reading only.
    Segment { number: i32, offset: u64, writable: bool },
}

/// One mapping.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Mapping {
    pub(crate) range: Range,
    /// PROT_READ | PROT_WRITE | PROT_EXEC
    pub(crate) protection: u64,
    #[serde(with = "flags")]
    pub(crate) flags: MappingFlags,
    pub(crate) backing: Backing,
    /// Device and inode of the mapped file, as the kernel lists them; 0 without one.
    pub(crate) file: (u64, u64),
    /// Of anonymous memory that has one (`PR_SET_VMA_ANON_NAME`). `state::sections` has it.
    #[serde(skip)]
    pub(crate) name: Vec<u8>,
}

impl Mapping {
    /// Whether its pages are the program's own, once written.
    pub(crate) fn is_private(&self) -> bool {
        match self.backing {
            Backing::Anonymous | Backing::File { .. } => true,
            Backing::SharedFile { .. } | Backing::Object { .. } | Backing::Handed { .. } | Backing::Segment { .. } => {
                false
            }
        }
    }

    /// Whether it shows a segment that was attached for writing.
    pub(crate) fn may_be_written(&self) -> bool {
        matches!(self.backing, Backing::Segment { writable: true, .. })
    }
}

/// Memory outside any file that several mappings or descriptors show: shared anonymous memory, memfds, deleted shared files.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SharedObject {
    pub(crate) name: Vec<u8>,
    pub(crate) size: u64,
    pub(crate) seals: u32,
    /// Non-zero contents: offset and bytes.
    pub(crate) content: Vec<(u64, Vec<u8>)>,
}

/// Where the kernel thinks a program's parts are (`struct prctl_mm_map` without auxv and exe).
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Layout {
    /// start_code, end_code, start_data, end_data, start_brk, brk, start_stack, arg_start, arg_end, env_start, env_end
    pub(crate) fields: [u64; 11],
    pub(crate) auxv: Vec<u8>,
    pub(crate) exe: Vec<u8>,
}

/// Most bytes of arguments or of environment that Linux gives a new program: a quarter of the usual stack limit of 8 MiB.
const COMMAND_LINE_BYTES_MAX: u64 = 2 << 20;

impl Layout {
    /// Arguments and environment, as whole pages. A program may say that they are anywhere (`PR_SET_MM_MAP`): of each range no more is taken
    /// than Linux gives a new program.
    pub(crate) fn arguments(&self) -> Vec<Range> {
        let [.., arg_start, arg_end, env_start, env_end] = self.fields;
        let pages = |start: u64, end: u64| Range {
            start: start & !(PAGE - 1),
            end: end.min(start.saturating_add(COMMAND_LINE_BYTES_MAX)).next_multiple_of(PAGE),
        };
        let (arguments, environment) = (pages(arg_start, arg_end), pages(env_start, env_end));
        // They usually adjoin, and share a page.
        let is_one = arguments.start <= environment.start && environment.start <= arguments.end;
        let ranges = match is_one {
            true => vec![Range { start: arguments.start, end: arguments.end.max(environment.end) }],
            false => vec![arguments, environment],
        };
        ranges.into_iter().filter(|range| range.start < range.end).collect()
    }
}

/// The parts of `runs`, which are in order, that lie in `range`.
pub(crate) fn within(runs: &[Range], range: Range) -> Vec<Range> {
    let from = runs.partition_point(|run| run.end <= range.start);
    let overlapping = runs[from..].iter().take_while(|run| run.start < range.end);
    overlapping.map(|run| Range { start: run.start.max(range.start), end: run.end.min(range.end) }).collect()
}

/// Flags of a mapping in the order of version 1 of a program's state. What came later is in `state::sections`.
mod flags {
    use procfs::MappingFlags;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(flags: &MappingFlags, serializer: S) -> Result<S::Ok, S::Error> {
        let &MappingFlags {
            grows_down,
            no_reserve,
            dont_fork,
            wipe_on_fork,
            dont_dump,
            huge,
            no_huge,
            mergeable,
            sequential,
            random,
            locked,
            sealed,
            droppable: _,
        } = flags;
        [
            grows_down,
            no_reserve,
            dont_fork,
            wipe_on_fork,
            dont_dump,
            huge,
            no_huge,
            mergeable,
            sequential,
            random,
            locked,
            sealed,
        ]
        .serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<MappingFlags, D::Error> {
        let [
            grows_down,
            no_reserve,
            dont_fork,
            wipe_on_fork,
            dont_dump,
            huge,
            no_huge,
            mergeable,
            sequential,
            random,
            locked,
            sealed,
        ] = <[bool; 12]>::deserialize(deserializer)?;
        let droppable = false;
        Ok(MappingFlags {
            grows_down,
            no_reserve,
            dont_fork,
            wipe_on_fork,
            dont_dump,
            huge,
            no_huge,
            mergeable,
            sequential,
            random,
            locked,
            sealed,
            droppable,
        })
    }
}
