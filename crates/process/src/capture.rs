//! Capture: stop the source, fork it (the still), read what the still does not show, let the source go on.
//!
//! The steps of one capture:
//!
//! 1. Look at the running program, and refuse what can be refused without stopping it.
//! 2. Stop every thread ([`crate::stop`]). Each thread runs a script ([`inject`]) that tells what only it can; the main thread clones the still.
//! 3. Meanwhile read descriptors, shared memory and timers ([`crate::observe`]), and run what the caller does in the pause.
//! 4. Let the source go on, or keep it where it is.
//! 5. Read the rest from the still (`complete`), and refuse files that copies would not find ([`covered`]).

mod caller;
mod complete;
mod covered;
mod floor;
pub(crate) mod inject;
mod questions;

use std::{
    fs::File,
    io,
    mem::take,
    path::PathBuf,
    time::{Duration, Instant},
};

pub use caller::{Afterwards, Others, PauseError};
use caller::{Callback, Frozen, Steps};
use complete::{Known, complete};
pub use floor::time_forks;
use inject::{Injection, Outcome};
use procfs::MapLine;
use serde::{Deserialize, Serialize};
use sys::{
    deadman::Deadman,
    namespace::machine_clocks,
    ptrace::SignalInfo,
    remote::{self, Range},
};

use crate::{
    error::{Context, Error},
    image::{ClockOffsets, MemoryFiles, ProgramImage, SharedObject, Stream, StreamFile, Thread, WallTimers},
    observe::{
        access::Access,
        checks::{self, Paths, Surroundings},
        descriptors,
        files::Files,
        mappings, memory_files,
        objects::Objects,
        others, wall,
        watches::{self, Watched},
    },
    refusal::Refusal,
    stop::{
        aside::Aside,
        still::{self, Newborn, Still},
        stopped::{Stopped, Task},
        threads::{self, Reported, Seen},
    },
};

/// The longest stop of a source, copying of files included. Beyond it SIGALRM ends this process, and the source goes on.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// How long a program may take to come out of its own start.
const START_MAX: Duration = Duration::from_secs(10);

/// How long a refusal that may pass is waited out.
const PASS_MAX: Duration = Duration::from_secs(1);

/// How long other processes of the sandbox that are about to end are waited for.
const OTHERS_END_MAX: Duration = Duration::from_millis(100);

/// The longest wait between two attempts to stop a program in a good place.
const WAIT_MAX: Duration = Duration::from_millis(128);

/// What to capture.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CaptureSpec {
    /// The program's process id, as the caller sees it.
    pub pid: i32,
    /// The files that are the sandbox's standard streams.
    pub streams: Vec<(StreamFile, Stream)>,
    /// Where an earlier start left its arena, which is not part of the program.
    pub earlier_arena: Option<base::id::Arena>,
    /// Directories where copies may find another filesystem. Open files there are refused. The working directory may be there.
    pub mount_points: Vec<PathBuf>,
    /// Directories where copies find a filesystem like the program's, and the zygote none. The program's file must not be there.
    pub volumes: Vec<PathBuf>,
    /// Processes that were started in the program's sandbox from outside, as the caller sees them. They are not the program's, and stay where
    /// they are.
    pub started: Vec<i32>,
    /// A directory where the program's sandbox, and that of every copy, has a filesystem in memory of its own: what is in it goes with the
    /// program.
    pub memory_files: Option<PathBuf>,
}

impl CaptureSpec {
    /// Directories whose files a zygote cannot map.
    fn without_zygotes(&self) -> Vec<PathBuf> {
        self.volumes.iter().chain(&self.memory_files).cloned().collect()
    }
}

/// A captured program.
#[derive(Debug)]
pub struct Capture {
    pub(crate) image: ProgramImage,
    pub(crate) still: Still,
    /// Not yet done: [`Still::take_over`].
    pub(crate) taken_over: Vec<Range>,
    /// How long the source was stopped, or has been so far.
    pub pause: Duration,
}

/// Why process `pid` could not be forked; empty if it could. Changes nothing and stops nothing, so that a running program may have changed
/// by the time the answer is read.
pub fn examine(pid: i32) -> Result<Vec<Refusal>, Error> {
    let mut refusals = match checks::look(pid, None) {
        Err(Error::Refused(refusals)) => return Ok(refusals),
        look => look?.refusals,
    };
    refusals.extend(parts(pid, &standard_streams(pid))?);
    Ok(refusals)
}

/// Why parts of process `pid`, its descriptors and mappings, could not be forked.
fn parts(pid: i32, streams: &[(StreamFile, Stream)]) -> Result<Vec<Refusal>, Error> {
    let lines = procfs::smaps(pid)?;
    let mut objects = Objects::default();
    objects.add_mapped(pid, &lines)?;
    let watched = watches::find(pid)?;
    let mut refusals = descriptors::read(pid, streams, &mut objects, &watched)?.refusals;
    refusals.extend(Access::of(pid)?.check_rest(pid, &lines)?);
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
pub fn capture(spec: &CaptureSpec, during_pause: Callback<'_>) -> Result<Capture, Error> {
    capture_until(spec, Steps { during_pause, others: None, hold: None, afterwards: Afterwards::GoesOn })
}

/// As [`capture`], but the source stands still until all of it is read and `hold` has returned. `hold` makes sure that it goes no further
/// then (it freezes its control group): what the capture shows is the last that the source has done. The still needs to run no more by that
/// time, so it may be frozen along with the source.
pub fn capture_and_hold(spec: &CaptureSpec, during_pause: Callback<'_>, hold: Callback<'_>) -> Result<Capture, Error> {
    capture_until(spec, Steps { during_pause, others: None, hold: Some(hold), afterwards: Afterwards::StandsStill })
}

/// As [`capture`], of a program that is not alone in its sandbox: `others` stand still with it during `during_pause`. The pause is longer by the
/// time that this takes, and nothing goes on beside the making of the still.
pub fn capture_beside(
    spec: &CaptureSpec,
    during_pause: Callback<'_>,
    others: &mut dyn Others,
    afterwards: Afterwards,
) -> Result<Capture, Error> {
    capture_until(spec, Steps { during_pause, others: Some(others), hold: None, afterwards })
}

/// Waits for other processes that are about to end, and finds what else is refused. One that is seen only when the files are cut is not waited for:
/// they cannot be cut twice.
fn capture_until(spec: &CaptureSpec, mut steps: Steps<'_>) -> Result<Capture, Error> {
    let began = Instant::now();
    let mut has_cut = false;
    loop {
        let Steps { during_pause, others, hold, afterwards } = steps.again();
        let mut once = || {
            has_cut = true;
            during_pause()
        };
        match capture_once(spec, Steps { during_pause: &mut once, others, hold, afterwards }) {
            Err(Error::Refused(refusals))
                if !has_cut && refusals.iter().all(Refusal::may_end) && began.elapsed() < OTHERS_END_MAX =>
            {
                std::thread::sleep(OTHERS_END_MAX / 20);
            }
            Err(Error::Refused(refusals)) => return Err(Error::Refused(with_parts(spec, refusals))),
            captured => return captured,
        }
    }
}

/// A capture ends at the first step that refuses. What the parts of the program are refused for is said with it, as far as they can be read.
fn with_parts(spec: &CaptureSpec, mut refusals: Vec<Refusal>) -> Vec<Refusal> {
    for refusal in parts(spec.pid, &spec.streams).unwrap_or_default() {
        if !refusals.contains(&refusal) {
            refusals.push(refusal);
        }
    }
    refusals
}

fn capture_once(spec: &CaptureSpec, steps: Steps<'_>) -> Result<Capture, Error> {
    let Steps { during_pause, others, hold, afterwards } = steps;
    let pid = spec.pid;
    let checks::Look { refusals, surroundings } = checks::look(pid, Some(&spec.started))?;
    refuse(refusals)?;
    // What takes long comes before the stop and is only confirmed in the pause: a search for files, and `smaps`, for which the kernel walks
    // the whole address space.
    let watched = watches::find(pid)?;
    let before = arrived(pid)?;
    // A hostile program can keep a thread of its own from ever coming back: then this process ends, and with it all it holds.
    let deadman = Deadman::arm(PAUSE_MAX);
    let mut stopped = seize(spec)?;
    let began = stopped.since();
    let aside = Aside::make_room_for(pid)?;
    let lines = procfs::maps(pid)?;
    let flagged = with_flags(pid, before, &lines)?;
    let locked = mappings::locked(&flagged, spec.earlier_arena);
    let dont_fork: Vec<Range> = flagged.iter().filter(|line| line.flags.dont_fork).map(|line| line.range).collect();
    let earlier = spec.earlier_arena.map(mappings::of_arena);
    let advised = mappings::kept_from_forks(&flagged);
    let mut injection = Injection::enter(&mut stopped, &flagged, &advised, earlier)?;
    let mut look = |stopped: &Stopped| {
        let gathered = gather(spec, stopped, &surroundings, &lines, &watched)?;
        during_pause().map_err(Error::DuringPause)?;
        Ok(gathered)
    };
    // Cloning the still takes as long as all the rest, which goes on beside it.
    let at_once = others.is_none();
    let outcome = injection.run(pid, &flagged, &advised, |stopped| at_once.then(|| look(stopped)).transpose());
    let arena = injection.arena;
    let left = injection.leave();
    let Outcome { newborn, mut answers, found } = outcome?;
    left?;
    let still_pid = newborn.pid();
    let (mut found, still, frozen) = match found {
        Some(found) => (found, NewStill::Newborn(newborn), None),
        None => {
            // Frozen processes run no scripts: what is asked of the still is asked before.
            let asked = NewStill::Newborn(newborn).ask(arena)?;
            let frozen = others.map(Frozen::freeze).transpose()?;
            (look(&stopped)?, NewStill::Asked(asked), frozen)
        }
    };
    let siblings = others::siblings_but(take(&mut found.parentless), still_pid);
    refuse(siblings.into_iter().chain(take(&mut answers.system_v)).collect())?;
    let (threads, pending) = threads(pid, stopped.tasks(), take(&mut found.seen), take(&mut answers.threads))?;
    // After its timers: what remains of them counts from then on, and none may be early by the copy's clocks.
    let clocks = clocks(pid).of("read the clocks", pid)?;
    found.wall_timers.posix = wall::of_timers(&answers.wall_timers)?;
    let pause = began.elapsed();
    drop(aside);
    let held = match afterwards {
        Afterwards::StandsStill => Some((stopped, frozen, deadman)),
        // It goes on here, and the rest happens behind its back.
        Afterwards::GoesOn => {
            drop((stopped, frozen, deadman));
            None
        }
    };
    let (still, asked) = still.ask(arena)?;
    answers.attributes.locked = locked;
    let known = Known { threads, pending, answers, found, lines, dont_fork, clocks };
    let (image, taken_over) = complete(&still, asked, arena, spec, known)?;
    refuse_covered(&image, spec)?;
    let pause = match held {
        Some((_stopped, frozen, _deadman)) => {
            hold.map_or(Ok(()), |hold| hold()).map_err(Error::DuringPause)?;
            // Nothing fails any more.
            if let Some(frozen) = frozen {
                frozen.keep();
            }
            began.elapsed()
        }
        None => pause,
    };
    Ok(Capture { image, still, taken_over, pause })
}

/// The mappings of the stopped source with their flags, which were read before the stop if they are still the same.
fn with_flags(pid: i32, before: Vec<MapLine>, lines: &[MapLine]) -> Result<Vec<MapLine>, Error> {
    let flagged = if same_places(&before, lines) { before } else { procfs::smaps(pid)? };
    // Nothing can be run in such a program.
    let shadow = flagged.iter().find(|line| line.shadow_stack);
    refuse(shadow.map(|line| Refusal::ShadowStack { address: line.range.start }).into_iter().collect())?;
    Ok(flagged)
}

/// Refuses what copies would not find.
fn refuse_covered(image: &ProgramImage, spec: &CaptureSpec) -> Result<(), Error> {
    refuse(covered::refusals(image, &spec.mount_points))?;
    refuse(covered::program_refusals(image, &spec.volumes))?;
    refuse(covered::memory_refusal(image, spec.memory_files.as_deref()).into_iter().collect())
}

/// What the clocks of a process show.
fn clocks(pid: i32) -> io::Result<ClockOffsets> {
    Ok(ClockOffsets::of(pid)?.plus(machine_clocks()?))
}

/// The still as far as it is made.
enum NewStill {
    Newborn(Newborn),
    Asked((Still, still::StillAnswers)),
}

impl NewStill {
    /// Waits for the still, and asks it what only it can tell.
    fn ask(self, arena: Range) -> Result<(Still, still::StillAnswers), Error> {
        match self {
            Self::Newborn(newborn) => {
                let still = Still::adopt(newborn)?;
                let answers = still.ask(arena.start, arena.end - arena.start)?;
                Ok((still, answers))
            }
            Self::Asked(asked) => Ok(asked),
        }
    }
}

/// Its mappings, as soon as all their pages are there. The caller has waited for the pages, but `smaps` may tell of them a moment late.
fn arrived(pid: i32) -> Result<Vec<MapLine>, Error> {
    let began = Instant::now();
    loop {
        let lines = procfs::smaps(pid)?;
        let Some(awaited) = lines.iter().find(|line| line.awaited) else { return Ok(lines) };
        if began.elapsed() > PASS_MAX {
            // A still would have zeros there.
            return Err(Error::Refused(vec![Refusal::AwaitedMemory { address: awaited.range.start }]));
        }
        std::thread::sleep(WAIT_MAX / 16);
    }
}

/// Stops the source where every thread is in the program: right after its own start some may still be on their way into it.
fn seize(spec: &CaptureSpec) -> Result<Stopped, Error> {
    let base::id::Arena { start, end } = spec.earlier_arena.unwrap_or_default();
    let began = Instant::now();
    let (mut refused, mut wait) = (None, Duration::from_millis(1));
    loop {
        match Stopped::seize(spec.pid) {
            Ok(stopped) => {
                if stopped.tasks().iter().all(|task| !(start..end).contains(&task.registers.rip)) {
                    return Ok(stopped);
                }
                if began.elapsed() > START_MAX {
                    return Err(Error::Unexpected { pid: spec.pid, what: "does not complete its start".into() });
                }
            }
            Err(Error::Refused(refusals))
                if refusals.iter().all(Refusal::may_pass)
                    && refused.get_or_insert_with(Instant::now).elapsed() < PASS_MAX => {}
            Err(error) => return Err(error),
        }
        std::thread::sleep(wait);
        // Where others have the processors, a thread that is stopped again before its turn has come does not get on at all.
        wait = (wait * 2).min(WAIT_MAX);
    }
}

fn refuse(refusals: Vec<Refusal>) -> Result<(), Error> {
    if refusals.is_empty() { Ok(()) } else { Err(Error::Refused(refusals)) }
}

fn same_places(a: &[MapLine], b: &[MapLine]) -> bool {
    let place = |line: &MapLine| (line.range.start, line.range.end, line.protection, line.inode);
    a.len() == b.len() && a.iter().map(place).eq(b.iter().map(place))
}

/// What is read in the pause from outside.
struct Gathered {
    seen: Vec<Seen>,
    session_leader: bool,
    process_group_leader: bool,
    files: Files,
    objects: Objects,
    contents: Vec<SharedObject>,
    memory_files: MemoryFiles,
    places: Paths,
    wall_timers: WallTimers,
    parentless: Vec<others::Process>,
}

fn gather(
    spec: &CaptureSpec,
    stopped: &Stopped,
    surroundings: &Surroundings,
    lines: &[MapLine],
    watched: &Watched,
) -> Result<Gathered, Error> {
    let pid = spec.pid;
    // Between the first look and the stop it may have forked.
    let (mut refusals, parentless) = surroundings.others.again(stopped.tasks())?;
    refusals.extend(surroundings.message_queues()?);
    refusals.extend(checks::threads_again(pid, stopped.tasks())?);
    let places = surroundings.places(&mut refusals)?;
    let seen = stopped.tasks().iter().map(|task| Seen::read(task.tid, &mut refusals));
    let seen: Vec<Seen> = seen.collect::<Result<_, _>>()?;
    let mut objects = Objects::default();
    objects.add_mapped(pid, lines)?;
    let mut files = descriptors::read(pid, &spec.streams, &mut objects, watched)?;
    refusals.append(&mut files.refusals);
    refusals.extend(Access::of(pid)?.check_rest(pid, lines)?);
    let wall_timers = wall::of_descriptors(pid, &mut files.files, &mut refusals)?;
    let contents = objects.read(&mut refusals)?;
    files.added.objects = objects.statuses(pid, &mut refusals)?;
    let memory_files = match &spec.memory_files {
        Some(directory) => memory_files::read(pid, directory, &mut refusals)?,
        None => MemoryFiles::new(),
    };
    refuse(refusals)?;
    Ok(Gathered {
        session_leader: remote::leads_session(pid).of("read the session", pid)?,
        process_group_leader: remote::leads_process_group(pid).of("read the process group", pid)?,
        seen,
        files,
        objects,
        contents,
        memory_files,
        places,
        wall_timers: WallTimers { descriptors: wall_timers, posix: Vec::new() },
        parentless,
    })
}

/// The threads, and the signals that are pending for the whole process; their scripts have ended.
fn threads(
    pid: i32,
    tasks: &[Task],
    seen: Vec<Seen>,
    reported: Vec<Reported>,
) -> Result<(Vec<Thread>, Vec<SignalInfo>), Error> {
    let mut refusals = Vec::new();
    let mut threads = Vec::with_capacity(tasks.len());
    for ((task, seen), reported) in tasks.iter().zip(seen).zip(reported) {
        threads.push(seen.complete(task, reported, &mut refusals)?);
    }
    let pending = threads::pending(pid, true, &mut refusals)?;
    refuse(refusals)?;
    Ok((threads, pending))
}

impl Capture {
    /// The runs of private pages of the still in `range`.
    pub(crate) fn private_pages(&self, pagemap: &File, range: Range) -> Result<Vec<Range>, Error> {
        remote::private_pages(pagemap, range).of("scan the page map", self.still.pid())
    }
}
