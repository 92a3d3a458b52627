//! The still: a stopped fork of the source, from which memory is read after the source has gone on.

use std::{
    fs::File,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
};

use sys::{
    ptrace::{self, Stop, options},
    remote::Range,
};

use crate::{
    error::{Context, Error},
    script::{Arena, Check, Script},
    stop::stopped::ONLY_TRAP,
};

const MEMBARRIER_GET_REGISTRATIONS: i32 = 1 << 9;

/// Keys for memory that a process can allocate.
const KEYS: usize = 15;

/// Bytes that go through the caller's memory at a time, whole pages.
const TAKEN_OVER_AT_ONCE: usize = 1 << 20;

/// A fork of the source, attached to this thread by its parent's clone, that has not been waited for yet. Killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Newborn {
    pid: i32,
}

impl Newborn {
    pub(crate) fn new(pid: i32) -> Self {
        Self { pid }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }
}

impl Drop for Newborn {
    fn drop(&mut self) {
        // It is never the source: its id came from the clone event, and it cannot be reaped before we detach by this kill.
        if let Some(pid) = rustix::process::Pid::from_raw(self.pid) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        // As its tracer we are told of its end first; its parent (the keeper) reaps it then. It may have stopped before it was killed.
        while ptrace::wait(self.pid).is_ok_and(|stop| !matches!(stop, Stop::Ended(_))) {}
    }
}

/// The still that a helper clones, which has just been cloned itself and is traced, too. The helper has ended when this returns.
pub(crate) fn of_helper(helper: i32) -> Result<Option<Newborn>, Error> {
    let mut newborn = None;
    loop {
        match ptrace::wait(helper).of("wait for the helper", helper)? {
            Stop::Ended(_) => return Ok(newborn),
            Stop::Cloned => {
                let still = ptrace::event_message(helper).of("read the child's id", helper)?;
                newborn = Some(Newborn::new(still as i32));
            }
            Stop::Interrupted | Stop::Event(_) | Stop::Signal(_) => {}
        }
        ptrace::resume(helper, 0).of("resume the helper", helper)?;
    }
}

/// A stopped fork of the source. It is traced, dies with its tracer, and is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Still {
    pid: i32,
    /// Read-only: the zygote that is built has it, too.
    memory: File,
    /// For the builder alone.
    writable: File,
    _process: Newborn,
}

/// What only the program's own system calls tell, asked of the still so that the source does not wait for it.
#[derive(Debug)]
pub(crate) struct StillAnswers {
    /// Actions of signals 1 to 64.
    pub(crate) actions: Vec<[u64; 4]>,
    /// End of the heap.
    pub(crate) brk: u64,
    /// Registered `membarrier` commands, one bit each.
    pub(crate) membarrier: u64,
    /// `PR_GET_DUMPABLE`, `PR_GET_THP_DISABLE`, `personality`.
    pub(crate) dumpable: u64,
    pub(crate) no_huge_pages: u64,
    pub(crate) personality: u64,
    /// Keys for memory that are free. None on a processor without such keys.
    pub(crate) free_keys: Vec<u64>,
}

impl Still {
    /// Takes over a freshly cloned process: waits until it has stopped.
    pub(crate) fn adopt(newborn: Newborn) -> Result<Self, Error> {
        let pid = newborn.pid;
        match ptrace::wait(pid).of("wait for the still", pid)? {
            Stop::Ended(_) => return Err(Error::Unexpected { pid, what: "(the still) ended at once".into() }),
            Stop::Interrupted | Stop::Signal(_) | Stop::Cloned | Stop::Event(_) => {}
        }
        ptrace::set_options(pid, options::EXIT_KILL).of("guard the still", pid)?;
        let path = format!("/proc/{pid}/mem");
        let memory = File::open(&path).on("open", &path)?;
        let writable = File::options().write(true).open(&path).on("open", &path)?;
        Ok(Self { pid, memory, writable, _process: newborn })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Its `/proc/PID/mem`, to read.
    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Reads memory, whatever its protection.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.memory.read_exact_at(bytes, address).of("read memory of the still", self.pid)
    }

    /// Makes pages of files its own, as if they had been written: what is in them is memory of no file then, and read like that.
    pub(crate) fn take_over(&self, range: Range) -> Result<(), Error> {
        let mut bytes = vec![0; TAKEN_OVER_AT_ONCE.min((range.end - range.start) as usize)];
        let mut at = range.start;
        while at < range.end {
            let part = bytes.len().min((range.end - at) as usize);
            self.read(at, &mut bytes[..part])?;
            self.writable.write_all_at(&bytes[..part], at).of("write memory of the still", self.pid)?;
            at += part as u64;
        }
        Ok(())
    }

    fn word(&self, address: u64) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Runs a few system calls in the still, from the copy of the arena it got with the source's memory.
    pub(crate) fn ask(&self, arena_base: u64, arena_bytes: u64) -> Result<StillAnswers, Error> {
        let mut arena = Arena::new(arena_base);
        let place = arena.data(&[0; 64 * 32], 8);
        let mut script = Script::default();
        for signal in 1..=64u64 {
            let args = [signal.into(), 0u64.into(), (place + (signal - 1) * 32).into(), 8u64.into()];
            script.call(libc::SYS_rt_sigaction, args, Check::Ignore);
        }
        let brk = script.call(libc::SYS_brk, [0u64.into()], Check::Ignore);
        let zero = || 0u64.into();
        let membarrier =
            script.call(libc::SYS_membarrier, [MEMBARRIER_GET_REGISTRATIONS.into(), zero(), zero()], Check::Ignore);
        let ask = |script: &mut Script, option: i32| {
            script.call(libc::SYS_prctl, [option.into(), zero(), zero(), zero(), zero()], Check::Ignore)
        };
        let dumpable = ask(&mut script, libc::PR_GET_DUMPABLE);
        let no_huge_pages = ask(&mut script, libc::PR_GET_THP_DISABLE);
        let personality = script.call(libc::SYS_personality, [u64::from(u32::MAX).into()], Check::Ignore);
        let free_keys: [usize; KEYS] =
            std::array::from_fn(|_| script.call(libc::SYS_pkey_alloc, [zero(), zero()], Check::Ignore));
        script.trap();
        let start = arena.place(&script);
        let brk_at = arena.keep_result(start, brk);
        let [membarrier, dumpable, no_huge_pages, personality] =
            [membarrier, dumpable, no_huge_pages, personality].map(|step| arena.keep_result(start, step));
        let free_keys = free_keys.map(|step| arena.keep_result(start, step));
        let bytes = arena.into_bytes();
        if bytes.len() as u64 > arena_bytes {
            return Err(Error::NoRoom { bytes: bytes.len() as u64 });
        }
        self.writable.write_all_at(&bytes, arena_base).of("write memory of the still", self.pid)?;
        let mut regs = ptrace::registers(self.pid).of("read registers of the still", self.pid)?;
        (regs.rip, regs.rbx, regs.orig_rax) = (arena_base, start, u64::MAX);
        // The still must run nothing but the script: with all signals blocked only the trap stops it.
        ptrace::set_signal_mask(self.pid, ONLY_TRAP).of("block signals of the still", self.pid)?;
        ptrace::set_registers(self.pid, &regs).of("set registers of the still", self.pid)?;
        ptrace::resume(self.pid, 0).of("resume the still", self.pid)?;
        loop {
            match ptrace::wait(self.pid).of("wait for the still", self.pid)? {
                Stop::Signal(libc::SIGTRAP) => break,
                Stop::Ended(_) => return Err(Error::Unexpected { pid: self.pid, what: "(the still) ended".into() }),
                Stop::Signal(_) | Stop::Interrupted | Stop::Cloned | Stop::Event(_) => {
                    ptrace::resume(self.pid, 0).of("resume the still", self.pid)?;
                }
            }
        }
        let mut words = vec![0u8; 64 * 32];
        self.read(place, &mut words)?;
        let words: Vec<u64> = words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let actions = words.as_chunks().0.to_vec();
        // A question that the kernel does not know, or the filter forbids, is answered by an error: then nothing is set.
        let answer = |at: u64| Ok::<u64, Error>((self.word(at)? as i64).max(0) as u64);
        Ok(StillAnswers {
            actions,
            brk: self.word(brk_at)?,
            membarrier: answer(membarrier)?,
            dumpable: answer(dumpable)?,
            no_huge_pages: answer(no_huge_pages)?,
            personality: answer(personality)?,
            free_keys: free_keys
                .into_iter()
                .map(answer)
                .filter(|key| !matches!(key, Ok(0)))
                .collect::<Result<_, _>>()?,
        })
    }
}
