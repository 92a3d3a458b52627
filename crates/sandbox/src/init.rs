//! A sandbox's pid 1: a fork of the keeper that needs nothing from the root filesystem.
//!
//! It gives up what it has of the keeper and makes all mounts and settings that need no root filesystem; then it is *bare*, and waits for
//! that. It makes it its root, gives up every privilege and descriptor, reports, and gives up the keeper's memory, too: from then on it is a
//! program of one page ([`sys::rest`]) that keeps the namespaces alive and carries the program's output from its pipe to its file. It wakes up
//! for output only: the kernel reaps orphans for it (SIGCHLD ignored). Having no handler, it ignores every signal from inside the sandbox.

mod mounts;

use std::{
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
    time::Duration,
};

use base::{id::SandboxId, limits::IDS_PER_SANDBOX};
use rustix::{
    event::{PollFd, PollFlags, pause, poll},
    fs::{FlockOperation, Mode, SeekFrom, flock, seek},
    io::Errno,
    pipe::{SpliceFlags, splice},
    process::{
        DumpableBehavior, Gid, Signal, Uid, WaitId, WaitIdOptions, pidfd_send_signal, set_dumpable_behavior, setsid,
        umask, waitid,
    },
    thread::{UnshareFlags, set_name, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};
use sys::clone::{ForkOptions, Forked, fork};

use self::mounts::Prepared;
use procfs::Stat;

use crate::{
    cgroup::Group,
    error::{Context, Error},
    ids::{self, First},
    report::{self, Answer, Failure, Step},
};

const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;
const NAME: &std::ffi::CStr = c"pando-init";
/// Descriptors that a pid 1 keeps for the output: pipe, file.
const OUTPUT_DESCRIPTORS: u32 = 2;
/// Bytes that are carried at once.
const CHUNK_BYTES: usize = 64 << 10;
/// How long to wait where the file cannot be written.
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// Where a program's output comes from and goes to.
#[derive(Debug, Clone, Copy)]
pub struct Output<'a> {
    /// The reading end of the pipe that is the program's standard output and standard error.
    pub pipe: BorrowedFd<'a>,
    /// Open for writing, without `O_APPEND`: everything is appended.
    pub file: BorrowedFd<'a>,
}

/// Starts a pid 1 in `group`, with everything but a root filesystem, and gives the channel at whose end it waits for that. It ends with the
/// channel. A failure leaves no process.
pub(crate) fn start(group: &Group) -> Result<(First, OwnedFd), Error> {
    let (channel, other) = sys::seqpacket::pair().doing("make a socket")?;
    let options = ForkOptions { namespaces: NAMESPACES, cgroup: Some(group.directory()), ..ForkOptions::default() };
    let first = ids::fork_with(|| fork(&options, || run(other.as_fd())))?;
    drop(other);
    let begun = begin(&first, &channel).and_then(|()| report::hear(channel.as_fd())).and_then(ready);
    match begun {
        Ok(()) => Ok((first, channel)),
        Err(error) => {
            discard(&first.forked);
            ids::release(first.ids, first.identity);
            Err(error)
        }
    }
}

/// Does what a pid 1 may not do itself, because its files in /proc are the host's root's, and tells it that it has ids.
fn begin(first: &First, channel: &OwnedFd) -> Result<(), Error> {
    // The keeper's protection is not the sandbox's. It uses next to nothing, so no higher: its end would be that of the whole sandbox.
    sys::oom::raise_child_to(first.identity.pid, 0).doing("give up the keeper's protection")?;
    sys::seqpacket::send(channel, &[1], &[]).doing("tell the sandbox's first process that it has ids")
}

/// Gives a pid 1 the root filesystem of sandbox `id`, and the output that it is to carry: then it is ready for programs. After a failure it has
/// ended, or is about to.
pub(crate) fn furnish(
    channel: OwnedFd,
    id: &SandboxId,
    rootfs: &OwnedFd,
    output: Option<Output<'_>>,
) -> Result<(), Error> {
    let output = output.into_iter().flat_map(|Output { pipe, file }| [pipe, file]);
    let handed: Vec<BorrowedFd<'_>> = std::iter::once(rootfs.as_fd()).chain(output).collect();
    sys::seqpacket::send(&channel, id.as_str().as_bytes(), &handed).doing("hand over the root filesystem")?;
    report::receive(channel).and_then(ready)
}

fn ready(answer: Answer) -> Result<(), Error> {
    match answer {
        Answer::Ready => Ok(()),
        Answer::Failed { step, source } => Err(Error::Init { step, source }),
        Answer::End => Err(Error::Init { step: "report".to_owned(), source: io::ErrorKind::UnexpectedEof.into() }),
    }
}

/// Kills and reaps a child that did not come up.
pub(crate) fn discard(child: &Forked) {
    // Both fail only if it is gone, which is what is wanted.
    let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
    let _ = waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED);
}

fn run(channel: BorrowedFd<'_>) -> i32 {
    let prepared = match prepare(channel) {
        Ok(prepared) => prepared,
        Err(failure) => {
            // If nobody listens there is nothing more to say.
            let _ = report::send(channel, Err(failure));
            return 1;
        }
    };
    if report::send(channel, Ok(())).is_err() {
        return 1;
    }
    let Some((id, rootfs, output)) = wait_for_root(channel) else { return 1 };
    let kept = if output.is_some() { OUTPUT_DESCRIPTORS } else { 0 };
    let result = enter(&prepared, &id, &rootfs).and_then(|()| keep_output(channel, output.as_ref()));
    // Their numbers are others' by now, or nobody's.
    std::mem::forget((rootfs, output));
    let failed = result.is_err();
    // Nobody listens any more: the keeper was killed, and a half-made sandbox is of no use to its successor.
    if report::send(channel, result).is_err() || failed || sys::child::close_from(kept).is_err() {
        return 1;
    }
    // Returns where it is not permitted: then this goes on with the memory that it has.
    let _ = sys::rest::enter(NAME);
    carry_output();
    loop {
        pause();
    }
}

/// Makes the pipe descriptor 0 and the file 1, and closes all others but the channel.
fn keep_output(channel: BorrowedFd<'_>, output: Option<&[OwnedFd; 2]>) -> Result<(), Failure> {
    let Some([pipe, file]) = output else { return close_all_except(channel) };
    sys::child::become_stdio([pipe.as_fd(), file.as_fd(), file.as_fd()]).step("take over the output")?;
    sys::child::close_from_except(OUTPUT_DESCRIPTORS, channel).step("close descriptors")
}

/// What [`sys::rest`] does, by this process itself.
fn carry_output() {
    let (pipe, file) = (io::stdin(), io::stdout());
    loop {
        let mut ready = [PollFd::new(&pipe, PollFlags::IN)];
        let _ = poll(&mut ready, None);
        let _ = flock(&file, FlockOperation::LockExclusive);
        let _ = seek(&file, SeekFrom::End(0));
        let carried = splice(&pipe, None, &file, None, CHUNK_BYTES, SpliceFlags::NONBLOCK);
        let _ = flock(&file, FlockOperation::Unlock);
        match carried {
            Ok(0) | Err(Errno::BADF) => return,
            Ok(_) => {}
            Err(_) => std::thread::sleep(FULL_PAUSE),
        }
    }
}

/// The sandbox's id, its root filesystem and the output to carry; none if the keeper has gone or does not want the sandbox.
fn wait_for_root(channel: BorrowedFd<'_>) -> Option<(String, OwnedFd, Option<[OwnedFd; 2]>)> {
    let mut id = [0; base::limits::NAME_BYTES_MAX];
    let (length, descriptors) = sys::seqpacket::recv(channel, &mut id).ok()?;
    let mut descriptors = descriptors.into_iter();
    let rootfs = descriptors.next()?;
    let output = descriptors.next().zip(descriptors.next()).map(|(pipe, file)| [pipe, file]);
    Some((str::from_utf8(&id[..length]).ok()?.to_owned(), rootfs, output))
}

fn prepare(channel: BorrowedFd<'_>) -> Result<Prepared, Failure> {
    // What it has from the keeper would live on with it, sockets too.
    close_all_except(channel)?;
    become_root(channel)?;
    // The keeper's handlers must not run here, and its blocked signals do not matter to a process that has none.
    sys::child::reset_signals(true);
    sys::child::ignore_children();
    setsid().step("begin a session")?;
    // Modes are what they are said to be.
    umask(Mode::empty());
    // Not at the clone: a cgroup namespace's root is the group its creator is in at that moment.
    sys::namespace::unshare(UnshareFlags::NEWCGROUP).step("leave the cgroup namespace")?;
    let prepared = mounts::prepare()?;
    sys::namespace::loopback_up().step("switch the loopback interface on")?;
    set_name(NAME).step("set its name")?;
    // Its own file of memory is the host's root's otherwise.
    set_dumpable_behavior(DumpableBehavior::Dumpable).step("become dumpable")?;
    hide_command_line();
    // Its memory is the keeper's until it rests: nobody may look at it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).step("become undumpable")?;
    Ok(prepared)
}

/// Waits until the user namespace has ids, and takes those of its root.
fn become_root(channel: BorrowedFd<'_>) -> Result<(), Failure> {
    let told = sys::seqpacket::recv(channel, &mut [0; 1]).step("wait for its ids")?;
    if told.0 == 0 {
        return Err(Failure { step: "wait for its ids", errno: libc::EPIPE });
    }
    set_thread_groups(&[]).step("drop its groups")?;
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).step("set its group")?;
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).step("set its user")
}

fn enter(prepared: &Prepared, id: &str, rootfs: &OwnedFd) -> Result<(), Failure> {
    mounts::enter_root(prepared, rootfs.as_fd())?;
    sys::namespace::set_hostname(id).step("set the host name")?;
    // Who has all ids of a process may limit it (prlimit(2)). With a real group that is not its effective one, no process has all of its ids.
    let (real, other) = (Gid::from_raw(IDS_PER_SANDBOX - 2), Gid::from_raw(IDS_PER_SANDBOX - 1));
    set_thread_res_gid(real, other, other).step("set its group")?;
    sys::child::drop_capabilities().step("drop capabilities")?;
    set_no_new_privs(true).step("set no_new_privs")
}

fn close_all_except(channel: BorrowedFd<'_>) -> Result<(), Failure> {
    sys::child::close_all_except(channel).step("close descriptors")
}

/// Overwrites the copy of the keeper's command line, which every process of the sandbox could read. The rest of a root
/// process's /proc is closed to them. Where the kernel forbids it the sandbox merely shows how the keeper was called.
fn hide_command_line() {
    const ARG_START: usize = 48;
    const ARG_END: usize = 49;
    let Ok(stat) = Stat::read("self") else { return };
    let (begin, end) = (stat.field(ARG_START) as u64, stat.field(ARG_END) as u64);
    let Ok(memory) = fs::OpenOptions::new().write(true).open("/proc/self/mem") else { return };
    let mut text = vec![0; end.saturating_sub(begin).min(4_096) as usize];
    let shown = NAME.to_bytes().len().min(text.len());
    text[..shown].copy_from_slice(&NAME.to_bytes()[..shown]);
    let _ = memory.write_all_at(&text, begin);
}
