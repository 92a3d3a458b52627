//! Leaves a CPU to a stopped program, for what it does while its tracer works.

use procfs::Stat;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::error::Error;

/// This thread has left a processor to another one, until this is dropped.
///
/// A thread that is let go wakes up on the processor it ran on last. If that is ours it preempts us, and a scheduler that sees no cache in
/// common with the next processor does not move either of us for milliseconds: what should be done side by side is done one after the other.
#[derive(Debug)]
pub(crate) struct Aside {
    before: Option<CpuSet>,
}

impl Aside {
    /// Goes to another processor if thread `tid`, which is stopped, ran on this one. Where this thread may run on one only, it stays.
    pub(crate) fn make_room_for(tid: i32) -> Result<Self, Error> {
        const PROCESSOR: usize = 39;
        let its = Stat::read(&tid.to_string())?.field(PROCESSOR) as usize;
        if its != sched_getcpu() || its >= CpuSet::MAX_CPU {
            return Ok(Self { before: None });
        }
        // It is for speed only, so that a refusal is none.
        let before = sched_getaffinity(None).ok().filter(|before| {
            let mut others = *before;
            others.unset(its);
            others.count() > 0 && sched_setaffinity(None, &others).is_ok()
        });
        Ok(Self { before })
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(before) = &self.before
            && let Err(error) = sched_setaffinity(None, before)
        {
            tracing::warn!(%error, "this process stays off a processor");
        }
    }
}
