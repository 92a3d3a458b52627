//! The second interpreter: runs a placed script from outside, by stepping single system calls with ptrace.
//!
//! It reads the operations that the blob would run, so both do the same. Between steps every process involved is stopped. So the threads of
//! a copy need not wait for each other: all are let go together at the end.

use std::{fs::File, os::unix::fs::FileExt};

use procfs::Fields;
use sys::{
    blob::{self, Kind, OP_BYTES},
    ptrace::{self, Registers, Stop, options},
};

use super::names;
use crate::{
    error::{Context, Error},
    stop::stopped::{self, StepEvents},
};

/// Runs the zygote's loop once, from its receiving step at `entry`. `request` sends the message that it receives.
pub(super) fn run(
    zygote: i32,
    arena: base::id::Arena,
    entry: u64,
    request: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    // A zygote in the middle of a step would run into nowhere if its tracer died: it dies then.
    ptrace::seize(zygote, options::TRACE_CLONES | options::EXIT_KILL).of("attach to zygote", zygote)?;
    let parked = park(zygote);
    let result = parked.and_then(|registers| {
        // A trap that is blocked would reset the program's action for it; children begin with the same mask.
        ptrace::set_signal_mask(zygote, stopped::ONLY_TRAP).of("unblock the trap of", zygote)?;
        request()?;
        let syscall = stopped::blob_syscall(arena.start);
        let mut stepper = Stepper { syscall, released: Vec::new(), waiting: None, has_copy: false };
        let result = stepper.run(zygote, entry, true);
        for tid in stepper.released.drain(..).rev() {
            ptrace::detach(tid, 0).of("let go of thread", tid)?;
        }
        ptrace::set_registers(zygote, &registers).of("restore zygote", zygote)?;
        ptrace::set_signal_mask(zygote, u64::MAX).of("restore zygote", zygote)?;
        result
    });
    let detached = ptrace::detach(zygote, 0).of("let go of zygote", zygote);
    result.and(detached)
}

/// Stops the zygote in its receive; gives the registers with which the kernel makes that call again.
fn park(zygote: i32) -> Result<Registers, Error> {
    ptrace::interrupt(zygote).of("stop zygote", zygote)?;
    match ptrace::wait(zygote).of("wait for zygote", zygote)? {
        Stop::Ended(_) => Err(Error::ZygoteGone),
        Stop::Signal(_) | Stop::Interrupted | Stop::Cloned | Stop::Event(_) => {
            ptrace::registers(zygote).of("read registers", zygote)
        }
    }
}

struct Stepper {
    syscall: u64,
    /// Threads that need only be let go.
    released: Vec<i32>,
    /// The copy whose helper has not ended yet, with its script.
    waiting: Option<(i32, u64)>,
    /// Whether the helper has made the copy: processes that are cloned from then on are the copy's own.
    has_copy: bool,
}

/// An operation as read from the arena.
struct Operation {
    bytes: [u8; OP_BYTES],
}

impl Operation {
    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|n| self.bytes[at + n]))
    }

    fn half(&self, at: usize) -> u32 {
        self.word(at) as u32
    }

    fn kind(&self) -> u32 {
        self.half(0)
    }

    fn flags(&self) -> u32 {
        self.half(4)
    }

    fn arg(&self, n: usize) -> u64 {
        self.word(16 + n * 8)
    }

    fn target(&self) -> u64 {
        self.word(72)
    }
}

/// Whether a thread is the first of its process.
fn leads_process(tid: i32) -> Result<bool, Error> {
    Ok(tid != 0 && Fields::read(format!("/proc/{tid}/status"))?.number("Tgid", 10)? == tid as u64)
}

impl Stepper {
    /// Runs operations from `at` in stopped thread `tid` until it ends, is ready to be let go, or (`once`) would begin again.
    fn run(&mut self, tid: i32, mut at: u64, once: bool) -> Result<(), Error> {
        let path = format!("/proc/{tid}/mem");
        let memory = File::options().read(true).write(true).open(&path).on("open", path)?;
        let mut base = ptrace::registers(tid).of("read registers", tid)?;
        loop {
            let mut operation = Operation { bytes: [0; OP_BYTES] };
            memory.read_exact_at(&mut operation.bytes, at).of("read a step of", tid)?;
            let next = at + OP_BYTES as u64;
            at = match operation.kind() {
                kind if kind == Kind::Call as u32 || kind == Kind::Spawn as u32 => {
                    let nr = operation.word(8) as i64;
                    if nr == libc::SYS_exit || nr == libc::SYS_exit_group || nr == libc::SYS_kill {
                        self.end(tid, &base, nr, [operation.arg(0), operation.arg(1)])?;
                        return self.waiting.take().map_or(Ok(()), |(copy, script)| self.child(copy, script));
                    }
                    if nr == libc::SYS_waitid && operation.arg(3) & libc::WSTOPPED as u64 != 0 {
                        self.let_stop(operation.arg(1))?;
                    }
                    self.call(tid, &memory, &base, at, &operation)?;
                    if nr == libc::SYS_arch_prctl {
                        // Each step sets all registers, the segment bases too.
                        base = ptrace::registers(tid).of("read registers", tid)?;
                    }
                    next
                }
                kind if kind == Kind::Jump as u32 && once => return Ok(()),
                kind if kind == Kind::Jump as u32 => operation.target(),
                kind if kind == Kind::Store as u32 => {
                    memory
                        .write_all_at(&operation.arg(1).to_le_bytes(), operation.arg(0))
                        .of("write memory of", tid)?;
                    next
                }
                kind if kind == Kind::Unless as u32 => {
                    let mut word = [0; 8];
                    memory.read_exact_at(&mut word, operation.arg(0)).of("read memory of", tid)?;
                    if u64::from_le_bytes(word) == operation.arg(1) { next } else { operation.target() }
                }
                kind if kind == Kind::CountDown as u32 => {
                    let mut word = [0; 4];
                    memory.read_exact_at(&mut word, operation.arg(0)).of("read memory of", tid)?;
                    let less = u32::from_le_bytes(word).wrapping_sub(1);
                    memory.write_all_at(&less.to_le_bytes(), operation.arg(0)).of("write memory of", tid)?;
                    next
                }
                kind if kind == Kind::WaitZero as u32 => next,
                kind if kind == Kind::Sigreturn as u32 => {
                    let mut regs = base;
                    (regs.rip, regs.rax, regs.orig_rax, regs.rsp) =
                        (self.syscall, libc::SYS_rt_sigreturn as u64, u64::MAX, operation.arg(0));
                    ptrace::set_registers(tid, &regs).of("set registers", tid)?;
                    self.released.push(tid);
                    return Ok(());
                }
                // Only failure handlers record, for a reader that this interpreter's own error serves better.
                kind => return Err(Error::Unexpected { pid: tid, what: format!("has a step of kind {kind}") }),
            };
        }
    }

    /// Makes one call. Where the blob would run the failure handler, the error is returned.
    fn call(&mut self, tid: i32, memory: &File, base: &Registers, at: u64, operation: &Operation) -> Result<(), Error> {
        let mut args = [0; 6];
        for (n, arg) in args.iter_mut().enumerate() {
            *arg = operation.arg(n);
            if operation.flags() & blob::indirect(n) != 0 {
                let mut word = [0; 4];
                memory.read_exact_at(&mut word, *arg).of("read memory of", tid)?;
                *arg = u64::from(u32::from_le_bytes(word));
            }
        }
        let mut events = StepEvents::default();
        let result = stopped::step_call(tid, base, self.syscall, (operation.word(8) as i64, args), &mut events)?;
        // A copy waits for the end of its helper, which makes it by this call.
        let is_copy = operation.word(8) as i64 == libc::SYS_clone3 && !self.has_copy && leads_process(events.child)?;
        if is_copy {
            (self.has_copy, self.waiting) = (true, Some((events.child, operation.target())));
        } else if events.child != 0 {
            self.child(events.child, operation.target())?;
        }
        if operation.flags() & blob::KEEP_RESULT != 0 {
            memory.write_all_at(&result.to_le_bytes(), at + blob::RESULT_OFFSET).of("write memory of", tid)?;
        }
        let failed = (operation.flags() & blob::CHECK_SUCCESS != 0 && (-4095..0).contains(&result))
            || (operation.flags() & blob::CHECK_EQUAL != 0 && result != operation.word(80) as i64);
        if failed {
            let source = std::io::Error::from_raw_os_error(-(result as i32));
            return Err(Error::Step { step: names::describe(&operation.bytes), source });
        }
        Ok(())
    }

    fn child(&mut self, child: i32, script: u64) -> Result<(), Error> {
        match ptrace::wait(child).of("wait for child", child)? {
            Stop::Ended(_) => Err(Error::Unexpected { pid: child, what: "ended at once".into() }),
            Stop::Signal(_) | Stop::Interrupted | Stop::Cloned | Stop::Event(_) => self.run(child, script, false),
        }
    }

    /// Lets a process go that stops itself, by its number in the copy: its parent waits for that.
    fn let_stop(&mut self, number: u64) -> Result<(), Error> {
        for at in 0..self.released.len() {
            let tid = self.released[at];
            if Fields::read(format!("/proc/{tid}/status"))?.numbers("NSpid", 10)?.last() == Some(&number) {
                self.released.remove(at);
                return ptrace::detach(tid, 0).of("let go of thread", tid);
            }
        }
        Err(Error::Unexpected { pid: number as i32, what: "has not come to its end".into() })
    }

    /// Makes the last call of a process: it exits, or kills itself.
    fn end(&self, tid: i32, base: &Registers, nr: i64, [first, second]: [u64; 2]) -> Result<(), Error> {
        let arguments = [first, second, 0, 0, 0, 0];
        let ended = stopped::step_call(tid, base, self.syscall, (nr, arguments), &mut StepEvents::default());
        match ended {
            Err(Error::Unexpected { .. }) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(Error::Unexpected { pid: tid, what: "did not end".into() }),
        }
    }
}
