//! Sandboxes, and what runs in them.

use std::fmt;

use base::id::{SandboxId, TemplateName};

use crate::{Failure, Mount, MountPoints, NetworkPolicy};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// It ended while no one could take note of its status.
    Unknown,
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with status {code}"),
            Self::Signal(signal) => write!(f, "was killed by signal {signal}"),
            Self::Unknown => f.write_str("ended with unknown status"),
        }
    }
}

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxState {
    /// Its program runs.
    Running,
    /// It is being paused: its program stands still.
    Pausing,
    /// It is kept in the store, without processes and memory, and can be resumed.
    Paused,
    /// Its program ended; the sandbox is still there.
    Exited(ExitStatus),
    /// All its processes are gone, without the node having seen why; only its output is left.
    Lost,
}

/// One sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Its identifier, also its host name.
    pub id: SandboxId,
    /// The template at the root of it.
    pub template: TemplateName,
    /// The sandbox it was forked from, if it was.
    pub parent: Option<SandboxId>,
    /// Where it is in its life.
    pub state: SandboxState,
    /// Why its program was ended, if the node knows: at the memory limit, or because a page of its memory could not be had from its checkpoint.
    pub reason: Option<String>,
    /// When it started, in milliseconds since 1970.
    pub created_ms: u64,
    /// How long its start took inside the node, in microseconds.
    pub start_us: u64,
    /// Process id of its program on the node.
    pub main_pid: i32,
    /// The volumes that are mounted in it.
    pub volumes: Vec<Mount>,
}

/// A sandbox in the tree of forks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relative {
    /// Its identifier.
    pub id: SandboxId,
    /// The sandbox it was forked from, if it was.
    pub parent: Option<SandboxId>,
    /// The template at the root of it.
    pub template: TemplateName,
    /// Where it is in its life; none: it is gone, and others descend from it.
    pub state: Option<SandboxState>,
    /// When it started, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it was removed.
    pub gone_ms: Option<u64>,
}

/// One process of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessInfo {
    /// On the node.
    pub pid: i32,
    /// Inside the sandbox.
    pub inner_pid: i32,
    /// Its short name.
    pub name: String,
    /// How many threads it has.
    pub threads: usize,
    /// Resident memory, in bytes.
    pub rss_bytes: u64,
    /// Its proportional share of resident memory, in bytes.
    pub pss_bytes: u64,
    /// Resident memory that no other process has, in bytes.
    pub own_bytes: u64,
}

/// A sandbox's memory, as its control group counts it: pages that it has made its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Its limit, in bytes.
    pub limit_bytes: u64,
    /// The most that it had at once, in bytes, if the kernel counts that.
    pub peak_bytes: Option<u64>,
    /// Processes that the kernel has killed because the limit was reached.
    pub killed: u64,
}

/// What a sandbox uses at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SandboxUse {
    /// Of one processor, in percent, over a tenth of a second.
    pub cpu_percent: f32,
    /// Memory that is charged to it, in bytes; 0 where the host does not count it.
    pub memory_bytes: u64,
    /// Its memory limit, in bytes, if it has one.
    pub memory_limit_bytes: Option<u64>,
    /// What the files take that it has written since its start, in bytes. Of very many files only a part is counted.
    pub disk_used_bytes: u64,
    /// The same, and what it could write before the filesystem is full, in bytes.
    pub disk_total_bytes: u64,
}

/// What a sandbox is known by: new in each copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineIds {
    /// `/etc/machine-id`
    pub machine_id: String,
    /// `/proc/sys/kernel/random/boot_id`
    pub boot_id: String,
    /// `/run/pando/generation`
    pub generation: String,
}

/// Everything about one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxDetail {
    /// What lists show, too.
    pub sandbox: Sandbox,
    /// Milliseconds since its start.
    pub uptime_ms: u64,
    /// Its processes, pid 1 included.
    pub processes: Vec<ProcessInfo>,
    /// Resident memory of all of them, in bytes.
    pub rss_bytes: u64,
    /// Proportional share of all of them, in bytes.
    pub pss_bytes: u64,
    /// Resident memory that each of them has alone, in bytes.
    pub own_bytes: u64,
    /// What its memory limit has led to, if the kernel counts that.
    pub memory: Option<MemoryUse>,
    /// Its control group, as its pid 1 sees it on the node.
    pub cgroup: String,
    /// Its overlay layers, topmost first.
    pub layers: Vec<String>,
    /// Its directory on the node.
    pub directory: String,
    /// What it is known by beside its id; none of a paused one.
    pub machine: Option<MachineIds>,
    /// The command that runs in each copy that has memory, before it goes on; empty: none.
    pub on_fork: Vec<String>,
}

/// Which interpreter runs a start's script.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Interpreter {
    /// Inside the zygote; the fast one.
    #[default]
    InProcess,
    /// From outside, one system call at a time.
    Stepping,
}

/// Start sandboxes of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSpec {
    /// How many.
    pub count: u32,
    /// How.
    pub interpreter: Interpreter,
    /// Volumes that are mounted in each before its program goes on.
    pub volumes: Vec<Mount>,
    /// On which directories.
    pub mount_points: MountPoints,
    /// The name of the room that a control plane has reserved for them. The node notes it with each.
    pub reservation: Option<String>,
    /// What they may reach.
    pub network: NetworkPolicy,
}

/// Fork a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkSpec {
    /// How many copies.
    pub count: u32,
    /// What they have of the original.
    pub keep: crate::Keep,
    /// As of [`RunSpec`].
    pub reservation: Option<String>,
}

/// A sandbox that was paused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseReport {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// Memory of its program, in bytes.
    pub memory_bytes: u64,
    /// What that takes in the store before sealing, in bytes.
    pub stored_memory_bytes: u64,
    /// What its file changes take, in bytes.
    pub layer_bytes: u64,
    /// The whole request, in microseconds.
    pub total_us: u64,
}

/// A sandbox that the store has paused, whichever node paused it. One that runs again is among them until all of its memory has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PausedSandbox {
    /// Its identifier.
    pub id: SandboxId,
    /// The template that it was started from.
    pub template: TemplateName,
    /// The sandbox that it was forked from, if it was.
    pub parent: Option<SandboxId>,
    /// When it was started first, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it was paused, in milliseconds since 1970.
    pub paused_ms: u64,
    /// The node that has it in hand: it is pausing or resuming it, or it runs there and not all of its memory has arrived. None: any node can resume it.
    pub holder: Option<String>,
}

/// Size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters per line.
    pub columns: u16,
}

/// Run a command in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandSpec {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment, beside that of the template.
    pub env: Vec<(String, String)>,
    /// Working directory; none: that of the template.
    pub cwd: Option<String>,
    /// Give it a terminal of this size.
    pub terminal: Option<TerminalSize>,
    /// After so many milliseconds the node ends the command and all that it has started; 1 ms to 30 days. None: never.
    pub timeout_ms: Option<u64>,
    /// Whose rights it has: `user`, the default.
    pub user: Option<String>,
    /// A name for it, by which clients can attach; at most 256 bytes.
    pub tag: Option<String>,
    /// It can be sent input. Without, it reads end of file at once. A terminal can always be sent input.
    pub stdin: bool,
}

/// Sandboxes that were started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// The sandboxes that run.
    pub sandboxes: Vec<Sandbox>,
    /// From the request until all of them ran, in microseconds, without a build of the template.
    pub total_us: u64,
    /// What the user should know, for example that the template had to be built again.
    pub notices: Vec<String>,
    /// One for each sandbox that did not start.
    pub failures: Vec<Failure>,
}

/// Copies of a running sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forks {
    /// The copies that run.
    pub sandboxes: Vec<Sandbox>,
    /// How long the original stood still, in microseconds.
    pub pause_us: u64,
    /// The pause included: reading what the still shows, in microseconds.
    pub capture_us: u64,
    /// Building the zygote of this instant, in microseconds.
    pub build_us: u64,
    /// The whole request, in microseconds.
    pub total_us: u64,
    /// One for each copy that did not start.
    pub failures: Vec<Failure>,
}

/// Whether a paused sandbox may be taken from another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takeover {
    /// A sandbox that another node holds is refused.
    Refused,
    /// The other node is known to be gone for good.
    Forced,
}

/// How a paused sandbox is resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeOptions {
    /// Whether it may be taken from another node.
    pub takeover: Takeover,
    /// What of it: without its memory its program is not started.
    pub keep: crate::Keep,
}

/// Exit code of a command whose time was up, as timeout(1) has it.
pub const TIMED_OUT: i32 = 124;
