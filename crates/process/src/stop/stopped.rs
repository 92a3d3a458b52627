//! A stopped program: every thread is seized. All threads go on as they were when it is dropped.

use std::{fs::File, os::unix::fs::FileExt, time::Instant};

use procfs::{Fields, MapLine};
use sys::{
    blob, ptrace,
    ptrace::{Registers, Rseq, Stop, options},
};

use crate::{
    error::{Context, Error},
    refusal::Refusal,
    script::{Arg, Check, Script},
    stop::seize::{is_there_after_all, tell_to_stop, wait_among_others, wait_for_stop},
};

/// Injected scripts of the source end by sending themselves one of these signals: the tracer sees it arrive. They are ignored by default,
/// so that a script also ends well (in `rt_sigreturn` to where the thread was) when the tracer was killed in the middle. The first that
/// is not pending already is taken.
const MARKS: [i32; 3] = [libc::SIGWINCH, libc::SIGURG, libc::SIGCHLD];

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Everything blocked but the trap: a trap that is blocked would reset the program's action for it (force_sig in kernel/signal.c).
pub(crate) const ONLY_TRAP: u64 = !bit(libc::SIGTRAP);

/// Most pending signals taken over of one queue: far above what programs leave pending.
pub(crate) const PENDING_MAX: usize = 4_096;

/// What a thread did that was killed while it was held.
pub(crate) const ENDED: &str = "ended while it was held";

/// Why a clone inside a program gives no child.
pub(crate) const NOT_CLONED: &str = "could not be cloned (a process or memory limit?)";

/// One seized thread.
#[derive(Debug)]
pub(crate) struct Task {
    /// Its id here.
    pub(crate) tid: i32,
    pub(crate) registers: Registers,
    pub(crate) mask: u64,
    pub(crate) rseq: Rseq,
    /// See [`ptrace::has_several_filters`].
    pub(crate) has_several_filters: Option<bool>,
    /// A signal that arrived while we held the thread, to be delivered when it goes on.
    deliver: i32,
    /// The signal that had stopped it before; 0: none.
    stop_signal: i32,
    /// Registers or mask differ from what they must be when it goes on.
    disturbed: bool,
    /// Address of the operation of its script that sends the mark.
    mark_at: u64,
}

impl Task {
    /// Of a thread that has stopped. Nothing if it ends meanwhile.
    fn read(tid: i32) -> Result<Option<Self>, Error> {
        let stop_signal = stop_signal(tid)?;
        if stop_signal != 0 {
            // One that was stopped when it was told stops once more: not in the midst of a script.
            ptrace::interrupt(tid).and_then(|()| ptrace::resume(tid, 0)).of("stop once more thread", tid)?;
            if !wait_for_stop(tid)? {
                return Ok(None);
            }
        }
        Ok(Some(Self {
            tid,
            registers: ptrace::registers(tid).of("read registers", tid)?,
            mask: ptrace::signal_mask(tid).of("read signal mask", tid)?,
            rseq: ptrace::rseq(tid).of("read rseq", tid)?,
            has_several_filters: None,
            stop_signal,
            deliver: 0,
            disturbed: false,
            mark_at: 0,
        }))
    }
}

/// The signal that keeps a thread stopped beside its tracer, which the kernel tells instead of SIGTRAP.
fn stop_signal(tid: i32) -> Result<i32, Error> {
    const STOPPED: i32 = libc::PTRACE_EVENT_STOP << 8;
    let info = ptrace::signal_info(tid).of("read what has stopped thread", tid)?;
    let (signal, code) = (ptrace::signal_number(&info), i32::from_ne_bytes([info[8], info[9], info[10], info[11]]));
    Ok(if code & !0xff == STOPPED && signal != libc::SIGTRAP { signal } else { 0 })
}

/// All threads of a process, stopped.
#[derive(Debug)]
pub(crate) struct Stopped {
    pid: i32,
    /// When the first of them was told to stop.
    since: Instant,
    tasks: Vec<Task>,
    memory: File,
    /// Signals that wait for any thread or for the process.
    pending: u64,
}

impl Stopped {
    /// Seizes and stops every thread of process `pid`.
    pub(crate) fn seize(pid: i32) -> Result<Self, Error> {
        let memory = open_memory(pid)?;
        let list = format!("/proc/{pid}/task");
        let mut tids = procfs::numbers(&list)?;
        let mut stopped = Self { pid, since: Instant::now(), tasks: Vec::new(), memory, pending: 0 };
        // A thread may be created while we seize the others: repeat until a pass finds none.
        while stopped.stop(&tids)? {
            tids = procfs::numbers(&list)?;
            tids.retain(|tid| stopped.tasks.iter().all(|task| task.tid != *tid));
        }
        // Scripts need the main thread first.
        stopped.tasks.sort_by_key(|task| task.tid != pid);
        if stopped.tasks.first().is_none_or(|main| main.tid != pid) {
            return Err(Error::Refused(vec![Refusal::MainThreadGone]));
        }
        // The one of before it stopped may be of another program, which it has left since by execve(2).
        stopped.memory = open_memory(pid)?;
        stopped.look()?;
        stopped.check_injectable()?;
        Ok(stopped)
    }

    /// Stops these threads; gives whether one is there that was not before.
    fn stop(&mut self, tids: &[i32]) -> Result<bool, Error> {
        let before = self.tasks.len();
        let mut result = Ok(());
        // All are told before any is waited for, so that they come to a stop side by side.
        let mut told = Vec::with_capacity(tids.len());
        for tid in tids {
            match tell_to_stop(*tid) {
                Ok(true) => told.push(*tid),
                Ok(false) => {}
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        // Who was told is waited for in any case: only a thread that has stopped can be let go.
        let mut ended = Vec::new();
        for tid in told {
            match wait_for_stop(tid).and_then(|is_there| if is_there { Task::read(tid) } else { Ok(None) }) {
                Ok(Some(task)) => self.tasks.push(task),
                Ok(None) => ended.push(tid),
                Err(error) => {
                    // The first error is the one to report.
                    let _ = ptrace::detach(tid, 0);
                    result = result.and(Err(error));
                }
            }
        }
        for tid in ended {
            match is_there_after_all(tid).and_then(|is_there| if is_there { Task::read(tid) } else { Ok(None) }) {
                Ok(task) => self.tasks.extend(task),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result.map(|()| self.tasks.len() > before)
    }

    /// Reads what other threads could change until all were stopped: a filter for all, a signal for the process.
    fn look(&mut self) -> Result<(), Error> {
        let status = Fields::read(format!("/proc/{}/status", self.pid))?;
        self.pending = status.number("SigPnd", 16)? | status.number("ShdPnd", 16)?;
        for n in 0..self.tasks.len() {
            let Task { tid, rseq, .. } = self.tasks[n];
            let mut rip = self.tasks[n].registers.rip;
            if tid != self.pid {
                self.pending |= queued(tid)?;
            }
            if rseq.address != 0 {
                self.leave_critical_section(rseq.address, &mut rip)?;
            }
            let task = &mut self.tasks[n];
            task.registers.rip = rip;
            // Reading its status would tell, too, and takes as long as all else that is read of a thread.
            task.has_several_filters = ptrace::has_several_filters(tid).of("look for seccomp filters", tid)?;
        }
        Ok(())
    }

    /// A thread that was stopped inside a restartable sequence goes on at its abort handler, in the source and in copies, where the kernel
    /// itself would send it. The kernel cannot: once our script runs in the thread it finds the thread outside of the sequence and forgets it
    /// (Documentation/userspace-api/rseq.rst, `struct rseq_cs`; rseq_ip_fixup in kernel/rseq.c).
    fn leave_critical_section(&self, rseq: u64, rip: &mut u64) -> Result<(), Error> {
        let section = self.word(rseq + 8)?;
        if section == 0 {
            return Ok(());
        }
        let start = self.word(section + 8)?;
        let length = self.word(section + 16)?;
        if rip.wrapping_sub(start) < length {
            *rip = self.word(section + 24)?;
        }
        Ok(())
    }

    /// The signal that had stopped the process before it was seized; 0: none.
    pub(crate) fn stop_signal(&self) -> i32 {
        self.tasks[0].stop_signal
    }

    /// When the program was stopped.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// What makes it impossible to run calls of our own in the program, before the first is tried.
    fn check_injectable(&self) -> Result<(), Error> {
        let mut refusals = Vec::new();
        for Task { tid, .. } in &self.tasks {
            if ptrace::dispatches_syscalls(*tid).of("read syscall dispatch", *tid)? {
                refusals.push(Refusal::SyscallDispatch { tid: *tid });
            }
        }
        if self.pending & bit(libc::SIGTRAP) != 0 {
            refusals.push(Refusal::PendingTrap { tid: self.pid, signal: libc::SIGTRAP });
        }
        if refusals.is_empty() { Ok(()) } else { Err(Error::Refused(refusals)) }
    }

    /// The signal that scripts end with.
    pub(crate) fn mark(&self) -> i32 {
        let free = |signal: &&i32| self.pending & bit(**signal) == 0;
        MARKS.iter().find(free).copied().unwrap_or(MARKS[0])
    }

    /// The threads, main thread first.
    pub(crate) fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Reads the process's memory.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.memory.read_exact_at(bytes, address).of("read memory", self.pid)
    }

    /// Writes the process's memory, whatever its protection.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        self.memory.write_all_at(bytes, address).of("write memory", self.pid)
    }

    /// Reads a little-endian word.
    pub(crate) fn word(&self, address: u64) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Makes one system call in the main thread by stepping its instruction at `syscall`. Registers and mask are put back at once: were they
    /// not, and this process killed before the next script begins, the program would go on with those of the step.
    pub(crate) fn step_call(&mut self, syscall: u64, nr: i64, args: [u64; 6]) -> Result<i64, Error> {
        self.step(syscall, nr, args).map(|(result, _)| result)
    }

    /// Forks the process, as a child of its parent, by stepping a clone; gives the child, stopped and traced.
    pub(crate) fn step_clone(&mut self, syscall: u64) -> Result<i32, Error> {
        ptrace::set_options(self.pid, options::TRACE_CLONES).of("trace clones", self.pid)?;
        let flags = (libc::CLONE_PARENT | libc::SIGCHLD) as u64;
        let (_, child) = self.step(syscall, libc::SYS_clone, [flags, 0, 0, 0, 0, 0])?;
        if child == 0 {
            return Err(Error::Unexpected { pid: self.pid, what: NOT_CLONED.into() });
        }
        Ok(child)
    }

    fn step(&mut self, syscall: u64, nr: i64, args: [u64; 6]) -> Result<(i64, i32), Error> {
        let task = &mut self.tasks[0];
        task.disturbed = true;
        // With everything blocked no handler can run in between.
        ptrace::set_signal_mask(task.tid, ONLY_TRAP).of("block signals", task.tid)?;
        let mut events = StepEvents::default();
        let result = step_call(task.tid, &task.registers, syscall, (nr, args), &mut events)?;
        if events.signal != 0 {
            task.deliver = events.signal;
        }
        ptrace::set_registers(task.tid, &task.registers).of("restore registers", task.tid)?;
        // From the end of a call to where it was stopped first: only from there does the kernel make a call again that was interrupted.
        ptrace::interrupt(task.tid).of("interrupt", task.tid)?;
        ptrace::resume(task.tid, 0).of("resume", task.tid)?;
        loop {
            match ptrace::wait(task.tid).of("wait for thread", task.tid)? {
                Stop::Interrupted => break,
                Stop::Signal(signal) => task.deliver = signal,
                Stop::Cloned | Stop::Event(_) => {}
                Stop::Ended(_) => {
                    return Err(Error::Unexpected { pid: task.tid, what: ENDED.into() });
                }
            }
            ptrace::resume(task.tid, 0).of("resume", task.tid)?;
        }
        restore(task)?;
        Ok((result, events.child))
    }

    /// Address of a `syscall` instruction in the process's vDSO.
    pub(crate) fn syscall(&self, lines: &[MapLine]) -> Result<u64, Error> {
        let missing = |what: &str| Error::Unexpected { pid: self.pid, what: format!("has no {what}") };
        let vdso = lines.iter().find(|line| line.path == b"[vdso]").ok_or_else(|| missing("vDSO"))?.range;
        let mut code = vec![0; (vdso.end - vdso.start) as usize];
        self.read(vdso.start, &mut code)?;
        let at = code.windows(2).position(|pair| pair == [0x0f, 0x05]);
        Ok(vdso.start + at.ok_or_else(|| missing("syscall instruction in its vDSO"))? as u64)
    }

    /// Lets `thread` begin the script at `script`, whose operation at `mark_at` sends the mark; [`Self::finish`] waits for it.
    pub(crate) fn begin(&mut self, thread: usize, arena: u64, script: u64, mark_at: u64) -> Result<(), Error> {
        let mask = ONLY_TRAP & !bit(self.mark());
        if thread == 0 {
            // Only now: a thread that is cloned while others are being seized must not be attached twice.
            ptrace::set_options(self.pid, options::TRACE_CLONES).of("trace clones", self.pid)?;
        }
        let task = &mut self.tasks[thread];
        let mut regs = task.registers;
        (regs.rip, regs.rbx, regs.orig_rax) = (arena, script, u64::MAX);
        (task.disturbed, task.mark_at) = (true, mark_at);
        // In this order: if this process is killed in between, the script runs under the program's mask, and leaves it as it was.
        ptrace::set_registers(task.tid, &regs).of("set registers", task.tid)?;
        ptrace::set_signal_mask(task.tid, mask).of("block signals", task.tid)?;
        ptrace::resume(task.tid, 0).of("resume", task.tid)
    }

    /// Waits until `thread` has run its script, and puts it back to where it was. A process that it cloned is given to `on_clone`.
    pub(crate) fn finish(
        &mut self,
        thread: usize,
        on_clone: &mut dyn FnMut(i32) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (mark, is_alone) = (self.mark(), self.tasks.len() == 1);
        let task = &mut self.tasks[thread];
        let next = |tid| if is_alone { ptrace::wait(tid) } else { wait_among_others(tid) };
        loop {
            match next(task.tid).of("wait for thread", task.tid)? {
                Stop::Signal(signal) if signal == mark && is_at_mark(task)? => break,
                Stop::Signal(signal) => task.deliver = signal,
                Stop::Cloned => {
                    let child = ptrace::event_message(task.tid).of("read the child's id", task.tid)?;
                    on_clone(child as i32)?;
                }
                Stop::Interrupted | Stop::Event(_) => {}
                Stop::Ended(_) => {
                    return Err(Error::Unexpected { pid: task.tid, what: ENDED.into() });
                }
            }
            ptrace::resume(task.tid, 0).of("resume", task.tid)?;
        }
        restore(task)
    }
}

/// The memory of a process, to be read and written.
fn open_memory(pid: i32) -> Result<File, Error> {
    let path = format!("/proc/{pid}/mem");
    File::options().read(true).write(true).open(&path).on("open", path)
}

/// Signals that wait for a thread alone, by bit.
fn queued(tid: i32) -> Result<u64, Error> {
    let signals = ptrace::pending_signals(tid, false, PENDING_MAX).of("read pending signals", tid)?;
    let number = |info: &ptrace::SignalInfo| i32::from_le_bytes([info[0], info[1], info[2], info[3]]);
    let known = |signal: &i32| (1..=64).contains(signal);
    Ok(signals.iter().map(number).filter(known).fold(0, |set, signal| set | bit(signal)))
}

/// Whether the thread has just sent the mark, rather than been sent such a signal by someone else.
fn is_at_mark(task: &Task) -> Result<bool, Error> {
    Ok(ptrace::registers(task.tid).of("read registers", task.tid)?.rbx == task.mark_at)
}

/// In this order: with its own mask first, a thread whose tracer is killed in between goes its script's way to its own registers.
fn restore(task: &mut Task) -> Result<(), Error> {
    ptrace::set_signal_mask(task.tid, task.mask).of("restore signal mask", task.tid)?;
    ptrace::set_registers(task.tid, &task.registers).of("restore registers", task.tid)?;
    task.disturbed = false;
    Ok(())
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for task in &mut self.tasks {
            if task.disturbed && restore(task).is_err() {
                tracing::warn!(tid = task.tid, "a thread could not be put back");
            }
            if let Err(error) = ptrace::detach(task.tid, task.deliver) {
                tracing::debug!(tid = task.tid, %error, "detach");
            }
        }
    }
}

/// What happened to a thread while it stepped.
#[derive(Debug, Default)]
pub(crate) struct StepEvents {
    /// A signal that arrived; 0: none.
    pub(crate) signal: i32,
    /// The child that it cloned; 0: none.
    pub(crate) child: i32,
}

/// Makes one system call in a stopped thread by the `syscall` instruction at this address. Registers are left changed.
///
/// A pending signal makes a delivery stop before the instruction has run; the signal is kept in `events`
/// and the step made again.
pub(crate) fn step_call(
    tid: i32,
    base: &Registers,
    syscall: u64,
    (nr, args): (i64, [u64; 6]),
    events: &mut StepEvents,
) -> Result<i64, Error> {
    let mut regs = *base;
    (regs.rax, regs.orig_rax, regs.rip) = (nr as u64, u64::MAX, syscall);
    [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9] = args;
    ptrace::set_registers(tid, &regs).of("set registers", tid)?;
    let mut entered = false;
    loop {
        ptrace::run_to_syscall(tid).of("step", tid)?;
        match ptrace::wait(tid).of("wait for step", tid)? {
            Stop::Signal(libc::SIGTRAP) => {
                let now = ptrace::registers(tid).of("read registers", tid)?;
                if entered {
                    return Ok(now.rax as i64);
                }
                // Else it was sent to the thread, and the instruction has not run.
                entered = now.rip != syscall;
            }
            Stop::Signal(signal) => events.signal = signal,
            Stop::Cloned => events.child = ptrace::event_message(tid).of("read the child's id", tid)? as i32,
            Stop::Interrupted | Stop::Event(_) => {}
            Stop::Ended(_) => return Err(Error::Unexpected { pid: tid, what: "ended in the middle of a step".into() }),
        }
    }
}

/// Appends the mark to a script that a thread of the source runs, and the way back in case the tracer is gone. The ids of process and thread
/// are the results of two earlier steps. Gives the mark's step.
pub(crate) fn end_with_mark(script: &mut Script, mark: i32, process: usize, thread: usize, frame: u64) -> usize {
    let args = [Arg::Result(process), Arg::Result(thread), mark.into()];
    let at = script.call(libc::SYS_tgkill, args, Check::Ignore);
    script.sigreturn(frame);
    at
}

/// Address of the blob's `syscall` instruction in an arena.
pub(crate) fn blob_syscall(arena: u64) -> u64 {
    arena + blob::syscall_offset()
}
