//! What the keeper answers and reports.

use base::id::{SandboxId, ZygoteId};
use process::ZygoteFacts;
use rustix::io::Errno;
use sandbox::ProcessIdentity;
use serde::{Deserialize, Serialize};

/// One message of the keeper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromKeeper {
    /// Before the reply to a capture: the still is taken, and the layer of its copies is complete.
    Captured,
    /// The request succeeded. This is its reply, of the type that [`super::Call`] names.
    Done(serde_json::Value),
    /// The request failed and left nothing.
    Failed(Failed),
    /// Unasked; it has no number.
    Event(Event),
}

/// A sandbox exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    /// Its pid 1.
    pub init: ProcessIdentity,
}

/// What of an adopted sandbox still lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Adopted {
    /// Sandbox and program.
    WithProgram,
    /// The sandbox, but no program.
    WithoutProgram,
    /// Nothing: its pid 1 has ended.
    Gone,
}

/// A process of a sandbox exists. The keeper reports its end as [`Event::Exited`]. The pidfd of a program that was spawned comes along, or
/// that of each command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forked {
    /// The process.
    pub process: ProcessIdentity,
    /// Its pid inside of the sandbox, of a program that was spawned; 0: not asked for.
    pub inside: i32,
    /// The commands that a copy has, which goes on at once.
    pub commands: Vec<ForkedCommand>,
}

impl Forked {
    /// A process beside which no others were made.
    pub(crate) fn alone(process: ProcessIdentity, inside: i32) -> Self {
        Self { process, inside, commands: Vec::new() }
    }
}

/// A command that a copy has beside its program. Its end is reported as [`Event::Exited`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkedCommand {
    /// Its place among those of its zygote.
    pub place: u32,
    /// Its pid inside of the sandbox.
    pub inside: i32,
    /// The process.
    pub process: ProcessIdentity,
}

/// A parked copy has gone on. The pidfds of its commands come along, and behind them what holds it, if that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    /// Its commands.
    pub commands: Vec<ForkedCommand>,
}

/// A zygote waits for starts, or the program cannot be forked.
pub type BuiltOrRefused = Result<Built, Vec<Refusal>>;

/// A zygote waits for starts.
///
/// A file comes along if the program was to be described (it holds the description), or if pages of a restored zygote arrive by fault (it is
/// the userfaultfd).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Built {
    /// What is known of the zygote.
    pub facts: ZygoteFacts,
    /// How long the program stood still, in microseconds.
    pub pause_us: u64,
    /// How long the capture took, in microseconds.
    pub capture_us: u64,
    /// How long building the zygote took, in microseconds.
    pub build_us: u64,
}

/// One reason why a program cannot be forked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Its code.
    pub kind: String,
    /// In words.
    pub reason: String,
}

/// The mappings of a restored zygote whose pages arrive by fault: begin and end of each.
pub type ByFault = Vec<(u64, u64)>;

/// Why the keeper did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// For programs.
    pub kind: FailureKind,
    /// For people: the whole chain of causes.
    pub message: String,
}

/// Kinds of failure that the server tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// The keeper has no such sandbox.
    UnknownSandbox,
    /// The keeper has no such zygote, or the zygote died.
    ZygoteGone,
    /// The program to run does not exist in the sandbox.
    ProgramMissing,
    /// The program to run exists but may not be executed.
    ProgramNotExecutable,
    /// The kernel does not take that much of arguments and environment.
    ArgumentsTooLong,
    /// A step failed.
    Step,
}

impl Failed {
    /// The keeper has no such sandbox.
    pub fn no_sandbox(id: &SandboxId) -> Self {
        Self { kind: FailureKind::UnknownSandbox, message: format!("the keeper has no sandbox {id}") }
    }

    /// The zygote is gone.
    pub fn zygote_gone(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::ZygoteGone, message: message.into() }
    }

    /// A step failed, in words.
    pub fn step(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Step, message: message.into() }
    }

    /// A step failed, with the whole chain of causes.
    pub fn of(error: &dyn std::error::Error) -> Self {
        Self::step(base::error::chain(error))
    }

    /// A program was not started.
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
        Self { kind, message: base::error::chain(error) }
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// Unknown: it was not a child of the keeper.
    Unknown,
}

impl Status {
    /// From the status word of wait(2).
    pub fn of_wait(status: i32) -> Self {
        match status & 0x7f {
            0 => Self::Code(status >> 8 & 0xff),
            signal => Self::Signal(signal),
        }
    }

    /// The message for a copy that ended like this before its start was complete.
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

/// What the keeper reports unasked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A program or command of a sandbox ended.
    Exited {
        /// The sandbox.
        sandbox: SandboxId,
        /// The process.
        pid: i32,
        /// Whether it was the sandbox's program.
        main: bool,
        /// How it ended.
        status: Status,
    },
    /// A zygote ended that was not dropped.
    ZygoteLost {
        /// Which zygote.
        zygote: ZygoteId,
        /// How its process ended.
        status: Status,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_survives_the_wire() {
        let sandbox = "s0123456789ab".parse().unwrap();
        let event = FromKeeper::Event(Event::Exited { sandbox, pid: 7, main: true, status: Status::Signal(9) });
        let json = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<FromKeeper>(&json).unwrap(), event);
    }

    #[test]
    fn a_reply_survives_the_wire() {
        let built = Built { facts: ZygoteFacts::default(), pause_us: 1, capture_us: u64::MAX, build_us: 3 };
        for reply in [Ok(built), Err(vec![Refusal { kind: "threads".to_owned(), reason: "why".to_owned() }])] {
            let done = FromKeeper::Done(serde_json::to_value(&reply).unwrap());
            let FromKeeper::Done(value) = serde_json::from_str(&serde_json::to_string(&done).unwrap()).unwrap() else {
                panic!("another message")
            };
            assert_eq!(serde_json::from_value::<BuiltOrRefused>(value).unwrap(), reply);
        }
    }

    #[test]
    fn the_status_word_is_taken_apart() {
        assert_eq!([0x0300, 9, 0x8b].map(Status::of_wait), [Status::Code(3), Status::Signal(9), Status::Signal(11)]);
    }
}
