//! Forking programs where limits are in cgroup v1.
//!
//! A process begins in the v1 groups of who forks it; only its v2 group can be chosen (`CLONE_INTO_CGROUP`). Moved afterwards, it would run
//! without limits until then, and each move stalls every fork of the host for milliseconds (`cgroup_threadgroup_rwsem` waits for an RCU grace
//! period). So the first program that is started in a sandbox gets a launcher there: a fork of the keeper that is moved into the sandbox's v1
//! groups once, and forks this program and all later ones.
//!
//! ```text
//! keeper --SEQPACKET: a command in a file, descriptors--> launcher --CLONE_PARENT, CLONE_INTO_CGROUP--> program, a child of the keeper's
//!        <--------------- pid, or errno ----------------
//! ```
//!
//! It has the keeper's rights and is in none of the sandbox's namespaces, nor in its v2 group: freezing does not stop it, and no program can name it.
//! It ends with the keeper, and with the sandbox.

use std::{
    cell::RefCell,
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
};

use rustix::{
    event::PollFlags,
    fs::{MemfdFlags, memfd_create},
    process::{
        DumpableBehavior, Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, set_dumpable_behavior,
        set_parent_process_death_signal,
    },
    thread::set_name,
};
use sys::clone::{ForkOptions, Forked, Parent, fork};

use crate::{
    cgroup::Group,
    deadline::Deadline,
    error::{Context, Error},
    ids::Ids,
    init,
    namespaces::Inside,
    processors::Processors,
    program::{Place, Program},
    report::ANSWER_MS_MAX,
    spec::{Command, Users},
};

const NAME: &std::ffi::CStr = c"pando-launcher";

/// The launcher of a sandbox, once it has one.
#[derive(Default)]
pub(crate) struct LauncherSlot(RefCell<Option<Launcher>>);

impl LauncherSlot {
    /// Has the launcher fork a program, after starting one if there is none, or the one before was killed (as the kernel may when the sandbox has used up its
    /// memory).
    pub(crate) fn fork(&self, group: &Group, command: &Command, place: &Place<'_>) -> Result<Forked, Error> {
        let mut slot = self.0.borrow_mut();
        if let Some(launcher) = &*slot
            && let Some(forked) = launcher.fork(command, place)?
        {
            return Ok(forked);
        }
        let gone = || Error::fork(io::ErrorKind::BrokenPipe.into());
        slot.insert(Launcher::start(group)?).fork(command, place)?.ok_or_else(gone)
    }

    /// Ends the launcher, and waits until it is out of the sandbox's groups.
    pub(crate) fn end(&self) {
        drop(self.0.take());
    }
}

/// Forks programs into the sandbox whose v1 groups it is in. It is killed when this is dropped.
struct Launcher {
    process: Forked,
    socket: OwnedFd,
}

impl Launcher {
    /// Starts one in the v1 groups of `group`.
    fn start(group: &Group) -> Result<Self, Error> {
        let (socket, theirs) = sys::seqpacket::pair().doing("make a socket")?;
        let keeper = getpid();
        let process = fork(&ForkOptions::default(), || run(&theirs, keeper)).doing("fork the sandbox's launcher")?;
        let launcher = Self { process, socket };
        group.bind_one(launcher.process.pid)?;
        Ok(launcher)
    }

    /// Has it fork a program. `None` if it had ended before.
    fn fork(&self, command: &Command, place: &Place<'_>) -> Result<Option<Forked>, Error> {
        let file = File::from(memfd_create("pando-command", MemfdFlags::CLOEXEC).doing("hand over a command")?);
        let Inside { ids, users, processors, .. } = place.around.sandbox;
        let text = postcard::to_allocvec(&(command, ids, users, processors))
            .map_err(io::Error::other)
            .doing("hand over a command")?;
        file.write_all_at(&text, 0).doing("hand over a command")?;
        let mut descriptors = vec![file.as_fd()];
        descriptors.extend(place.descriptors());
        match sys::seqpacket::send(&self.socket, b"fork", &descriptors) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(None),
            sent => sent.doing("hand over a command")?,
        }
        let deadline = Deadline::after_ms(ANSWER_MS_MAX);
        if !deadline.poll(self.socket.as_fd(), PollFlags::IN).doing("wait for the sandbox's launcher")? {
            return Err(Error::Silent(ANSWER_MS_MAX));
        }
        let mut answer = [0; 4];
        match sys::seqpacket::recv(&self.socket, &mut answer) {
            Ok((4, _)) => {}
            // Killed with the command in hand: it may have been started, so it is not started again.
            Ok(_) => return Err(Error::fork(io::ErrorKind::ConnectionReset.into())),
            Err(error) => return Err(Error::fork(error)),
        }
        forked(i32::from_ne_bytes(answer)).map_err(Error::fork).map(Some)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // Reaped as well: only then is it out of the groups.
        init::discard(&self.process);
    }
}

/// From a pid, or a negative errno. The number cannot be another process's: it is a child of this one, which alone reaps it.
fn forked(answer: i32) -> io::Result<Forked> {
    let pid = Pid::from_raw(answer.max(0)).ok_or_else(|| io::Error::from_raw_os_error(answer.wrapping_neg()))?;
    Ok(Forked { pid: answer, pidfd: pidfd_open(pid, PidfdFlags::empty())? })
}

fn run(socket: &OwnedFd, keeper: Pid) -> i32 {
    if prepare(socket, keeper).is_err() {
        return 1;
    }
    let socket = io::stdin();
    loop {
        let answer = match receive(socket.as_fd()) {
            Ok(Some((order, descriptors))) => launch(&order, &descriptors).unwrap_or_else(|error| {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                -errno
            }),
            Ok(None) | Err(_) => return 0,
        };
        if sys::seqpacket::send(socket.as_fd(), &answer.to_ne_bytes(), &[]).is_err() {
            return 0;
        }
    }
}

/// Keeps the socket, as its first descriptor, and where the keeper logs; and nothing else of the keeper's that could live on with it.
fn prepare(socket: &OwnedFd, keeper: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(keeper) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    let log = io::stderr();
    sys::child::become_stdio([socket.as_fd(), log.as_fd(), log.as_fd()])?;
    sys::child::close_from(3)?;
    sys::child::reset_signals(true);
    sys::oom::raise_to(0)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(set_name(NAME)?)
}

/// What to start, and who may be where it starts, on which processors.
type Order = (Command, Ids, Users, Option<Processors>);

fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<(Order, Vec<OwnedFd>)>> {
    let (length, mut descriptors) = sys::seqpacket::recv(socket, &mut [0; 8])?;
    if length == 0 || descriptors.is_empty() {
        return Ok(None);
    }
    let mut text = Vec::new();
    File::from(descriptors.remove(0)).read_to_end(&mut text)?;
    Ok(Some((postcard::from_bytes(&text).map_err(io::Error::other)?, descriptors)))
}

fn launch((command, ids, users, processors): &Order, descriptors: &[OwnedFd]) -> io::Result<i32> {
    let place = Place::of(descriptors, *ids, *users, *processors).ok_or(io::ErrorKind::InvalidData)?;
    // The keeper has prepared it before, so this does not fail.
    let program = Program::prepare(command).map_err(io::Error::other)?;
    Ok(program.fork(&place, Parent::ParentOfCaller)?.pid)
}
