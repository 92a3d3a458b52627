//! What is read while the source stands still.

use std::mem::take;

use procfs::{Fields, MapLine};
use sys::{
    ptrace::SignalInfo,
    remote::{self, Range, Shared},
};

use super::{
    CaptureSpec,
    complete::Known,
    divide::Common,
    inject::{Answers, Begun, Cloning, Injection, Outcome},
    refuse,
    targets::{Ended, Target},
};
use crate::{
    error::{Context, Error},
    image::{
        Command, Kin, Locked, MemoryFiles, Orphan, OwnTerminal, Stream, StreamFile, SystemV, Terminal, Thread, Zombie,
    },
    observe::{
        access::Access,
        blame::{blame, blame_error},
        checks::{self, Paths},
        descriptors::{self, Holder},
        kin::State,
        links, mappings, memory_files,
        objects::Objects,
        others::Strangers,
        system_v, terminal, terminals, wall,
    },
    refusal::Refusal,
    stop::{
        still::{self, Newborn, Still},
        stopped::{Stopped, Task},
        threads::{self, Reported, Seen},
    },
};

/// The mappings of a stopped process, and what has to be known of them to clone it.
pub(super) struct Memory {
    /// Without their flags.
    pub(super) lines: Vec<MapLine>,
    flagged: Vec<MapLine>,
    advised: Vec<Range>,
    pub(super) locked: Vec<Locked>,
    pub(super) dont_fork: Vec<Range>,
}

impl Memory {
    /// With the flags that were read before the stop, if the mappings are still the same.
    fn of(target: &mut Target, spec: &CaptureSpec) -> Result<Self, Error> {
        let mut lines = procfs::maps(target.pid)?;
        let before = take(&mut target.before);
        let flagged = if same_places(&before, &lines) { before } else { procfs::smaps(target.pid)? };
        // Nothing can be run in such a program.
        let shadow = flagged.iter().find(|line| line.shadow_stack);
        refuse(shadow.map(|line| Refusal::ShadowStack { address: line.range.start }).into_iter().collect())?;
        links::name_mapped(target.pid, &mut lines);
        Ok(Self {
            locked: mappings::locked(&flagged, spec.earlier_arena),
            dont_fork: flagged.iter().filter(|line| line.flags.dont_fork).map(|line| line.range).collect(),
            advised: mappings::kept_from_forks(&flagged),
            flagged,
            lines,
        })
    }
}

fn same_places(a: &[MapLine], b: &[MapLine]) -> bool {
    let place = |line: &MapLine| (line.range.start, line.range.end, line.protection, line.inode);
    a.len() == b.len() && a.iter().map(place).eq(b.iter().map(place))
}

/// All processes with our scripts in them. Every one that was entered is left again.
pub(super) struct Injections<'a> {
    all: Vec<Injection<'a>>,
    pub(super) memory: Vec<Memory>,
}

impl<'a> Injections<'a> {
    pub(super) fn enter(targets: &mut [Target], stopped: &'a mut [Stopped], spec: &CaptureSpec) -> Result<Self, Error> {
        let earlier = spec.earlier_arena.map(mappings::of_arena);
        let mut injections = Self { all: Vec::new(), memory: Vec::new() };
        for (target, stopped) in targets.iter_mut().zip(stopped) {
            let pid = target.pid;
            let entered = Memory::of(target, spec).and_then(|memory| {
                let injection = Injection::enter(stopped, &memory.flagged, &memory.advised, earlier)?;
                Ok((memory, injection))
            });
            match entered {
                Ok((memory, injection)) => {
                    injections.all.push(injection);
                    injections.memory.push(memory);
                }
                Err(error) => {
                    injections.leave().1?;
                    return Err(if pid == spec.pid { error } else { blame_error(pid, error) });
                }
            }
        }
        Ok(injections)
    }

    /// Where the scripts of each lie.
    pub(super) fn arenas(&self) -> Vec<Range> {
        self.all.iter().map(|injection| injection.arena).collect()
    }

    /// Has all threads of all processes run their scripts, and `meanwhile` beside them. That may look at everything but memory and ptrace's view of
    /// the threads.
    pub(super) fn run<T>(
        &mut self,
        meanwhile: impl FnOnce(&[&[Task]], &[Memory]) -> Result<T, Error>,
    ) -> Result<(Vec<Outcome>, T), Error> {
        let mut begun: Vec<Result<Begun, Error>> = Vec::new();
        for (at, (injection, memory)) in self.all.iter_mut().zip(&self.memory).enumerate() {
            let cloning = if at == 0 { Cloning::Sibling } else { Cloning::ByHelper };
            begun.push(injection.begin(&memory.flagged, &memory.advised, cloning));
        }
        let found = match begun.iter().all(Result::is_ok) {
            true => {
                let tasks: Vec<&[Task]> = self.all.iter().map(|injection| injection.stopped.tasks()).collect();
                Some(meanwhile(&tasks, &self.memory))
            }
            false => None,
        };
        // All are waited for in any case.
        let finish = |(injection, begun): (&mut Injection<'_>, Result<Begun, Error>)| injection.finish(begun?);
        let outcomes: Vec<Result<Outcome, Error>> = self.all.iter_mut().zip(begun).map(finish).collect();
        let found = found.transpose()?;
        let outcomes = outcomes.into_iter().collect::<Result<Vec<_>, _>>()?;
        let pid = outcomes.first().map_or(0, |outcome| outcome.newborn.pid());
        let found = found.ok_or_else(|| Error::Unexpected { pid, what: "was not looked at".into() })?;
        Ok((outcomes, found))
    }

    /// Takes what was mapped for the scripts away again. Gives what was known of the processes' memory.
    pub(super) fn leave(self) -> (Vec<Memory>, Result<(), Error>) {
        let mut result = Ok(());
        for injection in self.all {
            result = result.and(injection.leave());
        }
        (self.memory, result)
    }
}

/// What is read from outside of one process.
pub(super) struct Gathered {
    pub(super) seen: Vec<Seen>,
    pub(super) session_leader: bool,
    pub(super) process_group_leader: bool,
    pub(super) terminal: Option<Terminal>,
    pub(super) places: Paths,
    pub(super) kin: Kin,
}

/// What is read from outside of all of them.
pub(super) struct GatheredAll {
    pub(super) each: Vec<Gathered>,
    pub(super) common: Common,
    pub(super) objects: Objects,
    pub(super) memory_files: MemoryFiles,
    pub(super) terminals: Vec<OwnTerminal>,
    pub(super) system_v: Vec<SystemV>,
    pub(super) strangers: Strangers,
    pub(super) zombies: Vec<Zombie>,
    /// Of each process, whether one of its group has a parent that is in another group of their session. Other groups ignore all stops but SIGSTOP.
    pub(super) has_shell: Vec<bool>,
}

/// Looks at all processes; they are stopped, or run our scripts.
pub(super) fn gather(
    spec: &CaptureSpec,
    targets: &[Target],
    ended: &[Ended],
    tasks: &[&[Task]],
    memory: &[Memory],
) -> Result<GatheredAll, Error> {
    let pid = spec.pid;
    let mut refusals = Vec::new();
    let pids: Vec<i32> = targets.iter().map(|target| target.pid).collect();
    let terminals = terminals::find(&pids, &spec.streams, &mut refusals)?;
    let streams: Vec<_> = spec.streams.iter().chain(&terminals.files).copied().collect();
    // Of a command that has ended a copy's caller has no terminal.
    let end = Stream::of_command(spec.commands.len(), 0);
    let running = spec.streams.iter().filter(|(_, stream)| stream.number() < end.number());
    let with_terminals: Vec<_> = running.chain(&terminals.files).copied().collect();
    let strangers = targets[0].surroundings.others.list()?;
    refusals.extend(targets[0].surroundings.message_queues()?);
    let mut objects = Objects::default();
    let mut each: Vec<Gathered> = Vec::with_capacity(targets.len());
    let ids: Vec<Ids> = targets.iter().map(|target| Ids::of(target.pid)).collect::<Result<_, _>>()?;
    let zombies: Vec<Zombie> = ended.iter().map(|ended| zombie(*ended)).collect::<Result<_, _>>()?;
    let mut given = Vec::with_capacity(ids.len());
    for (at, (target, (tasks, memory))) in targets.iter().zip(tasks.iter().zip(memory)).enumerate() {
        let mut own = Vec::new();
        let kin = kin(spec, targets, &ids, &zombies, &mut given, &mut own);
        if at > 0 {
            own.extend(shared_with(target.pid, targets[target.parent].pid)?);
        }
        let mut gathered = gather_one(target, kin, tasks, &with_terminals, &mut own)?;
        // Nothing else gives it a session.
        gathered.session_leader |= at == 0 && spec.without_program;
        each.push(gathered);
        objects.add_mapped(target.pid, &memory.lines)?;
        own.extend(Access::of(target.pid)?.check_rest(target.pid, &memory.lines)?);
        refusals.extend(if at == 0 { own } else { blame(target.pid, own) });
    }
    let holders = Holder::all(targets.iter().map(|target| (target.pid, &target.watched)))?;
    let mut files = descriptors::read(&holders, &streams, &terminals, &mut objects)?;
    refusals.append(&mut files.refusals);
    let wall_timers = wall::of_descriptors(&holders, &mut files.files, &mut refusals)?;
    let contents = objects.read(&mut refusals)?;
    files.added.objects = objects.statuses(pid, &mut refusals)?;
    let memory_files = match &spec.memory_files {
        Some(directory) => memory_files::read(pid, directory, &mut refusals)?,
        None => MemoryFiles::new(),
    };
    let system_v = system_v::read(pid, &mut refusals)?;
    refuse(refusals)?;
    let (common, terminals) = (Common { files, contents, wall_timers }, terminals.own);
    let has_shell = (0..targets.len()).map(|at| has_shell(targets, &ids, at)).collect();
    Ok(GatheredAll { each, common, objects, memory_files, terminals, system_v, strangers, zombies, has_shell })
}

fn gather_one(
    target: &Target,
    kin: Kin,
    tasks: &[Task],
    streams: &[(StreamFile, Stream)],
    refusals: &mut Vec<Refusal>,
) -> Result<Gathered, Error> {
    let pid = target.pid;
    // Between the first look and the stop it may have changed.
    refusals.extend(checks::threads_again(pid, tasks)?);
    let places = target.surroundings.places(refusals)?;
    let seen = tasks.iter().map(|task| Seen::read(task.tid, refusals));
    let seen = seen.collect::<Result<_, _>>()?;
    let session_leader = remote::leads_session(pid).of("read the session", pid)?;
    let process_group_leader = remote::leads_process_group(pid).of("read the process group", pid)?;
    let terminal = match session_leader.then(|| terminal::read(pid, streams)).transpose()? {
        Some(Ok(terminal)) => terminal,
        Some(Err(refusal)) => {
            refusals.push(refusal);
            None
        }
        None => None,
    };
    Ok(Gathered { seen, session_leader, process_group_leader, terminal, places, kin })
}

/// Below which process another one is made again, and what of session and group it does not have from there. `given` are the groups that those before
/// it have when they clone.
fn kin(
    spec: &CaptureSpec,
    targets: &[Target],
    ids: &[Ids],
    ended: &[Zombie],
    given: &mut Vec<i32>,
    refusals: &mut Vec<Refusal>,
) -> Kin {
    let at = given.len();
    let own = ids[at];
    let command = match targets[at].state {
        State::Command(place) => Some(Command { place: place as u32, label: spec.commands[place].label.clone() }),
        State::Child | State::Zombie | State::Orphan => None,
    };
    if at == 0 {
        given.push(own.group);
        return Kin { command, ..Kin::default() };
    }
    let leads = own.session == own.pid;
    // A process that has lost its parent has its session from the leader of that, or from its number.
    let leader = ids[..at].iter().position(|other| other.pid == own.session);
    let follows_first = leads || own.session == ids[0].session;
    let (parent, orphan) = match (targets[at].state, leader) {
        (State::Child | State::Zombie | State::Command(_), _) => (targets[at].parent, None),
        (State::Orphan, Some(leader)) => (leader, Some(Orphan { leader: None })),
        (State::Orphan, None) => (0, Some(Orphan { leader: (!follows_first).then_some(own.session) })),
    };
    let temporary = orphan.as_ref().and_then(|orphan| orphan.leader);
    let is_taken =
        |number: i32| ids.iter().any(|other| other.pid == number) || ended.iter().any(|zombie| zombie.pid == number);
    let session = temporary.unwrap_or(ids[parent].session);
    if !leads && own.session != session || temporary.is_some_and(is_taken) {
        refusals.push(Refusal::Session { session: own.session });
    }
    let from_parent = temporary.unwrap_or(given[parent]);
    let leads_group = leads || own.group == own.pid;
    let follows = leads_group || own.group == from_parent;
    if !follows && !ids.iter().any(|other| (other.pid, other.group) == (own.group, own.group)) {
        refusals.push(Refusal::Group { group: own.group });
    }
    given.push(if leads_group { own.group } else { from_parent });
    Kin { parent, orphan, command, joins: (!follows).then_some(own.group), ..Kin::default() }
}

/// Whether the process at place `at` is in a group that is not orphaned.
fn has_shell(targets: &[Target], ids: &[Ids], at: usize) -> bool {
    ids.iter().zip(targets).any(|(own, target)| {
        let parent = ids[target.parent];
        let is_child = matches!(target.state, State::Child);
        own.group == ids[at].group && is_child && own.group != parent.group && own.session == parent.session
    })
}

/// Refuses a process that shares with another one what copies have each for themselves (clone(2) without `CLONE_THREAD`).
fn shared_with(pid: i32, other: i32) -> Result<Option<Refusal>, Error> {
    let parts =
        [(Shared::Memory, "memory"), (Shared::Descriptors, "descriptors"), (Shared::Directories, "directories")];
    for (shared, what) in parts {
        if remote::threads_share(pid, other, shared).of("compare processes", pid)? {
            return Ok(Some(Refusal::Shares { what: what.into() }));
        }
    }
    Ok(None)
}

/// A process, its session and its process group, as its sandbox numbers them; 0 for one outside of it.
#[derive(Debug, Clone, Copy)]
struct Ids {
    pid: i32,
    session: i32,
    group: i32,
}

impl Ids {
    fn of(pid: i32) -> Result<Self, Error> {
        let status = Fields::read(format!("/proc/{pid}/status"))?;
        let inside = |name: &str| -> Result<i32, Error> {
            Ok(status.numbers(name, 10)?.last().copied().unwrap_or_default() as i32)
        };
        Ok(Self { pid: inside("NSpid")?, session: inside("NSsid")?, group: inside("NSpgid")? })
    }
}

fn zombie(Ended { pid, parent }: Ended) -> Result<Zombie, Error> {
    const STATUS: usize = 52;
    let stat = procfs::Stat::read(&pid.to_string())?;
    let status = Fields::read(format!("/proc/{pid}/status"))?;
    let ids = Ids::of(pid)?;
    Ok(Zombie {
        parent,
        pid: ids.pid,
        status: stat.field(STATUS) as i32,
        name: status.get("Name").unwrap_or_default().as_bytes().to_vec(),
        process_group_leader: ids.group == ids.pid,
    })
}

/// Each process as it is known when its scripts have ended.
pub(super) fn threads(
    targets: &[Target],
    tasks: &[&[Task]],
    each: Vec<Gathered>,
    memory: Vec<Memory>,
    answers: Vec<Answers>,
) -> Result<Vec<Known>, Error> {
    let mut known = Vec::with_capacity(targets.len());
    for ((target, tasks), ((mut gathered, memory), mut answers)) in
        targets.iter().zip(tasks).zip(each.into_iter().zip(memory).zip(answers))
    {
        let pid = target.pid;
        let (threads, pending) = threads_of(pid, tasks, take(&mut gathered.seen), take(&mut answers.threads))?;
        let posix = wall::of_timers(&answers.wall_timers)?;
        known.push(Known { pid, threads, pending, answers, gathered, memory, posix });
    }
    Ok(known)
}

/// The threads, and the signals that are pending for the whole process; their scripts have ended.
fn threads_of(
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

/// The still as far as it is made.
pub(super) enum NewStill {
    Newborn(Newborn),
    Asked((Still, still::StillAnswers)),
}

impl NewStill {
    /// Waits for the still, and asks it what only it can tell.
    pub(super) fn ask(self, arena: Range) -> Result<(Still, still::StillAnswers), Error> {
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
