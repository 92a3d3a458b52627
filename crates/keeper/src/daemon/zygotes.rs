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

use crate::protocol::message::{Reply, Status};

use super::{
    children::{Children, Role},
    identity,
    sandboxes::Sandboxes,
    watch::{Source, Watched, Watcher},
};

/// Starts that one zygote holds at a time: their messages and reports stay well below the socket buffers, so neither side ever blocks.
const STARTS_REQUESTED_MAX: usize = 32;

/// A start as requested by the server.
pub(super) struct Start {
    pub(super) seq: u64,
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

/// A start that the zygote or its copy works on.
struct Requested {
    seq: u64,
    phase: Phase,
}

/// How far a requested start is.
enum Phase {
    /// It is to run at once: whether the copy is forked, and whether it goes on in the program.
    Starting { id: SandboxId, copy: Option<ProcessIdentity>, ready: bool },
    /// It is to be forked and wait.
    Parking { id: SandboxId, gate: Gate },
    /// It waited and was let go.
    Released { copy: ProcessIdentity },
}

impl Phase {
    fn copy(&self) -> Option<ProcessIdentity> {
        match self {
            Self::Starting { copy, .. } => *copy,
            Self::Parking { .. } => None,
            Self::Released { copy } => Some(*copy),
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
    requested: HashMap<u64, Requested>,
    parked: HashMap<u64, Parked>,
}

/// All zygotes of this keeper.
pub(super) struct Zygotes {
    watcher: Watcher,
    by_number: HashMap<u64, Held>,
}

/// Answers to requests that were waiting.
pub(super) type Answers = Vec<(u64, Reply)>;

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
            return vec![(start.seq, Reply::zygote_gone("its zygote is gone"))];
        };
        held.queued.push_back(start);
        held.advance(sandboxes)
    }

    /// Lets a parked copy go on.
    pub(super) fn release(&mut self, number: u64, start: u64, seq: u64) -> Answers {
        match self.by_number.get_mut(&number) {
            Some(held) => held.release(start, seq).into_iter().collect(),
            None => vec![(seq, Reply::zygote_gone("its zygote is gone"))],
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
        let died = |requested: &mut Requested| requested.phase.copy().is_some_and(|copy| copy.pid == pid);
        self.by_number
            .values_mut()
            .flat_map(|held| held.requested.extract_if(|_, requested| died(requested)).collect::<Vec<_>>())
            .map(|(_, requested)| (requested.seq, Reply::step_failed(status.in_start())))
            .collect()
    }

    /// Forgets a zygote; every start that waits for it fails with `reason`.
    pub(super) fn lose(&mut self, number: u64, reason: &str) -> Answers {
        let Some(held) = self.by_number.remove(&number) else { return Vec::new() };
        let requested = held.requested.into_values().map(|requested| requested.seq);
        let queued = held.queued.into_iter().map(|queued| queued.seq);
        requested.chain(queued).map(|seq| (seq, Reply::zygote_gone(reason))).collect()
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
            let Some(Start { seq, id, start, way, stdio }) = self.queued.pop_front() else { break };
            let Some(sandbox) = sandboxes.get(&id) else {
                answers.push((seq, Reply::no_sandbox(&id)));
                continue;
            };
            let target = target(sandbox, &stdio);
            match self.request(id, start, way, &target) {
                Ok(phase) => drop(self.requested.insert(start, Requested { seq, phase })),
                Err(process::Error::ZygoteGone) => answers.push((seq, Reply::zygote_gone("its zygote died"))),
                Err(error) => answers.push((seq, Reply::failed(&error))),
            }
        }
        answers
    }

    fn request(&self, id: SandboxId, start: u64, way: Way, target: &Target<'_>) -> Result<Phase, process::Error> {
        match way {
            Way::AtOnce => self.zygote.request_start(start, target)?,
            Way::Stepping => self.zygote.start_by_stepping(start, target)?,
            Way::Parked => return Ok(Phase::Parking { id, gate: self.zygote.request_parked(start, target)? }),
        }
        Ok(Phase::Starting { id, copy: None, ready: false })
    }

    fn release(&mut self, start: u64, seq: u64) -> Option<(u64, Reply)> {
        let Some(Parked { copy, gate }) = self.parked.remove(&start) else {
            return Some((seq, Reply::step_failed("the copy that was forked ahead has ended".to_owned())));
        };
        match self.zygote.open(gate) {
            Ok(()) => {
                self.requested.insert(start, Requested { seq, phase: Phase::Released { copy } });
                None
            }
            Err(error) => Some((seq, Reply::failed(&error))),
        }
    }

    fn forked(&mut self, start: u64, pid: i32, children: &mut Children) -> Option<(u64, Reply)> {
        let (Phase::Starting { id, .. } | Phase::Parking { id, .. }) = &self.requested.get(&start)?.phase else {
            return None;
        };
        let watched = children.watch(pid, Role::Program { id: id.clone(), main: true });
        // Now, while the copy is still at work, and not when everybody waits for the answer.
        let copy = match watched.and_then(|_| identity(pid)) {
            Ok(copy) => copy,
            Err(error) => return self.answer(start, Reply::failed(&error)),
        };
        let Requested { seq, phase } = self.requested.remove(&start)?;
        match phase {
            Phase::Parking { gate, .. } => {
                self.parked.insert(start, Parked { copy, gate });
                Some((seq, Reply::Parked { main: copy }))
            }
            // The helper reports the fork and the copy reports that it is ready: two processes, so either may be first.
            Phase::Starting { ready: true, .. } => Some((seq, Reply::Started { main: copy })),
            Phase::Starting { id, ready, .. } => {
                let phase = Phase::Starting { id, copy: Some(copy), ready };
                self.requested.insert(start, Requested { seq, phase });
                None
            }
            Phase::Released { .. } => None,
        }
    }

    fn ready(&mut self, start: u64) -> Option<(u64, Reply)> {
        match &mut self.requested.get_mut(&start)?.phase {
            Phase::Starting { copy: Some(copy), .. } => {
                let main = *copy;
                self.answer(start, Reply::Started { main })
            }
            Phase::Starting { ready, .. } => {
                *ready = true;
                None
            }
            Phase::Released { .. } => self.answer(start, Reply::Done),
            Phase::Parking { .. } => None,
        }
    }

    fn failed(&mut self, start: u64, step: &str, errno: i32) -> Option<(u64, Reply)> {
        // Nobody waits for a parked copy: whoever releases it is told that it has ended.
        self.parked.remove(&start);
        self.answer(start, Reply::step_failed(format!("{step}: {}", io::Error::from_raw_os_error(errno))))
    }

    fn answer(&mut self, start: u64, reply: Reply) -> Option<(u64, Reply)> {
        self.requested.remove(&start).map(|requested| (requested.seq, reply))
    }
}
