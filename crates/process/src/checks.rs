//! What makes a process as a whole impossible to fork, seen without stopping it.

use std::{
    fs,
    os::{
        fd::{AsFd, BorrowedFd},
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
};

/// Reasons against forking process `pid` as a whole.
pub(crate) fn process(pid: i32) -> Result<Vec<Refusal>, Error> {
    let status = Fields::read(format!("/proc/{pid}/status"))?;
    let mut found = Vec::new();
    let tracer = status.number("TracerPid", 10)?;
    if tracer != 0 {
        found.push(Refusal::Traced { tracer: tracer as i32 });
    }
    match Stat::read(&pid.to_string())?.state() {
        b'T' => found.push(Refusal::Stopped),
        b'Z' | b'X' => found.push(Refusal::MainThreadGone),
        _ => {}
    }
    let effective = status.number("CapEff", 16)? | status.number("CapPrm", 16)?;
    if effective != 0 || status.numbers("Uid", 10)?.contains(&0) {
        found.push(Refusal::Privileged { effective });
    }
    let level = status.numbers("NSpid", 10)?.len();
    if level > 2 {
        found.push(Refusal::NestedPidNamespace { level: level - 1 });
    }
    let tasks = procfs::numbers(&format!("/proc/{pid}/task"))?;
    if tasks.len() > limits::THREADS_MAX {
        found.push(Refusal::TooMany { what: "threads".into(), found: tasks.len(), max: limits::THREADS_MAX });
    }
    found.extend(threads(pid, &tasks)?);
    let children = children(pid, &tasks)?;
    if !children.is_empty() {
        found.push(Refusal::Children { pids: children.join(", ") });
    }
    if level > 1 {
        let daemons = daemons(pid)?;
        if !daemons.is_empty() {
            found.push(Refusal::Daemons { pids: daemons.join(", ") });
        }
    }
    found.extend(places(pid)?);
    if elf_class(pid) == Some(1) {
        found.push(Refusal::ThirtyTwoBit);
    }
    Ok(found)
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
    // The first is the sandbox's own, which copies get again.
    let filters = status.number("Seccomp_filters", 10).unwrap_or(0);
    if filters > 1 {
        return Ok(Some(Refusal::OwnSeccomp { filters: filters - 1 }));
    }
    let named = [(Shared::Descriptors, "descriptors"), (Shared::Directories, "working directory and umask")];
    for (shared, what) in named {
        // A thread on its way out has let go of both, and a zombie has none.
        if tid != pid
            && !remote::threads_share(pid, tid, shared).of("compare threads", tid)?
            && !Stat::read(&format!("{pid}/task/{tid}"))?.is_ending()
        {
            return Ok(Some(Refusal::UnsharedThread { tid, what: what.into() }));
        }
    }
    Ok(None)
}

/// Processes that the program left to its sandbox's init, as `pid name`; pids as in the sandbox. A copy would not have them. What was
/// started in the sandbox from outside has no parent inside.
fn daemons(pid: i32) -> Result<Vec<String>, Error> {
    const PROC_SUPER_MAGIC: u64 = 0x9fa0;
    let root = mappings::open_root(pid)?;
    // The sandbox's own /proc lists its processes only, however many the machine has.
    let proc = match mappings::open_inside(root.as_fd(), b"proc") {
        Ok(proc) if rustix::fs::fstatfs(&proc).is_ok_and(|found| found.f_type as u64 == PROC_SUPER_MAGIC) => proc,
        _ => return Err(Error::Unexpected { pid, what: "does not see /proc of its sandbox".into() }),
    };
    let proc = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&proc));
    let mut found = Vec::new();
    for inner in procfs::numbers(&proc)? {
        let status = match Fields::read(format!("{proc}/{inner}/status")) {
            Err(error) if procfs::is_gone(&error) => continue,
            status => status?,
        };
        // A zombie is about to be reaped.
        let alive = !status.get("State").is_some_and(|state| state.starts_with(['Z', 'X']));
        if alive && status.number("PPid", 10)? == 1 {
            found.push(format!("{inner} {}", status.get("Name").unwrap_or_default()));
        }
    }
    Ok(found)
}

/// Working directory and program file must be where their paths say: copies open them there.
fn places(pid: i32) -> Result<Vec<Refusal>, Error> {
    let root = mappings::open_root(pid)?;
    let mut found = Vec::new();
    for (name, is_directory) in [("cwd", true), ("exe", false)] {
        let link = format!("/proc/{pid}/{name}");
        let (path, is) = match (procfs::link(&link), fs::metadata(&link).on("read", &link)) {
            // A zombie has neither.
            (Err(error), _) | (_, Err(error)) if procfs::is_gone(&error) => continue,
            (path, is) => (path?, is?),
        };
        if !is_at(root.as_fd(), &path, &is) {
            let path = String::from_utf8_lossy(&path).into_owned();
            found.push(if is_directory {
                Refusal::DeletedDirectory { path }
            } else {
                Refusal::ReplacedProgram { path }
            });
        }
    }
    Ok(found)
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
fn children(pid: i32, tasks: &[i32]) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    for tid in tasks {
        // A thread may end between the two reads; it then has no children.
        let text = match procfs::read(&format!("/proc/{pid}/task/{tid}/children")) {
            Err(error) if procfs::is_gone(&error) => continue,
            text => text?,
        };
        for child in String::from_utf8_lossy(&text).split_ascii_whitespace() {
            let name = procfs::read(&format!("/proc/{child}/comm")).unwrap_or_default();
            found.push(format!("{child} {}", String::from_utf8_lossy(&name).trim_end()));
        }
    }
    Ok(found)
}

/// The class byte of the program's ELF header: 1 is 32-bit.
fn elf_class(pid: i32) -> Option<u8> {
    use std::io::Read;
    let mut header = [0; 5];
    std::fs::File::open(format!("/proc/{pid}/exe")).ok()?.read_exact(&mut header).ok()?;
    Some(header[4])
}
