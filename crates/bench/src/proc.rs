//! Figures of the kernel's in files of lines.

use std::{fs, time::Duration};

use anyhow::{Context, Result};

/// The bytes behind `key`, colon included, which the file gives in kB.
pub(super) fn bytes_of(path: &str, key: &str) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(number.with_context(|| format!("{path} has no {key}"))? << 10)
}

/// In /proc the kernel counts processor time in hundredths of a second on all architectures that Pando runs on (USER_HZ).
const TICK_MS: u64 = 10;

/// The processor time of these processes, and of their children that have ended. Those that are gone count nothing.
pub(super) fn cpu_of(pids: &[i32]) -> Result<Duration> {
    let mut ticks = 0;
    for pid in pids {
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        // Behind the name: state, and from the 12th on utime, stime, cutime, cstime.
        let behind = stat.rsplit(") ").next().unwrap_or_default();
        let times = behind.split(' ').skip(11).take(4).map(|text| text.parse::<u64>().unwrap_or(0));
        ticks += times.sum::<u64>();
    }
    Ok(Duration::from_millis(ticks * TICK_MS))
}
