//! A process that cannot be mistaken for a later one with the same pid.

use serde::{Deserialize, Serialize};

use crate::Stat;

/// A pid together with the moment its process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The pid, as the host sees it.
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`: clock ticks between boot and the process's start.
    pub start_ticks: u64,
}

impl ProcessIdentity {
    /// The process that has `pid` now; `None` if there is none.
    pub fn of(pid: i32) -> Option<Self> {
        Some(Self { pid, start_ticks: Self::stat(pid)?.start_ticks() })
    }

    /// Whether the process still runs. One that is exiting does not, though that may take long: a pid 1 waits until its namespace is empty.
    pub fn is_alive(&self) -> bool {
        self.now().is_some_and(|stat| !stat.is_ending())
    }

    /// What /proc tells of the process, if it has not been reaped.
    pub fn now(&self) -> Option<Stat> {
        Self::stat(self.pid).filter(|stat| stat.start_ticks() == self.start_ticks)
    }

    fn stat(pid: i32) -> Option<Stat> {
        Stat::read(&pid.to_string()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_an_earlier_one_with_its_pid_is_not() {
        let mut own = ProcessIdentity::of(std::process::id() as i32).unwrap();
        assert!(own.is_alive());
        own.start_ticks -= 1;
        assert!(!own.is_alive());
    }
}
