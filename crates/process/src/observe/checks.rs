//! Finds the reasons why a whole process cannot be forked, seen from outside. Everything is checked while the process runs. Facts that may have
//! changed since are checked again in the pause.

use std::{
    fs,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt,
    },
};

use base::limits;
use procfs::{Fields, Stat};
use sys::remote::{self, Shared};

use crate::{
    error::{Context, Error},
    image::Job,
    observe::{descriptors::MQUEUE_MAGIC, others::OtherProcesses, rights, root},
    refusal::Refusal,
    stop::stopped::Task,
};

/// What a look at a running process gives.
#[derive(Debug)]
pub(crate) struct Look {
    /// Reasons against forking it as a whole.
    pub(crate) refusals: Vec<Refusal>,
    pub(crate) surroundings: Surroundings,
}

/// Where the process lives: kept from the first look for the second, in the pause. A program without privileges can change neither.
#[derive(Debug)]
pub(crate) struct Surroundings {
    pid: i32,
    root: OwnedFd,
    queues: Option<OwnedFd>,
    pub(crate) others: OtherProcesses,
}

/// Most names that are listed in a message.
const NAMES_MAX: usize = 8;

/// Where copies find working directory and program.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    pub(crate) cwd: Vec<u8>,
    pub(crate) exe: Vec<u8>,
}

/// Why a copy of a process could not stop itself.
pub(crate) const FIRST: &str = "it is the sandbox's first process";
pub(crate) const THREADS: &str = "it has several threads";
pub(crate) const NO_SIGNAL: &str = "it handles, ignores or blocks SIGTSTP, SIGTTIN and SIGTTOU";

/// The same of one that is looked at.
fn stopped(status: &Fields, is_first: bool) -> Result<Option<Refusal>, Error> {
    let mut taken = 0;
    for signals in ["SigBlk", "SigIgn", "SigCgt"] {
        taken |= status.number(signals, 16)?;
    }
    let why = if is_first {
        FIRST
    } else if status.number("Threads", 10)? > 1 {
        THREADS
    } else if Job::SIGNALS.iter().all(|signal| taken >> (signal - 1) & 1 != 0) {
        NO_SIGNAL
    } else {
        return Ok(None);
    };
    Ok(Some(Refusal::Stopped { why: why.into() }))
}

/// Looks at process `pid` while it runs. [`Error::Refused`] where no more can be said. `started`: as [`OtherProcesses::of`] has it.
pub(crate) fn look(pid: i32, is_first: bool, started: Option<&[i32]>) -> Result<Look, Error> {
    let status = Fields::read(format!("/proc/{pid}/status"))?;
    let mut refusals = Vec::new();
    let tracer = status.number("TracerPid", 10)?;
    if tracer != 0 {
        refusals.push(Refusal::Traced { tracer: tracer as i32 });
    }
    match Stat::read(&pid.to_string())?.state() {
        b'T' => refusals.extend(stopped(&status, is_first)?),
        b'Z' | b'X' => refusals.push(Refusal::MainThreadGone),
        _ => {}
    }
    refusals.extend(nature(pid, &status)?);
    if refusals.iter().any(|refusal| matches!(refusal, Refusal::ChangedRoot { .. })) {
        // The rest looks at what is below its root.
        return Err(Error::Refused(refusals));
    }
    let ids = status.numbers("NSpid", 10)?;
    if ids.len() > 2 {
        refusals.push(Refusal::NestedPidNamespace { level: ids.len() - 1 });
    }
    let tasks = procfs::numbers(&format!("/proc/{pid}/task"))?;
    refusals.extend(too_many_threads(tasks.len()));
    refusals.extend(threads(pid, &tasks, &status)?);
    let root = root::open_root(pid)?;
    let others = OtherProcesses::of(pid, &ids, root.as_fd(), started)?;
    let queues = open_queues(root.as_fd());
    let surroundings = Surroundings { pid, root, queues, others };
    refusals.extend(surroundings.message_queues()?);
    surroundings.places(&mut refusals)?;
    Ok(Look { refusals, surroundings })
}

/// Reasons against process `pid` that a fork of it inherits, so that after the pause they can be looked for in the still.
pub(crate) fn nature(pid: i32, status: &Fields) -> Result<Vec<Refusal>, Error> {
    let mut found = Vec::new();
    let beyond = rights::privileges(status)?.beyond();
    if beyond != 0 {
        found.push(Refusal::Privileged { beyond });
    }
    let root = procfs::link(&format!("/proc/{pid}/root"))?;
    if root != b"/" {
        found.push(Refusal::ChangedRoot { root: String::from_utf8_lossy(&root).into_owned() });
    }
    // Not on every kernel.
    if status.number("untag_mask", 16).is_ok_and(|mask| mask != u64::MAX) {
        found.push(Refusal::TaggedAddresses);
    }
    if elf_class(pid) == Some(1) {
        found.push(Refusal::ThirtyTwoBit);
    }
    Ok(found)
}

/// Looks again at what its threads may have changed since the first look. This process has stopped all of them, so no other one traces them, and
/// the main thread is there. Pid namespaces are for life.
pub(crate) fn threads_again(pid: i32, tasks: &[Task]) -> Result<Vec<Refusal>, Error> {
    let mut found: Vec<Refusal> = too_many_threads(tasks.len()).into_iter().collect();
    // Only who has privileges can change them: of others the first look holds.
    let main = Fields::read(format!("/proc/{pid}/status"))?;
    if rights::may_change(&main)? {
        for task in tasks {
            if !rights::are_alike(&main, &status(pid, task.tid)?) {
                found.push(Refusal::ThreadPrivileges { tid: task.tid });
                return Ok(found);
            }
        }
    }
    for task in tasks {
        let refusal = match task.has_several_filters {
            Some(false) => unshared(pid, task.tid)?,
            Some(true) | None => thread(pid, task.tid, &status(pid, task.tid)?)?,
        };
        if refusal.is_some() {
            found.extend(refusal);
            break;
        }
    }
    Ok(found)
}

fn too_many_threads(found: usize) -> Option<Refusal> {
    let max = limits::THREADS_MAX;
    (found > max).then(|| Refusal::TooMany { what: "threads".into(), found, max })
}

/// The first thread that differs from the others in what a copy gives all of them alike.
fn threads(pid: i32, tasks: &[i32], main: &Fields) -> Result<Option<Refusal>, Error> {
    for tid in tasks.iter().copied() {
        let found = status(pid, tid).and_then(|status| {
            let other = || (!rights::are_alike(main, &status)).then_some(Refusal::ThreadPrivileges { tid });
            Ok(thread(pid, tid, &status)?.or_else(other))
        });
        match found {
            // It ended meanwhile.
            Err(error) if error.is_gone() => {}
            Ok(None) => {}
            found => return found,
        }
    }
    Ok(None)
}

fn status(pid: i32, tid: i32) -> Result<Fields, Error> {
    Ok(Fields::read(format!("/proc/{pid}/task/{tid}/status"))?)
}

fn thread(pid: i32, tid: i32, status: &Fields) -> Result<Option<Refusal>, Error> {
    let tracer = status.number("TracerPid", 10)? as i32;
    if tid != pid && tracer != 0 {
        return Ok(Some(Refusal::Traced { tracer }));
    }
    if let Some(own) = own_filters(status.number("Seccomp_filters", 10).unwrap_or(0)) {
        return Ok(Some(own));
    }
    match unshared(pid, tid)? {
        // A thread on its way out has let go of both, and a zombie has none.
        Some(_) if Stat::read(&format!("{pid}/task/{tid}"))?.is_ending() => Ok(None),
        found => Ok(found),
    }
}

/// The first filter is the sandbox's own, which copies get again.
fn own_filters(filters: u64) -> Option<Refusal> {
    (filters > 1).then(|| Refusal::OwnSeccomp { filters: filters - 1 })
}

fn unshared(pid: i32, tid: i32) -> Result<Option<Refusal>, Error> {
    let named = [(Shared::Descriptors, "descriptors"), (Shared::Directories, "working directory and umask")];
    for (shared, what) in named {
        if tid != pid && !remote::threads_share(pid, tid, shared).of("compare threads", tid)? {
            return Ok(Some(Refusal::UnsharedThread { tid, what: what.into() }));
        }
    }
    Ok(None)
}

/// The directory of the sandbox's message queues, if it has one.
fn open_queues(root: BorrowedFd<'_>) -> Option<OwnedFd> {
    let queues = root::open_inside(root, b"dev/mqueue").ok()?;
    rustix::fs::fstatfs(&queues).is_ok_and(|found| found.f_type as u64 == MQUEUE_MAGIC).then_some(queues)
}

impl Surroundings {
    /// Message queues with a name, which live as long as the sandbox.
    pub(crate) fn message_queues(&self) -> Result<Option<Refusal>, Error> {
        // The kernel's DIRENT_SIZE, of "." and "..".
        const EMPTY_BYTES: i64 = 40;
        let Some(queues) = &self.queues else { return Ok(None) };
        if rustix::fs::fstat(queues).of("look for message queues of", self.pid)?.st_size == EMPTY_BYTES {
            return Ok(None);
        }
        let path = format!("/proc/self/fd/{}", queues.as_raw_fd());
        let entries = fs::read_dir(&path).on("list", "/dev/mqueue")?;
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let names: Vec<String> = names.take(NAMES_MAX).collect();
        Ok((!names.is_empty()).then(|| Refusal::MessageQueues { names: names.join(", ") }))
    }

    /// Working directory and program file must be where their paths say: copies open them there.
    pub(crate) fn places(&self, refusals: &mut Vec<Refusal>) -> Result<Paths, Error> {
        let mut places = Paths::default();
        for (name, place) in [("cwd", &mut places.cwd), ("exe", &mut places.exe)] {
            let link = format!("/proc/{}/{name}", self.pid);
            let (path, is) = match (procfs::link(&link).map_err(Error::from), fs::metadata(&link).on("read", &link)) {
                // A zombie has neither.
                (Err(error), _) | (_, Err(error)) if error.is_gone() => continue,
                (path, is) => (path?, is?),
            };
            if !is_at(self.root.as_fd(), &path, &is) {
                let path = String::from_utf8_lossy(&path).into_owned();
                refusals.push(if name == "cwd" {
                    Refusal::DeletedDirectory { path }
                } else {
                    Refusal::ReplacedProgram { path }
                });
            }
            *place = path;
        }
        Ok(places)
    }
}

/// Whether `path` below `root` names this directory, or a file of this content. Devices are not compared, nor the inodes of files: an
/// overlay has several of one file.
fn is_at(root: BorrowedFd<'_>, path: &[u8], is: &fs::Metadata) -> bool {
    let Ok(named) = root::open_inside(root, path).and_then(rustix::fs::fstat) else { return false };
    let changes = (is.size() as i64, is.mtime(), is.mtime_nsec());
    let same = if is.is_dir() {
        named.st_ino == is.ino()
    } else {
        changes == (named.st_size, named.st_mtime, named.st_mtime_nsec as i64)
    };
    path.starts_with(b"/") && same
}

/// The class byte of the program's ELF header: 1 is 32-bit.
fn elf_class(pid: i32) -> Option<u8> {
    use std::io::Read;
    let mut header = [0; 5];
    std::fs::File::open(format!("/proc/{pid}/exe")).ok()?.read_exact(&mut header).ok()?;
    Some(header[4])
}
