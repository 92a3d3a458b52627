//! Which operations a sandbox admits, and in what order they are done: a pure table.
//!
//! ```text
//!            +---------- Pausing <--pause-- Running --its program ends--> Exited
//!            |               |                 ^   \--all of it gone----> Lost
//!   the pause failed      it is durable        |
//!            v               v                 |
//!         Running          Paused --resume--> Resuming --the resume failed--> Paused
//! ```
//!
//! [`super::drivers`] asks [`admit`] twice for each operation: when it is asked for, so that a refusal comes at once, and when its turn has come.

use base::id::SandboxId;
use model::{ExitStatus, SandboxState};

use crate::error::Error;

/// Where a sandbox is in its life, as far as operations are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// This node does not know it. The store may.
    Absent,
    /// Its program runs.
    Running,
    /// It is being paused.
    Pausing,
    /// It is in the store.
    Paused,
    /// It is being resumed, or handed back to the store.
    Resuming,
    /// Its program has ended.
    Exited(ExitStatus),
    /// All of it has ended without the node.
    Lost,
}

/// What can be asked of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Start a command in it.
    Command,
    /// Work on its files.
    Files,
    /// Connect to a port in it.
    Connect,
    /// Bring changes of another sandbox's files into it.
    Merge,
    /// Capture it for a fork or a checkpoint. It goes on.
    Capture,
    /// Pause it.
    Pause,
    /// Resume it.
    Resume,
    /// Start copies of it from the store. It stays paused.
    ForkPaused,
    /// Remove it.
    Remove,
    /// Bring to its end what an earlier node, or an earlier attempt, was in the middle of: a pause or a resume.
    Settle,
}

/// When an operation is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// At once, beside whatever else is done with the sandbox.
    Now,
    /// Alone, when those that were asked for earlier are done.
    InTurn,
}

/// Why an operation is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denial {
    /// There is no such sandbox here, or nothing of it to be settled.
    Absent,
    /// Its program does not run.
    NotRunning(SandboxState),
    /// It is not paused.
    NotPaused(SandboxState),
    /// Somebody else resumes it.
    BeingResumed,
}

impl Denial {
    /// For the client.
    pub(crate) fn error(self, id: &SandboxId) -> Error {
        let id = id.clone();
        match self {
            Self::Absent => Error::NoSandbox(id),
            Self::NotRunning(state) => Error::NotRunning { id, state },
            Self::NotPaused(state) => Error::NotPaused { id, state },
            Self::BeingResumed => Error::BeingResumed(id),
        }
    }
}

/// The table.
pub(crate) fn admit(phase: Phase, operation: Operation) -> Result<Admission, Denial> {
    match operation {
        Operation::Command | Operation::Merge => match phase {
            // A sandbox outlives its program.
            Phase::Running | Phase::Exited(_) => Ok(Admission::InTurn),
            Phase::Absent | Phase::Pausing | Phase::Paused | Phase::Resuming | Phase::Lost => not_running(phase),
        },
        Operation::Files => match phase {
            // Its files stay when its program has ended.
            Phase::Running | Phase::Exited(_) => Ok(Admission::Now),
            Phase::Absent | Phase::Pausing | Phase::Paused | Phase::Resuming | Phase::Lost => not_running(phase),
        },
        Operation::Connect => if_running(phase, Admission::Now),
        Operation::Capture | Operation::Pause => if_running(phase, Admission::InTurn),
        Operation::Resume | Operation::ForkPaused => match phase {
            // Another node may have paused it.
            Phase::Absent | Phase::Paused => Ok(Admission::InTurn),
            Phase::Resuming => Err(Denial::BeingResumed),
            Phase::Running => Err(Denial::NotPaused(SandboxState::Running)),
            Phase::Pausing => Err(Denial::NotPaused(SandboxState::Pausing)),
            Phase::Exited(status) => Err(Denial::NotPaused(SandboxState::Exited(status))),
            Phase::Lost => Err(Denial::NotPaused(SandboxState::Lost)),
        },
        Operation::Settle => match phase {
            Phase::Pausing | Phase::Paused => Ok(Admission::InTurn),
            Phase::Absent | Phase::Running | Phase::Resuming | Phase::Exited(_) | Phase::Lost => Err(Denial::Absent),
        },
        Operation::Remove => match phase {
            // What runs can be ended at any time: a capture that does not come to its end must not keep it.
            Phase::Running | Phase::Exited(_) | Phase::Lost => Ok(Admission::Now),
            // What the store has of it is settled first.
            Phase::Absent | Phase::Pausing | Phase::Paused | Phase::Resuming => Ok(Admission::InTurn),
        },
    }
}

fn if_running(phase: Phase, admission: Admission) -> Result<Admission, Denial> {
    match phase {
        Phase::Running => Ok(admission),
        Phase::Absent | Phase::Pausing | Phase::Paused | Phase::Resuming | Phase::Exited(_) | Phase::Lost => {
            not_running(phase)
        }
    }
}

fn not_running(phase: Phase) -> Result<Admission, Denial> {
    Err(match phase {
        Phase::Absent => Denial::Absent,
        Phase::Running => Denial::NotRunning(SandboxState::Running),
        Phase::Pausing => Denial::NotRunning(SandboxState::Pausing),
        // Until it runs again.
        Phase::Paused | Phase::Resuming => Denial::NotRunning(SandboxState::Paused),
        Phase::Exited(status) => Denial::NotRunning(SandboxState::Exited(status)),
        Phase::Lost => Denial::NotRunning(SandboxState::Lost),
    })
}

#[cfg(test)]
mod tests {
    use super::{Operation::*, *};

    const CODE: ExitStatus = ExitStatus::Code(0);

    const PHASES: [Phase; 7] = [
        Phase::Absent,
        Phase::Running,
        Phase::Pausing,
        Phase::Paused,
        Phase::Resuming,
        Phase::Exited(CODE),
        Phase::Lost,
    ];

    /// One row per operation, one column per phase, as in [`PHASES`].
    #[test]
    fn every_operation_is_admitted_or_denied_in_every_phase() {
        use SandboxState as S;
        let (now, in_turn) = (Ok(Admission::Now), Ok(Admission::InTurn));
        let absent = Err(Denial::Absent);
        let off = |state| Err(Denial::NotRunning(state));
        let on = |state| Err(Denial::NotPaused(state));
        let busy = Err(Denial::BeingResumed);
        let (pausing, paused, exited, lost) = (off(S::Pausing), off(S::Paused), off(S::Exited(CODE)), off(S::Lost));
        let here = [on(S::Running), on(S::Pausing), on(S::Exited(CODE)), on(S::Lost)];
        let table = [
            (Command, [absent, in_turn, pausing, paused, paused, in_turn, lost]),
            (Merge, [absent, in_turn, pausing, paused, paused, in_turn, lost]),
            (Files, [absent, now, pausing, paused, paused, now, lost]),
            (Connect, [absent, now, pausing, paused, paused, exited, lost]),
            (Capture, [absent, in_turn, pausing, paused, paused, exited, lost]),
            (Pause, [absent, in_turn, pausing, paused, paused, exited, lost]),
            (Resume, [in_turn, here[0], here[1], in_turn, busy, here[2], here[3]]),
            (ForkPaused, [in_turn, here[0], here[1], in_turn, busy, here[2], here[3]]),
            (Settle, [absent, absent, in_turn, in_turn, absent, absent, absent]),
            (Remove, [in_turn, now, in_turn, in_turn, in_turn, now, now]),
        ];
        for (operation, row) in table {
            for (phase, admission) in PHASES.into_iter().zip(row) {
                assert_eq!(admit(phase, operation), admission, "{operation:?} in {phase:?}");
            }
        }
    }

    #[test]
    fn a_denial_names_the_sandbox_and_its_state() {
        let id: SandboxId = "s0123456789ab".parse().unwrap();
        let Err(denial) = admit(Phase::Exited(CODE), Capture) else { panic!() };
        let error = denial.error(&id);
        assert!(matches!(error, Error::NotRunning { state: SandboxState::Exited(CODE), .. }), "{error:?}");
        assert!(matches!(Denial::Absent.error(&id), Error::NoSandbox(of) if of == id));
    }
}
