//! Why a program cannot be forked, or a checkpoint cannot be restored on this host, in words.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One reason. Its text says what was found and, where there is a way, what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs)] // the messages say it
pub enum Refusal {
    #[error("descriptor {fd} is an io_uring instance: run it with io_uring switched off")]
    IoUring { fd: i32 },
    #[error("it has an io_uring mapping at {address:#x}: run it with io_uring switched off")]
    IoUringMapping { address: u64 },
    #[error(
        "process {tracer} traces it: detach the debugger or strace; a program that asks to be traced (PTRACE_TRACEME) cannot be forked"
    )]
    Traced { tracer: i32 },
    #[error("it runs in pid namespace level {level} of its sandbox: nested pid namespaces cannot be forked")]
    NestedPidNamespace { level: usize },
    #[error("it has mapped a part of System V segment {number} at {address:#x}: attach and detach it as a whole")]
    SystemV { address: u64, number: i32 },
    #[error(
        "its sandbox has POSIX message queues ({names}), which copies would not have: remove them (mq_unlink) before the program is ready"
    )]
    MessageQueues { names: String },
    #[error(
        "descriptor {fd} is the POSIX message queue {name}, which copies would not have: close it before the program is ready"
    )]
    MessageQueue { fd: i32, name: String },
    #[error("it has a shadow stack at {address:#x}: run it with shadow stacks switched off")]
    ShadowStack { address: u64 },
    #[error("it uses the upper bits of addresses (linear address masking): run it with that switched off")]
    TaggedAddresses,
    #[error("it has an asynchronous I/O context (io_setup) at {address:#x}")]
    AsyncIo { address: u64 },
    #[error("it is a 32-bit program")]
    ThirtyTwoBit,
    #[error("descriptor {fd} is of an unknown kind: {what}")]
    UnknownDescriptor { fd: i32, what: String },
    #[error(
        "descriptor {fd} is {path}, which was deleted and is not a regular file: close it before the program is ready"
    )]
    DeletedFile { fd: i32, path: String },
    #[error("descriptor {fd} is {path}, where another file is now, or none: reopen it")]
    ReplacedFile { fd: i32, path: String },
    #[error(
        "{what} is {path}, which a copy cannot open: {reason}; give the program the right again, or close it, before the program is ready"
    )]
    Unopenable { what: String, path: String, reason: String },
    #[error(
        "descriptor {fd} holds a lease on {path} ({lock}), which a copy would not hold: give it up (or close the file) before the program is ready"
    )]
    FileLock { fd: i32, lock: String, path: String },
    #[error(
        "descriptor {fd} is a unix socket bound to {path}, which is gone, behind a symbolic link or another file now: bind it again, by a path without links"
    )]
    ReplacedSocket { fd: i32, path: String },
    #[error("its working directory {path} was deleted or replaced: change to another before the program is ready")]
    DeletedDirectory { path: String },
    #[error("its program file {path} was deleted or replaced after its start: start the program again")]
    ReplacedProgram { path: String },
    #[error("thread {tid} does not share {what} with the main thread: such threads cannot be forked")]
    UnsharedThread { tid: i32, what: String },
    #[error("it started processes that have lost their parents ({pids}), which copies would not have: end them first")]
    Daemons { pids: String },
    #[error(
        "it started processes that are not its children ({pids}), by clone with CLONE_PARENT, which copies would not have: end them first"
    )]
    Siblings { pids: String },
    #[error("descriptor {fd} is a pipe whose other end is in another process")]
    ForeignPipe { fd: i32 },
    #[error("descriptor {fd} is a socket connected to another process")]
    ForeignSocket { fd: i32 },
    #[error(
        "descriptor {fd} is a timer that was cancelled because the clock was set, which the program has not read yet: try again"
    )]
    CancelledTimer { fd: i32 },
    #[error("its session has a controlling terminal whose other side is not known: start it without one")]
    ControllingTerminal,
    #[error("descriptor {fd} is a terminal")]
    Terminal { fd: i32 },
    #[error("{bytes} bytes that no program has read wait at the terminal /dev/pts/{number}, or it is in packet mode")]
    BusyTerminal { number: u32, bytes: u64 },
    #[error("descriptor {fd} is a device: {path}")]
    Device { fd: i32, path: String },
    #[error("descriptor {fd} is a socket of family {family} and type {socket_type}, which cannot be forked")]
    SocketKind { fd: i32, family: i32, socket_type: i32 },
    #[error("descriptor {fd} is a socket whose option {option} cannot be set again in a copy: set it to its default")]
    SocketOption { fd: i32, option: String },
    #[error(
        "{count} connections wait at unix socket {fd} to be accepted, and a copy would not have them: accept them before the program is ready"
    )]
    WaitingConnections { fd: i32, count: u32 },
    #[error(
        "descriptor {fd} sends its signals (F_SETOWN) to process {owner}, which a copy would not have: only the program itself can be their owner"
    )]
    ForeignOwner { fd: i32, owner: i32 },
    #[error("{what} has extended attributes that a copy cannot have: {reason}")]
    Attributes { what: String, reason: String },
    #[error("epoll set {fd} watches a file that has no descriptor any more (was {target})")]
    EpollTarget { fd: i32, target: i32 },
    #[error(
        "{bytes} bytes of events wait at inotify instance {fd}, which a copy would not have: read them before the program is ready"
    )]
    InotifyEvents { fd: i32, bytes: u64 },
    #[error("messages wait at netlink socket {fd}, which a copy would not have: read them before the program is ready")]
    NetlinkMessages { fd: i32 },
    #[error("inotify instance {fd} watches something that was not found in the root filesystem (inode {inode})")]
    InotifyTarget { fd: i32, inode: u64 },
    #[error("{what} holds {bytes} bytes, more than the {max} that a fork carries")]
    TooMuchContent { what: String, bytes: u64, max: u64 },
    #[error(
        "its mappings that hold memory cover {bytes} bytes of addresses, more than the {max} of which a checkpoint can be restored: reserve smaller mappings"
    )]
    TooManyAddresses { bytes: u64, max: u64 },
    #[error("the mapping at {address:#x} shares {path}, which is not (or no longer) that file in the root filesystem")]
    MappedFile { address: u64, path: String },
    #[error("the mapping at {address:#x} shows device {path}")]
    MappedDevice { address: u64, path: String },
    #[error("the mapping at {address:#x} uses huge pages of hugetlbfs")]
    HugeTlb { address: u64 },
    #[error("the mapping at {address:#x} can be executed and not be read, by memory protection key {key}")]
    ProtectionKey { address: u64, key: u32 },
    #[error(
        "{what} is {path}, and on the mount point {mount_point} sandboxes may have a volume instead: have nothing open there when the program is ready"
    )]
    BelowMountPoint { what: String, path: String, mount_point: String },
    #[error(
        "{what} is {path}, which is on the volume at {mount_point}: a program that is a file of a volume cannot be forked"
    )]
    OnVolume { what: String, path: String, mount_point: String },
    #[error("it has {found} {what}, more than the {max} that can be forked")]
    TooMany { what: String, found: usize, max: usize },
    #[error(
        "its POSIX timers have numbers up to {found}, and this kernel cannot be asked for one: up to {max} can be passed over (Linux 6.15 has no such bound)"
    )]
    TimerNumbers { found: i32, max: usize },
    #[error("it holds capabilities that root of a sandbox does not have ({beyond:#x})")]
    Privileged { beyond: u64 },
    #[error("it has made {root} its root directory (chroot)")]
    ChangedRoot { root: String },
    #[error(
        "thread {tid} has set securebits ({bits:#x}) and no longer has CAP_SETPCAP, without which a copy cannot set them"
    )]
    SecureBits { tid: i32, bits: u32 },
    #[error("thread {tid} has other ids, capabilities or no_new_privs than its program")]
    ThreadPrivileges { tid: i32 },
    #[error("a signal has stopped it, and a copy could not stop itself in the same way ({why}): continue it first")]
    Stopped { why: String },
    #[error("thread {tid} has a scheduling policy ({policy}) that cannot be forked")]
    Scheduling { tid: i32, policy: u32 },
    #[error("it installed {filters} seccomp filters of its own: switch its own sandbox off (Pando's holds it)")]
    OwnSeccomp { filters: u64 },
    #[error("thread {tid} handles its own system calls (syscall user dispatch)")]
    SyscallDispatch { tid: i32 },
    #[error("thread {tid} has signal {signal} pending, which a debugger needs: let it be delivered first")]
    PendingTrap { tid: i32, signal: i32 },
    #[error(
        "part of its memory (at {address:#x}) has not arrived from its checkpoint yet: try again; if that does not help, the processes of its pager were killed"
    )]
    AwaitedMemory { address: u64 },
    #[error(
        "thread {tid} has registers in use (components {components:#x}, such as AMX tiles) that a copy cannot be given: release the tiles before the program is ready"
    )]
    ExtendedRegisters { tid: i32, components: u64 },
    #[error("{path}, a file in memory that its copies would have, {what}: remove it")]
    MemoryFile { path: String, what: String },
    #[error("its program file {path} is a file in memory, which cannot be forked: start it from another directory")]
    ProgramInMemory { path: String },
    #[error(
        "thread {tid} does not stop: it waits for something that no signal ends, for instance a child that was begun by vfork(2) and executes no program"
    )]
    NotStopping { tid: i32 },
    #[error("it is a zombie or has lost its main thread")]
    MainThreadGone,
    #[error(
        "it is in session {session}, which is neither its own nor that of its parent: a copy cannot be put there yet"
    )]
    Session { session: i32 },
    #[error("it shares its {what} with another process (clone without CLONE_THREAD), which copies cannot")]
    Shares { what: String },
    #[error("it is in process group {group}, whose leader has ended: a copy cannot be put there yet")]
    Group { group: i32 },
    #[error("process {pid} ({name}): {refusal}")]
    OfProcess { pid: i32, name: String, refusal: Box<Refusal> },
}

impl Refusal {
    /// Of a descriptor that `/proc/PID/fd` shows as `link`.
    pub(crate) fn message_queue(fd: i32, link: &[u8]) -> Self {
        let name = link.strip_suffix(b" (deleted)").unwrap_or(link);
        Self::MessageQueue { fd, name: String::from_utf8_lossy(name).into_owned() }
    }

    /// About another process of the sandbox than its program.
    pub(crate) fn of_process(self, pid: i32, name: &str) -> Self {
        match self {
            Self::OfProcess { .. } => self,
            refusal => Self::OfProcess { pid, name: name.to_owned(), refusal: Box::new(refusal) },
        }
    }

    /// Whether the next moment may be different.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::OfProcess { refusal, .. } => refusal.may_pass(),
            refusal => {
                matches!(
                    refusal,
                    Self::PendingTrap { .. }
                        | Self::MainThreadGone
                        | Self::WaitingConnections { .. }
                        | Self::BusyTerminal { .. }
                        | Self::InotifyEvents { .. }
                        | Self::NetlinkMessages { .. }
                )
            }
        }
    }

    /// Whether it is about the sandbox, or what several of its processes have, and not about one of them.
    pub(crate) fn is_of_sandbox(&self) -> bool {
        matches!(
            self,
            Self::Daemons { .. }
                | Self::Siblings { .. }
                | Self::MessageQueues { .. }
                | Self::MemoryFile { .. }
                | Self::TooMuchContent { .. }
        )
    }

    /// Whether it is about other processes, which may be about to end.
    pub(crate) fn may_end(&self) -> bool {
        matches!(self, Self::Daemons { .. } | Self::Siblings { .. })
    }

    /// A short code for programs, as in the JSON form.
    pub fn kind(&self) -> String {
        if let Self::OfProcess { refusal, .. } = self {
            return refusal.kind();
        }
        match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(fields)) => {
                fields.get("kind").and_then(|kind| kind.as_str()).unwrap_or_default().to_owned()
            }
            _ => String::new(),
        }
    }
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
    /// The program has these components of extended registers in use, one bit each.
    ExtendedRegisters { components: u64 },
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
            Self::ExtendedRegisters { .. } => "extended_registers",
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
            Self::ExtendedRegisters { components } => {
                write!(f, "this processor lacks registers that the program uses (XSAVE components {components:#x})")
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
