//! The processes of a program: the one that the sandbox was started with, all that descend from it, and those that have lost their parents.

use base::limits;
use procfs::{Fields, ProcessIdentity, Stat};
use sys::remote;

use crate::{error::Error, refusal::Refusal};

/// A process of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Relative {
    pub(crate) pid: i32,
    /// The place of its parent in the list; that of the first, and of those that have lost theirs, is 0.
    pub(crate) parent: usize,
    pub(crate) state: State,
}

/// How it stands with a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Its parent is in the list.
    Child,
    /// Its parent has ended: it has the sandbox's init as its parent.
    Orphan,
    /// It was started in the sandbox from outside: the place of it among the commands.
    Command(usize),
    /// It has ended, and was not waited for.
    Zombie,
}

impl Relative {
    pub(crate) fn is_zombie(&self) -> bool {
        self.state == State::Zombie
    }
}

/// The program `pid` and its descendants as they are now, each behind its parent. Behind them the `commands`, and then those that have lost their
/// parents, which are the children of process `init`, with theirs; session leaders come first.
pub(crate) fn find(pid: i32, init: Option<i32>, commands: &[ProcessIdentity]) -> Result<Vec<Relative>, Error> {
    let state = commands.iter().position(|command| command.pid == pid).map_or(State::Child, State::Command);
    let mut found = vec![Relative { pid, parent: 0, state }];
    follow(&mut found, 0)?;
    for (place, command) in commands.iter().enumerate().filter(|(_, command)| command.pid != pid) {
        // The keeper reaps one that has ended, and any process of the host may have its number then.
        if command.now().is_some_and(|stat| !stat.is_last_dead()) {
            let from = found.len();
            found.push(Relative { pid: command.pid, parent: 0, state: State::Command(place) });
            follow(&mut found, from)?;
        }
    }
    let orphans = init.map_or(Ok(Vec::new()), children)?;
    let mut orphans: Vec<i32> = orphans.into_iter().filter(|orphan| *orphan != pid).collect();
    orphans.sort_by_key(|orphan| !remote::leads_session(*orphan).unwrap_or(false));
    for orphan in orphans {
        // Init is about to reap one that has ended.
        if is_zombie(orphan)? == Some(false) {
            let from = found.len();
            found.push(Relative { pid: orphan, parent: 0, state: State::Orphan });
            follow(&mut found, from)?;
        }
    }
    Ok(found)
}

/// Adds the descendants of those from place `next` on.
fn follow(found: &mut Vec<Relative>, mut next: usize) -> Result<(), Error> {
    while let Some(relative) = found.get(next).copied() {
        for child in children(relative.pid)? {
            if let Some(is_zombie) = is_zombie(child)? {
                let state = if is_zombie { State::Zombie } else { State::Child };
                found.push(Relative { pid: child, parent: next, state });
            }
        }
        if found.len() > limits::PROCESSES_MAX {
            let max = limits::PROCESSES_MAX;
            let refusal = Refusal::TooMany { what: "processes".into(), found: found.len(), max };
            return Err(Error::Refused(vec![refusal]));
        }
        next += 1;
    }
    Ok(())
}

/// The init of a process's pid namespace, if the process is not in this one's.
pub(crate) fn init_of(pid: i32) -> Result<Option<i32>, Error> {
    let ids = |pid: i32| -> Result<Vec<u64>, Error> {
        Ok(Fields::read(format!("/proc/{pid}/status"))?.numbers("NSpid", 10)?)
    };
    let namespace = |pid: i32| procfs::link(&format!("/proc/{pid}/ns/pid")).ok();
    let (level, own) = (ids(pid)?.len(), namespace(pid));
    if level < 2 {
        return Ok(None);
    }
    let is_init = |other: &i32| {
        let ids = ids(*other).unwrap_or_default();
        ids.len() == level && ids.last() == Some(&1) && namespace(*other) == own
    };
    Ok(procfs::numbers("/proc")?.into_iter().find(is_init))
}

/// Children of all its threads.
fn children(pid: i32) -> Result<Vec<i32>, Error> {
    let mut found = Vec::new();
    let tasks = match procfs::numbers(&format!("/proc/{pid}/task")) {
        Err(error) if error.is_gone() => return Ok(found),
        tasks => tasks?,
    };
    for tid in tasks {
        match procfs::children(pid, tid) {
            // A thread may end between the two reads; another one has its children then.
            Err(error) if error.is_gone() => {}
            children => found.extend(children?),
        }
    }
    Ok(found)
}

/// Nothing for one that is gone. A process whose main thread has ended before its others is none.
fn is_zombie(pid: i32) -> Result<Option<bool>, Error> {
    match Stat::read(&pid.to_string()) {
        Err(error) if error.is_gone() => Ok(None),
        stat => Ok(Some(stat?.is_last_dead())),
    }
}

/// Whether a process is there, and has not ended.
pub(crate) fn runs(pid: i32) -> bool {
    Stat::read(&pid.to_string()).is_ok_and(|stat| !stat.is_last_dead())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn another_process_with_the_number_of_a_command_is_none() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let (own, command) = (std::process::id() as i32, ProcessIdentity::of(child.id() as i32).unwrap());
        let has = |command| find(own, None, &[command]).unwrap().iter().any(|found| found.state == State::Command(0));
        assert!(has(command));
        assert!(!has(ProcessIdentity { start_ticks: command.start_ticks - 1, ..command }));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!has(command));
    }

    #[test]
    fn descendants_are_found_behind_their_parents() {
        let mut shell = Command::new("sh").args(["-c", "sleep 100 & (sleep 101 & wait) & wait"]).spawn().unwrap();
        let pid = shell.id() as i32;
        let found = loop {
            let found = find(pid, None, &[]).unwrap();
            if found.len() == 4 {
                break found;
            }
            std::thread::yield_now();
        };
        assert!(found.iter().enumerate().skip(1).all(|(at, relative)| relative.parent < at && !relative.is_zombie()));
        assert_eq!((found[0].pid, found[3].parent != 0), (pid, true));
        for relative in found.iter().skip(1) {
            let pid = rustix::process::Pid::from_raw(relative.pid).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = shell.kill();
        shell.wait().unwrap();
    }
}
