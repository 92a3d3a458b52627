//! The keeper's zygotes and the starts that are under way in them.
//!
//! ```text
//! Start -> queued -> requested -> Forked (process watched) and Ready, in either order -> Started
//!             \__________\______________\___________________ Failed, Gone, or the copy died -> Failed
//! ```

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::{AsFd, OwnedFd},
};

use base::id::SandboxId;
use process::{Report, Target, Zygote, ZygoteFacts};
use sandbox::ProcessIdentity;

use super::{
    children::{Children, Role},
    identity,
    message::{Reply, Status},
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
    /// By the stepping interpreter, which takes its milliseconds at once.
    pub(super) stepping: bool,
    pub(super) stdio: [OwnedFd; 3],
}

/// A start that the zygote works on.
struct Requested {
    seq: u64,
    id: SandboxId,
    /// The copy, once it is forked.
    copy: Option<ProcessIdentity>,
    /// The copy goes on in the program.
    ready: bool,
}

struct Held {
    zygote: Zygote,
    /// A duplicate of the zygote's control socket, for the epoll set.
    _control: Watched<OwnedFd>,
    queued: VecDeque<Start>,
    requested: HashMap<u64, Requested>,
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
            Held { zygote, _control: control_watch, queued: VecDeque::new(), requested: HashMap::new() },
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
                        self.lose(number, &format!("the zygote is not understood: {}", crate::error::chain(&error))),
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
        let died = |requested: &mut Requested| requested.copy.is_some_and(|copy| copy.pid == pid);
        self.by_number
            .values_mut()
            .flat_map(|held| held.requested.extract_if(|_, requested| died(requested)).collect::<Vec<_>>())
            .map(|(_, requested)| (requested.seq, step_failed(format!("the copy {status} during its start"))))
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

fn step_failed(message: String) -> Reply {
    Reply::Failed { kind: super::message::FailureKind::Step, message }
}

impl Held {
    fn advance(&mut self, sandboxes: &Sandboxes) -> Answers {
        let mut answers = Vec::new();
        while self.requested.len() < STARTS_REQUESTED_MAX {
            let Some(Start { seq, id, start, stepping, stdio }) = self.queued.pop_front() else { break };
            let Some(sandbox) = sandboxes.get(&id) else {
                answers.push((seq, Reply::no_sandbox(&id)));
                continue;
            };
            let target = target(sandbox, &stdio);
            let requested = if stepping {
                self.zygote.start_by_stepping(start, &target)
            } else {
                self.zygote.request_start(start, &target)
            };
            match requested {
                Ok(()) => drop(self.requested.insert(start, Requested { seq, id, copy: None, ready: false })),
                Err(process::Error::ZygoteGone) => answers.push((seq, Reply::zygote_gone("its zygote died"))),
                Err(error) => answers.push((seq, Reply::failed(&error))),
            }
        }
        answers
    }

    fn forked(&mut self, start: u64, pid: i32, children: &mut Children) -> Answers {
        let Some(requested) = self.requested.get_mut(&start) else { return Vec::new() };
        let watched = children.watch(pid, Role::Program { id: requested.id.clone(), main: true });
        // Now, while the copy is still at work, and not when everybody waits for the answer.
        match watched.and_then(|_| identity(pid)) {
            Ok(copy) => {
                requested.copy = Some(copy);
                self.complete(start)
            }
            Err(error) => self.answer(start, Reply::failed(&error)),
        }
    }

    fn ready(&mut self, start: u64) -> Answers {
        if let Some(requested) = self.requested.get_mut(&start) {
            requested.ready = true;
        }
        self.complete(start)
    }

    /// The helper reports the fork and the copy reports that it is ready: two processes, so either may be first.
    fn complete(&mut self, start: u64) -> Answers {
        match self.requested.get(&start) {
            Some(Requested { copy: Some(copy), ready: true, .. }) => {
                let main = *copy;
                self.answer(start, Reply::Started { main })
            }
            Some(_) | None => Vec::new(),
        }
    }

    fn failed(&mut self, start: u64, step: &str, errno: i32) -> Answers {
        self.answer(start, step_failed(format!("{step}: {}", io::Error::from_raw_os_error(errno))))
    }

    fn answer(&mut self, start: u64, reply: Reply) -> Answers {
        self.requested.remove(&start).map(|requested| (requested.seq, reply)).into_iter().collect()
    }
}
