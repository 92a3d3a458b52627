//! The starts of one zygote, as a state machine without system calls.
//!
//! ```text
//!                       asked               Forked, then Ready
//! StartCopy ──> queued ───────> starting ──────────────────────────> done
//!                                  │  └──Ready, then Forked────────> done
//!
//!                       asked               Forked              ReleaseCopy             Ready
//! ParkCopy ───> queued ───────> parking ────────────> parked ───────────────> released ───────> done
//!                                                    (answered)
//! ```
//!
//! From every state: a failed step, the end of the copy or the loss of the zygote ends the start. If a request waits then, it fails. A parked
//! copy has no request that waits: its release fails later.
//!
//! The driver performs: it takes a start with [`Starts::next`], asks the zygote, and calls [`Starts::asked`]. It passes on what the zygote
//! reports. `F` is what a queued start brings along, and `G` is the gate of a parked copy. If a gate is dropped, its copy ends.

use std::{
    collections::{HashMap, VecDeque},
    os::fd::OwnedFd,
};

use base::id::{SandboxId, StartId};
use sandbox::ProcessIdentity;

use super::super::answer::{Answer, Ticket};
use crate::protocol::{Failed, Forked, ForkedCommand, Released, Status};

/// Starts that one zygote works on at a time. Their messages and reports stay well below the socket buffers, so neither side ever blocks.
pub(super) const REQUESTED_MAX: usize = 32;

/// A start that the server asked for.
#[derive(Debug)]
pub(in crate::daemon) struct Start<F> {
    pub(in crate::daemon) ticket: Ticket<Forked>,
    pub(in crate::daemon) sandbox: SandboxId,
    pub(in crate::daemon) start: StartId,
    pub(in crate::daemon) way: Way,
    /// What the driver needs to ask the zygote.
    pub(in crate::daemon) files: F,
}

/// How a copy is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::daemon) enum Way {
    /// It runs as soon as it can.
    AtOnce,
    /// As `AtOnce`, by the stepping interpreter. The keeper waits until that has finished.
    Stepping,
    /// It waits until it is released.
    Parked,
}

/// How far a start is that the zygote or its copy works on.
#[derive(Debug)]
enum Phase<G> {
    /// Its copy runs as soon as it can.
    Starting { ticket: Ticket<Forked>, sandbox: SandboxId, copy: Option<ProcessIdentity>, ready: bool },
    /// Its copy will wait at the gate.
    Parking { ticket: Ticket<Forked>, sandbox: SandboxId, gate: G },
    /// Its gate was opened.
    Released { ticket: Ticket<Released>, sandbox: SandboxId, copy: ProcessIdentity },
}

impl<G> Phase<G> {
    fn copy(&self) -> Option<ProcessIdentity> {
        match self {
            Self::Starting { copy, .. } => *copy,
            Self::Parking { .. } => None,
            Self::Released { copy, .. } => Some(*copy),
        }
    }

    fn fail(self, failed: Failed) -> Answer {
        match self {
            Self::Starting { ticket, .. } | Self::Parking { ticket, .. } => ticket.fail(failed),
            Self::Released { ticket, .. } => ticket.fail(failed),
        }
    }
}

/// A copy that waits at its gate.
#[derive(Debug)]
struct Parked<G> {
    sandbox: SandboxId,
    copy: ProcessIdentity,
    gate: G,
}

/// All starts of one zygote.
#[derive(Debug)]
pub(super) struct Starts<F, G> {
    queued: VecDeque<Start<F>>,
    requested: HashMap<StartId, Phase<G>>,
    parked: HashMap<StartId, Parked<G>>,
}

impl<F, G> Starts<F, G> {
    pub(super) fn new() -> Self {
        Self { queued: VecDeque::new(), requested: HashMap::new(), parked: HashMap::new() }
    }

    /// Whether a request waits.
    pub(super) fn is_busy(&self) -> bool {
        !self.requested.is_empty() || !self.queued.is_empty()
    }

    /// Queues a start.
    pub(super) fn push(&mut self, start: Start<F>) {
        self.queued.push_back(start);
    }

    /// The start that the zygote is to be asked for now, if the zygote can take one more.
    pub(super) fn next(&mut self) -> Option<Start<F>> {
        if self.requested.len() < REQUESTED_MAX { self.queued.pop_front() } else { None }
    }

    /// The zygote was asked for a start. A copy that will park has a gate.
    pub(super) fn asked(&mut self, start: Start<F>, gate: Option<G>) {
        let Start { ticket, sandbox, start, .. } = start;
        let phase = match gate {
            Some(gate) => Phase::Parking { ticket, sandbox, gate },
            None => Phase::Starting { ticket, sandbox, copy: None, ready: false },
        };
        self.requested.insert(start, phase);
    }

    /// The sandbox of a start whose copy is not known so far.
    pub(super) fn awaits_copy(&self, start: StartId) -> Option<&SandboxId> {
        match self.requested.get(&start)? {
            Phase::Starting { sandbox, copy: None, .. } | Phase::Parking { sandbox, .. } => Some(sandbox),
            Phase::Starting { copy: Some(_), .. } | Phase::Released { .. } => None,
        }
    }

    /// A copy exists; or it cannot be watched, for the given reason.
    pub(super) fn forked(&mut self, start: StartId, copy: Result<ProcessIdentity, Failed>) -> Option<Answer> {
        self.awaits_copy(start)?;
        let phase = self.requested.remove(&start)?;
        let process = match copy {
            Ok(process) => process,
            Err(failed) => return Some(phase.fail(failed)),
        };
        match phase {
            Phase::Parking { ticket, sandbox, gate } => {
                self.parked.insert(start, Parked { sandbox, copy: process, gate });
                Some(ticket.done(Forked::alone(process, 0)))
            }
            // The helper reports the fork and the copy reports that it is ready. These are two processes: either may be first.
            Phase::Starting { ticket, ready: true, .. } => Some(ticket.done(Forked::alone(process, 0))),
            Phase::Starting { ticket, sandbox, ready: false, .. } => {
                let phase = Phase::Starting { ticket, sandbox, copy: Some(process), ready: false };
                self.requested.insert(start, phase);
                None
            }
            released @ Phase::Released { .. } => {
                self.requested.insert(start, released);
                None
            }
        }
    }

    /// The sandbox and the first process of a copy that is about to go on.
    pub(super) fn copy_of(&self, start: StartId) -> Option<(SandboxId, i32)> {
        match self.requested.get(&start)? {
            Phase::Starting { sandbox, copy: Some(copy), .. } | Phase::Released { sandbox, copy, .. } => {
                Some((sandbox.clone(), copy.pid))
            }
            Phase::Starting { copy: None, .. } | Phase::Parking { .. } => None,
        }
    }

    /// A copy has gone on in the program, with these commands and their pidfds.
    pub(super) fn ready(
        &mut self,
        start: StartId,
        commands: Vec<ForkedCommand>,
        pidfds: Vec<OwnedFd>,
    ) -> Option<Answer> {
        match self.requested.remove(&start)? {
            Phase::Starting { ticket, copy: Some(process), .. } => {
                Some(ticket.done_with(Forked { process, inside: 0, commands }, pidfds))
            }
            Phase::Released { ticket, .. } => Some(ticket.done_with(Released { commands }, pidfds)),
            Phase::Starting { ticket, sandbox, copy: None, .. } => {
                let phase = Phase::Starting { ticket, sandbox, copy: None, ready: true };
                self.requested.insert(start, phase);
                None
            }
            parking @ Phase::Parking { .. } => {
                self.requested.insert(start, parking);
                None
            }
        }
    }

    /// A step of a start failed.
    pub(super) fn failed(&mut self, start: StartId, failed: Failed) -> Option<Answer> {
        self.parked.remove(&start);
        self.requested.remove(&start).map(|phase| phase.fail(failed))
    }

    /// Releases a parked copy. The caller opens the gate; if that fails, it calls [`Self::failed`].
    pub(super) fn release(&mut self, start: StartId, ticket: Ticket<Released>) -> Result<G, Answer> {
        let Some(Parked { sandbox, copy, gate }) = self.parked.remove(&start) else {
            return Err(ticket.fail(Failed::step("the copy that was forked ahead has ended")));
        };
        self.requested.insert(start, Phase::Released { ticket, sandbox, copy });
        Ok(gate)
    }

    /// The process `pid` ended. If it was a copy, its start has failed.
    pub(super) fn process_ended(&mut self, pid: i32, status: Status) -> Option<Answer> {
        self.parked.retain(|_, parked| parked.copy.pid != pid);
        let of_pid = |phase: &Phase<G>| phase.copy().is_some_and(|copy| copy.pid == pid);
        let start = self.requested.iter().find(|(_, phase)| of_pid(phase)).map(|(start, _)| *start)?;
        self.requested.remove(&start).map(|phase| phase.fail(Failed::step(status.in_start())))
    }

    /// The zygote is gone. Every request that waits fails with `reason`.
    pub(super) fn lose(self, reason: &str) -> Vec<Answer> {
        let requested = self.requested.into_values().map(|phase| phase.fail(Failed::zygote_gone(reason)));
        let queued = self.queued.into_iter().map(|start| start.ticket.fail(Failed::zygote_gone(reason)));
        requested.chain(queued).collect()
    }
}

#[cfg(test)]
mod tests;
