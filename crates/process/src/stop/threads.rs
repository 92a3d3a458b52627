//! Reading each thread while the source is stopped.

use sys::{
    ptrace::{self, SignalInfo},
    remote::{self, Affinity, RobustList, Scheduled},
};

use crate::{
    error::{Context, Error},
    image::{AlternateStack, Scheduling, Thread, ThreadAttributes},
    refusal::Refusal,
    stop::stopped::{PENDING_MAX, Task},
};

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
    pub(crate) attributes: ThreadAttributes,
}

/// What is seen of a thread from outside while it runs its script.
#[derive(Debug)]
pub(crate) struct Seen {
    scheduled: Scheduled,
    io_priority: u32,
    affinity: Affinity,
    robust: RobustList,
}

impl Seen {
    pub(crate) fn read(tid: i32, refusals: &mut Vec<Refusal>) -> Result<Self, Error> {
        let scheduled = remote::scheduled(tid).of("read scheduling policy", tid)?;
        let policy = scheduled.policy;
        // SCHED_OTHER, SCHED_BATCH and SCHED_IDLE need nothing but their number.
        if !matches!(policy as i32, libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE) {
            refusals.push(Refusal::Scheduling { tid, policy });
        }
        Ok(Self {
            scheduled,
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
        let Scheduled { nice, policy, .. } = self.scheduled;
        let scheduling = Scheduling {
            nice,
            policy,
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
            attributes: self.scheduled_otherwise(reported.attributes)?,
            pending: pending(task.tid, false, refusals)?,
        })
    }
}

impl Seen {
    /// Adds what the scheduler was told beside policy and nice value.
    fn scheduled_otherwise(&self, reported: ThreadAttributes) -> Result<ThreadAttributes, Error> {
        let Scheduled { flags, slice_ns, utilization, .. } = self.scheduled;
        // A process without a slice of its own, as this one, shows the machine's.
        let usual = remote::scheduled(0).of("read scheduling policy", 0)?.slice_ns;
        Ok(ThreadAttributes {
            scheduling_flags: flags,
            slice_ns: if slice_ns == usual { 0 } else { slice_ns },
            utilization: Some(utilization).filter(|asked| ![(0, 0), UTILIZATION_DEFAULT].contains(asked)),
            ..reported
        })
    }
}

/// The least and the most utilisation of a thread that asked for neither.
const UTILIZATION_DEFAULT: (u32, u32) = (0, 1024);

/// Signals pending for a thread or (`shared`) for its whole process.
pub(crate) fn pending(tid: i32, shared: bool, refusals: &mut Vec<Refusal>) -> Result<Vec<SignalInfo>, Error> {
    let found = ptrace::pending_signals(tid, shared, PENDING_MAX + 1).of("read pending signals", tid)?;
    if found.len() > PENDING_MAX {
        refusals.push(Refusal::TooMany { what: "pending signals".into(), found: found.len(), max: PENDING_MAX });
    }
    Ok(found)
}
