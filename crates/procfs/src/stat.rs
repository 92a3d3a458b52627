//! `/proc/PID/stat`.

use std::{fs::File, io::Read};

use crate::error::{Context, Error};

/// 52 numbers of up to 20 digits and a name, in bytes.
const BYTES_MAX: usize = 1_200;

/// What `/proc/PID/stat` tells.
#[derive(Debug)]
pub struct Stat {
    state: u8,
    /// By their number in proc(5), from 4 on.
    fields: Vec<i64>,
}

impl Stat {
    /// Of a process ("PID" or "self"), or of a thread ("PID/task/TID").
    pub fn read(task: &str) -> Result<Self, Error> {
        let path = format!("/proc/{task}/stat");
        // In one read, which gives all of it whatever the name: every start of a sandbox waits for this.
        let mut room = [0; BYTES_MAX];
        let length = File::open(&path).and_then(|mut file| file.read(&mut room)).on("read", &path)?;
        let parsed = Self::parse(&room[..length]);
        parsed.ok_or_else(|| Error::Format { path, line: String::from_utf8_lossy(&room[..length]).into_owned() })
    }

    /// "42 (name) S 1 ...": the name may itself have brackets and spaces in it.
    fn parse(text: &[u8]) -> Option<Self> {
        let start = text.iter().position(|byte| *byte == b'(')?;
        let end = text.iter().rposition(|byte| *byte == b')').filter(|end| *end > start)?;
        let mut fields = std::str::from_utf8(&text[end + 1..]).ok()?.split_ascii_whitespace();
        let state = fields.next()?.bytes().next()?;
        // Addresses above i64::MAX do not occur in user space; unparsable fields read as 0.
        let fields = fields.map(|field| field.parse().unwrap_or(0)).collect();
        Some(Self { state, fields })
    }

    /// Field number `n` of proc_pid_stat(5), 4 or more; 0 if there is none, or if it is no number.
    pub fn field(&self, n: usize) -> i64 {
        self.fields.get(n - 4).copied().unwrap_or(0)
    }

    /// The process's parent; 0: none that the caller's pid namespace has.
    pub fn parent(&self) -> i32 {
        self.field(4) as i32
    }

    /// When it began, in clock ticks since boot.
    pub fn start_ticks(&self) -> u64 {
        self.field(22) as u64
    }

    /// Whether it is a zombie or has begun to exit.
    pub fn is_ending(&self) -> bool {
        self.is_dead() || self.is_on_its_way_out()
    }

    /// Whether it has begun to exit (`PF_EXITING` in field 9) and is no zombie yet.
    pub fn is_on_its_way_out(&self) -> bool {
        const PF_EXITING: i64 = 4;
        !self.is_dead() && self.field(9) & PF_EXITING != 0
    }

    /// Whether a process's main thread is dead and there is no other one (field 20 counts those that have not been reaped).
    pub fn is_last_dead(&self) -> bool {
        self.is_dead() && self.field(20) <= 1
    }

    /// Whether it is the kernel's own (`PF_KTHREAD` in field 9).
    pub fn is_kernel_thread(&self) -> bool {
        const PF_KTHREAD: i64 = 0x0020_0000;
        self.field(9) & PF_KTHREAD != 0
    }

    fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }

    /// R, S, D, T, t, Z ... as proc_pid_stat(5) has it.
    pub fn state(&self) -> u8 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_the_end_of_a_name() {
        let stat = Stat::parse(b"42 (a) R (b) S 1 7 8\n").unwrap();
        assert_eq!((stat.state(), stat.field(5)), (b'S', 7));
        assert!(Stat::parse(b"42 )(").is_none());
    }

    #[test]
    fn fields_are_numbered_as_in_the_manual() {
        let fields = (3..=52).map(|field| if field == 3 { "S".to_owned() } else { field.to_string() });
        let text = format!("7 (a) R (b)) {}", fields.collect::<Vec<_>>().join(" "));
        let stat = Stat::parse(text.as_bytes()).unwrap();
        assert_eq!((stat.state(), stat.parent(), stat.start_ticks(), stat.field(52)), (b'S', 4, 22, 52));
        assert!(!stat.is_ending());
    }
}
