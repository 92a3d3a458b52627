//! Builders: forked children of the keeper that build one zygote each. A build takes time proportional to the program's memory, and the keeper
//! must not block.
//!
//! ```text
//! keeper --fork--> builder: capture (in its pause: a layer of the changes) -> rootfs -> build -> result + control socket -> exit
//!                           or: a checkpoint's state -> rootfs -> restore -> result + control socket + userfaultfd -> exit
//!    \------------------------ zygote: reparented to the keeper (its subreaper) when the builder exits -----------------/
//! ```
//!
//! After the capture the builder says so: the new layer is complete, and sandboxes can be made on it. The keeper answers the request when the
//! builder has exited: only then does no process trace the program, and the zygote is the keeper's child.

mod build;

use std::{
    collections::HashMap,
    error::Error,
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    time::Instant,
};

use base::id::{SandboxId, ZygoteId};
use process::{Afterwards, BuildSpec, CaptureSpec, Others, PauseError, ProgramState, RestoreSpec, Restored, Zygote};
use sandbox::{ProcessIdentity, Sandbox};

use super::{
    answer::{Answer, Ticket},
    children::{Children, Role},
    watch::{Source, Watched, Watcher},
};
use crate::protocol::{Built, BuiltOrRefused, ByFault, Capture, Failed, Parcel, Refusal, RestoreZygote, Status, wire};
use build::{Build, Message, Outcome};

pub(super) use build::Finished;

/// A builder at work.
struct AtWork {
    build: Build,
    /// The socket, until the last message was read.
    socket: Option<Watched<OwnedFd>>,
}

impl AtWork {
    /// Reads one message. True if it says that the capture is done, and another one follows.
    fn hear(&mut self) -> bool {
        let Some(socket) = &self.socket else { return false };
        match receive(socket.get()) {
            Some((Message::Captured, _)) => return true,
            Some((Message::Result(outcome), files)) => self.build.finished(*outcome, files),
            None => {}
        }
        // After the last message or the end of the socket, only the end of the process matters.
        self.socket = None;
        false
    }
}

/// What a builder achieved, with the zygote's control socket and, if there is one, a file for the server.
type Performed = Result<(Outcome, Vec<OwnedFd>), Box<dyn Error>>;

/// All builders of this keeper, by the zygote they build.
pub(super) struct Builders {
    watcher: Watcher,
    at_work: HashMap<ZygoteId, AtWork>,
    /// NUMA nodes from which zygotes take their memory.
    memory_nodes: Vec<u32>,
}

impl Builders {
    pub(super) fn new(watcher: Watcher, memory_nodes: Vec<u32>) -> Self {
        Self { watcher, at_work: HashMap::new(), memory_nodes }
    }

    /// Forks a builder that builds a zygote of a running program.
    pub(super) fn capture(
        &mut self,
        ticket: Ticket<BuiltOrRefused>,
        job: &Capture,
        sandbox: &Sandbox,
        base: Option<&Zygote>,
        children: &mut Children,
    ) -> Vec<Answer> {
        let nodes = self.memory_nodes.clone();
        let freezes = (!job.purpose.holds()).then(|| job.source.sandbox.clone());
        let started = children.programs_of(&job.source.sandbox);
        let forked = self.fork(job.zygote, children, |keeper| build(job, sandbox, base, &nodes, started, keeper));
        self.begin(ticket, job.zygote, freezes, forked)
    }

    /// Forks a builder that restores a zygote; `parcel` holds a [`Parcel`].
    pub(super) fn restore(
        &mut self,
        ticket: Ticket<BuiltOrRefused>,
        job: &RestoreZygote,
        parcel: &OwnedFd,
        children: &mut Children,
    ) -> Vec<Answer> {
        let nodes = self.memory_nodes.clone();
        let forked = self.fork(job.zygote, children, |_| restore(job, parcel, &nodes));
        self.begin(ticket, job.zygote, None, forked)
    }

    fn begin(
        &mut self,
        ticket: Ticket<BuiltOrRefused>,
        zygote: ZygoteId,
        freezes: Option<SandboxId>,
        forked: io::Result<Watched<OwnedFd>>,
    ) -> Vec<Answer> {
        match forked {
            Ok(socket) => {
                let build = Build::new(ticket, freezes);
                self.at_work.insert(zygote, AtWork { build, socket: Some(socket) });
                Vec::new()
            }
            Err(error) => vec![ticket.fail(Failed::of(&error))],
        }
    }

    /// Forks a builder and returns the socket on which it reports.
    fn fork(
        &self,
        zygote: ZygoteId,
        children: &mut Children,
        perform: impl FnOnce(&OwnedFd) -> Performed,
    ) -> io::Result<Watched<OwnedFd>> {
        let (ours, theirs) = sys::seqpacket::pair()?;
        let keeper = rustix::process::getpid();
        let builder = sys::clone::fork(&sys::clone::ForkOptions::default(), || {
            // If the keeper dies, no process would take the zygote.
            let dies_with_keeper =
                rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
            if dies_with_keeper.is_err() || rustix::process::getppid() != Some(keeper) {
                return 1;
            }
            // The zygote inherits the score and holds the program's memory, which the host must be able to take back.
            if let Err(error) = sys::oom::raise_to(0) {
                tracing::warn!(%error, "a zygote is as protected from the out-of-memory killer as its keeper");
            }
            let (outcome, files) =
                perform(&theirs).unwrap_or_else(|error| (Outcome::Failed(base::error::chain(&*error)), Vec::new()));
            match send(&theirs, &Message::Result(Box::new(outcome)), &files) {
                Ok(()) => 0,
                Err(_) => 1,
            }
        })?;
        children.watch(builder.pid, Role::Builder(zygote))?;
        self.watcher.watch(ours, Source::Builder(zygote))
    }

    /// Reads a message of a builder. If it says that the capture is done, the server is told. All else waits for [`Self::finish`].
    pub(super) fn on_result(&mut self, zygote: ZygoteId) -> Option<Answer> {
        let builder = self.at_work.get_mut(&zygote)?;
        if builder.hear() { builder.build.captured() } else { None }
    }

    /// The builder's process ended.
    pub(super) fn finish(&mut self, zygote: ZygoteId, status: Status) -> Option<Finished> {
        let mut builder = self.at_work.remove(&zygote)?;
        // The end of the process can be seen before its last messages.
        while builder.hear() {}
        Some(builder.build.ended(status))
    }

    /// Gives up a build and answers its request. The caller kills the process.
    pub(super) fn cancel(&mut self, zygote: ZygoteId) -> Option<Answer> {
        self.at_work.get_mut(&zygote)?.build.cancel()
    }
}

fn send(socket: &OwnedFd, message: &Message, descriptors: &[OwnedFd]) -> Result<(), Box<dyn Error>> {
    let descriptors: Vec<_> = descriptors.iter().map(|fd| fd.as_fd()).collect();
    Ok(wire::send(socket, 0, message, &descriptors)?)
}

fn receive(socket: &OwnedFd) -> Option<(Message, Vec<OwnedFd>)> {
    // The builder may have ended without a message: never wait for one.
    rustix::io::ioctl_fionbio(socket, true).ok()?;
    let wire::Received { body, descriptors, .. } = wire::receive(socket, &mut vec![0; wire::BUFFER_BYTES]).ok()??;
    let message = body.unwrap_or_else(|problem| {
        Message::Result(Box::new(Outcome::Failed(format!("the builder is not understood: {problem}"))))
    });
    Some((message, descriptors))
}

fn build(
    job: &Capture,
    sandbox: &Sandbox,
    base: Option<&Zygote>,
    memory_nodes: &[u32],
    started: Vec<i32>,
    keeper: &OwnedFd,
) -> Performed {
    let source = &job.source;
    let spec = CaptureSpec {
        pid: source.main.pid,
        init: Some(sandbox.init().pid),
        commands: source.commands.clone(),
        without_program: source.without_program,
        streams: source.streams.clone(),
        earlier_arena: source.earlier_arena,
        mount_points: source.mount_points.clone(),
        volumes: source.volumes.clone(),
        started,
        memory_files: Some(sandbox::SHARED_MEMORY.into()),
    };
    let mut files = sandbox.capture_changes(&job.layer)?;
    check_alive(source.main)?;
    let capture_began = Instant::now();
    let capture = match capture(&spec, job, sandbox, &mut files) {
        Ok(capture) => capture,
        Err(error) => return refused(error),
    };
    let capture_us = micros(capture_began);
    send(keeper, &Message::Captured, &[])?;

    let build_began = Instant::now();
    let mut layers = vec![job.layer.clone()];
    layers.extend_from_slice(&job.base.layers);
    let rootfs = sandbox::detached_rootfs(&layers)?;
    let seccomp = sandbox::seccomp_program()?;
    let huge_pages = job.purpose.huge_pages();
    let spec = BuildSpec { rootfs: rootfs.as_fd(), seccomp: &seccomp, huge_pages, base, memory_nodes };
    let zygote = process::build(&capture, &spec)?;
    let pause_us = capture.pause.as_micros() as u64;
    let mut descriptors = vec![zygote.control];
    if job.purpose.describes() {
        // In memory, never on a disk: registers and changed pages of the program may hold secrets.
        let memfd = rustix::fs::memfd_create("pando-state", rustix::fs::MemfdFlags::CLOEXEC)?;
        let description = match ProgramState::describe(capture, rootfs.as_fd()) {
            Ok(state) => state.encode()?,
            Err(error) => return refused(error),
        };
        File::from(memfd.try_clone()?).write_all_at(&description, 0)?;
        descriptors.push(memfd);
    }
    let outcome = Outcome::Built(Built { facts: zygote.facts, pause_us, capture_us, build_us: micros(build_began) });
    Ok((outcome, descriptors))
}

/// A program that cannot be captured is an answer, not a failure.
fn refused(error: process::Error) -> Performed {
    let process::Error::Refused(refusals) = error else { return Err(error.into()) };
    let refusals = refusals.iter().map(|refusal| Refusal { kind: refusal.kind(), reason: refusal.to_string() });
    Ok((Outcome::Refused(refusals.collect()), Vec::new()))
}

/// Captures the program. Its files are taken in the pause: memory and files of the copies are of the same instant.
fn capture(
    spec: &CaptureSpec,
    job: &Capture,
    sandbox: &Sandbox,
    files: &mut sandbox::Capture,
) -> Result<process::Capture, process::Error> {
    let mut take_files = || {
        // Only now does it stand still, and is no other one any more.
        check_alive(job.source.main)?;
        Ok(files.finish(&sandbox.processes()?)?)
    };
    // No command starts meanwhile: on one sandbox, the server never runs a capture and the start of a command at the same time.
    let commands: Vec<ProcessIdentity> = job.source.commands.iter().map(|command| command.process).collect();
    let own = process::family(job.source.main.pid, Some(sandbox.init().pid), &commands)?;
    if sandbox.has_others(&own).map_err(|error| process::Error::DuringPause(error.into()))? {
        let afterwards = if job.purpose.holds() { Afterwards::StandsStill } else { Afterwards::GoesOn };
        return process::capture_beside(spec, &mut take_files, &mut Beside(sandbox), afterwards);
    }
    match job.purpose.holds() {
        true => process::capture_and_hold(spec, &mut take_files, &mut || Ok(sandbox.freeze()?)),
        false => process::capture(spec, &mut take_files),
    }
}

/// Fails if the process has ended: while the files were prepared, another one may have got its pid.
fn check_alive(main: ProcessIdentity) -> io::Result<()> {
    if main.is_alive() { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
}

/// Commands in the program's sandbox.
struct Beside<'a>(&'a Sandbox);

impl Others for Beside<'_> {
    fn freeze(&mut self) -> Result<(), PauseError> {
        Ok(self.0.freeze()?)
    }

    fn thaw(&mut self) {
        if let Err(error) = self.0.thaw() {
            tracing::error!(error = base::error::chain(&error), "a sandbox may stay frozen");
        }
    }
}

fn restore(job: &RestoreZygote, parcel: &OwnedFd, memory_nodes: &[u32]) -> Performed {
    let began = Instant::now();
    let mut file = File::from(parcel.try_clone()?);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let Parcel { state, pages } = postcard::from_bytes(&bytes)?;
    drop(bytes);
    let mut state = ProgramState::decode(&state)?;
    let by_fault: ByFault = state.by_fault(&pages);
    file.set_len(0)?;
    file.write_all_at(&postcard::to_stdvec(&by_fault)?, 0)?;
    let rootfs = sandbox::detached_rootfs(&job.layers)?;
    let seccomp = sandbox::seccomp_program()?;
    let spec = RestoreSpec { rootfs: rootfs.as_fd(), seccomp: &seccomp, pages: &pages, memory_nodes };
    let Restored { zygote, faults } = match state.restore(&spec) {
        Ok(restored) => restored,
        Err(process::Error::Unfit(unfit)) => {
            let refusals =
                unfit.iter().map(|unfit| Refusal { kind: unfit.kind().to_owned(), reason: unfit.to_string() });
            return Ok((Outcome::Refused(refusals.collect()), Vec::new()));
        }
        Err(error) => return Err(error.into()),
    };
    let outcome = Outcome::Built(Built { facts: zygote.facts, pause_us: 0, capture_us: 0, build_us: micros(began) });
    Ok((outcome, std::iter::once(zygote.control).chain(faults).collect()))
}

fn micros(since: Instant) -> u64 {
    since.elapsed().as_micros() as u64
}
