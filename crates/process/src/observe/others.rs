//! Processes of the program's sandbox that do not descend from the program: copies would not have them.

use procfs::Fields;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::{error::Error, observe::root, refusal::Refusal};

/// Where the program's other processes are looked for.
#[derive(Debug)]
pub(crate) struct OtherProcesses {
    /// The program's id inside its pid namespace.
    inner_pid: i32,
    /// Its sandbox's /proc, which lists the sandbox's processes only, however many the machine has. None outside of a sandbox.
    proc: Option<OwnedFd>,
    /// Processes that were started in the sandbox from outside, as it numbers them. None if that is not known.
    started: Option<Vec<i32>>,
}

/// What the sandbox's /proc lists beside the program's processes, its init and what was started from outside.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    /// Processes whose parent has ended.
    daemons: Vec<Process>,
    /// Processes without a parent in the sandbox.
    parentless: Vec<Process>,
}

/// A process as the sandbox numbers it.
#[derive(Debug)]
struct Process {
    pid: i32,
    name: String,
}

impl OtherProcesses {
    /// `ids` are the program's in all pid namespaces; `started` are the processes that were started in its sandbox from outside, as the
    /// caller sees them.
    pub(crate) fn of(pid: i32, ids: &[u64], root: BorrowedFd<'_>, started: Option<&[i32]>) -> Result<Self, Error> {
        let proc = if ids.len() > 1 { Some(open_proc(pid, root)?) } else { None };
        let inner_pid = ids.last().map_or(pid, |id| *id as i32);
        let started = started.map(|started| started.iter().filter_map(|pid| inner(*pid)).collect());
        Ok(Self { inner_pid, proc, started })
    }

    /// What is there now. Some of it may be the program's own, and the stills that are being cloned.
    pub(crate) fn list(&self) -> Result<Strangers, Error> {
        const INIT: i32 = 1;
        let mut listed = Strangers::default();
        let Some(proc) = &self.proc else { return Ok(listed) };
        let proc = format!("/proc/self/fd/{}", proc.as_raw_fd());
        for inner in procfs::numbers(&proc)? {
            if inner == INIT || inner == self.inner_pid {
                continue;
            }
            let status = match Fields::read(format!("{proc}/{inner}/status")) {
                Err(error) if error.is_gone() => continue,
                status => status?,
            };
            let parent = status.number("PPid", 10)? as i32;
            let state = status.get("State").unwrap_or_default();
            if state.starts_with(['Z', 'X']) {
                continue;
            }
            let name = status.get("Name").unwrap_or_default();
            match parent {
                // Stopped by a tracer outside of the sandbox: a still, of this capture or of one before.
                INIT | 0 if state.starts_with('t') && status.number("TracerPid", 10)? == 0 => {}
                INIT => listed.daemons.push(Process { pid: inner, name: name.to_owned() }),
                0 if self.started.as_ref().is_some_and(|started| !started.contains(&inner)) => {
                    listed.parentless.push(Process { pid: inner, name: name.to_owned() });
                }
                _ => {}
            }
        }
        Ok(listed)
    }
}

/// Those of them that are none of the `known`, as they are called here.
pub(crate) fn refusals_but(listed: Strangers, known: &[i32]) -> Vec<Refusal> {
    let known: Vec<i32> = match listed.daemons.is_empty() && listed.parentless.is_empty() {
        true => Vec::new(),
        false => known.iter().filter_map(|pid| inner(*pid)).collect(),
    };
    let named = |processes: Vec<Process>| {
        let others = processes.into_iter().filter(|process| !known.contains(&process.pid));
        let pids: Vec<String> = others.map(|process| format!("{} {}", process.pid, process.name)).collect();
        (!pids.is_empty()).then(|| pids.join(", "))
    };
    let daemons = named(listed.daemons).map(|pids| Refusal::Daemons { pids });
    let siblings = named(listed.parentless).map(|pids| Refusal::Siblings { pids });
    daemons.into_iter().chain(siblings).collect()
}

/// What a process is called in its own pid namespace, if it is still there.
fn inner(pid: i32) -> Option<i32> {
    let status = Fields::read(format!("/proc/{pid}/status")).ok()?;
    status.numbers("NSpid", 10).ok()?.last().map(|pid| *pid as i32)
}

fn open_proc(pid: i32, root: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    const PROC_SUPER_MAGIC: u64 = 0x9fa0;
    match root::open_inside(root, b"proc") {
        Ok(proc) if rustix::fs::fstatfs(&proc).is_ok_and(|found| found.f_type as u64 == PROC_SUPER_MAGIC) => Ok(proc),
        _ => Err(Error::Unexpected { pid, what: "does not see /proc of its sandbox".into() }),
    }
}
