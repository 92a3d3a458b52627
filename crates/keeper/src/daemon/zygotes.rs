//! The keeper's zygotes: takes them from builders, asks them for copies and passes on what they report.
//!
//! [`starts`] decides; this module performs. Only the keeper has the other end of a parked copy's gate: the copy ends when the keeper does,
//! or when it forgets the zygote.

mod commands;
mod starts;

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, OwnedFd},
};

use base::id::{StartId, ZygoteId};
use process::{Gate, Report, Target, Zygote, ZygoteFacts};

use super::{
    answer::{Answer, Ticket},
    children::{Children, Role},
    identity,
    sandboxes::Sandboxes,
    watch::{Source, Watched, Watcher},
};
use crate::protocol::{Failed, ReleaseCopy, Released, Status};
use starts::Starts;

pub(super) use starts::{Start, Way};

/// The streams of a copy.
type Streams = Vec<OwnedFd>;

struct Held {
    zygote: Zygote,
    /// A duplicate of the zygote's control socket, for the epoll set.
    _control: Watched<OwnedFd>,
    starts: Starts<Streams, Gate>,
    /// Gates that were opened and are to be given away, by the numbers of their starts.
    open: HashMap<StartId, Gate>,
}

/// All zygotes of this keeper.
pub(super) struct Zygotes {
    watcher: Watcher,
    by_number: HashMap<ZygoteId, Held>,
}

impl Zygotes {
    pub(super) fn new(watcher: Watcher) -> Self {
        Self { watcher, by_number: HashMap::new() }
    }

    /// Takes a built zygote.
    pub(super) fn insert(
        &mut self,
        number: ZygoteId,
        facts: ZygoteFacts,
        control: OwnedFd,
        children: &mut Children,
    ) -> io::Result<()> {
        let duplicate = rustix::io::fcntl_dupfd_cloexec(&control, 3)?;
        let watched = self.watcher.watch(duplicate, Source::Zygote(number))?;
        children.watch(facts.pid, Role::Zygote(number))?;
        let zygote = Zygote::from_parts(facts, control);
        self.by_number.insert(number, Held { zygote, _control: watched, starts: Starts::new(), open: HashMap::new() });
        Ok(())
    }

    /// One of them.
    pub(super) fn get(&self, number: ZygoteId) -> Option<&Zygote> {
        self.by_number.get(&number).map(|held| &held.zygote)
    }

    /// Whether any start is under way.
    pub(super) fn busy(&self) -> bool {
        self.by_number.values().any(|held| held.starts.is_busy())
    }

    /// Queues a start and asks for as many as the zygote takes.
    pub(super) fn start(&mut self, number: ZygoteId, start: Start<Streams>, sandboxes: &Sandboxes) -> Vec<Answer> {
        let Some(held) = self.by_number.get_mut(&number) else {
            return vec![start.ticket.fail(Failed::zygote_gone("its zygote is gone"))];
        };
        held.starts.push(start);
        held.advance(sandboxes)
    }

    /// Lets a parked copy continue.
    pub(super) fn release(&mut self, call: &ReleaseCopy, ticket: Ticket<Released>) -> Vec<Answer> {
        match self.by_number.get_mut(&call.zygote) {
            Some(held) => held.release(call, ticket).into_iter().collect(),
            None => vec![ticket.fail(Failed::zygote_gone("its zygote is gone"))],
        }
    }

    /// Reads what the zygote reports.
    pub(super) fn on_report(
        &mut self,
        number: ZygoteId,
        sandboxes: &Sandboxes,
        children: &mut Children,
    ) -> Vec<Answer> {
        let mut answers = Vec::new();
        let Some(held) = self.by_number.get_mut(&number) else { return answers };
        loop {
            match held.zygote.next_report() {
                Ok(Some(Report::Forked { start, pid })) => answers.extend(held.forked(start, pid, children)),
                Ok(Some(Report::Ready { start })) => answers.extend(held.ready(start, children)),
                Ok(Some(Report::Failed { start, step, errno })) => {
                    let failed = Failed::step(format!("{step}: {}", io::Error::from_raw_os_error(errno)));
                    answers.extend(held.starts.failed(start, failed));
                }
                Ok(None) => break,
                Ok(Some(Report::Gone)) => {
                    answers.extend(self.lose(number, "its zygote died during the start"));
                    return answers;
                }
                Err(error) => {
                    let reason = format!("the zygote is not understood: {}", base::error::chain(&error));
                    answers.extend(self.lose(number, &reason));
                    children.drop_role(&Role::Zygote(number));
                    return answers;
                }
            }
        }
        answers.extend(held.advance(sandboxes));
        answers
    }

    /// A program ended. If it was a copy, its start has failed.
    pub(super) fn on_program_ended(&mut self, pid: i32, status: Status) -> Vec<Answer> {
        self.by_number.values_mut().filter_map(|held| held.starts.process_ended(pid, status)).collect()
    }

    /// Forgets a zygote. Every start that waits for it fails with `reason`.
    pub(super) fn lose(&mut self, number: ZygoteId, reason: &str) -> Vec<Answer> {
        self.by_number.remove(&number).map_or_else(Vec::new, |held| held.starts.lose(reason))
    }
}

impl Held {
    fn advance(&mut self, sandboxes: &Sandboxes) -> Vec<Answer> {
        let mut answers = Vec::new();
        while let Some(start) = self.starts.next() {
            let Some(sandbox) = sandboxes.get(&start.sandbox) else {
                answers.push(start.ticket.fail(Failed::no_sandbox(&start.sandbox)));
                continue;
            };
            let streams = start.files.iter().map(AsFd::as_fd).collect();
            let target = Target { init: sandbox.init_pidfd(), cgroup: sandbox.cgroup_fd(), streams };
            match self.ask(&start, &target) {
                Ok(gate) => self.starts.asked(start, gate),
                Err(process::Error::ZygoteGone) => {
                    answers.push(start.ticket.fail(Failed::zygote_gone("its zygote died")));
                }
                Err(error) => answers.push(start.ticket.fail(Failed::of(&error))),
            }
        }
        answers
    }

    /// Asks the zygote for a copy. A copy that will park has a gate.
    fn ask(&self, start: &Start<Streams>, target: &Target<'_>) -> Result<Option<Gate>, process::Error> {
        match start.way {
            Way::AtOnce => self.zygote.request_start(start.start, target).map(|()| None),
            Way::Stepping => self.zygote.start_by_stepping(start.start, target).map(|()| None),
            Way::Parked => self.zygote.request_parked(start.start, target).map(Some),
        }
    }

    fn release(&mut self, call: &ReleaseCopy, ticket: Ticket<Released>) -> Option<Answer> {
        let start = call.start;
        let gate = match self.starts.release(start, ticket) {
            Ok(gate) => gate,
            Err(answer) => return Some(answer),
        };
        if let Err(error) = self.zygote.open(&gate) {
            return self.starts.failed(start, Failed::of(&error));
        }
        // Those of copies that have ended meanwhile.
        self.open.retain(|start, _| self.starts.copy_of(*start).is_some());
        if call.hold {
            self.open.insert(start, gate);
        }
        None
    }

    /// A copy goes on. Its commands are watched before anything else is: one that has ended by now is not reaped as a stray.
    fn ready(&mut self, start: StartId, children: &mut Children) -> Option<Answer> {
        let wanted = &self.zygote.facts.commands;
        let found = match self.starts.copy_of(start).filter(|_| !wanted.is_empty()) {
            Some((sandbox, copy)) => commands::watch(children, &sandbox, copy, wanted),
            None => Ok((Vec::new(), Vec::new())),
        };
        match found {
            Ok((commands, mut files)) => {
                files.extend(self.open.remove(&start).map(OwnedFd::from));
                self.starts.ready(start, commands, files)
            }
            Err(error) => self.starts.failed(start, Failed::of(&error)),
        }
    }

    fn forked(&mut self, start: StartId, pid: i32, children: &mut Children) -> Option<Answer> {
        let main = !self.zygote.facts.without_program;
        let role = Role::Program { id: self.starts.awaits_copy(start)?.clone(), main };
        let watched = children.watch(pid, role);
        // The identity is read here because the copy is still at work: later, the answer would wait for it.
        let copy = watched.and_then(|_| identity(pid)).map_err(|error| Failed::of(&error));
        self.starts.forked(start, copy)
    }
}
