//! Starting the other process, by which it does not matter which one it is.

use std::{
    io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    Config, Role,
    limits::{HEALTHY, RESTART_FIRST, RESTART_MAX},
};

/// Starts this program in another role. Its standard input is a socket whose other end is returned.
pub(crate) fn start(config: &Config, role: Role) -> io::Result<(Child, OwnedFd)> {
    let (ours, theirs) = sys::seqpacket::pair()?;
    // The very program that runs here, whatever lies at its path by now: both sides speak the same language.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("pando").args(&config.arguments).arg(role.argument());
    let child = command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).spawn()?;
    Ok((child, ours))
}

/// How soon a process that has died is started again.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Deaths in a row, each soon after its start.
    pub(crate) failures: u32,
    started: Option<Instant>,
}

impl Pace {
    /// To be waited before the next start.
    pub(crate) fn pause(&mut self) -> Duration {
        let healthy = self.started.is_none_or(|started| started.elapsed() > HEALTHY);
        self.failures = if healthy { 0 } else { self.failures + 1 };
        match self.failures {
            0 | 1 => Duration::ZERO,
            failures => RESTART_FIRST.saturating_mul(1 << (failures - 2).min(16)).min(RESTART_MAX),
        }
    }

    pub(crate) fn started(&mut self) {
        self.started = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_death_costs_nothing_and_many_ever_more() {
        let mut pace = Pace::default();
        let pauses: Vec<_> = (0..6).map(|_| (pace.pause(), pace.started()).0.as_millis()).collect();
        assert_eq!(pauses, [0, 0, 20, 40, 80, 160]);
        for _ in 0..100 {
            pace.pause();
        }
        assert_eq!(pace.pause(), RESTART_MAX);
    }
}
