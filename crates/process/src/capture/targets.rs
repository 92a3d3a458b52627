//! The processes that are captured: found and looked at while they run, then stopped.

use std::time::{Duration, Instant};

use procfs::MapLine;

use super::{CaptureSpec, PASS_MAX, START_MAX, WAIT_MAX, arrived, refuse};
use crate::{
    error::Error,
    observe::{
        blame::{blame, blame_error},
        checks::{self, Surroundings},
        kin::{self, Relative, State},
        others,
        watches::{self, Watched},
    },
    refusal::Refusal,
    stop::stopped::Stopped,
};

/// A process of the program, as it was while it ran.
pub(super) struct Target {
    pub(super) pid: i32,
    /// The place of its parent.
    pub(super) parent: usize,
    pub(super) state: State,
    pub(super) surroundings: Surroundings,
    pub(super) watched: Watched,
    /// Its mappings with their flags.
    pub(super) before: Vec<MapLine>,
}

impl Target {
    /// What takes long comes before the stop and is only confirmed in the pause: a search for files, and `smaps`, for which the kernel walks the
    /// whole address space.
    fn look(relative: Relative, spec: &CaptureSpec) -> Result<(Self, Vec<Refusal>), Error> {
        let Relative { pid, parent, state } = relative;
        let checks::Look { refusals, surroundings } = checks::look(pid, pid == spec.pid, Some(&spec.started))?;
        let (watched, before) = match refusals.is_empty() {
            true => (watches::find(pid)?, arrived(pid)?),
            false => (Watched::new(), Vec::new()),
        };
        Ok((Self { pid, parent, state, surroundings, watched, before }, refusals))
    }
}

/// A process that has ended, and was not waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) pid: i32,
    pub(super) parent: usize,
}

/// All processes of a program, stopped.
pub(super) struct Held {
    pub(super) targets: Vec<Target>,
    /// Of each target.
    pub(super) stopped: Vec<Stopped>,
    pub(super) ended: Vec<Ended>,
}

/// Looks at all processes of the program while they run. Refuses what can be refused without stopping them, of all at once.
pub(super) fn look(spec: &CaptureSpec) -> Result<Vec<Target>, Error> {
    let (mut targets, mut refusals) = (Vec::new(), Vec::new());
    for relative in
        kin::find(spec.pid, spec.init, &spec.command_processes())?.into_iter().filter(|relative| !relative.is_zombie())
    {
        if let Some((target, found)) = look_at(relative, spec)? {
            targets.push(target);
            refusals.extend(found);
        }
    }
    let known: Vec<i32> = targets.iter().map(|target: &Target| target.pid).collect();
    if let Some(first) = targets.first() {
        refusals.extend(others::refusals_but(first.surroundings.others.list()?, &known));
    }
    refuse(refusals)?;
    Ok(targets)
}

/// Nothing for a descendant that has ended meanwhile.
fn look_at(relative: Relative, spec: &CaptureSpec) -> Result<Option<(Target, Vec<Refusal>)>, Error> {
    let pid = relative.pid;
    match Target::look(relative, spec) {
        Ok((target, refusals)) if pid == spec.pid => Ok(Some((target, refusals))),
        Ok((target, refusals)) => Ok(Some((target, blame(pid, refusals)))),
        Err(error) if pid == spec.pid => Err(error),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(blame_error(pid, error)),
    }
}

/// Stops them, and those that they have begun since, until a pass finds no other one.
pub(super) fn seize(spec: &CaptureSpec, mut targets: Vec<Target>) -> Result<Held, Error> {
    let mut stopped: Vec<Stopped> = Vec::new();
    loop {
        while let Some(target) = targets.get(stopped.len()) {
            match seize_one(target.pid, spec) {
                Ok(one) => stopped.push(one),
                Err(error) if target.pid != spec.pid && has_ended(&error) => drop(targets.remove(stopped.len())),
                Err(error) if target.pid != spec.pid => return Err(blame_error(target.pid, error)),
                Err(error) => return Err(error),
            }
        }
        let now = kin::find(spec.pid, spec.init, &spec.command_processes())?;
        let mut is_complete = true;
        for relative in now.iter().filter(|relative| !relative.is_zombie()) {
            if targets.iter().any(|target| target.pid == relative.pid) {
                continue;
            }
            is_complete = false;
            if let Some((target, refusals)) = look_at(*relative, spec)? {
                refuse(refusals)?;
                targets.push(target);
            }
        }
        if is_complete {
            return in_order(&now, targets, stopped);
        }
    }
}

fn has_ended(error: &Error) -> bool {
    error.is_gone() || matches!(error, Error::Refused(refusals) if refusals.contains(&Refusal::MainThreadGone))
}

/// Parents before their children, by places among those that have not ended.
fn in_order(now: &[Relative], targets: Vec<Target>, stopped: Vec<Stopped>) -> Result<Held, Error> {
    let mut all: Vec<Option<(Target, Stopped)>> = targets.into_iter().zip(stopped).map(Some).collect();
    let mut held = Held { targets: Vec::new(), stopped: Vec::new(), ended: Vec::new() };
    let mut places = vec![0; now.len()];
    for (at, relative) in now.iter().enumerate() {
        let parent = places[relative.parent];
        if relative.is_zombie() {
            held.ended.push(Ended { pid: relative.pid, parent });
            continue;
        }
        let is_it =
            |one: &&mut Option<(Target, Stopped)>| one.as_ref().is_some_and(|(target, _)| target.pid == relative.pid);
        let found = all.iter_mut().find(is_it).and_then(Option::take);
        let Some((target, stopped)) = found else {
            return Err(Error::Unexpected { pid: relative.pid, what: "was not stopped".into() });
        };
        places[at] = held.targets.len();
        held.targets.push(Target { parent, state: relative.state, ..target });
        held.stopped.push(stopped);
    }
    Ok(held)
}

/// Stops a process where every thread is in the program: right after its own start some may still be on their way into it.
fn seize_one(pid: i32, spec: &CaptureSpec) -> Result<Stopped, Error> {
    let base::id::Arena { start, end } = spec.earlier_arena.unwrap_or_default();
    let began = Instant::now();
    let (mut refused, mut wait) = (None, Duration::from_millis(1));
    loop {
        match Stopped::seize(pid) {
            Ok(stopped) => {
                if stopped.tasks().iter().all(|task| !(start..end).contains(&task.registers.rip)) {
                    return Ok(stopped);
                }
                if began.elapsed() > START_MAX {
                    return Err(Error::Unexpected { pid, what: "does not complete its start".into() });
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
