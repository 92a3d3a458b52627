//! A process that works on a sandbox's files for a client outside.
//!
//! It is a fork of the keeper that enters the sandbox's user and mount namespaces, which makes the sandbox's root its root, and takes the ids of
//! the user for whom it works. It stays in the host's pid namespace, so that no program of the sandbox sees or signals it, and in the keeper's control
//! groups, so that it runs on when the sandbox is frozen or out of memory.
//!
//! It also enters the namespaces by which files below /proc/sys and /sys answer: otherwise these would show the host's name and network
//! settings. It gives up every privilege and descriptor but its socket, and ends with the keeper.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use base::limits::HAND_DESCRIPTORS_MAX;
use rustix::{
    fs::Mode,
    process::{
        DumpableBehavior, Pid, Resource, Rlimit, Signal, getpid, getppid, set_dumpable_behavior,
        set_parent_process_death_signal, setrlimit, setsid, umask,
    },
    thread::{ThreadNameSpaceType, set_name, set_no_new_privs},
};
use sys::clone::{ForkOptions, fork};

use crate::{
    capabilities::{OF_ROOTS_HAND, become_user},
    error::{Context, Error},
    init,
    namespaces::Inside,
    program,
    report::{self, Answer, Failure, Step},
    spec::User,
};

const NAME: &std::ffi::CStr = c"pando-hand";

/// Forks a hand, and has it do `serve` with its socket when it is in its place. It is a child of the caller, which must be single-threaded.
/// A failure leaves no process.
pub(crate) fn start(
    sandbox: Inside<'_>,
    user: &User,
    socket: OwnedFd,
    serve: impl FnOnce(OwnedFd) -> i32,
) -> Result<i32, Error> {
    let (reader, writer) = report::channel()?;
    let null = File::options().read(true).write(true).open("/dev/null").doing("open /dev/null")?;
    let filter = program::filter()?;
    let keeper = getpid();
    let child = fork(&ForkOptions::default(), || {
        let result = enter(sandbox, user, null.as_fd(), filter, keeper);
        let failed = result.is_err();
        // All but the socket goes with the channel: the keeper waits for its end.
        let done = report::send(writer.as_fd(), result).is_ok() && !failed;
        if !done || sys::child::close_from_except(3, socket.as_fd()).is_err() {
            return 1;
        }
        serve(socket)
    });
    let child = child.doing("fork a process that works on the sandbox's files")?;
    drop(writer);
    let failed = |step: String, source: io::Error| Error::Hand { step, source };
    let error = match report::receive(reader) {
        Ok(Answer::Ready) => return Ok(child.pid),
        Ok(Answer::Failed { step, source }) => failed(step, source),
        Ok(Answer::End) => failed("report".to_owned(), io::ErrorKind::UnexpectedEof.into()),
        Err(error) => error,
    };
    init::discard(&child);
    Err(error)
}

/// In the child. The order is forced where a comment says so.
fn enter(sandbox: Inside<'_>, user: &User, null: BorrowedFd<'_>, filter: &[u64], keeper: Pid) -> Result<(), Failure> {
    set_name(NAME).step("set its name")?;
    // A signal from the keeper's terminal is not for it.
    setsid().step("begin a session")?;
    // In the host's /proc. The keeper is protected; this serves one sandbox.
    sys::oom::raise_to(0).step("give up its keeper's protection from memory shortage")?;
    // A message of a library must not get into a file that is opened later.
    sys::child::become_stdio([null; 3]).step("set up its streams")?;
    let kinds = ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::NETWORK
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
        | ThreadNameSpaceType::CONTROL_GROUP;
    sandbox.enter(kinds).step("enter the sandbox")?;
    let descriptors = Some(HAND_DESCRIPTORS_MAX);
    setrlimit(Resource::Nofile, Rlimit { current: descriptors, maximum: descriptors }).step("set its limits")?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).step("set its limits")?;
    umask(Mode::from_raw_mode(0o022));
    // While it may.
    sys::child::limit_bounding_set(0).step("drop capabilities")?;
    become_user(sandbox, user, OF_ROOTS_HAND)?;
    // After the change of ids, which resets both. Other processes of the user must not look into it: it begins as a copy of the keeper.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).step("become undumpable")?;
    set_parent_process_death_signal(Some(Signal::KILL)).step("end with its keeper")?;
    if getppid() != Some(keeper) {
        return Err(Failure { step: "find its keeper", errno: libc::ESRCH });
    }
    set_no_new_privs(true).step("set no_new_privs")?;
    // Last: the filter refuses what was needed above.
    sys::seccomp::install(filter).step("install the system-call filter")
}
