//! Capture: stop the source, take a still of it, read what the still does not show, let it go on.

use std::{
    fs::File,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use sys::remote::{self, Range};

use crate::{
    checks, descriptors,
    error::{Context, Error},
    frame,
    image::{AlternateStack, Credentials, Image, Layout, PosixTimer, Stream, StreamFile, TimerValue},
    mappings,
    objects::Objects,
    procfs::{self, Fields, MapLine, Stat},
    refusal::Refusal,
    script::{Arena, Check, PAGE, Script},
    still::Still,
    stopped::{self, Stopped},
    threads::{self, Reported},
};

/// What to capture.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CaptureSpec {
    /// The program's process id, as the caller sees it.
    pub pid: i32,
    /// The files that are the sandbox's standard streams.
    pub streams: Vec<(StreamFile, Stream)>,
    /// Where an earlier start left its arena (begin and end), which is not part of the program.
    pub earlier_arena: Option<(u64, u64)>,
}

/// An error of what the caller does while the source is stopped.
pub type PauseError = Box<dyn std::error::Error + Send + Sync>;

/// A captured program.
#[derive(Debug)]
pub struct Capture {
    pub(crate) image: Image,
    pub(crate) still: Still,
    /// How long the source was stopped.
    pub pause: Duration,
    /// Of that, until the still existed and everything was read; the rest is what the caller did meanwhile.
    pub pause_own: Duration,
}

/// Why process `pid` could not be forked; empty if it could. Changes nothing and stops nothing, so that a running program may have changed
/// by the time the answer is read.
pub fn examine(pid: i32) -> Result<Vec<Refusal>, Error> {
    let mut refusals = checks::process(pid)?;
    let lines = procfs::mappings(pid, "smaps")?;
    let mut objects = Objects::default();
    objects.add_mapped(pid, &lines)?;
    refusals.extend(descriptors::read(pid, &standard_streams(pid), &mut objects)?.refusals);
    refusals.extend(mappings::classify(pid, &lines, &objects.found, &[])?.refusals);
    Ok(refusals)
}

/// Descriptors 0 to 2 as what they are in a sandbox: its streams, made outside its root filesystem.
fn standard_streams(pid: i32) -> Vec<(StreamFile, Stream)> {
    use std::os::unix::fs::MetadataExt;
    let file = |fd: i32| std::fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok();
    let streams = [Stream::Stdin, Stream::Stdout, Stream::Stderr];
    let known = |(fd, stream)| file(fd).map(|file| (StreamFile { dev: file.dev(), ino: file.ino() }, stream));
    (0..).zip(streams).filter_map(known).collect()
}

/// Captures a program. `during_pause` runs while it is stopped: what it does (copying files) belongs to the same instant.
///
/// The source is unchanged afterwards, also after an error. [`Error::Refused`] has every reason found.
pub fn capture(spec: &CaptureSpec, during_pause: &mut dyn FnMut() -> Result<(), PauseError>) -> Result<Capture, Error> {
    let pid = spec.pid;
    refuse(checks::process(pid)?)?;
    // Reading `smaps` walks the whole address space, so it happens before the stop; `maps`, which is quick, shows later if it is still true.
    let before = procfs::mappings(pid, "smaps")?;
    let (mut stopped, began) = seize(spec)?;
    let lines = procfs::mappings(pid, "maps")?;
    let flagged = if same_places(&before, &lines) { before } else { procfs::mappings(pid, "smaps")? };
    // Between the first check and the stop it may have forked.
    refuse(
        checks::process(pid)?
            .into_iter()
            .filter(|refusal| !matches!(refusal, Refusal::Traced { .. } | Refusal::Stopped))
            .collect(),
    )?;
    let dont_fork: Vec<Range> = flagged.iter().filter(|line| line.flags.dont_fork).map(|line| line.range).collect();
    let mut injection = Injection::enter(&mut stopped, &flagged, &dont_fork)?;
    let taken = injection.take(pid, &dont_fork);
    let mut refusals = Vec::new();
    let gathered = taken.and_then(|(still, reported)| {
        let gathered = gather(spec, injection.stopped, &lines, reported, &mut refusals)?;
        Ok((still, gathered))
    });
    let arena = injection.arena;
    let left = injection.leave();
    let (still, mut gathered) = gathered?;
    left?;
    refuse(refusals)?;
    let pause_own = began.elapsed();
    during_pause().map_err(Error::DuringPause)?;
    drop(stopped);
    let pause = began.elapsed();
    complete(spec, &mut gathered, &still, arena, dont_fork)?;
    Ok(Capture { image: gathered.image, still, pause, pause_own })
}

/// Stops the source, since when is given, where every thread is in the program: right after its own start some may still be on their way into it.
fn seize(spec: &CaptureSpec) -> Result<(Stopped, Instant), Error> {
    const TRIES: u32 = 1_000;
    let (start, end) = spec.earlier_arena.unwrap_or((0, 0));
    for _ in 0..TRIES {
        let began = Instant::now();
        let stopped = Stopped::seize(spec.pid)?;
        if stopped.tasks().iter().all(|task| !(start..end).contains(&task.registers.rip)) {
            return Ok((stopped, began));
        }
        drop(stopped);
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(Error::Unexpected { pid: spec.pid, what: "does not complete its start".into() })
}

fn refuse(refusals: Vec<Refusal>) -> Result<(), Error> {
    if refusals.is_empty() { Ok(()) } else { Err(Error::Refused(refusals)) }
}

fn same_places(a: &[MapLine], b: &[MapLine]) -> bool {
    let place = |line: &MapLine| (line.range.start, line.range.end, line.protection, line.inode);
    a.len() == b.len() && a.iter().map(place).eq(b.iter().map(place))
}

/// Our mapping inside the stopped source, with the scripts its threads run.
struct Injection<'a> {
    stopped: &'a mut Stopped,
    syscall: u64,
    arena: Range,
}

/// What the main thread's script leaves: where its answers are.
struct MainPlan {
    script: u64,
    interval_timers: u64,
    posix_timers: Vec<(PosixTimer, u64)>,
}

/// Where a thread's script leaves its answers.
struct Place {
    alternate: u64,
    tid_address: u64,
}

/// Results of the scripts.
struct Answers {
    threads: Vec<Reported>,
    interval_timers: [[u64; 4]; 3],
    posix_timers: Vec<PosixTimer>,
}

/// Arena bytes per thread: its frame (XSAVE image), its script, its answers.
const BYTES_PER_THREAD: u64 = sys::ptrace::XSAVE_BYTES_MAX as u64 + 2 * PAGE;

impl<'a> Injection<'a> {
    fn enter(stopped: &'a mut Stopped, lines: &[MapLine], dont_fork: &[Range]) -> Result<Self, Error> {
        let syscall = stopped.syscall(lines)?;
        let threads = stopped.tasks().len() as u64;
        let bytes = 8 * PAGE + threads * BYTES_PER_THREAD + dont_fork.len() as u64 * 2 * sys::blob::OP_BYTES as u64;
        let bytes = bytes.next_multiple_of(PAGE);
        // Written from outside, run and given back within milliseconds, inside a program that could map the same itself.
        let protection = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let base = stopped.step_call(syscall, libc::SYS_mmap, [0, bytes, protection, flags, u64::MAX, 0])?;
        if base < 0 {
            return Err(Error::NoRoom { bytes });
        }
        let base = base as u64;
        Ok(Self { stopped, syscall, arena: Range { start: base, end: base + bytes } })
    }

    /// Runs the scripts: the other threads answer, then the main thread answers and clones the still.
    fn take(&mut self, pid: i32, dont_fork: &[Range]) -> Result<(Still, Answers), Error> {
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
            let registers = frame::user_registers(&task.registers);
            let unknown = AlternateStack::default();
            let frame = frame::place(&mut arena, &registers, &xsave, task.mask, &unknown);
            // The answer is written where the frame has the alternate stack: the way back keeps it, too.
            let alternate = frame::alternate_stack(frame);
            let mut script = Script::default();
            script.call(libc::SYS_sigaltstack, [0u64.into(), alternate.into()], Check::Ignore);
            const PR_GET_TID_ADDRESS: i32 = 40;
            script.call(libc::SYS_prctl, [PR_GET_TID_ADDRESS.into(), tid_address.into()], Check::Ignore);
            if n == 0 {
                main = Some(plan_main(&mut arena, &mut script, &posix_timers, dont_fork));
            }
            stopped::end_with_mark(&mut script, inner_pid, task.inner_tid, frame);
            places.push(Place { alternate, tid_address });
            scripts.push(arena.place(&script));
        }
        let mut main = main.ok_or_else(|| Error::Unexpected { pid, what: "has no threads".into() })?;
        main.script = scripts[0];
        let bytes = arena.into_bytes();
        if bytes.len() as u64 > self.arena.end - self.arena.start {
            return Err(Error::NoRoom { bytes: bytes.len() as u64 });
        }
        self.stopped.write(self.arena.start, &bytes)?;
        for (n, script) in scripts.iter().enumerate().skip(1) {
            self.stopped.begin(n, self.arena.start, *script)?;
        }
        for n in 1..count {
            self.stopped.finish(n, &mut |_| Ok(()))?;
        }
        let mut still = None;
        self.stopped.begin(0, self.arena.start, main.script)?;
        self.stopped.finish(0, &mut |child| {
            still = Some(Still::adopt(child)?);
            Ok(())
        })?;
        let still = still.ok_or_else(|| Error::Unexpected { pid, what: stopped::NOT_CLONED.into() })?;
        Ok((still, self.answers(&places, &main)?))
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
    fn leave(self) -> Result<(), Error> {
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
    MainPlan { script: 0, interval_timers, posix_timers }
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

/// What is read in the pause, and what [`complete`] still needs.
struct Gathered {
    image: Image,
    objects: Objects,
}

fn gather(
    spec: &CaptureSpec,
    stopped: &Stopped,
    lines: &[MapLine],
    answers: Answers,
    refusals: &mut Vec<Refusal>,
) -> Result<Gathered, Error> {
    let pid = spec.pid;
    let threads = threads::gather(pid, stopped, &answers.threads, refusals)?;
    let pending = threads::pending(pid, true, refusals)?;
    let mut objects = Objects::default();
    objects.add_mapped(pid, lines)?;
    let files = descriptors::read(pid, &spec.streams, &mut objects)?;
    refusals.extend(files.refusals);
    let contents = objects.read(refusals)?;
    let stat = Stat::read(&pid.to_string())?;
    let image = Image {
        threads,
        mappings: Vec::new(),
        dont_fork: Vec::new(),
        objects: contents,
        layout: Layout::default(),
        membarrier: 0,
        actions: Vec::new(),
        files: files.files,
        pipes: files.pipes,
        pairs: files.pairs,
        interval_timers: answers.interval_timers,
        posix_timers: answers.posix_timers,
        pending,
        cwd: Vec::new(),
        umask: 0,
        limits: Vec::new(),
        credentials: Credentials { uids: [0; 3], gids: [0; 3], groups: Vec::new() },
        own_affinity: remote::affinity(0).of("read affinity", pid)?,
        session_leader: stat.field(6) == i64::from(pid),
        process_group_leader: stat.field(5) == i64::from(pid),
        vdso: Vec::new(),
    };
    Ok(Gathered { image, objects })
}

/// Reads from the still what it shows as well as the source did; the source runs again.
fn complete(
    spec: &CaptureSpec,
    gathered: &mut Gathered,
    still: &Still,
    arena: Range,
    dont_fork: Vec<Range>,
) -> Result<(), Error> {
    let pid = still.pid();
    let image = &mut gathered.image;
    let answers = still.ask(arena.start, arena.end - arena.start)?;
    let lines = procfs::mappings(pid, "smaps")?;
    let mut skip = vec![arena];
    skip.extend(spec.earlier_arena.map(|(start, end)| Range { start, end }));
    let classified = mappings::classify(pid, &lines, &gathered.objects.found, &skip)?;
    refuse(classified.refusals)?;
    image.mappings = classified.mappings;
    image.vdso = classified.vdso;
    image.dont_fork = dont_fork;
    image.actions = answers.actions;
    image.membarrier = answers.membarrier;
    image.layout = layout(pid, answers.brk)?;
    image.cwd = procfs::link(&format!("/proc/{pid}/cwd"))?;
    let status = Fields::read(format!("/proc/{pid}/status"))?;
    image.umask = status.number("Umask", 8)? as u32;
    image.limits = procfs::limits(pid)?;
    image.credentials = credentials(pid, &status)?;
    Ok(())
}

fn credentials(pid: i32, status: &Fields) -> Result<Credentials, Error> {
    let three = |name: &str| -> Result<[u32; 3], Error> {
        let ids = status.numbers(name, 10)?;
        match ids[..] {
            [real, effective, saved, ..] => Ok([real as u32, effective as u32, saved as u32]),
            _ => Err(Error::Unexpected { pid, what: format!("has an unreadable {name}") }),
        }
    };
    let groups = status.numbers("Groups", 10)?.into_iter().map(|group| group as u32).collect();
    Ok(Credentials { uids: three("Uid")?, gids: three("Gid")?, groups })
}

fn layout(pid: i32, brk: u64) -> Result<Layout, Error> {
    let stat = Stat::read(&pid.to_string())?;
    // The order of `struct prctl_mm_map`, as field numbers of proc(5); 0 stands for brk, which only the program itself can ask.
    let fields = [26, 27, 45, 46, 47, 0, 28, 48, 49, 50, 51].map(|n| if n == 0 { brk } else { stat.field(n) as u64 });
    let auxv = procfs::read(&format!("/proc/{pid}/auxv"))?;
    let exe = procfs::link(&format!("/proc/{pid}/exe"))?;
    Ok(Layout { fields, auxv, exe })
}

impl Capture {
    /// The runs of private pages of the still in `range`.
    pub(crate) fn private_pages(&self, pagemap: &File, range: Range) -> Result<Vec<Range>, Error> {
        remote::private_pages(pagemap, range).of("scan the page map", self.still.pid())
    }
}
