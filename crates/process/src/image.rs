//! The image of a program: everything that a copy must have apart from its memory, as data.
//!
//! - [`ProgramImage`] is all of it: [`threads`], [`memory`] and [`memory_files`], [`files`], [`timers`].
//! - [`added`] and [`attributes`] have what came after version 1 of the file form.
//! - [`state`] is the file form: a program's state as bytes that another node understands.
//! - [`xstate`] moves extended registers between the layouts of two processors.
//!
//! Nothing here reads a process.

mod added;
mod attributes;
pub(crate) mod connections;
mod files;
mod keys;
mod memory;
mod memory_files;
pub(crate) mod places;
mod privileges;
mod state;
mod system_v;
pub(crate) mod table;
mod terminal;
mod threads;
mod timers;
mod tree;
pub(crate) mod xstate;

pub(crate) use added::{
    Added, AddedSocket, Message, ObjectStatus, Passed, Reused, SignalOwner, SocketName, SocketOption,
};
pub(crate) use attributes::{
    Attributes, Locked, MACHINE_CHECK_DEFAULT, ProcessAttributes, SPECULATION_CONTROLS, ThreadAttributes,
};
pub(crate) use connections::{Connection, ConnectionEnd};
pub(crate) use files::{
    End, EpollEntry, FileKind, FileLock, IntegerOption, LockKind, OpenFile, Pipe, READ, Socket, SocketPath, UnixPair,
    WRITE, Watch, access_mode,
};
pub use files::{Stream, StreamFile};
pub(crate) use keys::{ProtectionKeys, WithKey};
pub(crate) use memory::{Backing, Layout, Mapping, SharedObject, within};
pub(crate) use memory_files::{MemoryFile, MemoryFileKind, MemoryFiles, Part};
pub(crate) use privileges::Privileges;
use serde::{Deserialize, Serialize};
pub(crate) use state::{FileContent, FileIdentity, Host, Pages};
pub use state::{ProgramState, StateError};
pub(crate) use sys::namespace::ClockOffsets;
use sys::{
    ptrace::SignalInfo,
    remote::{Affinity, Range},
};
pub(crate) use system_v::{SystemV, SystemVContent, are_sound as system_v_is_sound, attachments};
pub(crate) use terminal::{OwnTerminal, Terminal};
#[cfg(test)]
pub(crate) use threads::no_registers;
use threads::signals;
pub(crate) use threads::{AlternateStack, Scheduling, Thread};
pub(crate) use timers::{PosixTimer, TimerValue, WallTimer, WallTimers, wall_timer};
pub(crate) use tree::{Command, Job, Kin, Member, Orphan, Tree, Zombie, object_of};

/// A signal's action: handler, flags, restorer, mask.
pub(crate) type SignalAction = [u64; 4];

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
    #[serde(skip)]
    pub(crate) privileges: Privileges,
    #[serde(skip)]
    pub(crate) connections: Vec<Connection>,
    /// Of a session leader.
    #[serde(skip)]
    pub(crate) terminal: Option<Terminal>,
    /// Of all processes; the first process has them.
    #[serde(skip)]
    pub(crate) own_terminals: Vec<OwnTerminal>,
    #[serde(skip)]
    pub(crate) keys: ProtectionKeys,
    /// Of the sandbox; the first process has them.
    #[serde(skip)]
    pub(crate) system_v: Vec<SystemV>,
    /// Of a process that a signal has stopped.
    #[serde(skip)]
    pub(crate) job: Option<Job>,
}

impl ProgramImage {
    /// Content of shared memory, files in memory and System V objects, in bytes.
    pub(crate) fn copied_bytes(&self) -> u64 {
        let objects = self.objects.iter().flat_map(|object| &object.content).map(|(_, bytes)| bytes.len());
        let files = self.memory_files.iter().flat_map(MemoryFile::content).map(|part| part.bytes.len());
        let system_v = self.system_v.iter().map(SystemV::bytes);
        objects.chain(files).map(|bytes| bytes as u64).chain(system_v).sum()
    }

    /// The mappings of no file whose pages are kept.
    pub(crate) fn anonymous(&self) -> impl Iterator<Item = Range> {
        let kept = |mapping: &&Mapping| mapping.backing == Backing::Anonymous && !mapping.flags.wipe_on_fork;
        self.mappings.iter().filter(kept).map(|mapping| mapping.range)
    }
}

/// How the extended registers of the threads lie in [`Thread::xsave`] (by default, of states older than version 3: as ptrace showed them), and which more the program may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExtendedRegisters {
    pub(crate) format: xstate::Format,
    /// Components that the program has asked the kernel for (`ARCH_REQ_XCOMP_PERM`), one bit each.
    pub(crate) requested: u64,
}

/// Who the program runs as, as it sees that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Credentials {
    /// Real, effective, saved.
    pub(crate) uids: [u32; 3],
    pub(crate) gids: [u32; 3],
    pub(crate) groups: Vec<u32>,
}
