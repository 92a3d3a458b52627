//! Attributes that a program set by `prctl`, `mlock` and files of /proc, for itself and for its threads. The default is that of a program
//! that never set any. A default is not written to the state, and a copy does not set it.

use serde::{Deserialize, Serialize};
use sys::remote::Range;

use super::ProgramImage;

/// Of the whole program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessAttributes {
    /// Memory that is locked, in order.
    pub(crate) locked: Vec<Locked>,
    /// Flags of `mlockall` for memory that is mapped from now on; 0: it is not locked.
    pub(crate) lock_future: u32,
    /// None: that of the capturing process, which a start gives, too.
    pub(crate) oom_score_adj: Option<i32>,
    /// None: that of the capturing process.
    pub(crate) coredump_filter: Option<u32>,
    pub(crate) autogroup_nice: i32,
    /// `PR_GET_CHILD_SUBREAPER`.
    pub(crate) child_subreaper: bool,
    /// `PR_GET_MDWE`.
    pub(crate) deny_write_exec: u32,
    /// `PR_GET_MEMORY_MERGE`.
    pub(crate) merges_memory: bool,
    /// `PR_TIMER_CREATE_RESTORE_IDS`.
    pub(crate) chooses_timer_ids: bool,
}

/// Locked memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Locked {
    pub(crate) range: Range,
    /// From when it is touched (`MLOCK_ONFAULT`).
    pub(crate) on_fault: bool,
}

/// How a thread is treated when the memory that it uses fails (`PR_MCE_KILL_GET`): as the machine is set up.
pub(crate) const MACHINE_CHECK_DEFAULT: u32 = 2;

/// How many controls of speculation there are (`PR_GET_SPECULATION_CTRL`): store bypass, indirect branches, flushing of the first cache.
pub(crate) const SPECULATION_CONTROLS: usize = 3;

/// Of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ThreadAttributes {
    /// `PR_GET_PDEATHSIG`; 0: none.
    pub(crate) death_signal: u32,
    /// `PR_MCE_KILL_GET`.
    pub(crate) machine_check: u32,
    /// `PR_GET_SECUREBITS`, in which `PR_SET_KEEPCAPS` is, too.
    pub(crate) secure_bits: u32,
    /// `PR_TSC_SIGSEGV`: reading the time stamp counter raises a signal.
    pub(crate) time_stamp_traps: bool,
    /// `ARCH_SET_CPUID` with 0: the cpuid instruction raises a signal.
    pub(crate) cpuid_traps: bool,
    /// What the thread has chosen; 0: nothing.
    pub(crate) speculation: [u32; SPECULATION_CONTROLS],
    /// `SCHED_FLAG_RESET_ON_FORK`.
    pub(crate) scheduling_flags: u64,
    /// Its own slice of time; 0: the machine's.
    pub(crate) slice_ns: u64,
    /// Least and most utilisation that it asks for.
    pub(crate) utilization: Option<(u32, u32)>,
}

impl Default for ThreadAttributes {
    fn default() -> Self {
        Self {
            death_signal: 0,
            machine_check: MACHINE_CHECK_DEFAULT,
            secure_bits: 0,
            time_stamp_traps: false,
            cpuid_traps: false,
            speculation: [0; SPECULATION_CONTROLS],
            scheduling_flags: 0,
            slice_ns: 0,
            utilization: None,
        }
    }
}

/// All of it apart from the image that it belongs to, as it is written down.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attributes {
    process: ProcessAttributes,
    /// Of each thread in order; none if all have the default.
    threads: Vec<ThreadAttributes>,
    /// Of mappings that are droppable (`MAP_DROPPABLE`), their place in the list.
    droppable: Vec<usize>,
    /// Of anonymous mappings that have a name, their place in the list.
    names: Vec<(usize, Vec<u8>)>,
}

impl Attributes {
    /// Those of an image.
    pub(crate) fn of(image: &ProgramImage) -> Self {
        let mut threads: Vec<ThreadAttributes> = image.threads.iter().map(|thread| thread.attributes.clone()).collect();
        if threads.iter().all(|attributes| *attributes == ThreadAttributes::default()) {
            threads.clear();
        }
        let mappings = || image.mappings.iter().enumerate();
        Self {
            process: image.attributes.clone(),
            threads,
            droppable: mappings().filter(|(_, mapping)| mapping.flags.droppable).map(|(at, _)| at).collect(),
            names: mappings()
                .filter(|(_, mapping)| !mapping.name.is_empty())
                .map(|(at, mapping)| (at, mapping.name.clone()))
                .collect(),
        }
    }

    /// Gives them to the image that they belong to.
    pub(crate) fn apply(self, image: &mut ProgramImage) -> Result<(), &'static str> {
        const FOREIGN: &str = "attributes of what it does not have";
        if !self.threads.is_empty() && self.threads.len() != image.threads.len() {
            return Err(FOREIGN);
        }
        image.attributes = self.process;
        for (thread, attributes) in image.threads.iter_mut().zip(self.threads) {
            thread.attributes = attributes;
        }
        for at in self.droppable {
            image.mappings.get_mut(at).ok_or(FOREIGN)?.flags.droppable = true;
        }
        for (at, name) in self.names {
            image.mappings.get_mut(at).ok_or(FOREIGN)?.name = name;
        }
        Ok(())
    }
}
