//! The processors that a sandbox with a limit of processor time counts: as many as its limit fills.
//!
//! The limit itself holds by time, wherever its processes run. But programs size their pools of threads by the processors that they may run on
//! (sched_getaffinity(2), as `nproc` and most runtimes do), and a hundred threads for the time of one wait for each other. So its processes may
//! run on that many, which differ from sandbox to sandbox.

use std::hash::{DefaultHasher, Hash, Hasher};

use base::id::SandboxId;
use rustix::{
    io::Errno,
    process::Pid,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use serde::{Deserialize, Serialize};

use crate::spec::Limits;

/// A share of the host's processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Processors {
    /// Where among them it begins.
    seed: u64,
    count: u32,
}

impl Processors {
    /// Those of a sandbox; none: all.
    pub(crate) fn of(id: &SandboxId, limits: &Limits) -> Option<Self> {
        let mut seed = DefaultHasher::new();
        id.as_str().hash(&mut seed);
        limits.cpu_millis.map(|millis| Self { seed: seed.finish(), count: millis.div_ceil(1_000) })
    }

    /// How many it is on this host; none: all.
    pub(crate) fn count_of(limits: &Limits) -> Option<usize> {
        let all = sched_getaffinity(None).ok()?.count();
        let count = limits.cpu_millis?.div_ceil(1_000);
        (count < all).then_some(count as usize)
    }

    /// Binds the calling process, which may run on all that there are. On a host with no more than the limit there is nothing to bind.
    pub(crate) fn bind_caller(self) -> rustix::io::Result<()> {
        let all = match sched_getaffinity(None) {
            // More processors than a set of these has room for.
            Err(Errno::INVAL) => return Ok(()),
            all => all?,
        };
        self.share(&all).map_or(Ok(()), |share| sched_setaffinity(None, &share))
    }

    /// Binds all threads of a process that were not bound otherwise: the copy of a program is bound to its source's processors at first. What has
    /// ended needs nothing.
    pub(crate) fn bind(self, process: i32) {
        let Some((all, share)) = sched_getaffinity(None).ok().and_then(|all| Some((all, self.share(&all)?))) else {
            return;
        };
        for thread in procfs::numbers(&format!("/proc/{process}/task")).unwrap_or_default() {
            let thread = Pid::from_raw(thread);
            let is_unchosen = |bound: CpuSet| [share.count(), all.count()].contains(&bound.count()) && bound != share;
            if sched_getaffinity(thread).is_ok_and(is_unchosen) {
                let _ = sched_setaffinity(thread, &share);
            }
        }
    }

    /// Of `all`, the ones from the seed on; none: all.
    fn share(self, all: &CpuSet) -> Option<CpuSet> {
        let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|processor| all.is_set(*processor)).collect();
        let count = self.count as usize;
        if count >= all.len() {
            return None;
        }
        let first = (self.seed % all.len() as u64) as usize;
        let mut share = CpuSet::new();
        all.iter().cycle().skip(first).take(count).for_each(|processor| share.set(*processor));
        Some(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_has_as_many_processors_as_the_limit_fills() {
        let mut all = CpuSet::new();
        [1, 3, 4, 9].into_iter().for_each(|processor| all.set(processor));
        let limits = |cpu_millis| Limits { memory_bytes: 1, pids: 1, cpu_millis, disk_bytes: None };
        let shares = |millis| {
            let ids = std::iter::repeat_with(SandboxId::random).take(100);
            ids.map(|id| Processors::of(&id, &limits(Some(millis))).unwrap().share(&all)).collect::<Vec<_>>()
        };
        for share in shares(1_001) {
            let share = share.unwrap();
            assert_eq!(share.count(), 2);
            assert!((0..CpuSet::MAX_CPU).all(|processor| !share.is_set(processor) || all.is_set(processor)));
        }
        let first = |processor| shares(500).into_iter().flatten().any(|share| share.is_set(processor));
        assert!([1, 3, 4, 9].into_iter().all(first), "some are never taken");
        assert!(shares(4_000).iter().all(Option::is_none));
        assert_eq!(Processors::of(&SandboxId::random(), &limits(None)), None);
    }
}
