//! A process that cannot be mistaken for a later one with the same pid.

use std::{fs, io::Read};

use serde::{Deserialize, Serialize};

/// A pid together with the moment its process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The pid, as the host sees it.
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`: clock ticks between boot and the process's start.
    pub start_ticks: u64,
}

/// The fields of `/proc/PID/stat` that matter here.
pub(crate) struct Stat {
    pub(crate) state: char,
    pub(crate) parent: i32,
    /// It is on its way out, though it may be long: a pid 1 waits there until its namespace is empty.
    exiting: bool,
    pub(crate) start_ticks: u64,
}

/// 52 numbers of up to 20 digits and a name, in bytes.
const STAT_BYTES_MAX: usize = 1_200;

/// `PF_EXITING` of the kernel's `include/linux/sched.h`.
const FLAG_EXITING: u32 = 4;

impl ProcessIdentity {
    /// The process that has `pid` now; `None` if there is none.
    pub fn of(pid: i32) -> Option<Self> {
        Some(Self { pid, start_ticks: stat(pid)?.start_ticks })
    }

    /// Whether the process still runs (one that is exiting and a zombie do not).
    pub fn is_alive(&self) -> bool {
        let alive = |stat: Stat| stat.start_ticks == self.start_ticks && !stat.exiting;
        stat(self.pid).is_some_and(|stat| !matches!(stat.state, 'Z' | 'X') && alive(stat))
    }
}

pub(crate) fn stat(pid: i32) -> Option<Stat> {
    // In one read, whatever the name: each start waits for this.
    let mut text = [0; STAT_BYTES_MAX];
    let length = fs::File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut text).ok()?;
    parse(&String::from_utf8_lossy(&text[..length]))
}

fn parse(text: &str) -> Option<Stat> {
    // The second field is the program's name in parentheses; it may itself contain both blanks and parentheses.
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let flags: u32 = fields.nth(4)?.parse().ok()?;
    let start_ticks = fields.nth(12)?.parse().ok()?;
    Some(Stat { state, parent, exiting: flags & FLAG_EXITING != 0, start_ticks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let fields = (3..=52).map(|field| if field == 3 { "S".to_owned() } else { field.to_string() });
        let text = format!("7 (a) R (b)) {}", fields.collect::<Vec<_>>().join(" "));
        let stat = parse(&text).unwrap();
        assert_eq!((stat.state, stat.parent, stat.exiting, stat.start_ticks), ('S', 4, false, 22));
    }

    #[test]
    fn this_process_is_alive_and_an_earlier_one_with_its_pid_is_not() {
        let mut own = ProcessIdentity::of(std::process::id() as i32).unwrap();
        assert!(own.is_alive());
        own.start_ticks -= 1;
        assert!(!own.is_alive());
    }
}
