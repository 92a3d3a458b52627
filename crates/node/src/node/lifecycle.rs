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
    /// Connect to a port in it.
    Connect,
    /// Capture it for a fork or a checkpoint. It goes on.
    Capture,
    /// Pause it.
    Pause,
    /// Resume it.
    Resume,
    /// Remove it.
    Remove,
    /// Bring to its end what an earlier node, or an earlier attempt, was in the middle of: a pause or a resume.
    Settle,
}

/// Whether an operation may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// At once, beside whatever else is done with the sandbox.
    Now,
    /// Alone, when those that were asked for earlier are done.
    InTurn,
    /// Not in this phase.
    Deny(Denial),
}

/// Why not.
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
pub(crate) fn admit(phase: Phase, operation: Operation) -> Admission {
    match operation {
        Operation::Command => match phase {
            // A sandbox outlives its program.
            Phase::Running | Phase::Exited(_) => Admission::InTurn,
            Phase::Absent | Phase::Pausing | Phase::Paused | Phase::Resuming | Phase::Lost => not_running(phase),
        },
        Operation::Connect => if_running(phase, Admission::Now),
        Operation::Capture | Operation::Pause => if_running(phase, Admission::InTurn),
        Operation::Resume => match phase {
            // Another node may have paused it.
            Phase::Absent | Phase::Paused => Admission::InTurn,
            Phase::Resuming => Admission::Deny(Denial::BeingResumed),
            Phase::Running => Admission::Deny(Denial::NotPaused(SandboxState::Running)),
            Phase::Pausing => Admission::Deny(Denial::NotPaused(SandboxState::Pausing)),
            Phase::Exited(status) => Admission::Deny(Denial::NotPaused(SandboxState::Exited(status))),
            Phase::Lost => Admission::Deny(Denial::NotPaused(SandboxState::Lost)),
        },
        Operation::Settle => match phase {
            Phase::Pausing | Phase::Paused => Admission::InTurn,
            Phase::Absent | Phase::Running | Phase::Resuming | Phase::Exited(_) | Phase::Lost => {
                Admission::Deny(Denial::Absent)
            }
        },
        Operation::Remove => match phase {
            // What runs can be ended at any time: a capture that does not come to its end must not keep it.
            Phase::Running | Phase::Exited(_) | Phase::Lost => Admission::Now,
            // What the store has of it is settled first.
            Phase::Absent | Phase::Pausing | Phase::Paused | Phase::Resuming => Admission::InTurn,
        },
    }
}

fn if_running(phase: Phase, admission: Admission) -> Admission {
    match phase {
        Phase::Running => admission,
        Phase::Absent | Phase::Pausing | Phase::Paused | Phase::Resuming | Phase::Exited(_) | Phase::Lost => {
            not_running(phase)
        }
    }
}

fn not_running(phase: Phase) -> Admission {
    Admission::Deny(match phase {
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
    use super::{Admission::*, Operation::*, *};

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
        let absent = Deny(Denial::Absent);
        let off = |state| Deny(Denial::NotRunning(state));
        let on = |state| Deny(Denial::NotPaused(state));
        let busy = Deny(Denial::BeingResumed);
        let (pausing, paused, exited, lost) = (off(S::Pausing), off(S::Paused), off(S::Exited(CODE)), off(S::Lost));
        let here = [on(S::Running), on(S::Pausing), on(S::Exited(CODE)), on(S::Lost)];
        let table = [
            (Command, [absent, InTurn, pausing, paused, paused, InTurn, lost]),
            (Connect, [absent, Now, pausing, paused, paused, exited, lost]),
            (Capture, [absent, InTurn, pausing, paused, paused, exited, lost]),
            (Pause, [absent, InTurn, pausing, paused, paused, exited, lost]),
            (Resume, [InTurn, here[0], here[1], InTurn, busy, here[2], here[3]]),
            (Settle, [absent, absent, InTurn, InTurn, absent, absent, absent]),
            (Remove, [InTurn, Now, InTurn, InTurn, InTurn, Now, Now]),
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
        let Deny(denial) = admit(Phase::Exited(CODE), Capture) else { panic!() };
        let error = denial.error(&id);
        assert!(matches!(error, Error::NotRunning { state: SandboxState::Exited(CODE), .. }), "{error:?}");
        assert!(matches!(Denial::Absent.error(&id), Error::NoSandbox(of) if of == id));
    }
}
