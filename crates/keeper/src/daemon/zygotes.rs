//! The keeper's zygotes and the starts that are under way in them.
//!
//! ```text
//! Start   -> queued -> requested -> Forked (process watched) and Ready, in either order -> Started
//! Park    -> queued -> requested -> Forked -> parked -> Parked
//! Release -> parked -> requested -> Ready -> Done
//!               \__________\____________\___________________ Failed, Gone, or the copy died -> Failed
//! ```
//!
//! Only the keeper has the other end of a parked copy's gate: the copy ends when the keeper does, or forgets its zygote.

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::{AsFd, OwnedFd},
};

use base::id::SandboxId;
use process::{Gate, Report, Target, Zygote, ZygoteFacts};
use sandbox::ProcessIdentity;

use crate::protocol::{Failed, Forked, Status};

use super::{
    answer::{Answer, Ticket},
    children::{Children, Role},
    identity,
    sandboxes::Sandboxes,
    watch::{Source, Watched, Watcher},
};

/// Starts that one zygote holds at a time: their messages and reports stay well below the socket buffers, so neither side ever blocks.
const STARTS_REQUESTED_MAX: usize = 32;

/// A start as requested by the server.
pub(super) struct Start {
    pub(super) ticket: Ticket<Forked>,
    pub(super) id: SandboxId,
    pub(super) start: u64,
    pub(super) way: Way,
    pub(super) stdio: [OwnedFd; 3],
}

/// How a copy is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// It runs as soon as it can.
    AtOnce,
    /// The same, by the stepping interpreter, which takes its milliseconds at once.
    Stepping,
    /// It waits to be released.
    Parked,
}

/// How far a requested start is.
enum Phase {
    /// It is to run at once: whether the copy is forked, and whether it goes on in the program.
    Starting { ticket: Ticket<Forked>, id: SandboxId, copy: Option<ProcessIdentity>, ready: bool },
    /// It is to be forked and wait.
    Parking { ticket: Ticket<Forked>, id: SandboxId, gate: Gate },
    /// It waited and was let go.
    Released { ticket: Ticket<()>, copy: ProcessIdentity },
}

impl Phase {
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

/// A copy that waits to be released.
struct Parked {
    copy: ProcessIdentity,
    gate: Gate,
}

struct Held {
    zygote: Zygote,
    /// A duplicate of the zygote's control socket, for the epoll set.
    _control: Watched<OwnedFd>,
    queued: VecDeque<Start>,
    requested: HashMap<u64, Phase>,
    parked: HashMap<u64, Parked>,
}

/// All zygotes of this keeper.
pub(super) struct Zygotes {
    watcher: Watcher,
    by_number: HashMap<u64, Held>,
}

/// Answers to requests that were waiting.
pub(super) type Answers = Vec<Answer>;

impl Zygotes {
    pub(super) fn new(watcher: Watcher) -> Self {
        Self { watcher, by_number: HashMap::new() }
    }

    /// Takes a built zygote.
    pub(super) fn insert(
        &mut self,
        number: u64,
        facts: ZygoteFacts,
        control: OwnedFd,
        children: &mut Children,
    ) -> io::Result<()> {
        let duplicate = rustix::io::fcntl_dupfd_cloexec(&control, 3)?;
        let control_watch = self.watcher.watch(duplicate, Source::Zygote(number))?;
        children.watch(facts.pid, Role::Zygote(number))?;
        let zygote = Zygote::from_parts(facts, control);
        self.by_number.insert(
            number,
            Held {
                zygote,
                _control: control_watch,
                queued: VecDeque::new(),
                requested: HashMap::new(),
                parked: HashMap::new(),
            },
        );
        Ok(())
    }

    /// One of them.
    pub(super) fn get(&self, number: u64) -> Option<&Zygote> {
        self.by_number.get(&number).map(|held| &held.zygote)
    }

    /// Whether any start is under way.
    pub(super) fn busy(&self) -> bool {
        self.by_number.values().any(|held| !held.requested.is_empty() || !held.queued.is_empty())
    }

    /// Queues a start and requests as many as the zygote takes.
    pub(super) fn start(&mut self, number: u64, start: Start, sandboxes: &Sandboxes) -> Answers {
        let Some(held) = self.by_number.get_mut(&number) else {
            return vec![start.ticket.fail(Failed::zygote_gone("its zygote is gone"))];
        };
        held.queued.push_back(start);
        held.advance(sandboxes)
    }

    /// Lets a parked copy go on.
    pub(super) fn release(&mut self, number: u64, start: u64, ticket: Ticket<()>) -> Answers {
        match self.by_number.get_mut(&number) {
            Some(held) => held.release(start, ticket).into_iter().collect(),
            None => vec![ticket.fail(Failed::zygote_gone("its zygote is gone"))],
        }
    }

    /// Reads what the zygote reports.
    pub(super) fn on_report(&mut self, number: u64, sandboxes: &Sandboxes, children: &mut Children) -> Answers {
        let mut answers = Vec::new();
        let Some(held) = self.by_number.get_mut(&number) else { return answers };
        loop {
            match held.zygote.next_report() {
                Ok(Some(Report::Forked { start, pid })) => answers.extend(held.forked(start, pid, children)),
                Ok(Some(Report::Ready { start })) => answers.extend(held.ready(start)),
                Ok(Some(Report::Failed { start, step, errno })) => answers.extend(held.failed(start, &step, errno)),
                Ok(None) => break,
                Ok(Some(Report::Gone)) => {
                    answers.extend(self.lose(number, "its zygote died during the start"));
                    return answers;
                }
                Err(error) => {
                    answers.extend(
                        self.lose(number, &format!("the zygote is not understood: {}", base::error::chain(&error))),
                    );
                    children.drop_role(&Role::Zygote(number));
                    return answers;
                }
            }
        }
        answers.extend(held.advance(sandboxes));
        answers
    }

    /// A program ended: a start whose copy it was has failed.
    pub(super) fn on_program_ended(&mut self, pid: i32, status: Status) -> Answers {
        for held in self.by_number.values_mut() {
            held.parked.retain(|_, parked| parked.copy.pid != pid);
        }
        let died = |phase: &mut Phase| phase.copy().is_some_and(|copy| copy.pid == pid);
        self.by_number
            .values_mut()
            .flat_map(|held| held.requested.extract_if(|_, phase| died(phase)).collect::<Vec<_>>())
            .map(|(_, phase)| phase.fail(Failed::step(status.in_start())))
            .collect()
    }

    /// Forgets a zygote; every start that waits for it fails with `reason`.
    pub(super) fn lose(&mut self, number: u64, reason: &str) -> Answers {
        let Some(held) = self.by_number.remove(&number) else { return Vec::new() };
        let requested = held.requested.into_values().map(|phase| phase.fail(Failed::zygote_gone(reason)));
        let queued = held.queued.into_iter().map(|queued| queued.ticket.fail(Failed::zygote_gone(reason)));
        requested.chain(queued).collect()
    }
}

fn target<'a>(sandbox: &'a sandbox::Sandbox, stdio: &'a [OwnedFd; 3]) -> Target<'a> {
    let [stdin, stdout, stderr] = stdio;
    Target {
        init: sandbox.init_pidfd(),
        cgroup: sandbox.cgroup_fd(),
        stdio: [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
    }
}

impl Held {
    fn advance(&mut self, sandboxes: &Sandboxes) -> Answers {
        let mut answers = Vec::new();
        while self.requested.len() < STARTS_REQUESTED_MAX {
            let Some(Start { ticket, id, start, way, stdio }) = self.queued.pop_front() else { break };
            let Some(sandbox) = sandboxes.get(&id) else {
                answers.push(ticket.fail(Failed::no_sandbox(&id)));
                continue;
            };
            match self.request(start, way, &target(sandbox, &stdio)) {
                Ok(gate) => {
                    let phase = match gate {
                        Some(gate) => Phase::Parking { ticket, id, gate },
                        None => Phase::Starting { ticket, id, copy: None, ready: false },
                    };
                    self.requested.insert(start, phase);
                }
                Err(process::Error::ZygoteGone) => answers.push(ticket.fail(Failed::zygote_gone("its zygote died"))),
                Err(error) => answers.push(ticket.fail(Failed::of(&error))),
            }
        }
        answers
    }

    /// Asks the zygote for a copy. A copy that parks has a gate.
    fn request(&self, start: u64, way: Way, target: &Target<'_>) -> Result<Option<Gate>, process::Error> {
        match way {
            Way::AtOnce => self.zygote.request_start(start, target).map(|()| None),
            Way::Stepping => self.zygote.start_by_stepping(start, target).map(|()| None),
            Way::Parked => self.zygote.request_parked(start, target).map(Some),
        }
    }

    fn release(&mut self, start: u64, ticket: Ticket<()>) -> Option<Answer> {
        let Some(Parked { copy, gate }) = self.parked.remove(&start) else {
            return Some(ticket.fail(Failed::step("the copy that was forked ahead has ended")));
        };
        match self.zygote.open(gate) {
            Ok(()) => {
                self.requested.insert(start, Phase::Released { ticket, copy });
                None
            }
            Err(error) => Some(ticket.fail(Failed::of(&error))),
        }
    }

    fn forked(&mut self, start: u64, pid: i32, children: &mut Children) -> Option<Answer> {
        let (Phase::Starting { id, .. } | Phase::Parking { id, .. }) = self.requested.get(&start)? else {
            return None;
        };
        let watched = children.watch(pid, Role::Program { id: id.clone(), main: true });
        // Now, while the copy is still at work, and not when everybody waits for the answer.
        let copy = watched.and_then(|_| identity(pid));
        let phase = self.requested.remove(&start)?;
        let copy = match copy {
            Ok(copy) => copy,
            Err(error) => return Some(phase.fail(Failed::of(&error))),
        };
        match phase {
            Phase::Parking { ticket, gate, .. } => {
                self.parked.insert(start, Parked { copy, gate });
                Some(ticket.done(Forked { process: copy }))
            }
            // The helper reports the fork and the copy reports that it is ready: two processes, so either may be first.
            Phase::Starting { ticket, ready: true, .. } => Some(ticket.done(Forked { process: copy })),
            Phase::Starting { ticket, id, ready, .. } => {
                self.requested.insert(start, Phase::Starting { ticket, id, copy: Some(copy), ready });
                None
            }
            released @ Phase::Released { .. } => {
                self.requested.insert(start, released);
                None
            }
        }
    }

    fn ready(&mut self, start: u64) -> Option<Answer> {
        match self.requested.remove(&start)? {
            Phase::Starting { ticket, copy: Some(copy), .. } => Some(ticket.done(Forked { process: copy })),
            Phase::Released { ticket, .. } => Some(ticket.done(())),
            Phase::Starting { ticket, id, copy: None, .. } => {
                self.requested.insert(start, Phase::Starting { ticket, id, copy: None, ready: true });
                None
            }
            parking @ Phase::Parking { .. } => {
                self.requested.insert(start, parking);
                None
            }
        }
    }

    fn failed(&mut self, start: u64, step: &str, errno: i32) -> Option<Answer> {
        // Nobody waits for a parked copy: whoever releases it is told that it has ended.
        self.parked.remove(&start);
        let failed = Failed::step(format!("{step}: {}", io::Error::from_raw_os_error(errno)));
        self.requested.remove(&start).map(|phase| phase.fail(failed))
    }
}
