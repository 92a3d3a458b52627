//! What makes a process as a whole impossible to fork, seen from outside: all of it while the process runs, and in the pause again what
//! may have changed meanwhile.

use std::{
    fs,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt,
    },
};

use base::limits;
use sys::remote::{self, Shared};

use crate::{
    error::{Context, Error},
    mappings,
    procfs::{self, Fields, Stat},
    refusal::Refusal,
    stopped::Task,
};

/// What a look at a running process gives.
#[derive(Debug)]
pub(crate) struct Look {
    /// Reasons against forking it as a whole.
    pub(crate) refusals: Vec<Refusal>,
    pub(crate) surroundings: Surroundings,
}

/// Where the process lives: kept from the first look for the second, in the pause. Whoever has no privileges can change neither.
#[derive(Debug)]
pub(crate) struct Surroundings {
    pid: i32,
    /// Its id inside its pid namespace.
    inner_pid: i32,
    root: OwnedFd,
    /// Its sandbox's /proc, which lists the sandbox's processes only, however many the machine has. None outside of a sandbox.
    proc: Option<OwnedFd>,
}

/// Where copies find working directory and program.
#[derive(Debug, Default)]
pub(crate) struct Places {
    pub(crate) cwd: Vec<u8>,
    pub(crate) exe: Vec<u8>,
}

/// Looks at process `pid` while it runs.
pub(crate) fn look(pid: i32) -> Result<Look, Error> {
    let status = Fields::read(format!("/proc/{pid}/status"))?;
    let mut refusals = Vec::new();
    let tracer = status.number("TracerPid", 10)?;
    if tracer != 0 {
        refusals.push(Refusal::Traced { tracer: tracer as i32 });
    }
    match Stat::read(&pid.to_string())?.state() {
        b'T' => refusals.push(Refusal::Stopped),
        b'Z' | b'X' => refusals.push(Refusal::MainThreadGone),
        _ => {}
    }
    refusals.extend(nature(pid, &status)?);
    let ids = status.numbers("NSpid", 10)?;
    if ids.len() > 2 {
        refusals.push(Refusal::NestedPidNamespace { level: ids.len() - 1 });
    }
    let tasks = procfs::numbers(&format!("/proc/{pid}/task"))?;
    refusals.extend(too_many_threads(tasks.len()));
    refusals.extend(threads(pid, &tasks)?);
    let root = mappings::open_root(pid)?;
    let proc = if ids.len() > 1 { Some(open_proc(pid, root.as_fd())?) } else { None };
    let inner_pid = ids.last().map_or(pid, |id| *id as i32);
    let surroundings = Surroundings { pid, inner_pid, root, proc };
    refusals.extend(children(pid, &tasks)?);
    refusals.extend(surroundings.daemons()?.0);
    surroundings.places(&mut refusals)?;
    Ok(Look { refusals, surroundings })
}

/// Reasons against process `pid` that a fork of it inherits, so that after the pause they can be looked for in the still.
pub(crate) fn nature(pid: i32, status: &Fields) -> Result<Vec<Refusal>, Error> {
    let mut found = Vec::new();
    let effective = status.number("CapEff", 16)? | status.number("CapPrm", 16)?;
    if effective != 0 || status.numbers("Uid", 10)?.contains(&0) {
        found.push(Refusal::Privileged { effective });
    }
    if elf_class(pid) == Some(1) {
        found.push(Refusal::ThirtyTwoBit);
    }
    Ok(found)
}

/// What its threads may have changed since the first look. All are stopped by us, so nobody else traces them and the main thread is there;
/// pid namespaces are for life.
pub(crate) fn threads_again(pid: i32, tasks: &[Task]) -> Result<Vec<Refusal>, Error> {
    let mut found: Vec<Refusal> = too_many_threads(tasks.len()).into_iter().collect();
    for task in tasks {
        let refusal = match task.has_several_filters {
            Some(false) => unshared(pid, task.tid)?,
            Some(true) | None => thread(pid, task.tid)?,
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
fn threads(pid: i32, tasks: &[i32]) -> Result<Option<Refusal>, Error> {
    for tid in tasks.iter().copied() {
        match thread(pid, tid) {
            // It ended meanwhile.
            Err(error) if procfs::is_gone(&error) => {}
            Ok(None) => {}
            found => return found,
        }
    }
    Ok(None)
}

fn thread(pid: i32, tid: i32) -> Result<Option<Refusal>, Error> {
    let status = Fields::read(format!("/proc/{pid}/task/{tid}/status"))?;
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

fn open_proc(pid: i32, root: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    const PROC_SUPER_MAGIC: u64 = 0x9fa0;
    match mappings::open_inside(root, b"proc") {
        Ok(proc) if rustix::fs::fstatfs(&proc).is_ok_and(|found| found.f_type as u64 == PROC_SUPER_MAGIC) => Ok(proc),
        _ => Err(Error::Unexpected { pid, what: "does not see /proc of its sandbox".into() }),
    }
}

impl Surroundings {
    /// Processes that the program has started since the first look. The still that is being cloned is none: it has no parent in the sandbox.
    pub(crate) fn processes_again(&self, tasks: &[Task]) -> Result<Vec<Refusal>, Error> {
        let tasks: Vec<i32> = tasks.iter().map(|task| task.tid).collect();
        if self.proc.is_none() {
            return Ok(children(self.pid, &tasks)?.into_iter().collect());
        }
        let (daemons, has_children) = self.daemons()?;
        let children = if has_children { children(self.pid, &tasks)? } else { None };
        Ok(children.into_iter().chain(daemons).collect())
    }

    /// Processes that the program left to its sandbox's init, as `pid name`; pids as in the sandbox. A copy would not have them. What was
    /// started in the sandbox from outside has no parent inside. Beside it, whether there are children of the program itself.
    fn daemons(&self) -> Result<(Option<Refusal>, bool), Error> {
        const INIT: i32 = 1;
        let Some(proc) = &self.proc else { return Ok((None, false)) };
        let proc = format!("/proc/self/fd/{}", proc.as_raw_fd());
        let (mut found, mut has_children) = (Vec::new(), false);
        for inner in procfs::numbers(&proc)? {
            if inner == INIT || inner == self.inner_pid {
                continue;
            }
            let status = match Fields::read(format!("{proc}/{inner}/status")) {
                Err(error) if procfs::is_gone(&error) => continue,
                status => status?,
            };
            let parent = status.number("PPid", 10)? as i32;
            has_children |= parent == self.inner_pid;
            // A zombie is about to be reaped.
            let alive = !status.get("State").is_some_and(|state| state.starts_with(['Z', 'X']));
            if alive && parent == INIT {
                found.push(format!("{inner} {}", status.get("Name").unwrap_or_default()));
            }
        }
        let pids = found.join(", ");
        Ok(((!found.is_empty()).then_some(Refusal::Daemons { pids }), has_children))
    }

    /// Working directory and program file must be where their paths say: copies open them there.
    pub(crate) fn places(&self, refusals: &mut Vec<Refusal>) -> Result<Places, Error> {
        let mut places = Places::default();
        for (name, place) in [("cwd", &mut places.cwd), ("exe", &mut places.exe)] {
            let link = format!("/proc/{}/{name}", self.pid);
            let (path, is) = match (procfs::link(&link), fs::metadata(&link).on("read", &link)) {
                // A zombie has neither.
                (Err(error), _) | (_, Err(error)) if procfs::is_gone(&error) => continue,
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
    let Ok(named) = mappings::open_inside(root, path).and_then(rustix::fs::fstat) else { return false };
    let changes = (is.size() as i64, is.mtime(), is.mtime_nsec());
    let same = if is.is_dir() {
        named.st_ino == is.ino()
    } else {
        changes == (named.st_size, named.st_mtime, named.st_mtime_nsec as i64)
    };
    path.starts_with(b"/") && same
}

/// Children of all threads, as `pid name`.
fn children(pid: i32, tasks: &[i32]) -> Result<Option<Refusal>, Error> {
    let mut found = Vec::new();
    for tid in tasks {
        // A thread may end between the two reads; it then has no children.
        let children = match procfs::children(pid, *tid) {
            Err(error) if procfs::is_gone(&error) => continue,
            children => children?,
        };
        for child in children {
            let name = procfs::read(&format!("/proc/{child}/comm")).unwrap_or_default();
            found.push(format!("{child} {}", String::from_utf8_lossy(&name).trim_end()));
        }
    }
    Ok((!found.is_empty()).then(|| Refusal::Children { pids: found.join(", ") }))
}

/// The class byte of the program's ELF header: 1 is 32-bit.
fn elf_class(pid: i32) -> Option<u8> {
    use std::io::Read;
    let mut header = [0; 5];
    std::fs::File::open(format!("/proc/{pid}/exe")).ok()?.read_exact(&mut header).ok()?;
    Some(header[4])
}
