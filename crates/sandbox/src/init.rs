//! A sandbox's pid 1: a fork of the keeper that never executes a program and needs nothing from the root filesystem.
//!
//! It makes the sandbox's mounts and settings, gives up every privilege and descriptor, reports, and then only keeps the
//! namespaces alive. The kernel reaps orphans for it (SIGCHLD ignored), so it never wakes up again; having no handler, it
//! ignores every signal from inside the sandbox.

mod mounts;

use std::{
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
};

use rustix::{
    event::pause,
    process::{
        DumpableBehavior, Signal, WaitId, WaitIdOptions, pidfd_send_signal, set_dumpable_behavior, setsid, waitid,
    },
    thread::{UnshareFlags, set_name, set_no_new_privs},
};
use sys::clone::{ForkOptions, Forked, fork};

use crate::{
    cgroup::Group,
    error::{Context, Error},
    report::{self, Answer, Failure, Step},
    spec::Spec,
};

const NAMESPACES: i32 =
    libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
const NAME: &std::ffi::CStr = c"pando-init";

/// Starts the pid 1 of a new sandbox in `group`, with `rootfs` as its root. A failure leaves no process.
pub(crate) fn start(spec: &Spec, rootfs: &OwnedFd, group: &Group) -> Result<Forked, Error> {
    let (reader, writer) = report::channel()?;
    let options = ForkOptions { namespaces: NAMESPACES, cgroup: Some(group.directory()) };
    let init =
        fork(&options, || run(spec, rootfs.as_fd(), writer.as_fd())).doing("fork the sandbox's first process")?;
    drop(writer);
    let error = match report::receive(reader) {
        Ok(Answer::Ready) => return Ok(init),
        Ok(Answer::Failed { step, source }) => Error::Init { step, source },
        Ok(Answer::End) => Error::Init { step: "report".to_owned(), source: io::ErrorKind::UnexpectedEof.into() },
        Err(error) => error,
    };
    discard(&init);
    Err(error)
}

/// Kills and reaps a child that did not come up.
pub(crate) fn discard(child: &Forked) {
    // Both fail only if it is gone, which is what is wanted.
    let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
    let _ = waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED);
}

fn run(spec: &Spec, rootfs: BorrowedFd<'_>, channel: BorrowedFd<'_>) -> i32 {
    let result = set_up(spec, rootfs).and_then(|()| sys::child::close_all_except(channel).step("close descriptors"));
    let failed = result.is_err();
    // Nobody listens any more: the keeper was killed, and a half-made sandbox is of no use to its successor.
    if report::send(channel, result).is_err() || failed || sys::child::close_all().is_err() {
        return 1;
    }
    loop {
        pause();
    }
}

fn set_up(spec: &Spec, rootfs: BorrowedFd<'_>) -> Result<(), Failure> {
    // The keeper's handlers must not run here, and its blocked signals do not matter to a process that has none.
    sys::child::reset_signals(true);
    sys::child::ignore_children();
    setsid().step("begin a session")?;
    // Not at the clone: a cgroup namespace's root is the group its creator is in at that moment.
    unshare(UnshareFlags::NEWCGROUP).step("leave the cgroup namespace")?;
    mounts::enter_root(&spec.dir, rootfs)?;
    mounts::populate()?;
    sys::namespace::loopback_up().step("switch the loopback interface on")?;
    sys::namespace::set_hostname(spec.id.as_str()).step("set the host name")?;
    set_name(NAME).step("set its name")?;
    hide_command_line();
    sys::child::drop_capabilities().step("drop capabilities")?;
    set_no_new_privs(true).step("set no_new_privs")?;
    // Its memory is the keeper's: no program of the sandbox may look at it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).step("become undumpable")
}

#[allow(deprecated, reason = "deprecated for CLONE_FILES only, which is not used")]
fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(flags)
}

/// Overwrites the copy of the keeper's command line, which every process of the sandbox could read. The rest of a root
/// process's /proc is closed to them. Where the kernel forbids it the sandbox merely shows how the keeper was called.
fn hide_command_line() {
    let Ok(stat) = fs::read_to_string("/proc/self/stat") else { return };
    // Fields 48 and 49 of 52: where the arguments begin and end.
    let field = |number: usize| stat.rsplit_once(") ")?.1.split(' ').nth(number - 3)?.parse::<u64>().ok();
    let (Some(begin), Some(end)) = (field(48), field(49)) else { return };
    let Ok(memory) = fs::OpenOptions::new().write(true).open("/proc/self/mem") else { return };
    let mut text = vec![0; end.saturating_sub(begin).min(4_096) as usize];
    let shown = NAME.to_bytes().len().min(text.len());
    text[..shown].copy_from_slice(&NAME.to_bytes()[..shown]);
    let _ = memory.write_all_at(&text, begin);
}
