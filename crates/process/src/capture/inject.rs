//! Scripts that the source's own threads run while it is stopped. They lie in a mapping that is removed before the threads go on.

use std::time::Duration;

use procfs::{Fields, MapLine};
use sys::{
    ptrace,
    remote::{PAGE, Range},
    xstate::ARCH_GET_XCOMP_PERM,
};

use super::questions::{OfProcess, OfThread, ProcessPlaces, ThreadPlaces};
use crate::{
    error::{Context, Error},
    image::{
        AlternateStack, PosixTimer, ProcessAttributes, TimerValue,
        xstate::{self, Format, Lacking},
    },
    observe::wall::Armed,
    refusal::Refusal,
    script::{Arena, Arg, Check, Script, sigframe},
    stop::{
        still::{self, Newborn},
        stopped::{self, Stopped},
        threads::Reported,
    },
};

/// Arena bytes per thread beside its XSAVE image: the rest of its frame, its script, its answers.
const BYTES_PER_THREAD: u64 = PAGE;

/// Bytes of a thread's name, with the zero at its end (TASK_COMM_LEN).
const NAME_BYTES: usize = 16;

const CODE: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
const DATA: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;

/// A mapping inside the stopped source, with the scripts its threads run.
pub(super) struct Injection<'a> {
    pub(super) stopped: &'a mut Stopped,
    pub(super) arena: Range,
    /// Where the source has a `syscall` instruction that unmaps the arena again, if that was mapped for this.
    unmapped_by: Option<u64>,
    /// Without their values.
    posix_timers: Vec<PosixTimer>,
}

/// What the main thread's script leaves: where its answers are.
struct MainPlan {
    interval_timers: u64,
    posix_timers: Vec<(PosixTimer, u64)>,
    permitted: u64,
}

/// Of the answers about a POSIX timer: its value, and what the wall clock showed before and after that was read.
const TIMER_WORDS: u64 = 8;

/// Where a thread's script leaves its answers, and what is known of the thread before.
struct ThreadAnswers {
    tid: u64,
    name: u64,
    alternate: u64,
    tid_address: u64,
    timer_slack: u64,
    xsave: Vec<u8>,
    attributes: ThreadPlaces,
}

/// The scripts as they lie in the arena.
struct Plan {
    places: Vec<ThreadAnswers>,
    /// Of each thread: where its script begins, and the operation that sends the mark.
    scripts: Vec<(u64, u64)>,
    main: MainPlan,
    attributes: ProcessPlaces,
    /// Bytes of the arena that are in use.
    bytes: usize,
}

/// Whose child the still becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cloning {
    /// That of the source's own parent, which is no process of the program.
    Sibling,
    /// That of the sandbox's init, because the source's parent would be told of it and could wait for it. A helper that shares the source's memory
    /// clones the still and ends.
    ByHelper,
}

/// Scripts that run.
pub(super) struct Begun {
    cloning: Cloning,
    /// How many threads have begun.
    count: usize,
    result: Result<(), Error>,
    plan: Plan,
}

/// What came of the scripts.
pub(super) struct Outcome {
    pub(super) newborn: Newborn,
    pub(super) answers: Answers,
}

/// Results of the scripts.
pub(super) struct Answers {
    pub(super) threads: Vec<Reported>,
    pub(super) interval_timers: [[u64; 4]; 3],
    pub(super) posix_timers: Vec<PosixTimer>,
    /// Those that may wait for a time of day.
    pub(super) wall_timers: Vec<Armed>,
    /// Components of extended registers that the program may use, one bit each.
    pub(super) permitted: u64,
    /// What the main thread knows of them.
    pub(super) attributes: ProcessAttributes,
    /// A child has stopped, and it was not told.
    pub(super) is_untold: bool,
}

impl<'a> Injection<'a> {
    /// Finds room in the source. If the arena of its own start can serve, it does. Mapping another one takes calls during which this process
    /// must not be killed, because only it can take the main thread back to where it was.
    pub(super) fn enter(
        stopped: &'a mut Stopped,
        lines: &[MapLine],
        dont_fork: &[Range],
        earlier: Option<Range>,
    ) -> Result<Self, Error> {
        let main = stopped.tasks()[0].tid;
        let format = Format::here().of("look for extended registers", main)?;
        let posix_timers = posix_timers(main)?;
        let bytes = room(stopped.tasks().len(), format.bytes(), dont_fork.len(), posix_timers.len());
        if let Some(arena) = earlier
            && serves(stopped, lines, arena, bytes)?
        {
            return Ok(Self { stopped, arena, unmapped_by: None, posix_timers });
        }
        let syscall = stopped.syscall(lines)?;
        // Executable where it is never writable, writable where it is never executable: some programs have the kernel insist on that. The
        // code is written from outside.
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let base = stopped.step_call(syscall, libc::SYS_mmap, [0, bytes, CODE, flags, u64::MAX, 0])?;
        if base < 0 {
            return Err(Error::NoRoom { bytes });
        }
        let base = base as u64;
        let data = [base + PAGE, bytes - PAGE, DATA, 0, 0, 0];
        let is_writable = stopped.step_call(syscall, libc::SYS_mprotect, data)? == 0;
        let arena = Range { start: base, end: base + bytes };
        let injection = Self { stopped, arena, unmapped_by: Some(syscall), posix_timers };
        if !is_writable {
            injection.leave()?;
            return Err(Error::NoRoom { bytes });
        }
        Ok(injection)
    }

    /// Lets all threads begin their scripts, side by side; the main thread's clones the still. From now on, until they are finished, memory and
    /// ptrace's view of the threads must be left alone.
    pub(super) fn begin(&mut self, lines: &[MapLine], dont_fork: &[Range], cloning: Cloning) -> Result<Begun, Error> {
        let plan = self.plan(lines, dont_fork, cloning)?;
        let mut begun = Begun { cloning, count: 0, result: Ok(()), plan };
        // The main thread first: its clone takes longest.
        while begun.count < begun.plan.scripts.len() && begun.result.is_ok() {
            let (script, mark) = begun.plan.scripts[begun.count];
            begun.result = self.stopped.begin(begun.count, self.arena.start, script, mark);
            begun.count += usize::from(begun.result.is_ok());
        }
        Ok(begun)
    }

    /// Waits until all threads have run their scripts.
    pub(super) fn finish(&mut self, begun: Begun) -> Result<Outcome, Error> {
        let Begun { cloning, count, mut result, plan } = begun;
        let mut newborn = None;
        // Threads that began are waited for in any case: none may be in the arena when it goes.
        for thread in (0..count).rev() {
            let finished = self.stopped.finish(thread, &mut |child| {
                newborn = match cloning {
                    Cloning::Sibling => Some(Newborn::new(child)),
                    Cloning::ByHelper => still::of_helper(child)?,
                };
                Ok(())
            });
            result = result.and(finished);
        }
        result?;
        let pid = self.stopped.tasks()[0].tid;
        let newborn = newborn.ok_or_else(|| Error::Unexpected { pid, what: stopped::NOT_CLONED.into() })?;
        Ok(Outcome { newborn, answers: self.answers(plan)? })
    }

    /// Lays the scripts out and writes them into the arena.
    fn plan(&mut self, lines: &[MapLine], dont_fork: &[Range], cloning: Cloning) -> Result<Plan, Error> {
        let pid = self.stopped.tasks()[0].tid;
        let mut arena = Arena::new(self.arena.start);
        let count = self.stopped.tasks().len();
        let (mut places, mut scripts) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let format = Format::here().of("look for extended registers", pid)?;
        let mut main = None;
        for (n, task) in self.stopped.tasks().iter().enumerate() {
            let (tid_address, name) = (arena.words(&[0]), arena.data(&[0; NAME_BYTES], 8));
            let xsave = extended_registers(task.tid, format)?;
            let registers = sigframe::user_registers(&task.registers);
            let unknown = AlternateStack::default();
            let frame = sigframe::place(&mut arena, &registers, (&xsave, format), task.mask, &unknown);
            // The answer is written where the frame has the alternate stack: the way back keeps it, too.
            let alternate = sigframe::alternate_stack(frame);
            let mut script = Script::default();
            let process = script.call(libc::SYS_getpid, [], Check::Ignore);
            let thread = script.call(libc::SYS_gettid, [], Check::Ignore);
            script.call(libc::SYS_sigaltstack, [0u64.into(), alternate.into()], Check::Ignore);
            const PR_GET_TID_ADDRESS: i32 = 40;
            script.call(libc::SYS_prctl, [PR_GET_TID_ADDRESS.into(), tid_address.into()], Check::Ignore);
            script.call(libc::SYS_prctl, [libc::PR_GET_NAME.into(), name.into()], Check::Ignore);
            let slack = script.call(libc::SYS_prctl, [libc::PR_GET_TIMERSLACK.into()], Check::Ignore);
            let of_thread = OfThread::add(&mut arena, &mut script);
            let of_process = (n == 0).then(|| OfProcess::add(&mut arena, &mut script, lines));
            let of_main = (n == 0).then(|| plan_main(&mut arena, &mut script, &self.posix_timers, dont_fork, cloning));
            let mark = stopped::end_with_mark(&mut script, self.stopped.mark(), process, thread, frame);
            let script = arena.place(&script);
            let [tid, timer_slack] = [thread, slack].map(|step| arena.keep_result(script, step));
            let attributes = of_thread.placed(&mut arena, script);
            if let Some((of_main, of_process)) = of_main.zip(of_process) {
                main = Some((of_main, of_process.placed(&mut arena, script)));
            }
            places.push(ThreadAnswers { tid, name, alternate, tid_address, timer_slack, xsave, attributes });
            scripts.push((script, Arena::op_address(script, mark)));
        }
        let (main, attributes) = main.ok_or_else(|| Error::Unexpected { pid, what: "has no threads".into() })?;
        let bytes = arena.into_bytes();
        if bytes.len() as u64 > self.arena.end - self.arena.start {
            return Err(Error::NoRoom { bytes: bytes.len() as u64 });
        }
        self.stopped.write(self.arena.start, &bytes)?;
        Ok(Plan { places, scripts, main, attributes, bytes: bytes.len() })
    }

    fn answers(&self, plan: Plan) -> Result<Answers, Error> {
        let mut bytes = vec![0; plan.bytes];
        self.stopped.read(self.arena.start, &mut bytes)?;
        let word = |address: u64| {
            let at = (address - self.arena.start) as usize;
            u64::from_le_bytes(std::array::from_fn(|n| bytes[at + n]))
        };
        let words = |address: u64| -> [u64; 4] { std::array::from_fn(|n| word(address + n as u64 * 8)) };
        let text = |address: u64| -> Vec<u8> {
            let bytes = &bytes[(address - self.arena.start) as usize..][..NAME_BYTES];
            bytes.iter().copied().take_while(|byte| *byte != 0).collect()
        };
        let reported = |place: ThreadAnswers| {
            let [address, flags, size, _] = words(place.alternate);
            Reported {
                tid: word(place.tid) as i32,
                name: text(place.name),
                xsave: place.xsave,
                alternate: AlternateStack { address, flags: flags as u32, size },
                tid_address: word(place.tid_address),
                timer_slack_ns: word(place.timer_slack),
                attributes: place.attributes.read(&word),
            }
        };
        let permitted = word(plan.main.permitted);
        let threads: Vec<Reported> = plan.places.into_iter().map(reported).collect();
        let interval_timers = [0, 32, 64].map(|offset| words(plan.main.interval_timers + offset));
        let wall_timers =
            plan.main.posix_timers.iter().filter_map(|(timer, place)| armed(timer, [words(*place), words(place + 32)]));
        let wall_timers = wall_timers.collect();
        let timer = |(timer, place): (PosixTimer, u64)| {
            let words = words(place);
            let value = TimerValue { interval: (words[0], words[1]), remaining: (words[2], words[3]) };
            let by = self.stopped.tasks().iter().zip(&threads).find(|(task, _)| task.tid == timer.notify_tid);
            PosixTimer { value, notify_tid: by.map_or(0, |(_, thread)| thread.tid), ..timer }
        };
        let posix_timers = plan.main.posix_timers.into_iter().map(timer).collect();
        let (attributes, is_untold) = (plan.attributes.read(&word), plan.attributes.is_untold(&word));
        Ok(Answers { threads, interval_timers, posix_timers, wall_timers, permitted, attributes, is_untold })
    }

    /// Takes the mapping away again, if it is ours.
    pub(super) fn leave(self) -> Result<(), Error> {
        let Some(syscall) = self.unmapped_by else { return Ok(()) };
        let bytes = self.arena.end - self.arena.start;
        self.stopped.step_call(syscall, libc::SYS_munmap, [self.arena.start, bytes, 0, 0, 0, 0]).map(drop)
    }
}

/// The extended registers of a stopped thread, as far as a copy can have them.
fn extended_registers(tid: i32, format: &Format) -> Result<Vec<u8>, Error> {
    let shown = ptrace::xsave(tid).of("read extended registers", tid)?;
    xstate::carried(&shown, format)
        .map_err(|Lacking(components)| Error::Refused(vec![Refusal::ExtendedRegisters { tid, components }]))
}

/// Arena bytes that the capture of a program needs that has so many threads, of so many bytes of extended registers each, so many ranges
/// that it keeps from forks, and so many POSIX timers.
pub(crate) fn room(threads: usize, xsave_bytes: usize, dont_fork: usize, posix_timers: usize) -> u64 {
    const OP_BYTES: u64 = sys::blob::OP_BYTES as u64;
    let of_thread = xsave_bytes.next_multiple_of(64) as u64 + BYTES_PER_THREAD;
    let bytes = 8 * PAGE + threads as u64 * of_thread + dont_fork as u64 * 2 * OP_BYTES;
    let bytes = bytes + posix_timers as u64 * (TIMER_WORDS * 8 + 3 * OP_BYTES);
    bytes.next_multiple_of(PAGE)
}

/// Whether `arena` is large enough, has our code (an older node may have made it), and is still mapped as it was.
fn serves(stopped: &Stopped, lines: &[MapLine], arena: Range, bytes: u64) -> Result<bool, Error> {
    let is_private = |range: Range, protection: u64| {
        lines.iter().any(|line| {
            line.range.start <= range.start
                && range.end <= line.range.end
                && line.protection == protection
                && !line.shared
        })
    };
    let (start, end) = (arena.start, arena.start + bytes);
    let middle = start + PAGE;
    if end > arena.end
        || !is_private(Range { start, end: middle }, CODE)
        || !is_private(Range { start: middle, end }, DATA)
    {
        return Ok(false);
    }
    let mut code = vec![0; sys::blob::code().len()];
    stopped.read(start, &mut code)?;
    Ok(code == sys::blob::code())
}

/// The main thread's part: timers, then the clone, with memory that the program keeps from forks made forkable for that moment.
fn plan_main(
    arena: &mut Arena,
    script: &mut Script,
    timers: &[PosixTimer],
    dont_fork: &[Range],
    cloning: Cloning,
) -> MainPlan {
    let interval_timers = arena.data(&[0; 3 * 32], 8);
    for which in 0..3u64 {
        script.call(libc::SYS_getitimer, [which.into(), (interval_timers + which * 32).into()], Check::Ignore);
    }
    let mut posix_timers = Vec::new();
    for timer in timers {
        let place = arena.data(&[0; TIMER_WORDS as usize * 8], 8);
        let look = |script: &mut Script, at: u64| {
            script.call(libc::SYS_clock_gettime, [libc::CLOCK_REALTIME.into(), at.into()], Check::Ignore);
        };
        look(script, place + 32);
        script.call(libc::SYS_timer_gettime, [timer.id.into(), place.into()], Check::Ignore);
        look(script, place + 48);
        posix_timers.push((timer.clone(), place));
    }
    // It stays 0 where the kernel does not know the question.
    let permitted = arena.words(&[0]);
    script.call(libc::SYS_arch_prctl, [ARCH_GET_XCOMP_PERM.into(), permitted.into()], Check::Ignore);
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
    // A failure is found by the still's absence: the handler of a failed step is the rest of the script, which must run in any case.
    match cloning {
        Cloning::Sibling => {
            script.try_spawn(libc::SYS_clone, flags(libc::CLONE_PARENT | libc::SIGCHLD), ending);
        }
        Cloning::ByHelper => {
            let mut helper = Script::default();
            helper.try_spawn(libc::SYS_clone, flags(libc::SIGCHLD), ending);
            helper.call(libc::SYS_exit_group, [0u64.into()], Check::Ignore);
            let helper = arena.place(&helper);
            // At its end no signal comes: it would tell the program.
            let made = script.try_spawn(libc::SYS_clone, flags(libc::CLONE_VM), helper);
            let options = (libc::WEXITED | libc::__WALL) as u64;
            let args = [u64::from(libc::P_PID).into(), Arg::Result(made), 0u64.into(), options.into(), 0u64.into()];
            script.call(libc::SYS_waitid, args, Check::Ignore);
        }
    }
    advise(script, libc::MADV_DONTFORK);
    MainPlan { interval_timers, posix_timers, permitted }
}

/// Arguments of a clone with these flags.
fn flags(flags: i32) -> [Arg; 5] {
    [(flags as u64).into(), 0u64.into(), 0u64.into(), 0u64.into(), 0u64.into()]
}

/// A timer that may wait for a time of day, from the answers about it.
fn armed(timer: &PosixTimer, [value, clock]: [[u64; 4]; 2]) -> Option<Armed> {
    let time = |at: &[u64]| Duration::new(at[0], at[1] as u32);
    let (interval, remaining) = (time(&value[..2]), time(&value[2..]));
    let (earliest, latest) = (time(&clock[..2]) + remaining, time(&clock[2..]) + remaining);
    let may_be = timer.clock == libc::CLOCK_REALTIME && remaining != Duration::ZERO && earliest <= latest;
    may_be.then_some(Armed { id: timer.id, earliest, latest, interval })
}

/// The program's POSIX timers without their values (`/proc/PID/timers`, proc(5)). Whom they notify is named as it is called here.
fn posix_timers(pid: i32) -> Result<Vec<PosixTimer>, Error> {
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
                timer.notify_tid = whom.rsplit('.').next().and_then(|id| id.parse().ok()).unwrap_or(0);
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
