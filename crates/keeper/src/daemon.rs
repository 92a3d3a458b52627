//! The keeper: a single-threaded process that owns every sandbox process of the node.
//!
//! ```text
//! server ==SEQPACKET, see protocol::wire=> keeper --+-- sandboxes (pid 1 of each), programs, commands
//!                                                    +-- zygotes (parked; control socket each)
//!                                                    +-- builders (forked keepers that build one zygote each)
//! ```
//!
//! The keeper is a process of its own because setns(2), fork(2) and ptrace(2) do not work in a runtime with threads. It is the subreaper of all
//! processes below it. It holds nothing that must survive: when the server ends, the keeper exits and its zygotes follow. The sandboxes run on,
//! and the next keeper adopts them. No step of the keeper's loop waits longer than a few milliseconds.

mod answer;
mod builder;
mod children;
mod sandboxes;
mod watch;
mod zygotes;

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use base::id::ZygoteId;
use sandbox::{Cgroups, ProcessIdentity};

use crate::protocol::{Call, Event, Failed, Files, FromKeeper, Interpreter, Request, Sent, Status, wire};
use answer::{Answer, Ticket};
use builder::{Builders, Finished};
use children::{Child, Children, Role};
use sandboxes::{Dying, Sandboxes};
use watch::{Source, Watched, Watcher};
use zygotes::{Start, Way, Zygotes};

/// How often the keeper looks for strays, and processes that ended before they could be reaped, in milliseconds.
const TICK_MS: i64 = 1_000;

/// How often the keeper looks at sandboxes that are being removed, in milliseconds.
const DYING_TICK_MS: i64 = 1;

/// Requests that the keeper performs before it looks at anything else.
const REQUESTS_AT_ONCE: usize = 64;

/// Why the keeper ended before its server did.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum KeeperError {
    #[error("the keeper cannot prepare its control groups")]
    Cgroups(#[source] sandbox::Error),
    #[error("the keeper cannot {0}")]
    System(&'static str, #[source] io::Error),
    #[error("the server is gone")]
    ServerGone,
}

/// Runs the keeper on its end of the server's socket until the server is gone. If `memory_nodes` names any NUMA nodes, zygotes take their memory
/// from them.
pub fn run(server: OwnedFd, node_id: &str, memory_nodes: Vec<u32>) -> Result<(), KeeperError> {
    crate::descriptor::raise_limit();
    crate::protect_from_memory_shortage();
    let subreaper = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    subreaper.map_err(|errno| KeeperError::System("become the reaper of its descendants", errno.into()))?;
    let cgroups = Cgroups::open(node_id).map_err(KeeperError::Cgroups)?;
    let watcher = Watcher::new().map_err(|error| KeeperError::System("make its epoll set", error))?;
    let server =
        watcher.watch(server, Source::Server).map_err(|error| KeeperError::System("watch its socket", error))?;
    // Asked once, before any builder is forked: a kernel that lacks the feature logs a message for each question.
    sandbox::takes_detached_layers();
    // Never dropped: bare sandboxes end with this process, and the next keeper sweeps their remains. Removing each here would delay the exit.
    let mut keeper = std::mem::ManuallyDrop::new(Keeper {
        server,
        sandboxes: Sandboxes::new(cgroups),
        zygotes: Zygotes::new(watcher.clone()),
        builders: Builders::new(watcher.clone(), memory_nodes),
        children: Children::new(watcher.clone()),
        buffer: vec![0; wire::BUFFER_BYTES],
    });
    loop {
        let timeout = match keeper.sandboxes.dying() {
            Dying::None => TICK_MS,
            Dying::Waiting => DYING_TICK_MS,
            Dying::Ready => 0,
        };
        let sources = watcher.wait(Some(timeout)).map_err(|error| KeeperError::System("wait", error))?;
        let idle = sources.is_empty();
        for source in sources {
            match keeper.on_ready(source) {
                Ok(Flow::Continue) => {}
                Ok(Flow::Stop) | Err(KeeperError::ServerGone) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        for (child, status) in keeper.children.ended_late() {
            keeper.on_ended(child, status)?;
        }
        match keeper.finish_dying() {
            Err(KeeperError::ServerGone) => return Ok(()),
            finished => finished?,
        }
        if idle {
            keeper.reap_strays();
        }
    }
}

/// The identity of a running process.
fn identity(pid: i32) -> io::Result<ProcessIdentity> {
    ProcessIdentity::of(pid).ok_or_else(|| io::Error::other(format!("process {pid} is gone")))
}

enum Flow {
    Continue,
    Stop,
}

struct Keeper {
    server: Watched<OwnedFd>,
    sandboxes: Sandboxes,
    zygotes: Zygotes,
    builders: Builders,
    children: Children,
    buffer: Vec<u8>,
}

impl Keeper {
    fn on_ready(&mut self, source: Source) -> Result<Flow, KeeperError> {
        match source {
            Source::Server => return self.on_requests(),
            Source::Process(serial) => {
                if let Some((child, status)) = self.children.ended(serial) {
                    self.on_ended(child, status)?;
                }
            }
            Source::Builder(zygote) => {
                let captured = self.builders.on_result(zygote);
                self.answer_all(captured)?;
            }
            Source::Zygote(zygote) => {
                let answers = self.zygotes.on_report(zygote, &self.sandboxes, &mut self.children);
                self.answer_all(answers)?;
            }
        }
        Ok(Flow::Continue)
    }

    /// Performs the requests that wait, up to a bound. Of many removals, all sandboxes are killed before the first is waited for.
    fn on_requests(&mut self) -> Result<Flow, KeeperError> {
        for _ in 0..REQUESTS_AT_ONCE {
            if let Flow::Stop = self.on_request()? {
                return Ok(Flow::Stop);
            }
            if !children::is_readable(self.server.get()) {
                break;
            }
        }
        Ok(Flow::Continue)
    }

    fn on_request(&mut self) -> Result<Flow, KeeperError> {
        let received = wire::receive(self.server.get(), &mut self.buffer);
        let received = received.map_err(|error| KeeperError::System("read the server's message", error))?;
        let Some(wire::Received { seq, body, descriptors }) = received else { return Ok(Flow::Stop) };
        match body {
            Ok(Sent { origin, request }) => {
                // A builder that is forked meanwhile keeps the span.
                let _span = origin.map(|id| tracing::info_span!("request", request = %id).entered());
                self.perform(seq, request, descriptors)?;
            }
            Err(problem) => {
                tracing::error!(seq, problem, "a message of the server is not understood");
                let failed = Failed::step(format!("the keeper does not understand the request: {problem}"));
                self.answer(Ticket::<()>::new(seq).fail(failed))?;
            }
        }
        Ok(Flow::Continue)
    }

    fn perform(&mut self, seq: u64, request: Request, files: Vec<OwnedFd>) -> Result<(), KeeperError> {
        let Self { sandboxes, zygotes, builders, children, .. } = self;
        let answers = match request {
            Request::CreateSandbox(call) => {
                now(seq, call, files, |call, output| sandboxes.create(&call.spec, call.machine, &output))
            }
            Request::CreateBare(call) => {
                now(seq, call, files, |call, []| sandboxes.create_bare(&call.sandbox, &call.dir))
            }
            Request::Furnish(call) => now(seq, call, files, |call, output| sandboxes.furnish(&call.spec, &output)),
            Request::MakeMountPoints(call) => now(seq, call, files, |call, []| sandboxes.make_mount_points(&call)),
            Request::AttachMounts(call) => {
                now(seq, call, files, |call, mounts| sandboxes.attach(&call.sandbox, &call.paths, &mounts))
            }
            Request::Thaw(call) => now(seq, call, files, |call, []| sandboxes.thaw(&call.sandbox)),
            Request::Adopt(call) => {
                now(seq, call, files, |call, []| sandboxes.adopt(&call.spec, call.init, call.main, children))
            }
            Request::BindLimits(call) => now(seq, call, files, |call, []| sandboxes.bind_limits(&call.sandboxes)),
            Request::Spawn(call) => later(seq, call, files, |call, stdio, ticket| {
                let answer = match sandboxes.spawn(&call, &stdio, children) {
                    Ok((forked, pidfd)) => ticket.done_with(forked, vec![pidfd]),
                    Err(failed) => ticket.fail(failed),
                };
                vec![answer]
            }),
            Request::StartHand(call) => {
                now(seq, call, files, |call, [socket]| sandboxes.start_hand(&call, socket, children))
            }
            Request::DestroySandbox(call) => {
                // They hold its mounts. The server has ended those that it knows of.
                children.kill_role(&Role::Hand(call.sandbox.clone()));
                later(seq, call, files, |call, [], ticket| sandboxes.destroy(ticket, call.sandbox))
            }
            Request::Capture(call) => later(seq, call, files, |call, [], ticket| {
                let Some(sandbox) = sandboxes.get(&call.source.sandbox) else {
                    return vec![ticket.fail(Failed::no_sandbox(&call.source.sandbox))];
                };
                let base = call.base.zygote.and_then(|number| zygotes.get(number));
                builders.capture(ticket, &call, sandbox, base, children)
            }),
            Request::RestoreZygote(call) => {
                later(seq, call, files, |call, [parcel], ticket| builders.restore(ticket, &call, &parcel, children))
            }
            Request::StartCopy(call) => later(seq, call, files, |call, files, ticket| {
                let way = match call.interpreter {
                    Interpreter::InProcess => Way::AtOnce,
                    Interpreter::Stepping => Way::Stepping,
                };
                let start = Start { ticket, sandbox: call.sandbox, start: call.start, way, files };
                zygotes.start(call.zygote, start, sandboxes)
            }),
            Request::ParkCopy(call) => later(seq, call, files, |call, files, ticket| {
                let start = Start { ticket, sandbox: call.sandbox, start: call.start, way: Way::Parked, files };
                zygotes.start(call.zygote, start, sandboxes)
            }),
            Request::ReleaseCopy(call) => later(seq, call, files, |call, [], ticket| zygotes.release(&call, ticket)),
            Request::DropZygote(call) => {
                later(seq, call, files, |call, [], ticket| self.drop_zygote(ticket, call.zygote))
            }
        };
        self.answer_all(answers)
    }

    fn drop_zygote(&mut self, ticket: Ticket<()>, zygote: ZygoteId) -> Vec<Answer> {
        let mut answers: Vec<_> = self.builders.cancel(zygote).into_iter().collect();
        // If the builder left the sandbox frozen, the sandbox is thawed at the builder's end.
        self.children.kill_role(&Role::Builder(zygote));
        answers.extend(self.zygotes.lose(zygote, "the zygote was dropped"));
        self.children.drop_role(&Role::Zygote(zygote));
        answers.push(ticket.done(()));
        answers
    }

    fn on_ended(&mut self, child: Child, status: Status) -> Result<(), KeeperError> {
        match child.role {
            Role::Program { id, main } => {
                let answers = self.zygotes.on_program_ended(child.pid, status);
                self.answer_all(answers)?;
                self.event(Event::Exited { sandbox: id, pid: child.pid, main, status })
            }
            Role::Zygote(zygote) => {
                // Reports that the zygote sent before it died still count.
                let answers = self.zygotes.on_report(zygote, &self.sandboxes, &mut self.children);
                self.answer_all(answers)?;
                let answers = self.zygotes.lose(zygote, &format!("its zygote {status} during the start"));
                self.answer_all(answers)?;
                self.event(Event::ZygoteLost { zygote, status })
            }
            Role::Builder(zygote) => match self.builders.finish(zygote, status) {
                Some(finished) => self.take_built(zygote, finished),
                None => Ok(()),
            },
            Role::Hand(id) => self.event(Event::Exited { sandbox: id, pid: child.pid, main: false, status }),
            Role::Dropped => Ok(()),
        }
    }

    fn take_built(&mut self, zygote: ZygoteId, finished: Finished) -> Result<(), KeeperError> {
        let Finished { ticket, outcome, frozen, built, file } = finished;
        if let Some(id) = frozen {
            // It fails only for a sandbox that was removed in between.
            let _ = self.sandboxes.thaw(&id);
        }
        // A zygote whose build was cancelled ends when its control socket is closed here.
        let Some(ticket) = ticket else { return Ok(()) };
        let taken = built.map(|(facts, control)| self.zygotes.insert(zygote, facts, control, &mut self.children));
        self.answer(match taken {
            Some(Err(error)) => ticket.fail(Failed::of(&error)),
            Some(Ok(())) | None => Answer { files: file.into_iter().collect(), ..ticket.answer(outcome) },
        })
    }

    fn finish_dying(&mut self) -> Result<(), KeeperError> {
        let answers = self.sandboxes.finish_dying(&self.children);
        self.answer_all(answers)
    }

    fn reap_strays(&mut self) {
        if !self.zygotes.busy() && !self.children.has_builders() {
            self.children.reap_strays(|pid| self.sandboxes.is_init(pid));
        }
    }

    fn answer_all(&self, answers: impl IntoIterator<Item = Answer>) -> Result<(), KeeperError> {
        answers.into_iter().try_for_each(|answer| self.answer(answer))
    }

    /// An answer that cannot be sent, for example because a file is too many, becomes the failure of its request.
    fn answer(&self, Answer { seq, message, files }: Answer) -> Result<(), KeeperError> {
        match self.send(seq, &message, &files) {
            Err(KeeperError::System(action, error)) => {
                tracing::error!(seq, action, %error, "an answer cannot be sent");
                let failed = Failed::step(format!("the keeper cannot {action}: {error}"));
                self.send(seq, &FromKeeper::Failed(failed), &[])
            }
            sent => sent,
        }
    }

    fn event(&self, event: Event) -> Result<(), KeeperError> {
        self.send(0, &FromKeeper::Event(event), &[])
    }

    fn send(&self, seq: u64, message: &FromKeeper, files: &[OwnedFd]) -> Result<(), KeeperError> {
        let descriptors: Vec<_> = files.iter().map(|fd| fd.as_fd()).collect();
        wire::send(self.server.get(), seq, message, &descriptors).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => KeeperError::ServerGone,
            _ => KeeperError::System("answer the server", error),
        })
    }
}

/// Performs a request that is answered at once.
fn now<C: Call>(
    seq: u64,
    call: C,
    files: Vec<OwnedFd>,
    perform: impl FnOnce(C, C::Files) -> Result<C::Reply, Failed>,
) -> Vec<Answer> {
    later(seq, call, files, |call, files, ticket: Ticket<C::Reply>| vec![ticket.answer(perform(call, files))])
}

/// Performs a request that keeps its ticket until it can be answered. Returns the answers that are due now.
fn later<C: Call>(
    seq: u64,
    call: C,
    files: Vec<OwnedFd>,
    perform: impl FnOnce(C, C::Files, Ticket<C::Reply>) -> Vec<Answer>,
) -> Vec<Answer> {
    let ticket = Ticket::new(seq);
    match C::Files::take(files) {
        Some(files) => perform(call, files, ticket),
        None => vec![ticket.fail(Failed::step("the request came without its files"))],
    }
}
