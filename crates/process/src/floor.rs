//! The floor of every start: how long the kernel's own fork of a program takes.

use std::time::{Duration, Instant};

use crate::{
    error::Error,
    mappings, procfs,
    still::{Newborn, Still},
    stopped::Stopped,
};

/// Forks process `pid`, as it is, with the memory that it keeps from its own forks, `rounds` times and ends each fork at once; gives what each
/// fork took. The program is stopped meanwhile and goes on unchanged. A traced clone, with the tracer's part of it.
pub fn time_forks(pid: i32, rounds: usize) -> Result<Vec<Duration>, Error> {
    let kept = mappings::kept_from_forks(&procfs::mappings(pid, "smaps")?);
    let mut stopped = Stopped::seize(pid)?;
    let syscall = stopped.syscall(&procfs::mappings(pid, "maps")?)?;
    let mut took = Vec::with_capacity(rounds);
    let advise = |stopped: &mut Stopped, advice: i32| {
        kept.iter().try_for_each(|range| {
            let arguments = [range.start, range.end - range.start, advice as u64, 0, 0, 0];
            stopped.step_call(syscall, libc::SYS_madvise, arguments).map(drop)
        })
    };
    advise(&mut stopped, libc::MADV_DOFORK)?;
    for _ in 0..rounds {
        let began = Instant::now();
        let child = stopped.step_clone(syscall)?;
        took.push(began.elapsed());
        drop(Still::adopt(Newborn::new(child))?);
    }
    advise(&mut stopped, libc::MADV_DONTFORK)?;
    Ok(took)
}
