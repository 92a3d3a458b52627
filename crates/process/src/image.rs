//! The image of a program: everything that a copy must have apart from its memory, as data.
//!
//! - This file has the types; [`added`] and [`attributes`] have what came after version 1 of the file form.
//! - [`state`] is the file form: a program's state as bytes that another node understands.
//! - [`xstate`] moves extended registers between the layouts of two processors.
//!
//! Nothing here reads a process.

mod added;
mod attributes;
mod memory_files;
mod state;
mod wall;
pub(crate) mod xstate;

pub(crate) use added::{Added, AddedSocket, Message, ObjectStatus, Reused, SignalOwner, SocketName, SocketOption};
pub(crate) use attributes::{
    Attributes, Locked, MACHINE_CHECK_DEFAULT, ProcessAttributes, SPECULATION_CONTROLS, ThreadAttributes,
};
pub(crate) use memory_files::{MemoryFile, MemoryFileKind, MemoryFiles, Part};
use procfs::MappingFlags;
use serde::{Deserialize, Serialize};
pub(crate) use state::{FileContent, FileIdentity, Host, Pages};
pub use state::{ProgramState, StateError};
pub(crate) use sys::namespace::ClockOffsets;
use sys::{
    ptrace::{Registers, Rseq, SignalInfo},
    remote::{Affinity, PAGE, Range, RobustList},
};
pub(crate) use wall::{WallTimer, WallTimers, wall_timer};

/// Which open file is one of the sandbox's standard streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamFile {
    /// Device number, as `stat` gives it.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}

/// A standard stream of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    /// Descriptor 0 at the program's start.
    Stdin,
    /// Descriptor 1.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

/// An alternate signal stack, as in `stack_t`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct AlternateStack {
    pub(crate) address: u64,
    pub(crate) flags: u32,
    pub(crate) size: u64,
}

/// What a thread is besides its memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Thread {
    /// Its id inside the sandbox.
    pub(crate) tid: i32,
    /// As it was stopped, not yet fit to go on (see `script::sigframe`).
    #[serde(with = "registers")]
    pub(crate) registers: Registers,
    /// Its extended registers ([`xstate::carried`]).
    pub(crate) xsave: Vec<u8>,
    pub(crate) mask: u64,
    pub(crate) alternate: AlternateStack,
    /// Where the kernel clears and wakes when it ends (`set_tid_address`).
    pub(crate) tid_address: u64,
    pub(crate) robust: RobustList,
    pub(crate) rseq: Rseq,
    pub(crate) name: Vec<u8>,
    pub(crate) scheduling: Scheduling,
    #[serde(with = "signals")]
    pub(crate) pending: Vec<SignalInfo>,
    /// `state::sections` has it.
    #[serde(skip)]
    pub(crate) attributes: ThreadAttributes,
}

/// How a thread is scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scheduling {
    pub(crate) nice: i32,
    pub(crate) policy: u32,
    /// `ioprio_get`; 0: none set.
    pub(crate) io_priority: u32,
    pub(crate) timer_slack_ns: u64,
    pub(crate) affinity: Affinity,
}

/// What a mapping shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Backing {
    /// Private memory of no file.
    Anonymous,
    /// A private view of a file of the root filesystem.
    File { path: Vec<u8>, offset: u64 },
    /// A shared view of a file of the root filesystem.
    SharedFile { path: Vec<u8>, offset: u64, writable: bool },
    /// A shared view of an object of [`ProgramImage::objects`].
    Object { object: usize, offset: u64 },
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
            Backing::SharedFile { .. } | Backing::Object { .. } => false,
        }
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

/// A signal's action: handler, flags, restorer, mask.
pub(crate) type SignalAction = [u64; 4];

/// An open file and the descriptors that name it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OpenFile {
    /// Numbers, each with its close-on-exec flag.
    pub(crate) numbers: Vec<(i32, bool)>,
    /// Status flags and access mode, as `F_GETFL`.
    pub(crate) flags: i32,
    pub(crate) kind: FileKind,
}

/// Bits of an access mode, as in `access(2)` and in a file's mode.
pub(crate) const WRITE: u32 = 2;
pub(crate) const READ: u32 = 4;

/// The access mode of an open file with these flags; 0 if it only names a file (`O_PATH`).
pub(crate) fn access_mode(flags: i32) -> u32 {
    match flags & libc::O_ACCMODE {
        _ if flags & libc::O_PATH != 0 => 0,
        libc::O_RDONLY => READ,
        libc::O_WRONLY => WRITE,
        _ => READ | WRITE,
    }
}

/// Whose lock it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LockKind {
    /// `flock`: the open file's, of the whole file.
    OpenFile,
    /// `F_OFD_SETLK`: the open file's.
    OpenFileRange,
    /// `F_SETLK`: the process's.
    Process,
}

/// A lock on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileLock {
    /// A descriptor by which it can be taken.
    pub(crate) fd: i32,
    pub(crate) kind: LockKind,
    pub(crate) exclusive: bool,
    pub(crate) start: u64,
    /// 0: to the end, wherever that will be.
    pub(crate) length: u64,
}

/// A registration in an epoll set.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct EpollEntry {
    pub(crate) fd: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
}

/// One watch of an inotify instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Watch {
    pub(crate) wd: i32,
    pub(crate) mask: u32,
    pub(crate) path: Vec<u8>,
}

/// A timer's remaining time and interval: seconds and nanoseconds of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TimerValue {
    pub(crate) interval: (u64, u64),
    pub(crate) remaining: (u64, u64),
}

/// How an open file is made again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum FileKind {
    Stream(Stream),
    Path {
        path: Vec<u8>,
        offset: u64,
    },
    Pipe {
        pipe: usize,
        end: End,
    },
    Fifo {
        path: Vec<u8>,
        content: Vec<u8>,
    },
    Eventfd {
        count: u64,
        semaphore: bool,
    },
    Timerfd {
        clock: i32,
        ticks: u64,
        value: TimerValue,
    },
    Signalfd {
        mask: u64,
    },
    Epoll {
        entries: Vec<EpollEntry>,
    },
    Inotify {
        watches: Vec<Watch>,
    },
    Memfd {
        object: usize,
        offset: u64,
    },
    UnixPair {
        pair: usize,
        end: End,
    },
    Socket(Socket),
    /// A connection: the copy finds it reset by its peer.
    ResetConnection {
        family: i32,
    },
    /// A directory that was deleted. Not in versions 1 and 2 of a program's state.
    GoneDirectory {
        path: Vec<u8>,
        mode: u32,
    },
}

/// Which end of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// A pipe's reading end; the socket met first.
    First,
    /// A pipe's writing end; its peer.
    Second,
}

/// A pipe whose ends are in the program, or closed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Pipe {
    pub(crate) capacity: u32,
    /// Waiting packets, or one run of bytes.
    pub(crate) content: Vec<Vec<u8>>,
    pub(crate) packets: bool,
}

/// A socket pair whose ends are in the program, or closed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UnixPair {
    pub(crate) kind: i32,
    /// Messages (or, for a stream, one run of bytes) waiting at the first and at the second end.
    pub(crate) queues: [Vec<Vec<u8>>; 2],
    /// Of states of versions 1 and 2.
    pub(crate) options: [Vec<IntegerOption>; 2],
    /// Directions shut down at each end: 1 receiving, 2 sending, 3 both.
    pub(crate) shutdown: [u8; 2],
}

/// Level, name and value of a socket option, as versions 1 and 2 of a program's state have them.
pub(crate) type IntegerOption = (i32, i32, i32);

/// A socket without a connection.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Socket {
    pub(crate) family: i32,
    pub(crate) kind: i32,
    pub(crate) protocol: i32,
    /// Of states of versions 1 and 2.
    pub(crate) options: Vec<IntegerOption>,
    /// The bound address as a `sockaddr`, if any.
    pub(crate) address: Option<Vec<u8>>,
    /// The connected address of a datagram socket.
    pub(crate) peer: Option<Vec<u8>>,
    /// Backlog, when it listens.
    pub(crate) listening: Option<u32>,
    /// The file of a bound unix socket.
    pub(crate) path: Option<SocketPath>,
}

/// The file of a bound unix socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SocketPath {
    /// As it was given to `bind`.
    pub(crate) path: Vec<u8>,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u32,
}

/// A POSIX timer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PosixTimer {
    pub(crate) id: i32,
    pub(crate) clock: i32,
    pub(crate) signal: i32,
    pub(crate) sigev_value: u64,
    pub(crate) notify: i32,
    pub(crate) notify_tid: i32,
    pub(crate) value: TimerValue,
}

/// All that is known of a stopped program except its memory.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProgramImage {
    /// The main thread is first.
    pub(crate) threads: Vec<Thread>,
    pub(crate) mappings: Vec<Mapping>,
    /// Memory that the program keeps out of its own forks.
    pub(crate) dont_fork: Vec<Range>,
    pub(crate) objects: Vec<SharedObject>,
    pub(crate) layout: Layout,
    /// `PR_GET_DUMPABLE`.
    pub(crate) dumpable: u64,
    /// `PR_GET_THP_DISABLE`.
    pub(crate) no_huge_pages: u64,
    /// `personality`.
    pub(crate) personality: u64,
    /// Registered `membarrier` commands, one bit each.
    pub(crate) membarrier: u64,
    /// Of signals 1 to 64.
    pub(crate) actions: Vec<SignalAction>,
    pub(crate) files: Vec<OpenFile>,
    pub(crate) pipes: Vec<Pipe>,
    pub(crate) pairs: Vec<UnixPair>,
    /// ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF as `getitimer` gives them: interval s, us, value s, us.
    pub(crate) interval_timers: [[u64; 4]; 3],
    pub(crate) posix_timers: Vec<PosixTimer>,
    #[serde(with = "signals")]
    pub(crate) pending: Vec<SignalInfo>,
    pub(crate) cwd: Vec<u8>,
    pub(crate) umask: u32,
    /// Soft and hard limit of each resource, by number.
    pub(crate) limits: Vec<(u64, u64)>,
    pub(crate) credentials: Credentials,
    /// What the program's clocks showed when it was captured.
    pub(crate) clocks: ClockOffsets,
    /// Of the capturing process, and so of the zygote.
    pub(crate) own_affinity: Affinity,
    pub(crate) session_leader: bool,
    pub(crate) process_group_leader: bool,
    /// vDSO and its data pages: name and range, lowest first.
    pub(crate) vdso: Vec<(Vec<u8>, Range)>,
    // What follows came after version 1 of a program's state: `state::sections` has it.
    #[serde(skip)]
    pub(crate) locks: Vec<FileLock>,
    #[serde(skip)]
    pub(crate) added: Added,
    #[serde(skip)]
    pub(crate) extended: ExtendedRegisters,
    /// Runs of guard pages (`MADV_GUARD_INSTALL`), in order.
    #[serde(skip)]
    pub(crate) guards: Vec<Range>,
    #[serde(skip)]
    pub(crate) wall_timers: WallTimers,
    /// The pages with arguments and environment, of a program whose other pages arrive by fault: `/proc/PID/cmdline` and `environ` are read by
    /// other processes, and the kernel waits for no page on their behalf. Address and bytes.
    #[serde(skip)]
    pub(crate) arguments: Vec<(u64, Vec<u8>)>,
    #[serde(skip)]
    pub(crate) attributes: ProcessAttributes,
    #[serde(skip)]
    pub(crate) memory_files: MemoryFiles,
}

impl ProgramImage {
    /// Content of shared memory and of files in memory, in bytes.
    pub(crate) fn copied_bytes(&self) -> u64 {
        let objects = self.objects.iter().flat_map(|object| &object.content).map(|(_, bytes)| bytes.len());
        let files = self.memory_files.iter().flat_map(MemoryFile::content).map(|part| part.bytes.len());
        objects.chain(files).map(|bytes| bytes as u64).sum()
    }

    /// The mappings of no file whose pages are kept.
    pub(crate) fn anonymous(&self) -> impl Iterator<Item = Range> {
        let kept = |mapping: &&Mapping| mapping.backing == Backing::Anonymous && !mapping.flags.wipe_on_fork;
        self.mappings.iter().filter(kept).map(|mapping| mapping.range)
    }

    /// The mappings of a checkpoint whose pages arrive by fault: those of no file that have any.
    pub(crate) fn by_fault<'a>(&'a self, pages: &'a [Range]) -> impl Iterator<Item = Range> + 'a {
        self.anonymous().filter(|range| !within(pages, *range).is_empty())
    }
}

/// The parts of `runs`, which are in order, that lie in `range`.
pub(crate) fn within(runs: &[Range], range: Range) -> Vec<Range> {
    let from = runs.partition_point(|run| run.end <= range.start);
    let overlapping = runs[from..].iter().take_while(|run| run.start < range.end);
    overlapping.map(|run| Range { start: run.start.max(range.start), end: run.end.min(range.end) }).collect()
}

/// How the extended registers of the threads lie in [`Thread::xsave`] (by default, of states older than version 3: as ptrace showed them), and which more the program may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExtendedRegisters {
    pub(crate) format: xstate::Format,
    /// Components that the program has asked the kernel for (`ARCH_REQ_XCOMP_PERM`), one bit each.
    pub(crate) requested: u64,
}

/// Who the program runs as. It never has capabilities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Credentials {
    /// Real, effective, saved.
    pub(crate) uids: [u32; 3],
    pub(crate) gids: [u32; 3],
    pub(crate) groups: Vec<u32>,
}

/// Registers as words.
mod registers {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use sys::ptrace::{self, REGISTER_WORDS, Registers};

    pub(super) fn serialize<S: Serializer>(registers: &Registers, serializer: S) -> Result<S::Ok, S::Error> {
        ptrace::register_words(registers).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Registers, D::Error> {
        <[u64; REGISTER_WORDS]>::deserialize(deserializer).map(ptrace::registers_of_words)
    }
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

/// Signals as bytes: serde knows no arrays of this length.
mod signals {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
    use sys::ptrace::SignalInfo;

    pub(super) fn serialize<S: Serializer>(signals: &[SignalInfo], serializer: S) -> Result<S::Ok, S::Error> {
        signals.concat().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SignalInfo>, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        match bytes.as_chunks() {
            (signals, []) => Ok(signals.to_vec()),
            (_, rest) => Err(D::Error::invalid_length(rest.len(), &"whole signals")),
        }
    }
}

/// Registers that are all zero.
#[cfg(test)]
pub(crate) fn no_registers() -> Registers {
    sys::ptrace::zero_registers()
}
