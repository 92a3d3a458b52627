//! Starting a program in a sandbox.

use std::{
    convert::Infallible,
    ffi::CString,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::OnceLock,
};

use base::limits::OOM_SCORE_PROGRAM;
use rustix::{
    fs::{FileType, Mode, fchown, fstat},
    io::Errno,
    process::{Gid, Resource, Rlimit, Uid, chdir, getrlimit, ioctl_tiocsctty, setrlimit, setsid, umask},
    termios::isatty,
    thread::{ThreadNameSpaceType, move_into_thread_name_spaces},
};
use sys::{
    child::CStrings,
    clone::{ForkOptions, Forked, Parent, fork},
    namespace::{Kind, inside},
};

use crate::{
    capabilities::{OF_ROOT, become_user, bounding_set},
    cgroup::Group,
    error::Error,
    ids::Ids,
    init,
    launcher::LauncherSlot,
    namespaces::Inside,
    processors::Processors,
    report::{self, Answer, Failure, Step},
    seccomp::seccomp_program,
    spec::{Command, User, Users},
};

/// Where programs are searched if the environment has no PATH.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Most descriptors of a program, if the node itself may have that many: as in Docker.
const DESCRIPTORS_MAX: u64 = 1 << 20;
const EXEC: &str = "execute it";
const ENTER: &str = "enter its working directory";

/// Of a sandbox, what its programs are started with.
pub(crate) struct Home<'a> {
    pub(crate) inside: Inside<'a>,
    /// pidfd of its program, whose monotonic clocks are its own.
    pub(crate) beside: Option<BorrowedFd<'a>>,
    pub(crate) group: &'a Group,
    pub(crate) launcher: &'a LauncherSlot,
}

/// Starts `command`; it is a child of this process. Returns its pid once it was executed; a failure leaves no process and no group.
pub(crate) fn start(command: &Command, stdio: [BorrowedFd<'_>; 3], home: &Home<'_>) -> Result<i32, Error> {
    let program = Program::prepare(command)?;
    // It would freeze before it is the program, and its creator would wait for it.
    if home.group.is_frozen()? {
        return Err(Error::Frozen);
    }
    let start_in = |cgroup| start_in(cgroup, &program, command, stdio, home);
    let Some(name) = &command.group else {
        in_time(command)?;
        return start_in(home.group.directory());
    };
    let own = home.group.begin_command(name)?;
    // After the group was made: when the time is up, who gave up finds the group, or nothing starts.
    let started = in_time(command).and_then(|()| start_in(own.as_fd()));
    if started.is_err() {
        // If it cannot be removed it goes with the sandbox.
        let _ = home.group.forget_command(name);
    }
    started
}

/// Fails if the start was given up.
fn in_time(command: &Command) -> Result<(), Error> {
    match command.until_ns {
        Some(until) if monotonic_ns() >= until => {
            Err(Error::Late { command: command.argv.first().cloned().unwrap_or_default() })
        }
        _ => Ok(()),
    }
}

/// Now, as [`Command::until_ns`] counts.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The namespaces that a program enters.
#[derive(Clone, Copy)]
pub(crate) struct Around<'a> {
    pub(crate) sandbox: Inside<'a>,
    /// pidfd of the sandbox's program, whose clocks are its own.
    beside: Option<BorrowedFd<'a>>,
}

fn start_in(
    cgroup: BorrowedFd<'_>,
    program: &Program<'_>,
    command: &Command,
    stdio: [BorrowedFd<'_>; 3],
    home: &Home<'_>,
) -> Result<i32, Error> {
    let (reader, writer) = report::channel()?;
    let around = Around { sandbox: home.inside, beside: home.beside };
    let place = Place { around, cgroup, stdio, report: writer.as_fd() };
    let child = if home.group.limits_are_inherited() {
        home.launcher.fork(home.group, command, &place)
    } else {
        program.fork(&place, Parent::Caller).map_err(Error::fork)
    }?;
    drop(writer);
    let name = || program.name.to_owned();
    let error = match report::receive_from(reader, child.pidfd.as_fd()) {
        Ok(Answer::End | Answer::Ready) => return Ok(child.pid),
        Ok(Answer::Failed { step, source }) if step == EXEC => Error::Exec { command: name(), source },
        Ok(Answer::Failed { step, source }) if step == ENTER => {
            Error::Start { command: name(), step: format!("{ENTER} {}", program.cwd.to_string_lossy()), source }
        }
        Ok(Answer::Failed { step, source }) => Error::Start { command: name(), step, source },
        Err(error) => error,
    };
    init::discard(&child);
    Err(error)
}

/// Where a program begins, by descriptors.
pub(crate) struct Place<'a> {
    pub(crate) around: Around<'a>,
    /// The v2 group that it begins in.
    pub(crate) cgroup: BorrowedFd<'a>,
    pub(crate) stdio: [BorrowedFd<'a>; 3],
    /// Where it says at which step it failed.
    pub(crate) report: BorrowedFd<'a>,
}

impl<'a> Place<'a> {
    /// To be sent to another process.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'a>> {
        let [stdin, stdout, stderr] = self.stdio;
        let always = [self.around.sandbox.init, self.cgroup, stdin, stdout, stderr, self.report];
        always.into_iter().chain(self.around.beside)
    }

    /// Of what was received; none if these are not the descriptors of a place.
    pub(crate) fn of(received: &'a [OwnedFd], ids: Ids, users: Users, processors: Option<Processors>) -> Option<Self> {
        let [init, cgroup, stdin, stdout, stderr, report, beside @ ..] = received else { return None };
        let sandbox = Inside { init: init.as_fd(), ids, users, processors };
        let around = Around { sandbox, beside: beside.first().map(AsFd::as_fd) };
        let stdio = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        Some(Self { around, cgroup: cgroup.as_fd(), stdio, report: report.as_fd() })
    }
}

/// All that a program needs, made before the fork.
pub(crate) struct Program<'a> {
    name: &'a str,
    /// Where it may be, in the order of the search.
    places: Vec<CString>,
    argv: CStrings,
    env: CStrings,
    cwd: CString,
    tty: bool,
    user: &'a User,
    filter: &'static [u64],
}

impl<'a> Program<'a> {
    pub(crate) fn prepare(command: &'a Command) -> Result<Self, Error> {
        let name = command.argv.first().ok_or(Error::NoProgram)?.as_str();
        let filter = filter()?;
        let invalid = |source: io::Error| Error::Exec { command: name.to_owned(), source };
        let argv = CStrings::new(command.argv.iter().map(String::as_bytes)).map_err(invalid)?;
        let env = command.env.iter().map(|(key, value)| format!("{key}={value}"));
        let env = CStrings::new(env).map_err(invalid)?;
        let places = places(command, name).map_err(invalid)?;
        let cwd = CString::new(command.cwd.as_bytes()).map_err(|error| invalid(error.into()))?;
        Ok(Self { name, places, argv, env, cwd, tty: command.tty, user: &command.user, filter })
    }

    /// Forks the process that becomes it.
    pub(crate) fn fork(&self, place: &Place<'_>, parent: Parent) -> io::Result<Forked> {
        let options = ForkOptions { namespaces: 0, cgroup: Some(place.cgroup), parent };
        let become_it = || {
            let Err(failure) = self.become_it(place.stdio, place.around);
            // If the keeper is gone nobody needs to know.
            let _ = report::send(place.report, Err(failure));
            127
        };
        let forked = inside(place.around.sandbox.init, Kind::PidOfChildren, || fork(&options, become_it));
        forked?
    }

    /// In the child: everything up to and with exec. The order is forced where a comment says so.
    fn become_it(&self, stdio: [BorrowedFd<'_>; 3], around: Around<'_>) -> Result<Infallible, Failure> {
        setsid().step("begin a session")?;
        // In the host's /proc, and while it may: the kernel lets nobody without privileges undo it where the keeper has `CAP_SYS_RESOURCE`.
        sys::oom::raise_to(OOM_SCORE_PROGRAM).step("be the first that is killed when memory is short")?;
        if let Some(processors) = around.sandbox.processors {
            processors.bind_caller().step("take its share of the processors")?;
        }
        hand_over(stdio, around.sandbox.ids, self.user).step("hand over its streams")?;
        if self.tty {
            // After setsid: only the leader of a session without a terminal can take one.
            ioctl_tiocsctty(stdio[0]).step("take its terminal")?;
        }
        sys::child::become_stdio(stdio).step("set up its streams")?;
        // The clocks are the program's, not the sandbox's: each copy has its own.
        match around.beside.map(|process| move_into_thread_name_spaces(process, ThreadNameSpaceType::TIME)) {
            // It has ended, and the sandbox ends with it.
            None | Some(Ok(()) | Err(Errno::SRCH)) => {}
            Some(Err(error)) => return Err(error).step("share the clocks of the program"),
        }
        // The pid namespace is joined already: that happens at the fork. After the clocks: in its user namespace it may not look at the program.
        let rest = ThreadNameSpaceType::MOUNT
            | ThreadNameSpaceType::NETWORK
            | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
            | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
            | ThreadNameSpaceType::CONTROL_GROUP;
        around.sandbox.enter(rest).step("enter the sandbox")?;
        set_limits().step("set its limits")?;
        umask(Mode::from_raw_mode(0o022));
        sys::child::reset_signals(true);
        // Both while it has all capabilities in the sandbox: without no_new_privs, which would keep `sudo` from working, a filter needs them.
        sys::child::limit_bounding_set(bounding_set(around.sandbox).bits()).step("drop capabilities")?;
        sys::seccomp::install(self.filter).step("install the system-call filter")?;
        become_user(around.sandbox, self.user, OF_ROOT)?;
        // As the program's user, so that it cannot begin in a directory that it may not enter.
        chdir(self.cwd.as_c_str()).step(ENTER)?;
        sys::child::close_on_exec_from(3).step("close descriptors")?;
        Err(self.execute())
    }

    /// Tries the places in order, as execvp(3) does; returns only if none would do.
    fn execute(&self) -> Failure {
        let mut refused = None;
        for place in &self.places {
            let errno = sys::child::execute(place, &self.argv, &self.env).raw_os_error().unwrap_or(libc::EIO);
            match errno {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => refused = Some(errno),
                errno => return Failure { step: EXEC, errno },
            }
        }
        Failure { step: EXEC, errno: refused.unwrap_or(libc::ENOENT) }
    }
}

pub(crate) fn filter() -> Result<&'static [u64], Error> {
    static FILTER: OnceLock<Vec<u64>> = OnceLock::new();
    match FILTER.get() {
        Some(filter) => Ok(filter),
        None => {
            let filter = seccomp_program()?;
            Ok(FILTER.get_or_init(|| filter))
        }
    }
}

fn places(command: &Command, name: &str) -> io::Result<Vec<CString>> {
    // Without a name there is no such program, in whatever directory.
    if name.contains('/') || name.is_empty() {
        return Ok(vec![CString::new(name)?]);
    }
    let path = command.env.iter().rev().find(|(key, _)| key == "PATH").map_or(PATH_DEFAULT, |(_, value)| value);
    // An empty element means the working directory.
    let place =
        |directory: &str| if directory.is_empty() { format!("./{name}") } else { format!("{directory}/{name}") };
    path.split(':').map(|directory| Ok(CString::new(place(directory))?)).collect()
}

/// Pipes and terminals get the program's owner, so that it can open them again as /dev/stdout or its terminal.
fn hand_over(stdio: [BorrowedFd<'_>; 3], ids: Ids, user: &User) -> rustix::io::Result<()> {
    let (user, group) = (Uid::from_raw(ids.outside(user.uid)), Gid::from_raw(ids.outside(user.gid)));
    for stream in stdio {
        if FileType::from_raw_mode(fstat(stream)?.st_mode) == FileType::Fifo || isatty(stream) {
            fchown(stream, Some(user), Some(group))?;
        }
    }
    Ok(())
}

fn set_limits() -> rustix::io::Result<()> {
    // Raising the hard limit needs a capability that the node may lack: what it has is the bound.
    let descriptors = getrlimit(Resource::Nofile).maximum.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX);
    setrlimit(Resource::Nofile, Rlimit { current: Some(descriptors), maximum: Some(descriptors) })?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
}
