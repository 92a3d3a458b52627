//! The processes that the keeper watches, each by a pidfd: programs, commands, zygotes, builders.
//!
//! A pidfd can be watched whether or not the process is the keeper's child, so adopted programs need no second way. Only their status comes
//! later, when their parent has reaped them.

use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    time::{Duration, Instant},
};

use base::id::{SandboxId, ZygoteId};
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid},
};

use super::watch::{Source, Watched, Watcher};
use crate::protocol::Status;

/// Why a process is watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Role {
    /// A sandbox's program (`main`) or a command run in it.
    Program { id: SandboxId, main: bool },
    /// A parked zygote.
    Zygote(ZygoteId),
    /// The builder of a zygote.
    Builder(ZygoteId),
    /// A process that works on a sandbox's files.
    Hand(SandboxId),
    /// It was killed by the keeper. Its end needs no action.
    Dropped,
}

impl Role {
    fn sandbox(&self) -> Option<&SandboxId> {
        match self {
            Self::Program { id, .. } => Some(id),
            Self::Zygote(_) | Self::Builder(_) | Self::Hand(_) | Self::Dropped => None,
        }
    }
}

/// One watched process.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) pid: i32,
    pub(super) role: Role,
    pidfd: Watched<OwnedFd>,
    /// When the keeper saw its end, if another process has to reap it.
    ended: Option<Instant>,
}

/// How long its parent may take to reap an adopted program. After that the status counts as unknown.
const REAPED_MAX: Duration = Duration::from_secs(5);

/// All watched processes.
#[derive(Debug)]
pub(super) struct Children {
    watcher: Watcher,
    by_serial: HashMap<u64, Child>,
    next_serial: u64,
}

impl Children {
    pub(super) fn new(watcher: Watcher) -> Self {
        Self { watcher, by_serial: HashMap::new(), next_serial: 0 }
    }

    /// Watches `pid`; its end is reported as [`Source::Process`] of the serial number returned.
    pub(super) fn watch(&mut self, pid: i32, role: Role) -> io::Result<u64> {
        let number = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        let serial = self.next_serial;
        let pidfd = self.watcher.watch(pidfd_open(number, PidfdFlags::empty())?, Source::Process(serial))?;
        self.next_serial += 1;
        self.by_serial.insert(serial, Child { pid, role, pidfd, ended: None });
        Ok(serial)
    }

    /// Reaps a process that has ended, if it is a child. None if it has not ended, or if another process has to reap it first.
    pub(super) fn ended(&mut self, serial: u64) -> Option<(Child, Status)> {
        let child = self.by_serial.get_mut(&serial)?;
        let status = match reap(child.pidfd.as_fd()) {
            End::No => return None,
            End::Reaped(status) => status,
            End::Unreaped => {
                child.ended = Some(Instant::now());
                // The pidfd stays readable, and hangs up when the process is reaped. If watching for that fails, `ended_late` finds the process.
                let _ = child.pidfd.watch_hangup_only();
                return None;
            }
        };
        self.by_serial.remove(&serial).map(|child| (child, status))
    }

    /// Processes whose end was seen before they could be reaped. One is the keeper's child by now if its parent has ended, as the helper of a copy
    /// does. What no other process reaps within [`REAPED_MAX`] has an unknown status.
    pub(super) fn ended_late(&mut self) -> Vec<(Child, Status)> {
        let mut found = Vec::new();
        for (serial, child) in &self.by_serial {
            let Some(ended) = child.ended else { continue };
            match reap(child.pidfd.as_fd()) {
                End::Reaped(status) => found.push((*serial, status)),
                End::No | End::Unreaped if ended.elapsed() > REAPED_MAX => found.push((*serial, Status::Unknown)),
                End::No | End::Unreaped => {}
            }
        }
        found.into_iter().filter_map(|(serial, status)| Some((self.by_serial.remove(&serial)?, status))).collect()
    }

    /// Kills the processes with `role`. Their end is not reported.
    pub(super) fn drop_role(&mut self, role: &Role) {
        self.kill_role(role);
        for child in self.by_serial.values_mut().filter(|child| child.role == *role) {
            child.role = Role::Dropped;
        }
    }

    /// Kills the processes with `role`. Their end is reported.
    pub(super) fn kill_role(&self, role: &Role) {
        for child in self.by_serial.values().filter(|child| child.role == *role) {
            // It fails only for a process that has ended.
            let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
        }
    }

    /// Sandboxes in which a program or command still runs.
    pub(super) fn with_programs(&self) -> HashSet<&SandboxId> {
        self.by_serial.values().filter(|child| child.ended.is_none()).filter_map(|child| child.role.sandbox()).collect()
    }

    /// A sandbox's program, unless it has ended.
    pub(super) fn program_of(&self, id: &SandboxId) -> Option<BorrowedFd<'_>> {
        let is_it = |child: &&Child| matches!(&child.role, Role::Program { id: of, main: true } if of == id);
        self.by_serial.values().find(is_it).filter(|child| child.ended.is_none()).map(|child| child.pidfd.as_fd())
    }

    /// The program of a sandbox and the commands that run in it.
    pub(super) fn programs_of(&self, id: &SandboxId) -> Vec<i32> {
        self.by_serial.values().filter(|child| child.role.sandbox() == Some(id)).map(|child| child.pid).collect()
    }

    /// Whether a builder is at work. Its orphans become children of the keeper and must not be mistaken for strays.
    pub(super) fn has_builders(&self) -> bool {
        self.by_serial.values().any(|child| matches!(child.role, Role::Builder(_)))
    }

    /// Reaps children that are not watched, for example the helpers of a start whose zygote died. Never call it during a start or a build: a copy
    /// is not watched before it is reported.
    pub(super) fn reap_strays(&self, known: impl Fn(i32) -> bool) {
        for pid in self.strays(known) {
            reap_pid(pid);
        }
    }

    /// As [`Self::reap_strays`], in pid namespaces whose processes are being killed: stills, and copies that were not reported.
    pub(super) fn reap_strays_in(&self, namespaces: &HashSet<PathBuf>, known: impl Fn(i32) -> bool) {
        for pid in self.strays(known) {
            if pid_namespace(pid).is_some_and(|namespace| namespaces.contains(&namespace)) {
                reap_pid(pid);
            }
        }
    }

    /// Children that are not watched.
    pub(super) fn strays(&self, known: impl Fn(i32) -> bool) -> Vec<i32> {
        let own = std::process::id() as i32;
        // Without CONFIG_PROC_CHILDREN, strays stay zombies until the keeper ends.
        let children = procfs::children(own, own).unwrap_or_default();
        let watched: HashSet<i32> = self.by_serial.values().map(|child| child.pid).collect();
        children.into_iter().filter(|pid| !watched.contains(pid) && !known(*pid)).collect()
    }
}

/// The identity of the pid namespace of a process, which may be a zombie.
pub(super) fn pid_namespace(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// Reaps a child if it has ended.
fn reap_pid(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

/// Whether a process has ended.
enum End {
    No,
    Reaped(Status),
    /// It has ended, but the status is unknown until its parent has reaped it.
    Unreaped,
}

/// Reaps the process behind `pidfd` if it has ended and is a child.
fn reap(pidfd: BorrowedFd<'_>) -> End {
    match waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
        Ok(Some(status)) => End::Reaped(match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Status::Code(code),
            (None, Some(signal)) => Status::Signal(signal),
            (None, None) => Status::Unknown,
        }),
        Ok(None) => End::No,
        // Not a child (ECHILD): only the pidfd says whether the process has ended.
        Err(_) if !is_readable(pidfd) => End::No,
        Err(_) => match sys::pidfd::exit_status(pidfd) {
            Ok(Some(status)) => End::Reaped(Status::of_wait(status)),
            Ok(None) => End::Unreaped,
            Err(_) => End::Reaped(Status::Unknown),
        },
    }
}

pub(super) fn is_readable(fd: impl AsFd) -> bool {
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&now)), Ok(ready) if ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(command: &mut std::process::Command) -> (Children, Watcher, i32) {
        let watcher = Watcher::new().unwrap();
        let mut children = Children::new(watcher.clone());
        let pid = command.spawn().unwrap().id() as i32;
        children.watch(pid, Role::Builder(ZygoteId(1))).unwrap();
        (children, watcher, pid)
    }

    #[test]
    fn the_end_of_a_child_is_reported_with_its_status() {
        let (mut children, watcher, pid) = watched(std::process::Command::new("sh").args(["-c", "exit 3"]));
        assert_eq!(watcher.wait(Some(5000)).unwrap(), [Source::Process(0)]);
        let (child, status) = children.ended(0).unwrap();
        assert_eq!((child.pid, child.role, status), (pid, Role::Builder(ZygoteId(1)), Status::Code(3)));
        assert!(children.ended(0).is_none());
    }

    #[test]
    fn the_status_of_one_that_ended_before_it_became_a_child_is_known_when_it_is_one() {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        let script = "(exit 3) & echo $!; exec sleep 100";
        let mut parent =
            std::process::Command::new("sh").args(["-c", script]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(parent.stdout.take().unwrap()), &mut line).unwrap();
        let watcher = Watcher::new().unwrap();
        let mut children = Children::new(watcher.clone());
        children.watch(line.trim().parse().unwrap(), Role::Builder(ZygoteId(1))).unwrap();
        assert_eq!(watcher.wait(Some(5000)).unwrap(), [Source::Process(0)]);
        assert!(children.ended(0).is_none());
        assert!(children.ended_late().is_empty());
        parent.kill().unwrap();
        parent.wait().unwrap();
        let [(_, status)] = &children.ended_late()[..] else { panic!("it is not reaped") };
        assert_eq!(*status, Status::Code(3));
    }

    #[test]
    fn dropping_a_role_kills_its_processes() {
        let (mut children, watcher, _) = watched(std::process::Command::new("sleep").arg("100"));
        assert!(children.ended(0).is_none());
        children.drop_role(&Role::Builder(ZygoteId(1)));
        assert_eq!(watcher.wait(Some(5000)).unwrap(), [Source::Process(0)]);
        let (child, status) = children.ended(0).unwrap();
        assert_eq!((child.role, status), (Role::Dropped, Status::Signal(9)));
    }
}
