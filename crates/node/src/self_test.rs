//! What this host does with a small program that is forked: are registers, memory and guard pages what they were, do limits hold?
//!
//! [`run`] acts for the calling process, which must be single-threaded and have no children of its own: it traces, forks and reaps. So
//! [`Runner`] calls it in a process of its own, `pando self-test`. A node does that at its start for the registers, and starts nothing if a
//! value is lost: processors come with registers that nobody has tried yet, and a kernel that does not restore them says nothing.

mod compare;
mod runner;
mod stage;

use std::{path::Path, time::Instant};

use rustix::io::Errno;
use sandbox::ControllerHome;
use serde::{Deserialize, Serialize};
use sys::probe::{self, Registers};

pub use runner::Runner;
use stage::{Copy, Stage, Trial};

use crate::error::chain;

/// Tasks that the limited probe may have.
const TASKS: u64 = 16;
/// Memory that the limited probe may use, in bytes. It would take 1 GiB.
const MEMORY_BYTES: u64 = 64 << 20;

/// What is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Nothing: only what a killed run has left is removed.
    Nothing,
    /// The registers of a copy: tens of milliseconds.
    Registers,
    /// Everything.
    All,
}

/// How a probe came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// This host cannot do it, and nothing is lost by that.
    Skipped,
    /// Something is lost, or it could not be tried.
    Failed,
}

/// What a probe found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The probe.
    pub probe: String,
    /// How it came out.
    pub verdict: Verdict,
    /// What was found, in words.
    pub found: String,
    /// How long it took, in microseconds.
    pub took_us: u64,
}

/// Runs the probes with files below the existing directory `dir` and the control group `pando-GROUP`. All of these are gone when this returns.
/// If standard input is a pipe whose other end closes, this stops early and cleans up.
pub fn run(dir: &Path, group: &str, scope: Scope) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut stage = match Stage::open(dir, group) {
        Ok(stage) => stage,
        Err(error) => return vec![finding("set-up", Instant::now(), Err(error))],
    };
    let probes: &[(&str, Probe)] = match scope {
        Scope::Nothing => &[],
        Scope::Registers => &[("registers of a copy", registers)],
        Scope::All => &[
            ("registers of a copy", registers),
            ("registers of a live fork", registers_of_a_fork),
            ("memory of two copies", memory),
            ("guard pages", guard_pages),
            ("limit of tasks", tasks),
            ("limit of memory", memory_limit),
        ],
    };
    for (name, probe) in probes {
        if stage::is_abandoned() {
            break;
        }
        let began = Instant::now();
        let mut tried = attempt(*probe, &mut stage);
        for _ in 1..TRIALS {
            let Err(error) = tried else { break };
            if stage::is_abandoned() {
                tried = Err(error);
                break;
            }
            // What is not understood is not hidden either.
            let earlier = chain(&*error);
            tried = attempt(*probe, &mut stage)
                .map(|(verdict, found)| (verdict, format!("{found} (an attempt before failed: {earlier})")));
        }
        findings.push(finding(name, began, tried));
    }
    if let Err(error) = stage.close() {
        findings.push(finding("clean-up", Instant::now(), Err(error)));
    }
    findings
}

/// How often a probe is tried that fails to run: one in hundreds did on a busy host. A value that is lost is a finding, and is not tried again.
const TRIALS: u32 = 3;

fn attempt(probe: Probe, stage: &mut Stage) -> Trial<Outcome> {
    let tried = probe(stage);
    // After a failure too: what is left would run beside the next probe.
    let cleared = stage.clear();
    tried.and_then(|outcome| cleared.map(|()| outcome))
}

/// What a probe says if it could be tried: the verdict and what was found.
type Outcome = (Verdict, String);

/// One probe.
type Probe = fn(&mut Stage) -> Trial<Outcome>;

fn finding(probe: &str, began: Instant, tried: Trial<Outcome>) -> Finding {
    let (verdict, found) =
        tried.unwrap_or_else(|error| (Verdict::Failed, format!("could not be tried: {}", chain(&*error))));
    Finding { probe: probe.to_owned(), verdict, found, took_us: began.elapsed().as_micros() as u64 }
}

fn registers(stage: &mut Stage) -> Trial<Outcome> {
    let kind = Registers::here();
    let source = stage.source(kind.argument())?;
    let zygote = stage.zygote(&source, None)?;
    let copy = stage.copy(&zygote)?;
    shown(kind, [("the copy", &copy), ("the program itself", &source)])
}

fn registers_of_a_fork(stage: &mut Stage) -> Trial<Outcome> {
    let kind = Registers::here();
    let source = stage.source(kind.argument())?;
    let zygote = stage.zygote(&source, None)?;
    let copy = stage.copy(&zygote)?;
    let branch = stage.zygote(&copy, Some(&zygote))?;
    let fork = stage.copy(&branch)?;
    shown(kind, [("the fork", &fork), ("the copy that was forked", &copy)])
}

/// Lets programs go that hold patterns, and says what is left of these.
fn shown(kind: Registers, programs: [(&str, &Copy); 2]) -> Trial<Outcome> {
    for (name, program) in programs {
        let lost = compare::lost(kind, &program.held()?);
        if !lost.is_empty() {
            return Ok((Verdict::Failed, format!("{name} has lost {}", lost.join(", "))));
        }
    }
    let (count, bytes) = kind.vectors();
    let masks = if kind.masks() > 0 { format!(" and {} mask registers", kind.masks()) } else { String::new() };
    Ok((Verdict::Ok, format!("{count} vector registers of {} bits{masks} are as they were", bytes * 8)))
}

/// What one copy writes another must not see.
fn memory(stage: &mut Stage) -> Trial<Outcome> {
    let source = stage.source(probe::FORKS)?;
    let zygote = stage.zygote(&source, None)?;
    let [one, other] = [stage.copy(&zygote)?, stage.copy(&zygote)?];
    one.write(probe::COUNT, 1)?;
    Ok(match [one.word(probe::COUNT)?, other.word(probe::COUNT)?, source.word(probe::COUNT)?] {
        [1, 0, 0] => (Verdict::Ok, "each has its own".to_owned()),
        seen => (Verdict::Failed, format!("a word that one of three wrote reads as {seen:?}")),
    })
}

fn guard_pages(stage: &mut Stage) -> Trial<Outcome> {
    let source = stage.source(probe::GUARDS)?;
    let made = source.word(probe::GUARD_RESULT)? as i64;
    if made != 0 {
        let error = std::io::Error::from_raw_os_error(-made as i32);
        return Ok((Verdict::Skipped, format!("this kernel makes none ({error}): programs do without")));
    }
    let zygote = match stage.zygote(&source, None) {
        // Where the kernel makes guard pages and does not show them nobody can tell what a copy has to have.
        Err(error) if is_refusal(&*error) => return Ok((Verdict::Skipped, chain(&*error))),
        zygote => zygote?,
    };
    let copy = stage.copy(&zygote)?;
    let guarded = is_guarded(copy.word(probe::GUARD))?;
    // A copy that has ended cannot be read either.
    copy.wait_for(probe::HOLDS)?;
    Ok(match guarded {
        true => (Verdict::Ok, "a guard page is one in a copy".to_owned()),
        false => (Verdict::Failed, "a copy can read a page that was a guard page".to_owned()),
    })
}

/// Whether the kernel refused to read a page, and nothing else went wrong.
fn is_guarded(read: Trial<u64>) -> Trial<bool> {
    match read {
        Ok(_) => Ok(false),
        Err(error) => match error.downcast_ref().and_then(Errno::from_io_error) {
            Some(Errno::IO | Errno::FAULT) => Ok(true),
            _ => Err(error),
        },
    }
}

fn is_refusal(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(process::Error::Refused(_)))
}

/// Without the limit the probe would take all that the host has.
fn not_tried(reason: &str) -> Outcome {
    (Verdict::Skipped, format!("no limit holds here: {reason}"))
}

fn tasks(stage: &mut Stage) -> Trial<Outcome> {
    if let ControllerHome::Missing(reason) = &stage.limits().pids {
        return Ok(not_tried(reason));
    }
    let program = stage.limited(probe::FORKS, TASKS, MEMORY_BYTES)?;
    program.go()?;
    program.wait_for(probe::DONE)?;
    let forked = program.word(probe::COUNT)?;
    Ok(match forked < TASKS {
        true => (Verdict::Ok, format!("of {TASKS}: no more than {forked} forks beside what was there")),
        false => (Verdict::Failed, format!("of {TASKS}: {forked} forks all the same")),
    })
}

fn memory_limit(stage: &mut Stage) -> Trial<Outcome> {
    if let ControllerHome::Missing(reason) = &stage.limits().memory {
        return Ok(not_tried(reason));
    }
    let program = stage.limited(probe::FILLS, TASKS, MEMORY_BYTES)?;
    program.go()?;
    let killed = program.ends_or(probe::DONE)?;
    Ok(match killed {
        true => (Verdict::Ok, format!("of {} MiB: what takes more is ended", MEMORY_BYTES >> 20)),
        false => (Verdict::Failed, format!("of {} MiB: 1 GiB was used all the same", MEMORY_BYTES >> 20)),
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn only_a_refused_read_shows_a_guard_page() {
        for errno in [Errno::IO, Errno::FAULT] {
            assert!(is_guarded(Err(io::Error::from(errno).into())).unwrap());
        }
        assert!(!is_guarded(Ok(0)).unwrap());
        // A process that has ended reads as an empty file.
        assert!(is_guarded(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())).is_err());
        assert!(is_guarded(Err("no process".into())).is_err());
    }
}
