//! What server and keeper say to each other, as [`super::wire`] sends it.
//!
//! Every request has a number that its reply repeats; replies may come in any order. Events come unasked.

use std::path::PathBuf;

use base::id::SandboxId;
use process::{Stream, StreamFile, ZygoteFacts};
use rustix::io::Errno;
use sandbox::ProcessIdentity;
use serde::{Deserialize, Serialize};

/// From the server, with the descriptors that the variant names.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)] // of fields: the variants say it
pub enum Request {
    /// As `machine`, if it is one that has been there before, with the two ends of [`sandbox::Output`] -> `Created`
    CreateSandbox { spec: sandbox::Spec, machine: Option<sandbox::Machine> },
    /// One without a root filesystem -> `Created`
    CreateBare { id: SandboxId, dir: PathBuf },
    /// Make a sandbox of a bare one, with the two ends of [`sandbox::Output`] -> `Created`. After a failure nothing of it is left
    Furnish { spec: sandbox::Spec },
    /// Make the directories that volumes can be mounted on -> `Done`
    MakeMountPoints { id: SandboxId, paths: Vec<String> },
    /// With as many mounts as there are paths, which are attached there -> `Done`. After a failure some may be.
    Attach { id: SandboxId, paths: Vec<String> },
    /// Let the processes of a sandbox go on -> `Done`
    Thaw { id: SandboxId },
    /// Take over a sandbox of an earlier keeper -> `Adopted`
    Adopt { spec: sandbox::Spec, init: ProcessIdentity, main: Option<ProcessIdentity> },
    /// End all its processes and remove all of it but its directory -> `Done`
    DestroySandbox { id: SandboxId },
    /// Attach the limits of the sandboxes (cgroup v1 does it late) -> `Done`
    BindLimits { ids: Vec<SandboxId> },
    /// With stdin, stdout, stderr -> `Spawned`
    Spawn { id: SandboxId, command: sandbox::Command, main: bool },
    /// -> `Built`, with a file if the program is to be described, or `Refused`
    BuildZygote(BuildZygote),
    /// With a file that holds a [`Parcel`] -> `Built`, with the descriptor of its faults if it has any, or `Refused`. Then the file holds
    /// [`ByFault`]
    RestoreZygote(RestoreZygote),
    /// With stdin, stdout, stderr -> `Started`
    Start { zygote: u64, id: SandboxId, start: u64, stepping: bool },
    /// The same, but the copy stops short of the program -> `Parked`
    Park { zygote: u64, id: SandboxId, start: u64 },
    /// Let a parked copy go on; `Done` when it runs
    Release { zygote: u64, start: u64 },
    /// End a zygote, or the building of it -> `Done`
    DropZygote { zygote: u64 },
}

/// Build a zygote from a running program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BuildZygote {
    /// The number it will have.
    pub zygote: u64,
    /// The sandbox of the program.
    pub id: SandboxId,
    /// The program.
    pub main: ProcessIdentity,
    /// Which files are its standard streams.
    pub streams: Vec<(StreamFile, Stream)>,
    /// Where an earlier start left its arena, if the program is itself a copy.
    pub earlier_arena: Option<(u64, u64)>,
    /// The zygote that the program was started from, or an ancestor of it: unchanged memory is shared with it.
    pub base: Option<u64>,
    /// Layers of the sandbox, topmost first.
    pub layers: Vec<PathBuf>,
    /// Where its own file changes are copied: becomes the topmost layer of the copies.
    pub layer_dest: PathBuf,
    /// Whether `Built` comes with a file that holds a description of the program (an encoded [`process::ProgramState`]).
    pub describe: bool,
    /// Directories on which copies may have another filesystem: what the program has open there could not be carried.
    pub mount_points: Vec<PathBuf>,
    /// Directories on which copies have volumes as the program does: what it has mapped from there could not be carried.
    pub volumes: Vec<PathBuf>,
    /// Use huge pages.
    pub huge_pages: bool,
    /// The sandbox is frozen from the captured instant on, until it is told to thaw.
    pub hold: bool,
}

/// Restore the zygote of a checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RestoreZygote {
    /// The number it will have.
    pub zygote: u64,
    /// Layers of its root filesystem, topmost first.
    pub layers: Vec<PathBuf>,
}

/// What a zygote is restored from, but for the pages that arrive by fault.
#[derive(Debug, Serialize, Deserialize)]
pub struct Parcel {
    /// An encoded [`process::ProgramState`].
    #[serde(with = "serde_bytes")]
    pub state: Vec<u8>,
    /// Begin and end of each run of pages that the checkpoint has.
    pub pages: Vec<(u64, u64)>,
}

/// The mappings of a restored zygote whose pages arrive by fault: begin and end of each.
pub type ByFault = Vec<(u64, u64)>;

/// Why the keeper did not do it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// It has no such sandbox.
    UnknownSandbox,
    /// It has no such zygote, or that died meanwhile.
    ZygoteGone,
    /// The program to run does not exist in the sandbox.
    ProgramMissing,
    /// The program to run is there, but may not be executed.
    ProgramNotExecutable,
    /// The kernel does not take that much of arguments and environment.
    ArgumentsTooLong,
    /// A step failed.
    Step,
}

/// To the server.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)] // of fields: the variants say it
pub enum Reply {
    /// The sandbox is there; its pid 1.
    Created { init: ProcessIdentity },
    /// What of it still lives.
    Adopted { alive: bool, main_alive: bool },
    /// Nothing to say.
    Done,
    /// A command runs.
    Spawned { pid: ProcessIdentity },
    /// Before the answer proper: the still is taken, and the layer that the copies stand on is whole.
    Captured,
    /// A zygote is parked.
    Built { facts: ZygoteFacts, pause_us: u64, capture_us: u64, build_us: u64 },
    /// The program cannot be forked; (code, reason) each.
    Refused { refusals: Vec<(String, String)> },
    /// A copy runs.
    Started { main: ProcessIdentity },
    /// A copy exists and goes on when it is released. It ends with its zygote and its keeper if it is not.
    Parked { main: ProcessIdentity },
    /// It was not done, and nothing of it is left.
    Failed { kind: FailureKind, message: String },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// Exit code.
    Code(i32),
    /// Signal.
    Signal(i32),
    /// It was not the keeper's child, so nobody told.
    Unknown,
}

impl Status {
    /// From what wait(2) reports.
    pub fn of_wait(status: i32) -> Self {
        match status & 0x7f {
            0 => Self::Code(status >> 8 & 0xff),
            signal => Self::Signal(signal),
        }
    }

    /// What is said of a copy that has ended so before its start was complete.
    pub fn in_start(self) -> String {
        format!("the copy {self} during its start")
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with status {code}"),
            Self::Signal(signal) => write!(f, "was killed by signal {signal}"),
            Self::Unknown => f.write_str("ended"),
        }
    }
}

/// Unasked, to the server.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)] // of fields: the variants say it
pub enum Event {
    /// A program or command of a sandbox ended.
    Exited { id: SandboxId, pid: i32, main: bool, status: Status },
    /// A zygote ended that nobody dropped.
    ZygoteLost { zygote: u64, status: Status },
}

/// One message of the keeper.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum FromKeeper {
    /// To the request of its number.
    Reply(Reply),
    /// Unasked; it has no number.
    Event(Event),
}

impl Reply {
    /// A failure of an unknown sandbox.
    pub fn no_sandbox(id: &SandboxId) -> Self {
        Self::Failed { kind: FailureKind::UnknownSandbox, message: format!("the keeper has no sandbox {id}") }
    }

    /// A failed step, with the whole chain of causes.
    pub fn failed(error: &dyn std::error::Error) -> Self {
        Self::step_failed(base::error::chain(error))
    }

    /// A failed step, in words.
    pub fn step_failed(message: String) -> Self {
        Self::Failed { kind: FailureKind::Step, message }
    }

    /// A program that was not started.
    pub fn not_spawned(error: &sandbox::Error) -> Self {
        let errno = match error {
            sandbox::Error::Exec { source, .. } => Errno::from_io_error(source),
            _ => None,
        };
        let kind = match errno {
            Some(Errno::NOENT) => FailureKind::ProgramMissing,
            Some(Errno::ACCESS | Errno::NOEXEC) => FailureKind::ProgramNotExecutable,
            Some(Errno::TOOBIG) => FailureKind::ArgumentsTooLong,
            Some(_) | None => FailureKind::Step,
        };
        Self::Failed { kind, message: base::error::chain(error) }
    }

    /// The zygote is gone.
    pub fn zygote_gone(message: impl Into<String>) -> Self {
        Self::Failed { kind: FailureKind::ZygoteGone, message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_on_the_wire_what_the_types_say() {
        let id: SandboxId = "s0123456789ab".parse().unwrap();
        let start = Request::Start { zygote: 1, id: id.clone(), start: 2, stepping: false };
        let json = serde_json::to_string(&start).unwrap();
        assert_eq!(json, r#"{"Start":{"zygote":1,"id":"s0123456789ab","start":2,"stepping":false}}"#);
        let event = FromKeeper::Event(Event::Exited { id, pid: 7, main: true, status: Status::Signal(9) });
        let json = serde_json::to_string(&event).unwrap();
        assert!(matches!(
            serde_json::from_str(&json).unwrap(),
            FromKeeper::Event(Event::Exited { pid: 7, main: true, .. })
        ));
    }
}
