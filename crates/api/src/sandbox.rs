//! Sandboxes: starting, forking, looking at and removing them.

use std::fmt;

use base::id::{SandboxId, TemplateName};
use serde::{Deserialize, Serialize};

use crate::{
    CheckpointProgress, ErrorDetail, NetworkPolicy, VolumeMount,
    checkpoint::{is_true, yes},
};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
        model::ExitStatus::from(*self).fmt(f)
    }
}

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it started, in milliseconds since 1970.
    pub created_ms: u64,
    /// How long its start took inside the node, in microseconds.
    pub start_us: u64,
    /// Process id of its program on the node.
    pub main_pid: i32,
    /// The volumes that are mounted in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeMount>,
}

/// One process of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// Its limit, in bytes.
    pub limit_bytes: u64,
    /// The most that it had at once, in bytes, if the kernel counts that.
    pub peak_bytes: Option<u64>,
    /// Processes that the kernel has killed because the limit was reached.
    pub killed: u64,
}

/// A sandbox in the tree of forks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relative {
    /// Its identifier.
    pub id: SandboxId,
    /// The sandbox it was forked from, if it was.
    pub parent: Option<SandboxId>,
    /// The template at the root of it.
    pub template: TemplateName,
    /// Where it is in its life; null: it is gone, and others descend from it.
    pub state: Option<SandboxState>,
    /// When it started, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it was removed, in milliseconds since 1970.
    pub gone_ms: Option<u64>,
}

/// A reason why a sandbox could not be forked or paused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Its code.
    pub kind: String,
    /// In words.
    pub reason: String,
}

/// What a running sandbox uses at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Percent of one processor.
    pub cpu_percent: f32,
    /// Memory of its own, in bytes.
    pub memory_bytes: u64,
    /// Its memory limit, in bytes.
    pub memory_limit_bytes: Option<u64>,
    /// What its files take on the filesystem that has them, with all else there, in bytes.
    pub disk_used_bytes: u64,
    /// The size of that filesystem, in bytes.
    pub disk_total_bytes: u64,
}

/// What a sandbox is known by: new in each copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineIds {
    /// `/etc/machine-id`
    pub machine_id: String,
    /// `/proc/sys/kernel/random/boot_id`
    pub boot_id: String,
    /// `/run/pando/generation`
    pub generation: String,
}

/// Everything about one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxDetail {
    /// What lists show, too.
    #[serde(flatten)]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryUse>,
    /// Its control group, as its pid 1 sees it on the node.
    pub cgroup: String,
    /// Its overlay layers, topmost first.
    pub layers: Vec<String>,
    /// Its directory on the node.
    pub directory: String,
    /// What it is known by beside its id; none of a paused one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineIds>,
    /// The command that runs in each copy that has memory, before it goes on; empty: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_fork: Vec<String>,
}

/// Which interpreter runs a start's script.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interpreter {
    /// Inside the zygote; the fast one.
    #[default]
    InProcess,
    /// From outside, one system call at a time.
    Stepping,
}

/// Start sandboxes of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRequest {
    /// How many.
    pub count: u32,
    /// How.
    #[serde(default)]
    pub interpreter: Interpreter,
    /// Volumes that are mounted in each before its program goes on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeMount>,
    /// What they may reach.
    #[serde(default, skip_serializing_if = "NetworkPolicy::is_default")]
    pub network: NetworkPolicy,
}

/// What was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunResponse {
    /// The sandboxes that run.
    pub sandboxes: Vec<Sandbox>,
    /// From the request until all of them ran, in microseconds; a build of the template is not in it.
    pub total_us: u64,
    /// What the user should know, for example that the zygote had to be built again.
    #[serde(default)]
    pub notices: Vec<String>,
    /// One for each sandbox that did not start.
    #[serde(default)]
    pub failures: Vec<ErrorDetail>,
}

/// Fork a running sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkRequest {
    /// How many copies.
    pub count: u32,
    /// With its program. Without it copies have its files only.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub memory: bool,
}

impl ForkRequest {
    /// What copies have of it.
    pub fn keep(&self) -> model::Keep {
        if self.memory { model::Keep::Memory } else { model::Keep::Files }
    }
}

/// What was forked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkResponse {
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
    #[serde(default)]
    pub failures: Vec<ErrorDetail>,
}

/// Pause a sandbox. No body means the default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseRequest {
    /// Keep its program and memory. Without them its processes end, and it is resumed with its files only.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub memory: bool,
}

impl Default for PauseRequest {
    fn default() -> Self {
        Self { memory: true }
    }
}

/// Resume a paused sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeRequest {
    /// Also if another node has it in hand, which is known to be gone for good.
    #[serde(default)]
    pub force: bool,
    /// With its program, if it was paused with that. Without it only its files go on.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub memory: bool,
}

impl Default for ResumeRequest {
    fn default() -> Self {
        Self { force: false, memory: true }
    }
}

/// A sandbox that was paused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseResponse {
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// One line of the answer to a request for a pause. The last one is `Done` or `Failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseEvent {
    /// A stage begins, or is further.
    Stage(CheckpointProgress),
    /// It is durable, and its processes are gone.
    Done(Box<PauseResponse>),
    /// It was not paused and goes on, unless the message says otherwise.
    Failed(ErrorDetail),
}

/// What was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// The sandboxes that are gone.
    pub sandboxes: Vec<SandboxId>,
}

/// Size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters per line.
    pub columns: u16,
}

/// Run a command in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment, beside that of the template.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// Working directory; none: that of the template.
    pub cwd: Option<String>,
    /// Give it a terminal of this size.
    pub terminal: Option<TerminalSize>,
    /// End it, with all that it has started, if it has not ended after so many milliseconds: its exit code is then [`TIMED_OUT`]. 1 ms to 30 days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The client understands [`crate::frame::Frame::Notice`].
    #[serde(default)]
    pub notices: bool,
    /// A name by which the command can be followed again after a pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// Exit code of a command whose time was up, as timeout(1) has it.
pub const TIMED_OUT: i32 = model::TIMED_OUT;
