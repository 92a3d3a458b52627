//! The floor of every start: how long the kernel's own fork of a program takes.

use std::time::{Duration, Instant};

use crate::{
    error::Error,
    procfs,
    still::{Newborn, Still},
    stopped::Stopped,
};

/// Forks process `pid`, as it is, `rounds` times and ends each fork at once; gives what each fork took. The program is stopped meanwhile
/// and goes on unchanged. A traced clone, with the tracer's part of it.
pub fn time_forks(pid: i32, rounds: usize) -> Result<Vec<Duration>, Error> {
    let mut stopped = Stopped::seize(pid)?;
    let syscall = stopped.syscall(&procfs::mappings(pid, "maps")?)?;
    let mut took = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let began = Instant::now();
        let child = stopped.step_clone(syscall)?;
        took.push(began.elapsed());
        drop(Still::adopt(Newborn::new(child))?);
    }
    Ok(took)
}
