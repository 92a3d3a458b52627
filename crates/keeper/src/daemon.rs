//! The keeper: a single-threaded process that owns every sandbox process of the node.
//!
//! ```text
//! server ==SEQPACKET, see protocol::wire=> keeper --+-- sandboxes (pid 1 of each), programs, commands
//!                                                    +-- zygotes (parked; control socket each)
//!                                                    +-- builders (forked keepers that build one zygote each)
//! ```
//!
//! It is its own process because namespaces, forks and traces do not go with a threaded runtime, and it is the subreaper
//! of everything below it. It holds nothing that must survive: when the server goes it exits, its zygotes follow, and the
//! sandboxes run on until the next node adopts them. Nothing in its loop waits longer than a few milliseconds.

mod builder;
mod children;
mod sandboxes;
mod watch;
mod zygotes;

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use base::id::SandboxId;
use sandbox::{Cgroups, ProcessIdentity};

use crate::protocol::{
    message::{self, Event, FromKeeper, Reply, Request, Status},
    wire,
};

use builder::{Builders, Finished};
use children::{Child, Children, Role};
use sandboxes::{Dying, Sandboxes};
use watch::{Source, Watched, Watcher};
use zygotes::{Start, Way, Zygotes};

/// How often it looks for strays and overdue removals, in milliseconds.
const TICK_MS: i64 = 1_000;

/// How often it looks after sandboxes that are being removed, in milliseconds.
const DYING_TICK_MS: i64 = 1;

/// Requests that it performs before it looks at anything else.
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

/// Runs the keeper on its end of the server's socket until the server is gone. Zygotes take their memory from `memory_nodes`, if any are named.
pub fn run(server: OwnedFd, node_id: &str, memory_nodes: Vec<u32>) -> Result<(), KeeperError> {
    crate::descriptor::raise_limit();
    crate::protect_from_memory_shortage();
    let subreaper = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    subreaper.map_err(|errno| KeeperError::System("become the reaper of its descendants", errno.into()))?;
    let cgroups = Cgroups::open(node_id).map_err(KeeperError::Cgroups)?;
    let watcher = Watcher::new().map_err(|error| KeeperError::System("make its epoll set", error))?;
    let server =
        watcher.watch(server, Source::Server).map_err(|error| KeeperError::System("watch its socket", error))?;
    // Asked once for all builders: a kernel whose answer is no complains of the question in its log.
    sandbox::takes_detached_layers();
    // Never dropped: bare sandboxes end with this process, and who comes next sweeps them; nobody should wait until each was removed.
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
        for (child, status) in keeper.children.overdue() {
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
                if let Some(seq) = self.builders.on_result(zygote) {
                    self.reply(seq, Reply::Captured)?;
                }
            }
            Source::Zygote(zygote) => {
                let answers = self.zygotes.on_report(zygote, &self.sandboxes, &mut self.children);
                self.answer_all(answers)?;
            }
        }
        Ok(Flow::Continue)
    }

    /// Takes what waits, up to a bound: of many removals all are killed before the first is waited for.
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
            Ok(request) => self.perform(seq, request, descriptors)?,
            Err(problem) => {
                tracing::error!(seq, problem, "a message of the server is not understood");
                self.reply(seq, Reply::step_failed(format!("the keeper does not understand the request: {problem}")))?;
            }
        }
        Ok(Flow::Continue)
    }

    fn perform(&mut self, seq: u64, request: Request, descriptors: Vec<OwnedFd>) -> Result<(), KeeperError> {
        let reply = match request {
            Request::CreateSandbox { spec, machine } => match <[OwnedFd; 2]>::try_from(descriptors) {
                Ok(output) => self.sandboxes.create(&spec, machine, &output),
                Err(_) => no_descriptors(),
            },
            Request::CreateBare { id, dir } => self.sandboxes.create_bare(&id, &dir),
            Request::Furnish { spec } => match <[OwnedFd; 2]>::try_from(descriptors) {
                Ok(output) => self.sandboxes.furnish(&spec, &output),
                Err(_) => no_descriptors(),
            },
            Request::MakeMountPoints { id, paths } => self.sandboxes.make_mount_points(&id, &paths),
            Request::Attach { id, paths } if paths.len() == descriptors.len() => {
                self.sandboxes.attach(&id, &paths, &descriptors)
            }
            Request::Attach { .. } => no_descriptors(),
            Request::Thaw { id } => self.sandboxes.thaw(&id),
            Request::Adopt { spec, init, main } => self.sandboxes.adopt(&spec, init, main, &mut self.children),
            Request::BindLimits { ids } => self.sandboxes.bind_limits(&ids),
            Request::Spawn { id, command, main } => match <[OwnedFd; 3]>::try_from(descriptors) {
                Ok(stdio) => self.sandboxes.spawn(&id, &command, main, &stdio, &mut self.children),
                Err(_) => no_descriptors(),
            },
            Request::DestroySandbox { id } => match self.sandboxes.destroy(seq, id) {
                Some(reply) => reply,
                None => return Ok(()),
            },
            Request::BuildZygote(job) => match self.build(seq, &job) {
                Some(reply) => reply,
                None => return Ok(()),
            },
            Request::RestoreZygote(job) => match <[OwnedFd; 1]>::try_from(descriptors) {
                Ok([parcel]) => match self.builders.restore(seq, &job, &parcel, &mut self.children) {
                    Ok(()) => return Ok(()),
                    Err(error) => Reply::failed(&error),
                },
                Err(_) => no_descriptors(),
            },
            Request::Start { zygote, id, start, stepping } => {
                let way = if stepping { Way::Stepping } else { Way::AtOnce };
                return self.start(zygote, (seq, id, start, way), descriptors);
            }
            Request::Park { zygote, id, start } => {
                return self.start(zygote, (seq, id, start, Way::Parked), descriptors);
            }
            Request::Release { zygote, start } => {
                let answers = self.zygotes.release(zygote, start, seq);
                return self.answer_all(answers);
            }
            Request::DropZygote { zygote } => return self.drop_zygote(seq, zygote),
        };
        self.reply(seq, reply)
    }

    fn start(
        &mut self,
        zygote: u64,
        (seq, id, start, way): (u64, SandboxId, u64, Way),
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), KeeperError> {
        let Ok(stdio) = <[OwnedFd; 3]>::try_from(descriptors) else { return self.reply(seq, no_descriptors()) };
        let answers = self.zygotes.start(zygote, Start { seq, id, start, way, stdio }, &self.sandboxes);
        self.answer_all(answers)
    }

    /// Nothing to answer yet, unless it failed at once.
    fn build(&mut self, seq: u64, job: &message::BuildZygote) -> Option<Reply> {
        let Some(sandbox) = self.sandboxes.get(&job.id) else { return Some(Reply::no_sandbox(&job.id)) };
        let base = job.base.and_then(|number| self.zygotes.get(number));
        self.builders.build(seq, job, sandbox, base, &mut self.children).err().map(|error| Reply::failed(&error))
    }

    fn drop_zygote(&mut self, seq: u64, zygote: u64) -> Result<(), KeeperError> {
        let cancelled = self.builders.cancel(zygote);
        self.answer_all(cancelled.into_iter().collect())?;
        // What it has left frozen is thawed at its end.
        self.children.kill_role(&Role::Builder(zygote));
        let answers = self.zygotes.lose(zygote, "the zygote was dropped");
        self.answer_all(answers)?;
        self.children.drop_role(&Role::Zygote(zygote));
        self.reply(seq, Reply::Done)
    }

    fn on_ended(&mut self, child: Child, status: Status) -> Result<(), KeeperError> {
        match child.role {
            Role::Program { id, main } => {
                let answers = self.zygotes.on_program_ended(child.pid, status);
                self.answer_all(answers)?;
                self.event(Event::Exited { id, pid: child.pid, main, status })
            }
            Role::Zygote(zygote) => {
                // Reports that it sent before it died still count.
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
            Role::Dropped => Ok(()),
        }
    }

    fn take_built(&mut self, zygote: u64, finished: Finished) -> Result<(), KeeperError> {
        let Finished { seq, reply, frozen, built, attached } = finished;
        if let Some(id) = frozen {
            // It may have been removed meanwhile.
            let _ = self.sandboxes.thaw(&id);
        }
        // Without its control socket a zygote that nobody wants ends.
        let Some(seq) = seq else { return Ok(()) };
        let taken = built.map(|(facts, control)| self.zygotes.insert(zygote, facts, control, &mut self.children));
        match taken {
            Some(Err(error)) => self.reply(seq, Reply::failed(&error)),
            Some(Ok(())) | None => self.send_reply(seq, reply, attached.as_ref()),
        }
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

    fn answer_all(&self, answers: Vec<(u64, Reply)>) -> Result<(), KeeperError> {
        answers.into_iter().try_for_each(|(seq, reply)| self.reply(seq, reply))
    }

    fn reply(&self, seq: u64, reply: Reply) -> Result<(), KeeperError> {
        self.send_reply(seq, reply, None)
    }

    /// What cannot be sent, such as one descriptor too many, is the failure of this request.
    fn send_reply(&self, seq: u64, reply: Reply, descriptor: Option<&OwnedFd>) -> Result<(), KeeperError> {
        match self.send(seq, &FromKeeper::Reply(reply), descriptor) {
            Err(KeeperError::System(action, error)) => {
                tracing::error!(seq, action, %error, "an answer cannot be sent");
                let failed = Reply::step_failed(format!("the keeper cannot {action}: {error}"));
                self.send(seq, &FromKeeper::Reply(failed), None)
            }
            sent => sent,
        }
    }

    fn event(&self, event: Event) -> Result<(), KeeperError> {
        self.send(0, &FromKeeper::Event(event), None)
    }

    fn send(&self, seq: u64, message: &FromKeeper, descriptor: Option<&OwnedFd>) -> Result<(), KeeperError> {
        let descriptors: Vec<_> = descriptor.iter().map(|fd| fd.as_fd()).collect();
        wire::send(self.server.get(), seq, message, &descriptors).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => KeeperError::ServerGone,
            _ => KeeperError::System("answer the server", error),
        })
    }
}

fn no_descriptors() -> Reply {
    Reply::step_failed("the request came without its descriptors".to_owned())
}
