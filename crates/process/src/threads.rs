//! What is read of each thread while the source is stopped.

use sys::{
    ptrace::{self, SignalInfo},
    remote::{self, Affinity, RobustList},
};

use crate::{
    error::{Context, Error},
    image::{AlternateStack, Scheduling, Thread},
    refusal::Refusal,
    stopped::Task,
};

/// Most pending signals taken over of one queue: far above what programs leave pending.
pub(crate) const PENDING_MAX: usize = 4_096;

/// What the threads themselves reported, and what must be read before they do so.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reported {
    /// Its id inside the sandbox.
    pub(crate) tid: i32,
    pub(crate) name: Vec<u8>,
    pub(crate) xsave: Vec<u8>,
    pub(crate) alternate: AlternateStack,
    pub(crate) tid_address: u64,
    pub(crate) timer_slack_ns: u64,
}

/// What is seen of a thread from outside while it runs its script.
#[derive(Debug)]
pub(crate) struct Seen {
    policy: u32,
    nice: i32,
    io_priority: u32,
    affinity: Affinity,
    robust: RobustList,
}

impl Seen {
    pub(crate) fn read(tid: i32, refusals: &mut Vec<Refusal>) -> Result<Self, Error> {
        let (policy, nice) = remote::policy(tid).of("read scheduling policy", tid)?;
        // SCHED_OTHER, SCHED_BATCH and SCHED_IDLE need nothing but their number.
        if !matches!(policy as i32, libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE) {
            refusals.push(Refusal::Scheduling { tid, policy });
        }
        Ok(Self {
            policy,
            nice,
            io_priority: remote::io_priority(tid).of("read I/O priority", tid)?,
            affinity: remote::affinity(tid).of("read affinity", tid)?,
            robust: remote::robust_list(tid).of("read robust list", tid)?,
        })
    }

    /// The whole thread. Its script has ended: signals come last, so that no timer that has run out is missed.
    pub(crate) fn complete(
        self,
        task: &Task,
        reported: Reported,
        refusals: &mut Vec<Refusal>,
    ) -> Result<Thread, Error> {
        let scheduling = Scheduling {
            nice: self.nice,
            policy: self.policy,
            io_priority: self.io_priority,
            timer_slack_ns: reported.timer_slack_ns,
            affinity: self.affinity,
        };
        Ok(Thread {
            tid: reported.tid,
            registers: task.registers,
            xsave: reported.xsave,
            mask: task.mask,
            alternate: reported.alternate,
            tid_address: reported.tid_address,
            robust: self.robust,
            rseq: task.rseq,
            name: reported.name,
            scheduling,
            pending: pending(task.tid, false, refusals)?,
        })
    }
}

/// Signals pending for a thread or (`shared`) for its whole process.
pub(crate) fn pending(tid: i32, shared: bool, refusals: &mut Vec<Refusal>) -> Result<Vec<SignalInfo>, Error> {
    let found = ptrace::pending_signals(tid, shared, PENDING_MAX + 1).of("read pending signals", tid)?;
    if found.len() > PENDING_MAX {
        refusals.push(Refusal::TooMany { what: "pending signals".into(), found: found.len(), max: PENDING_MAX });
    }
    Ok(found)
}
