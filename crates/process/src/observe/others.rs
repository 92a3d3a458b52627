//! Other processes of the program's sandbox: only a single process can be forked.

use procfs::Fields;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::{error::Error, observe::root, refusal::Refusal, stop::stopped::Task};

/// Where the program's other processes are looked for.
#[derive(Debug)]
pub(crate) struct OtherProcesses {
    pid: i32,
    /// Its id inside its pid namespace.
    inner_pid: i32,
    /// Its sandbox's /proc, which lists the sandbox's processes only, however many the machine has. None outside of a sandbox.
    proc: Option<OwnedFd>,
    /// Processes that were started in the sandbox from outside, as it numbers them. None if that is not known.
    started: Option<Vec<i32>>,
}

/// What the sandbox's /proc lists beside the program, its init and what was started from outside.
#[derive(Debug, Default)]
struct SandboxProcesses {
    /// Processes whose parent has ended, as `pid name`.
    daemons: Vec<String>,
    has_children: bool,
    /// Processes without a parent in the sandbox.
    parentless: Vec<Process>,
}

/// A process that has the program's own parent, as the sandbox numbers it.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    name: String,
}

impl OtherProcesses {
    /// `ids` are the program's in all pid namespaces; `started` are the processes that were started in its sandbox from outside, as the
    /// caller sees them.
    pub(crate) fn of(pid: i32, ids: &[u64], root: BorrowedFd<'_>, started: Option<&[i32]>) -> Result<Self, Error> {
        let proc = if ids.len() > 1 { Some(open_proc(pid, root)?) } else { None };
        let inner_pid = ids.last().map_or(pid, |id| *id as i32);
        let started = started.map(|started| started.iter().filter_map(|pid| inner(*pid)).collect());
        Ok(Self { pid, inner_pid, proc, started })
    }

    /// Looks for them while the program, whose threads are `tasks`, runs.
    pub(crate) fn look(&self, tasks: &[i32]) -> Result<Vec<Refusal>, Error> {
        let listed = self.list()?;
        let mut found: Vec<Refusal> = children(self.pid, tasks)?.into_iter().collect();
        found.extend(daemons(&listed));
        found.extend(siblings(&listed.parentless));
        Ok(found)
    }

    /// Processes that the program has started since the first look. Siblings of the program are given apart: one of
    /// them may be the still that is being cloned.
    pub(crate) fn again(&self, tasks: &[Task]) -> Result<(Vec<Refusal>, Vec<Process>), Error> {
        let tasks: Vec<i32> = tasks.iter().map(|task| task.tid).collect();
        if self.proc.is_none() {
            return Ok((children(self.pid, &tasks)?.into_iter().collect(), Vec::new()));
        }
        let listed = self.list()?;
        let children = if listed.has_children { children(self.pid, &tasks)? } else { None };
        Ok((children.into_iter().chain(daemons(&listed)).collect(), listed.parentless))
    }

    /// A zombie without a parent in the sandbox, or whose parent is its init, is about to be reaped.
    fn list(&self) -> Result<SandboxProcesses, Error> {
        const INIT: i32 = 1;
        let mut listed = SandboxProcesses::default();
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
            listed.has_children |= parent == self.inner_pid;
            let state = status.get("State").unwrap_or_default();
            if state.starts_with(['Z', 'X']) {
                continue;
            }
            let name = status.get("Name").unwrap_or_default();
            match parent {
                INIT => listed.daemons.push(format!("{inner} {name}")),
                // Stopped by a tracer outside of the sandbox: a still, of this capture or of one before.
                0 if state.starts_with('t') && status.number("TracerPid", 10)? == 0 => {}
                0 if self.started.as_ref().is_some_and(|started| !started.contains(&inner)) => {
                    listed.parentless.push(Process { pid: inner, name: name.to_owned() });
                }
                _ => {}
            }
        }
        Ok(listed)
    }
}

/// Those of them that are not the still, whose id is `still` here.
pub(crate) fn siblings_but(parentless: Vec<Process>, still: i32) -> Option<Refusal> {
    if parentless.is_empty() {
        return None;
    }
    let still = inner(still);
    let others: Vec<Process> = parentless.into_iter().filter(|process| Some(process.pid) != still).collect();
    siblings(&others)
}

fn siblings(parentless: &[Process]) -> Option<Refusal> {
    let pids: Vec<String> = parentless.iter().map(|process| format!("{} {}", process.pid, process.name)).collect();
    (!pids.is_empty()).then(|| Refusal::Siblings { pids: pids.join(", ") })
}

/// Processes that the program left to its sandbox's init, as `pid name`; pids as in the sandbox. A copy would not have them.
fn daemons(listed: &SandboxProcesses) -> Option<Refusal> {
    let pids = listed.daemons.join(", ");
    (!pids.is_empty()).then_some(Refusal::Daemons { pids })
}

/// Children of all threads, as `pid name`.
fn children(pid: i32, tasks: &[i32]) -> Result<Option<Refusal>, Error> {
    let mut found = Vec::new();
    for tid in tasks {
        // A thread may end between the two reads; it then has no children.
        let children = match procfs::children(pid, *tid) {
            Err(error) if error.is_gone() => continue,
            children => children?,
        };
        for child in children {
            let name = procfs::read(&format!("/proc/{child}/comm")).unwrap_or_default();
            found.push(format!("{child} {}", String::from_utf8_lossy(&name).trim_end()));
        }
    }
    Ok((!found.is_empty()).then(|| Refusal::Children { pids: found.join(", ") }))
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
