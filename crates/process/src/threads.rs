//! What is read of each thread while the source is stopped.

use sys::{
    ptrace::{self, SignalInfo},
    remote,
};

use crate::{
    error::{Context, Error},
    image::{AlternateStack, Scheduling, Thread},
    procfs::{self, Stat},
    refusal::Refusal,
    stopped::Stopped,
};

/// Most pending signals taken over of one queue: far above what programs leave pending.
const PENDING_MAX: usize = 4_096;

/// What scripts in the threads reported: alternate stack and `set_tid_address` of each.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reported {
    pub(crate) alternate: AlternateStack,
    pub(crate) tid_address: u64,
}

/// Gathers the threads, main thread first.
pub(crate) fn gather(
    pid: i32,
    stopped: &Stopped,
    reported: &[Reported],
    refusals: &mut Vec<Refusal>,
) -> Result<Vec<Thread>, Error> {
    let mut threads = Vec::with_capacity(reported.len());
    for (task, reported) in stopped.tasks().iter().zip(reported) {
        let tid = task.tid;
        let mut registers = task.registers;
        let rseq = ptrace::rseq(tid).of("read rseq", tid)?;
        if rseq.address != 0 {
            leave_critical_section(stopped, rseq.address, &mut registers.rip)?;
        }
        let scheduling = scheduling(pid, tid, refusals)?;
        threads.push(Thread {
            tid: task.inner_tid,
            registers,
            xsave: ptrace::xsave(tid).of("read extended registers", tid)?,
            mask: task.mask,
            alternate: reported.alternate,
            tid_address: reported.tid_address,
            robust: remote::robust_list(tid).of("read robust list", tid)?,
            rseq,
            name: thread_name(pid, tid)?,
            scheduling,
            pending: pending(tid, false, refusals)?,
        });
    }
    Ok(threads)
}

/// Signals pending for a thread or (`shared`) for its whole process.
pub(crate) fn pending(tid: i32, shared: bool, refusals: &mut Vec<Refusal>) -> Result<Vec<SignalInfo>, Error> {
    let found = ptrace::pending_signals(tid, shared, PENDING_MAX + 1).of("read pending signals", tid)?;
    if found.len() > PENDING_MAX {
        refusals.push(Refusal::TooMany { what: "pending signals".into(), found: found.len(), max: PENDING_MAX });
    }
    Ok(found)
}

fn thread_name(pid: i32, tid: i32) -> Result<Vec<u8>, Error> {
    let mut name = procfs::read(&format!("/proc/{pid}/task/{tid}/comm"))?;
    name.pop(); // newline
    Ok(name)
}

fn scheduling(pid: i32, tid: i32, refusals: &mut Vec<Refusal>) -> Result<Scheduling, Error> {
    let stat = Stat::read(&format!("{pid}/task/{tid}"))?;
    let slack = procfs::read(&format!("/proc/{tid}/timerslack_ns"))?;
    let found = Scheduling {
        nice: stat.field(19) as i32,
        policy: stat.field(41) as u32,
        io_priority: remote::io_priority(tid).of("read I/O priority", tid)?,
        timer_slack_ns: String::from_utf8_lossy(&slack).trim().parse().unwrap_or(0),
        affinity: remote::affinity(tid).of("read affinity", tid)?,
    };
    // SCHED_OTHER, SCHED_BATCH and SCHED_IDLE need nothing but their number.
    if !matches!(found.policy as i32, libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE) {
        refusals.push(Refusal::Scheduling { tid, policy: found.policy });
    }
    Ok(found)
}

/// A thread stopped inside a restartable sequence must not go on there on another processor: the copy begins at its abort handler, where
/// the kernel would have sent it (Documentation/userspace-api/rseq.rst, `struct rseq_cs`).
fn leave_critical_section(stopped: &Stopped, rseq: u64, rip: &mut u64) -> Result<(), Error> {
    let section = stopped.word(rseq + 8)?;
    if section == 0 {
        return Ok(());
    }
    let start = stopped.word(section + 8)?;
    let length = stopped.word(section + 16)?;
    if rip.wrapping_sub(start) < length {
        *rip = stopped.word(section + 24)?;
    }
    Ok(())
}
