//! What runs inside the stopped source: scripts of its own threads, in a mapping that is gone again before they go on.

use sys::remote::Range;

use crate::{
    error::{Context, Error},
    image::{AlternateStack, PosixTimer, TimerValue},
    procfs::{Fields, MapLine},
    script::{Arena, Check, PAGE, Script},
    sigframe,
    still::Still,
    stopped::{self, Stopped},
    threads::Reported,
};

/// Arena bytes per thread: its frame (XSAVE image), its script, its answers.
const BYTES_PER_THREAD: u64 = sys::ptrace::XSAVE_BYTES_MAX as u64 + 2 * PAGE;

/// Our mapping inside the stopped source, with the scripts its threads run.
pub(super) struct Injection<'a> {
    pub(super) stopped: &'a mut Stopped,
    syscall: u64,
    pub(super) arena: Range,
}

/// What the main thread's script leaves: where its answers are.
struct MainPlan {
    interval_timers: u64,
    posix_timers: Vec<(PosixTimer, u64)>,
}

/// Where a thread's script leaves its answers.
struct Place {
    alternate: u64,
    tid_address: u64,
}

/// Results of the scripts.
pub(super) struct Answers {
    pub(super) threads: Vec<Reported>,
    pub(super) interval_timers: [[u64; 4]; 3],
    pub(super) posix_timers: Vec<PosixTimer>,
}

impl<'a> Injection<'a> {
    pub(super) fn enter(stopped: &'a mut Stopped, lines: &[MapLine], dont_fork: &[Range]) -> Result<Self, Error> {
        let syscall = stopped.syscall(lines)?;
        let threads = stopped.tasks().len() as u64;
        let bytes = 8 * PAGE + threads * BYTES_PER_THREAD + dont_fork.len() as u64 * 2 * sys::blob::OP_BYTES as u64;
        let bytes = bytes.next_multiple_of(PAGE);
        // Executable where it is never writable, writable where it is never executable: some programs have the kernel insist on that. The
        // code is written from outside.
        let protection = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let base = stopped.step_call(syscall, libc::SYS_mmap, [0, bytes, protection, flags, u64::MAX, 0])?;
        if base < 0 {
            return Err(Error::NoRoom { bytes });
        }
        let base = base as u64;
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let data = [base + PAGE, bytes - PAGE, protection, 0, 0, 0];
        if stopped.step_call(syscall, libc::SYS_mprotect, data)? < 0 {
            return Err(Error::NoRoom { bytes });
        }
        Ok(Self { stopped, syscall, arena: Range { start: base, end: base + bytes } })
    }

    /// Runs the scripts: the other threads answer, then the main thread answers and clones the still.
    pub(super) fn take(&mut self, pid: i32, dont_fork: &[Range]) -> Result<(Still, Answers), Error> {
        let mut arena = Arena::new(self.arena.start);
        let count = self.stopped.tasks().len();
        let mut places = Vec::with_capacity(count);
        let mut scripts = Vec::with_capacity(count);
        let inner_pid = self.stopped.tasks()[0].inner_tid;
        let posix_timers = posix_timers(pid, self.stopped)?;
        let mut main = None;
        for (n, task) in self.stopped.tasks().iter().enumerate() {
            let tid_address = arena.words(&[0]);
            let xsave = sys::ptrace::xsave(task.tid).of("read extended registers", task.tid)?;
            let registers = sigframe::user_registers(&task.registers);
            let unknown = AlternateStack::default();
            let frame = sigframe::place(&mut arena, &registers, &xsave, task.mask, &unknown);
            // The answer is written where the frame has the alternate stack: the way back keeps it, too.
            let alternate = sigframe::alternate_stack(frame);
            let mut script = Script::default();
            script.call(libc::SYS_sigaltstack, [0u64.into(), alternate.into()], Check::Ignore);
            const PR_GET_TID_ADDRESS: i32 = 40;
            script.call(libc::SYS_prctl, [PR_GET_TID_ADDRESS.into(), tid_address.into()], Check::Ignore);
            if n == 0 {
                main = Some(plan_main(&mut arena, &mut script, &posix_timers, dont_fork));
            }
            let mark = stopped::end_with_mark(&mut script, self.stopped.mark(), inner_pid, task.inner_tid, frame);
            places.push(Place { alternate, tid_address });
            let script = arena.place(&script);
            scripts.push((script, Arena::op_address(script, mark)));
        }
        let main = main.ok_or_else(|| Error::Unexpected { pid, what: "has no threads".into() })?;
        let bytes = arena.into_bytes();
        if bytes.len() as u64 > self.arena.end - self.arena.start {
            return Err(Error::NoRoom { bytes: bytes.len() as u64 });
        }
        self.stopped.write(self.arena.start, &bytes)?;
        self.run_others(&scripts)?;
        let mut still = None;
        let (script, mark) = scripts[0];
        self.stopped.begin(0, self.arena.start, script, mark)?;
        self.stopped.finish(0, &mut |child| {
            still = Some(Still::adopt(child)?);
            Ok(())
        })?;
        let still = still.ok_or_else(|| Error::Unexpected { pid, what: stopped::NOT_CLONED.into() })?;
        Ok((still, self.answers(&places, &main)?))
    }

    /// All threads but the main one run side by side. Those that began are waited for also when one could not begin: nobody may be in the
    /// arena when it goes.
    fn run_others(&mut self, scripts: &[(u64, u64)]) -> Result<(), Error> {
        let mut result = Ok(());
        let mut begun = 1;
        while begun < scripts.len() && result.is_ok() {
            let (script, mark) = scripts[begun];
            result = self.stopped.begin(begun, self.arena.start, script, mark);
            begun += usize::from(result.is_ok());
        }
        for thread in 1..begun {
            let finished = self.stopped.finish(thread, &mut |_| Ok(()));
            result = result.and(finished);
        }
        result
    }

    fn answers(&self, places: &[Place], main: &MainPlan) -> Result<Answers, Error> {
        let words = |address: u64, count: u64| -> Result<Vec<u64>, Error> {
            (0..count).map(|n| self.stopped.word(address + n * 8)).collect()
        };
        let mut threads = Vec::with_capacity(places.len());
        for place in places {
            let words = words(place.alternate, 3)?;
            let alternate = AlternateStack { address: words[0], flags: words[1] as u32, size: words[2] };
            threads.push(Reported { alternate, tid_address: self.stopped.word(place.tid_address)? });
        }
        let mut interval_timers = [[0; 4]; 3];
        for (n, timer) in interval_timers.iter_mut().enumerate() {
            timer.copy_from_slice(&words(main.interval_timers + n as u64 * 32, 4)?);
        }
        let mut posix_timers = Vec::with_capacity(main.posix_timers.len());
        for (timer, place) in &main.posix_timers {
            let words = words(*place, 4)?;
            let value = TimerValue { interval: (words[0], words[1]), remaining: (words[2], words[3]) };
            posix_timers.push(PosixTimer { value, ..timer.clone() });
        }
        Ok(Answers { threads, interval_timers, posix_timers })
    }

    /// Takes our mapping away again.
    pub(super) fn leave(self) -> Result<(), Error> {
        let bytes = self.arena.end - self.arena.start;
        self.stopped.step_call(self.syscall, libc::SYS_munmap, [self.arena.start, bytes, 0, 0, 0, 0]).map(drop)
    }
}

/// The main thread's part: timers, then the clone, with memory that the program keeps from forks made forkable for that moment.
fn plan_main(arena: &mut Arena, script: &mut Script, timers: &[PosixTimer], dont_fork: &[Range]) -> MainPlan {
    let interval_timers = arena.data(&[0; 3 * 32], 8);
    for which in 0..3u64 {
        script.call(libc::SYS_getitimer, [which.into(), (interval_timers + which * 32).into()], Check::Ignore);
    }
    let mut posix_timers = Vec::new();
    for timer in timers {
        let place = arena.data(&[0; 32], 8);
        script.call(libc::SYS_timer_gettime, [timer.id.into(), place.into()], Check::Ignore);
        posix_timers.push((timer.clone(), place));
    }
    let advise = |script: &mut Script, advice: i32| {
        for range in dont_fork {
            script.call(
                libc::SYS_madvise,
                [range.start.into(), (range.end - range.start).into(), advice.into()],
                Check::Ignore,
            );
        }
    };
    // The still is stopped before it runs anything; should the tracer die first, it ends.
    let mut ending = Script::default();
    ending.call(libc::SYS_exit_group, [0u64.into()], Check::Ignore);
    let ending = arena.place(&ending);
    advise(script, libc::MADV_DOFORK);
    // CLONE_PARENT: a child of the source's parent, so that the program can neither wait for it nor be told of it. A failure is found by
    // its absence: the handler of a failed step is the rest of the script, which must run in any case.
    let flags = (libc::CLONE_PARENT | libc::SIGCHLD) as u64;
    script.try_spawn(libc::SYS_clone, [flags.into(), 0u64.into(), 0u64.into(), 0u64.into(), 0u64.into()], ending);
    advise(script, libc::MADV_DONTFORK);
    MainPlan { interval_timers, posix_timers }
}

/// The program's POSIX timers without their values (`/proc/PID/timers`, proc(5)).
fn posix_timers(pid: i32, stopped: &Stopped) -> Result<Vec<PosixTimer>, Error> {
    let fields = Fields::read(format!("/proc/{pid}/timers"))?;
    let mut timers: Vec<PosixTimer> = Vec::new();
    for line in fields.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        if name == "ID" {
            let blank = PosixTimer {
                id: 0,
                clock: 0,
                signal: 0,
                sigev_value: 0,
                notify: 0,
                notify_tid: 0,
                value: TimerValue::default(),
            };
            timers.push(PosixTimer { id: value.parse().unwrap_or(0), ..blank });
        }
        let Some(timer) = timers.last_mut() else { continue };
        match name {
            // "60/00007fff86e452a8"
            "signal" => {
                let (signal, pointer) = value.split_once('/').unwrap_or((value, "0"));
                timer.signal = signal.parse().unwrap_or(0);
                timer.sigev_value = u64::from_str_radix(pointer, 16).unwrap_or(0);
            }
            // "signal/pid.2634", "none/tid.7", "thread/..."
            "notify" => {
                let (how, whom) = value.split_once('/').unwrap_or((value, ""));
                let by_thread = whom.starts_with("tid.");
                let outer: i32 = whom.rsplit('.').next().and_then(|id| id.parse().ok()).unwrap_or(0);
                timer.notify_tid =
                    stopped.tasks().iter().find(|task| task.tid == outer).map_or(0, |task| task.inner_tid);
                let base = match how {
                    "none" => libc::SIGEV_NONE,
                    "thread" => libc::SIGEV_THREAD,
                    _ => libc::SIGEV_SIGNAL,
                };
                timer.notify = if by_thread { base | libc::SIGEV_THREAD_ID } else { base };
            }
            "ClockID" => timer.clock = value.parse().unwrap_or(0),
            _ => {}
        }
    }
    Ok(timers)
}
