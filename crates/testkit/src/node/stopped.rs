//! A keeper that stands still.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::{Node, SLOW_MACHINE};

/// The keeper of a node, which stands still until this is dropped.
pub struct StoppedKeeper(Pid);

impl Node {
    /// Stops the keeper, in a moment in which it holds no lock: the keepers of all nodes of a host take ranges of ids under one.
    pub fn stop_keeper(&self) -> Result<StoppedKeeper> {
        let keeper = self.info()?.keeper_pid.context("no keeper")? as i32;
        let stopped = Pid::from_raw(keeper).context("no keeper")?;
        let deadline = Instant::now() + SLOW_MACHINE;
        loop {
            kill_process(stopped, Signal::STOP)?;
            let stopped = StoppedKeeper(stopped);
            while procfs::Stat::read(&keeper.to_string())?.state() != b'T' {
                std::thread::sleep(Duration::from_micros(100));
            }
            // "1: FLOCK  ADVISORY  WRITE 1234 00:1b:5678 0 EOF"
            let locks = std::fs::read_to_string("/proc/locks")?;
            let is_its = |line: &str| line.split_ascii_whitespace().nth(4) == Some(keeper.to_string().as_str());
            if !locks.lines().any(is_its) {
                return Ok(stopped);
            }
            ensure!(Instant::now() < deadline, "the keeper always holds a lock");
            drop(stopped);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for StoppedKeeper {
    fn drop(&mut self) {
        if let Err(error) = kill_process(self.0, Signal::CONT) {
            eprintln!("the keeper stands still: {error}");
        }
    }
}
