//! The processes of a program: the one that the sandbox was started with, and all that descend from it.

use base::limits;
use procfs::Stat;

use crate::{error::Error, refusal::Refusal};

/// A process of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Relative {
    pub(crate) pid: i32,
    /// The place of its parent in the list; the first has 0.
    pub(crate) parent: usize,
    /// It has ended, and was not waited for.
    pub(crate) is_zombie: bool,
}

/// The program `pid` and its descendants as they are now, each behind its parent.
pub(crate) fn find(pid: i32) -> Result<Vec<Relative>, Error> {
    let mut found = vec![Relative { pid, parent: 0, is_zombie: false }];
    let mut next = 0;
    while let Some(relative) = found.get(next).copied() {
        for child in children(relative.pid)? {
            if let Some(is_zombie) = is_zombie(child)? {
                found.push(Relative { pid: child, parent: next, is_zombie });
            }
        }
        if found.len() > limits::PROCESSES_MAX {
            let max = limits::PROCESSES_MAX;
            let refusal = Refusal::TooMany { what: "processes".into(), found: found.len(), max };
            return Err(Error::Refused(vec![refusal]));
        }
        next += 1;
    }
    Ok(found)
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
    const THREADS: usize = 20;
    match Stat::read(&pid.to_string()) {
        Err(error) if error.is_gone() => Ok(None),
        stat => {
            let stat = stat?;
            Ok(Some(stat.state() == b'Z' && stat.field(THREADS) <= 1))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn descendants_are_found_behind_their_parents() {
        let mut shell = Command::new("sh").args(["-c", "sleep 100 & (sleep 101 & wait) & wait"]).spawn().unwrap();
        let pid = shell.id() as i32;
        let found = loop {
            let found = find(pid).unwrap();
            if found.len() == 4 {
                break found;
            }
            std::thread::yield_now();
        };
        assert!(found.iter().enumerate().skip(1).all(|(at, relative)| relative.parent < at && !relative.is_zombie));
        assert_eq!((found[0].pid, found[3].parent != 0), (pid, true));
        for relative in found.iter().skip(1) {
            let pid = rustix::process::Pid::from_raw(relative.pid).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = shell.kill();
        shell.wait().unwrap();
    }
}
