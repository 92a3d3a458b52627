//! The floor of every start: how long the kernel's own fork of a program takes.

use std::time::{Duration, Instant};

use crate::{
    error::Error,
    observe::mappings,
    stop::{
        still::{Newborn, Still},
        stopped::Stopped,
    },
};

/// Forks process `pid`, as it is, with the memory that it keeps from its own forks, `rounds` times and ends each fork at once; gives what each
/// fork took. The program is stopped meanwhile and goes on unchanged. A traced clone, with the tracer's part of it.
pub fn time_forks(pid: i32, rounds: usize) -> Result<Vec<Duration>, Error> {
    let mut stopped = Stopped::seize(pid)?;
    let lines = procfs::smaps(pid)?;
    let (kept, syscall) = (mappings::kept_from_forks(&lines), stopped.syscall(&lines)?);
    let advise = |stopped: &mut Stopped, advice: i32| {
        kept.iter().try_for_each(|range| {
            let arguments = [range.start, range.end - range.start, advice as u64, 0, 0, 0];
            stopped.step_call(syscall, libc::SYS_madvise, arguments).map(drop)
        })
    };
    let advised = advise(&mut stopped, libc::MADV_DOFORK);
    let took = advised.and_then(|()| (0..rounds).map(|_| time_fork(&mut stopped, syscall)).collect());
    // In any case: it goes on unchanged.
    advise(&mut stopped, libc::MADV_DONTFORK)?;
    took
}

fn time_fork(stopped: &mut Stopped, syscall: u64) -> Result<Duration, Error> {
    let began = Instant::now();
    let child = stopped.step_clone(syscall)?;
    let took = began.elapsed();
    Still::adopt(Newborn::new(child)).map(|_ended| took)
}
