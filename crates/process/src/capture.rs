//! Capture: stop the source, fork its processes (the stills), read what the stills do not show, let the source go on.
//!
//! The steps of one capture:
//!
//! 1. Look at the running processes, and refuse what can be refused without stopping them ([`targets`]).
//! 2. Stop every thread of all ([`crate::stop`]). Each thread runs a script ([`inject`]) that tells what only it can; the main threads clone the
//!    stills.
//! 3. Meanwhile read descriptors, shared memory and timers ([`pause`], [`crate::observe`]), and run what the caller does in the pause.
//! 4. Let the source go on, or keep it where it is.
//! 5. Read the rest from the stills (`complete`), refuse files that copies would not find ([`covered`]), and say which process makes what
//!    ([`divide`]).

mod caller;
mod complete;
mod covered;
mod divide;
mod floor;
pub(crate) mod inject;
mod jobs;
mod pause;
mod questions;
mod targets;

use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

pub use caller::{Afterwards, Others, PauseError};
use caller::{Callback, Frozen, Steps};
use complete::{Rest, complete_all};
use divide::{Common, divide};
pub use floor::time_forks;
use inject::{Answers, Outcome};
use pause::{GatheredAll, Injections, Memory, NewStill, gather, threads};
use procfs::{MapLine, ProcessIdentity};
use serde::{Deserialize, Serialize};
use sys::{deadman::Deadman, namespace::machine_clocks, remote::Range};
use targets::Held;

use crate::{
    error::{Context, Error},
    image::{ClockOffsets, Stream, StreamFile, Tree, places},
    observe::{
        access::Access,
        blame::blame,
        checks,
        descriptors::{self, Holder},
        kin, mappings,
        objects::Objects,
        others, system_v, terminals, watches,
    },
    refusal::Refusal,
    stop::{
        aside::Aside,
        still::{Newborn, Still},
        stopped::{Stopped, Task},
    },
};

/// The longest stop of a source, copying of files included. Beyond it SIGALRM ends this process, and the source goes on.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// How long a program may take to come out of its own start.
const START_MAX: Duration = Duration::from_secs(10);

/// How long a refusal that may pass is waited out.
const PASS_MAX: Duration = Duration::from_secs(1);

/// How often it is looked at least whether such a refusal has passed.
const PASS_TRIES: u32 = 6;

/// How long a capture is begun anew because a process has ended in the middle, or executed another program.
const CHANGES_MAX: Duration = Duration::from_secs(3);

/// How long other processes of the sandbox that are about to end are waited for.
const OTHERS_END_MAX: Duration = Duration::from_millis(100);

/// The longest wait between two attempts to stop a program in a good place.
const WAIT_MAX: Duration = Duration::from_millis(128);

/// What to capture.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CaptureSpec {
    /// The program's process id, as the caller sees it.
    pub pid: i32,
    /// The init of its sandbox, which has the processes as its children that have lost their parents. Without one they are refused.
    pub init: Option<i32>,
    /// Processes that were started in the sandbox from outside and go with the program. Those that have ended do not count. The first process may
    /// be one.
    pub commands: Vec<Command>,
    /// Whether the first process is not the sandbox's program: it has none, and this is one of what else runs in it.
    pub without_program: bool,
    /// The files that are standard streams of the program and of the commands.
    pub streams: Vec<(StreamFile, Stream)>,
    /// Where an earlier start left its arena, which is not part of the program.
    pub earlier_arena: Option<base::id::Arena>,
    /// Directories where copies may find another filesystem. Open files there are refused. The working directory may be there.
    pub mount_points: Vec<PathBuf>,
    /// Directories where copies find a filesystem like the program's, and the zygote none. The program's file must not be there.
    pub volumes: Vec<PathBuf>,
    /// All processes that were started in the program's sandbox from outside, as the caller sees them. Those that are none of the commands stay
    /// where they are.
    pub started: Vec<i32>,
    /// A directory where the program's sandbox, and that of every copy, has a filesystem in memory of its own: what is in it goes with the
    /// program.
    pub memory_files: Option<PathBuf>,
}

/// A command that runs in a sandbox beside its program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The process, as the caller sees it.
    pub process: ProcessIdentity,
    /// What its caller knows of it. Copies come with it: [`crate::ZygoteFacts::commands`].
    pub label: String,
}

impl CaptureSpec {
    /// The processes that are commands.
    fn command_processes(&self) -> Vec<ProcessIdentity> {
        self.commands.iter().map(|command| command.process).collect()
    }

    /// Directories whose files a zygote cannot map.
    fn without_zygotes(&self) -> Vec<PathBuf> {
        self.volumes.iter().chain(&self.memory_files).cloned().collect()
    }
}

/// A captured program.
#[derive(Debug)]
pub struct Capture {
    pub(crate) tree: Tree,
    /// Of each of its processes.
    pub(crate) stills: Vec<Still>,
    /// Of each, not yet done: [`Still::take_over`].
    pub(crate) taken_over: Vec<Vec<Range>>,
    /// How long the source was stopped, or has been so far.
    pub pause: Duration,
}

/// Processes that are examined: their meaning is that of [`CaptureSpec`]'s fields.
#[derive(Debug)]
pub struct Examined {
    /// The program's process id.
    pub pid: i32,
    /// The init of its sandbox.
    pub init: Option<i32>,
    /// Processes that were started from outside.
    pub commands: Vec<ProcessIdentity>,
    /// Whether the first process is not the sandbox's program.
    pub without_program: bool,
    /// Standard streams.
    pub streams: Vec<(StreamFile, Stream)>,
}

impl Examined {
    /// A process of the host with its descendants.
    pub fn process(pid: i32) -> Result<Self, Error> {
        let (init, streams) = (kin::init_of(pid)?, standard_streams(pid));
        Ok(Self { pid, init, commands: Vec::new(), without_program: false, streams })
    }
}

/// Why these processes and their descendants could not be forked; empty if they could. Changes nothing and stops nothing, so that a running program
/// may have changed by the time the answer is read.
pub fn examine(examined: &Examined) -> Result<Vec<Refusal>, Error> {
    let began = Instant::now();
    loop {
        match examine_once(examined) {
            Err(Error::Refused(refusals)) => return Ok(refusals),
            Err(error) if error.is_of_change() && kin::runs(examined.pid) && began.elapsed() < CHANGES_MAX => {}
            examined => return examined,
        }
    }
}

fn examine_once(examined: &Examined) -> Result<Vec<Refusal>, Error> {
    let Examined { pid, init, commands, without_program, streams } = examined;
    let (pid, mut refusals) = (*pid, Vec::new());
    let relatives = kin::find(pid, *init, commands)?;
    let pids: Vec<i32> =
        relatives.iter().filter(|relative| !relative.is_zombie()).map(|relative| relative.pid).collect();
    for relative in relatives.into_iter().filter(|relative| !relative.is_zombie()) {
        let found = match checks::look(relative.pid, relative.pid == pid, None) {
            Err(Error::Refused(refusals)) => refusals,
            Err(error) if error.is_gone() && relative.pid != pid => continue,
            Err(error) => return Err(error),
            Ok(look) if relative.pid == pid => {
                let others = others::refusals_but(look.surroundings.others.list()?, &pids);
                look.refusals.into_iter().chain(others).collect()
            }
            Ok(look) => look.refusals,
        };
        refusals.extend(if relative.pid == pid { found } else { blame(relative.pid, found) });
    }
    refusals.extend(parts_of_living(pids, streams)?);
    Ok(if *without_program { blame_first(pid, refusals) } else { refusals })
}

/// The processes of a program, as the caller sees them: process `pid`, its descendants and those that have lost their parents as they are now,
/// without those that have ended. `init` is the sandbox's. `commands` are processes that were started in it from outside; they and theirs belong to it,
/// too.
pub fn family(pid: i32, init: Option<i32>, commands: &[ProcessIdentity]) -> Result<Vec<i32>, Error> {
    let relatives = kin::find(pid, init, commands)?.into_iter().filter(|relative| !relative.is_zombie());
    Ok(relatives.map(|relative| relative.pid).collect())
}

/// The same without those that end meanwhile; the first must not.
fn parts_of_living(mut pids: Vec<i32>, streams: &[(StreamFile, Stream)]) -> Result<Vec<Refusal>, Error> {
    loop {
        let known = pids.len();
        match parts(&pids, streams) {
            Err(error) if error.is_gone() => {
                let first = pids[0];
                pids.retain(|pid| *pid == first || kin::runs(*pid));
                if pids.len() == known {
                    return Err(error);
                }
            }
            found => return found,
        }
    }
}

/// Why parts of these processes, their descriptors and mappings, could not be forked.
fn parts(pids: &[i32], streams: &[(StreamFile, Stream)]) -> Result<Vec<Refusal>, Error> {
    let (mut objects, mut refusals, mut watched) = (Objects::default(), Vec::new(), Vec::new());
    let mut lines = Vec::with_capacity(pids.len());
    for pid in pids {
        let own = procfs::smaps(*pid)?;
        objects.add_mapped(*pid, &own)?;
        lines.push(own);
        watched.push(watches::find(*pid)?);
    }
    let holders = Holder::all(pids.iter().copied().zip(&watched))?;
    let terminals = terminals::find(pids, streams, &mut refusals)?;
    let streams: Vec<_> = streams.iter().chain(&terminals.files).copied().collect();
    refusals.extend(descriptors::read(&holders, &streams, &terminals, &mut objects)?.refusals);
    for (at, (pid, lines)) in pids.iter().zip(&lines).enumerate() {
        let mut found = Access::of(*pid)?.check_rest(*pid, lines)?;
        found.extend(mappings::classify(*pid, lines, &objects.found, &[])?.refusals);
        refusals.extend(if at == 0 { found } else { blame(*pid, found) });
    }
    Ok(refusals)
}

/// Descriptors 0 to 2 as what they are in a sandbox: its streams, made outside its root filesystem.
fn standard_streams(pid: i32) -> Vec<(StreamFile, Stream)> {
    use std::os::unix::fs::MetadataExt;
    let file = |fd: i32| std::fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok();
    let streams = [Stream::STDIN, Stream::STDOUT, Stream::STDERR];
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

/// Waits out what may pass, and finds what else is refused. Nothing is waited out that is seen only when the files are cut: they cannot be cut twice.
fn capture_until(spec: &CaptureSpec, mut steps: Steps<'_>) -> Result<Capture, Error> {
    let began = Instant::now();
    let (mut has_cut, mut tries) = (false, 0);
    loop {
        tries += 1;
        let Steps { during_pause, others, hold, afterwards } = steps.again();
        let mut once = || {
            has_cut = true;
            during_pause()
        };
        let attempt = Instant::now();
        match capture_once(spec, Steps { during_pause: &mut once, others, hold, afterwards }) {
            Err(Error::Refused(refusals))
                if !has_cut && refusals.iter().all(|refusal| may_be_over(refusal, began.elapsed(), tries)) =>
            {
                // The source goes on meanwhile: at least nine tenths of the time, whatever a stop takes.
                let took = attempt.elapsed();
                std::thread::sleep((took * 9).clamp(OTHERS_END_MAX / 20, PASS_MAX / 2));
            }
            // Another attempt finds what is there now.
            Err(error) if !has_cut && error.is_of_change() && kin::runs(spec.pid) && began.elapsed() < CHANGES_MAX => {
                tracing::debug!(error = &error as &dyn std::error::Error, "captured again");
                std::thread::sleep(OTHERS_END_MAX / 20);
            }
            Err(Error::Refused(refusals)) => {
                let refusals = with_parts(spec, refusals);
                // The first process is nothing that users know of.
                let refusals = if spec.without_program { blame_first(spec.pid, refusals) } else { refusals };
                return Err(Error::Refused(refusals));
            }
            captured => return captured,
        }
    }
}

/// Of a sandbox without a program the first process is one of its commands, and named as these are.
fn blame_first(pid: i32, refusals: Vec<Refusal>) -> Vec<Refusal> {
    let (of_sandbox, of_process): (Vec<_>, Vec<_>) = refusals.into_iter().partition(Refusal::is_of_sandbox);
    of_sandbox.into_iter().chain(blame(pid, of_process)).collect()
}

/// Whether the next moment may be different. A large tree on a busy machine is looked at twice a second: then it is the tries that count.
fn may_be_over(refusal: &Refusal, waited: Duration, tries: u32) -> bool {
    match refusal {
        refusal if refusal.may_pass() => waited < PASS_MAX || tries < PASS_TRIES,
        refusal => refusal.may_end() && waited < OTHERS_END_MAX,
    }
}

/// A capture ends at the first step that refuses. What the parts of the program are refused for is said with it, as far as they can be read.
fn with_parts(spec: &CaptureSpec, mut refusals: Vec<Refusal>) -> Vec<Refusal> {
    let parts = family(spec.pid, spec.init, &spec.command_processes()).and_then(|pids| parts(&pids, &spec.streams));
    for refusal in parts.unwrap_or_default() {
        if !refusals.contains(&refusal) {
            refusals.push(refusal);
        }
    }
    refusals
}

fn capture_once(spec: &CaptureSpec, steps: Steps<'_>) -> Result<Capture, Error> {
    let Steps { during_pause, others, hold, afterwards } = steps;
    let targets = targets::look(spec)?;
    // A hostile program can keep a thread of its own from ever coming back: then this process ends, and with it all it holds.
    let deadman = Deadman::arm(PAUSE_MAX);
    let Held { mut targets, mut stopped, ended } = targets::seize(spec, targets)?;
    let began = stopped[0].since();
    let aside = Aside::make_room_for(spec.pid)?;
    let mut injections = Injections::enter(&mut targets, &mut stopped, spec)?;
    let arenas = injections.arenas();
    let mut look = |tasks: &[&[Task]], memory: &[Memory]| {
        let gathered = gather(spec, &targets, &ended, tasks, memory)?;
        during_pause().map_err(Error::DuringPause)?;
        Ok(gathered)
    };
    // Cloning the stills takes as long as all the rest, which goes on beside it.
    let at_once = others.is_none();
    let outcome = injections.run(|tasks, memory| at_once.then(|| look(tasks, memory)).transpose());
    let (memory, left) = injections.leave();
    let (outcomes, found) = outcome?;
    left?;
    let (newborns, answers): (Vec<Newborn>, Vec<Answers>) =
        outcomes.into_iter().map(|Outcome { newborn, answers }| (newborn, answers)).unzip();
    let still_pids: Vec<i32> = newborns.iter().map(Newborn::pid).collect();
    let tasks: Vec<&[Task]> = stopped.iter().map(Stopped::tasks).collect();
    let newborns = newborns.into_iter().map(NewStill::Newborn);
    let (found, stills, frozen): (GatheredAll, Vec<NewStill>, _) = match found {
        Some(found) => (found, newborns.collect(), None),
        None => {
            // Frozen processes run no scripts: what is asked of the stills is asked before.
            let asked = newborns.zip(&arenas).map(|(still, arena)| still.ask(*arena).map(NewStill::Asked));
            let asked = asked.collect::<Result<_, _>>()?;
            let frozen = others.map(Frozen::freeze).transpose()?;
            (look(&tasks, &memory)?, asked, frozen)
        }
    };
    let known: Vec<i32> = targets.iter().map(|target| target.pid).chain(still_pids).collect();
    let strangers = others::refusals_but(found.strangers, &known);
    refuse(strangers)?;
    let jobs = jobs::look(&targets, &stopped, &answers, &found.has_shell);
    // After the timers: what remains of them counts from then on, and none may be early by the copy's clocks.
    let known = threads(&targets, &tasks, found.each, memory, answers)?;
    let clocks = clocks(spec.pid).of("read the clocks", spec.pid)?;
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
    let rest = Rest { known, objects: found.objects, clocks };
    let (members, stills, taken_over) = complete_all(rest, stills, arenas, spec)?;
    let without_program = spec.without_program;
    let mut tree = Tree { members, zombies: found.zombies, handed_from: 0, without_program };
    tree.members[0].image.memory_files = found.memory_files;
    tree.members[0].image.own_terminals = found.terminals;
    tree.members[0].image.system_v = found.system_v;
    let pids: Vec<i32> = targets.iter().map(|target| target.pid).collect();
    settle(&mut tree, &pids, found.common, &jobs)?;
    refuse_covered(&tree, spec)?;
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
    Ok(Capture { tree, stills, taken_over, pause })
}

/// Says which process makes what in copies, where it lies in the zygote, and how those stop that are stopped.
fn settle(tree: &mut Tree, pids: &[i32], common: Common, jobs: &[jobs::Seen]) -> Result<(), Error> {
    refuse(system_v::check(tree, pids))?;
    refuse(jobs::settle(tree, jobs))?;
    refuse(divide(common, tree))?;
    if places::choose(tree) {
        return Ok(());
    }
    Err(Error::NoRoom { bytes: tree.parked().map(|(_, range)| range.end - range.start).sum() })
}

/// Refuses what copies would not find.
fn refuse_covered(tree: &Tree, spec: &CaptureSpec) -> Result<(), Error> {
    let mut refusals = Vec::new();
    for image in tree.images() {
        refusals.extend(covered::refusals(image, &spec.mount_points));
        refusals.extend(covered::program_refusals(image, &spec.volumes));
        refusals.extend(covered::memory_refusal(image, spec.memory_files.as_deref()));
    }
    refuse(refusals)
}

/// What the clocks of a process show.
fn clocks(pid: i32) -> io::Result<ClockOffsets> {
    Ok(ClockOffsets::of(pid)?.plus(machine_clocks()?))
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

fn refuse(refusals: Vec<Refusal>) -> Result<(), Error> {
    if refusals.is_empty() { Ok(()) } else { Err(Error::Refused(refusals)) }
}
