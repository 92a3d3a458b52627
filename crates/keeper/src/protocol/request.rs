//! What the server can ask for. [`super::Call`] says which files go with each request, and what the reply is.

use std::path::PathBuf;

use base::id::{Arena, SandboxId, StartId, ZygoteId};
use process::{Stream, StreamFile};
use sandbox::ProcessIdentity;
use serde::{Deserialize, Serialize};

/// Makes a sandbox without a program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CreateSandbox {
    /// What to make.
    pub spec: sandbox::Spec,
    /// The identity of the machine, for a sandbox that existed before.
    pub machine: Option<sandbox::Machine>,
}

/// Makes a sandbox without a root filesystem.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CreateBare {
    /// Its id.
    pub sandbox: SandboxId,
    /// Its directory.
    pub dir: PathBuf,
}

/// Gives a bare sandbox its root filesystem. A failure leaves nothing of the sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Furnish {
    /// What the sandbox becomes.
    pub spec: sandbox::Spec,
}

/// Makes the directories on which volumes can be mounted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MakeMountPoints {
    /// In which sandbox.
    pub sandbox: SandboxId,
    /// Absolute paths in the sandbox.
    pub paths: Vec<String>,
    /// The content that existing directories may have.
    pub hides: sandbox::Hides,
}

/// Attaches mounts in a sandbox: one file for each path. A failure may leave some attached.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AttachMounts {
    /// In which sandbox.
    pub sandbox: SandboxId,
    /// Absolute paths in the sandbox.
    pub paths: Vec<String>,
}

/// Lets the processes of a frozen sandbox continue.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Thaw {
    /// Which sandbox.
    pub sandbox: SandboxId,
}

/// Takes over a sandbox of an earlier keeper.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Adopt {
    /// What the sandbox was made from.
    pub spec: sandbox::Spec,
    /// Its pid 1.
    pub init: ProcessIdentity,
    /// Its program, if the program has not ended.
    pub main: Option<ProcessIdentity>,
}

/// Ends all processes of a sandbox and removes everything of it but its directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DestroySandbox {
    /// Which sandbox.
    pub sandbox: SandboxId,
}

/// Applies the limits of sandboxes. Only cgroup v1 needs it: there, sandboxes are made without their limits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BindLimits {
    /// Which sandboxes. Those that no longer exist are passed over.
    pub sandboxes: Vec<SandboxId>,
}

/// Starts a program in a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spawn {
    /// In which sandbox.
    pub sandbox: SandboxId,
    /// What to start.
    pub command: sandbox::Command,
    /// Whether it is the sandbox's program, not a command beside it.
    pub main: bool,
}

/// Starts a hand: a process that works on a sandbox's files. Its socket goes along.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StartHand {
    /// In which sandbox.
    pub sandbox: SandboxId,
    /// For whom.
    pub user: sandbox::User,
}

/// Captures a running program and builds a zygote from it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Capture {
    /// The number the zygote will have.
    pub zygote: ZygoteId,
    /// What is captured.
    pub source: Source,
    /// What the zygote is built on.
    pub base: Base,
    /// Where the sandbox's own file changes are copied. The copy becomes the topmost layer of the zygote's copies.
    pub layer: PathBuf,
    /// What the zygote is for.
    pub purpose: Purpose,
}

/// The program that is captured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Source {
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// The program.
    pub main: ProcessIdentity,
    /// Commands that go with it.
    pub commands: Vec<process::Command>,
    /// Whether `main` is no program of the sandbox, which has none.
    pub without_program: bool,
    /// Which files are its standard streams and theirs.
    pub streams: Vec<(StreamFile, Stream)>,
    /// Where an earlier start left its arena, if the program is itself a copy.
    pub earlier_arena: Option<Arena>,
    /// Directories on which copies may have another filesystem. Files that the program has open there are refused.
    pub mount_points: Vec<PathBuf>,
    /// Directories on which copies have the volumes of the program. Files that the program has mapped from there are refused.
    pub volumes: Vec<PathBuf>,
}

/// What a zygote is built on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Base {
    /// The zygote that the program was started from, or an ancestor of it. Unchanged memory is shared with it.
    pub zygote: Option<ZygoteId>,
    /// Layers of the program's sandbox, topmost first.
    pub layers: Vec<PathBuf>,
}

/// What a captured program becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// A template. Many sandboxes will be started from it.
    Template,
    /// Forks of a sandbox that continues.
    Fork(Volumes),
    /// A checkpoint of a sandbox that continues.
    Keep(Volumes),
    /// A checkpoint of a sandbox that does not continue.
    Pause,
}

/// What happens to the volumes of a sandbox that is captured and continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Volumes {
    /// The server cuts them at the captured instant.
    Cut,
    /// The sandbox writes to none.
    Unwritten,
}

impl Purpose {
    /// Whether the sandbox stays frozen from the captured instant until [`Thaw`].
    pub fn holds(self) -> bool {
        match self {
            Self::Template | Self::Fork(Volumes::Unwritten) | Self::Keep(Volumes::Unwritten) => false,
            Self::Fork(Volumes::Cut) | Self::Keep(Volumes::Cut) | Self::Pause => true,
        }
    }

    /// Whether the reply comes with a file that holds an encoded [`process::ProgramState`].
    pub fn describes(self) -> bool {
        match self {
            Self::Template | Self::Fork(_) => false,
            Self::Keep(_) | Self::Pause => true,
        }
    }

    /// Whether the zygote's memory uses huge pages. Gathering them takes time, which pays only for a zygote with many copies.
    pub fn huge_pages(self) -> bool {
        match self {
            Self::Template => true,
            Self::Fork(_) | Self::Keep(_) | Self::Pause => false,
        }
    }
}

/// Restores the zygote of a checkpoint. The file holds a [`Parcel`]; afterwards it holds [`ByFault`](super::ByFault).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RestoreZygote {
    /// The number it will have.
    pub zygote: ZygoteId,
    /// Layers of its root filesystem, topmost first.
    pub layers: Vec<PathBuf>,
}

/// What a zygote is restored from, except the pages that arrive by fault.
#[derive(Debug, Serialize, Deserialize)]
pub struct Parcel {
    /// An encoded [`process::ProgramState`].
    #[serde(with = "serde_bytes")]
    pub state: Vec<u8>,
    /// Begin and end of each run of pages that the checkpoint has.
    pub pages: Vec<(u64, u64)>,
}

/// Forks a copy of a zygote into a sandbox and starts it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StartCopy {
    /// The zygote.
    pub zygote: ZygoteId,
    /// The sandbox that the copy runs in.
    pub sandbox: SandboxId,
    /// The number of this start, unique for the node.
    pub start: StartId,
    /// Which interpreter makes the copy.
    pub interpreter: Interpreter,
}

/// Which interpreter makes a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Interpreter {
    /// The one inside the zygote. It is the fast one.
    InProcess,
    /// The one outside, which makes one system call at a time. The keeper does nothing else meanwhile.
    Stepping,
}

/// Forks a copy of a zygote into a sandbox. The copy waits short of the program until [`ReleaseCopy`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ParkCopy {
    /// The zygote.
    pub zygote: ZygoteId,
    /// The sandbox that the copy runs in.
    pub sandbox: SandboxId,
    /// The number of this start, unique for the node.
    pub start: StartId,
}

/// Lets a parked copy continue. The reply comes when its program runs, or is about to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReleaseCopy {
    /// The zygote of the copy.
    pub zygote: ZygoteId,
    /// The number of the copy's start.
    pub start: StartId,
    /// Whether it stops once more, complete, right before its program. A descriptor comes with the reply: the copy goes on when that is closed.
    pub hold: bool,
}

/// Ends a zygote, or the building of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DropZygote {
    /// Which zygote.
    pub zygote: ZygoteId,
}
