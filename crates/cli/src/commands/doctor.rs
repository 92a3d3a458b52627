//! `pando doctor`: what this host can do, and why a process could not be forked.

mod checks;

use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::output;
use checks::{Check, Verdict};

/// Check what this host can do, what is missing and how to get it; or why a process could not be forked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Say why this process could not be forked, instead. It is looked at from outside and not stopped.
    #[arg(long, value_name = "PID")]
    process: Option<i32>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Exits with 1 if something needed is missing, with 5 if the process could not be forked.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match args.process {
        Some(pid) => examine(pid, args.json),
        None => host(args.json),
    }
}

fn host(json: bool) -> Result<ExitCode> {
    let checks = checks::all();
    if json {
        output::json(&checks)?;
    } else {
        checks.iter().for_each(print);
    }
    let lacking = checks.iter().any(|check| check.verdict == Verdict::Missing);
    Ok(if lacking { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(check: &Check) {
    let verdict = match check.verdict {
        Verdict::Ok => "ok",
        Verdict::Reduced => "reduced",
        Verdict::Missing => "MISSING",
    };
    outln!("{verdict:<8} {:<28} {}", check.name, check.found);
    if let Some(remedy) = check.remedy.as_ref().filter(|_| check.verdict != Verdict::Ok) {
        outln!("{:<8} {:<28} -> {remedy}", "", "");
    }
}

/// What `--process --json` prints.
#[derive(Debug, Serialize)]
struct Examination {
    pid: i32,
    can_be_forked: bool,
    refusals: Vec<Reason>,
}

#[derive(Debug, Serialize)]
struct Reason {
    kind: String,
    reason: String,
}

fn examine(pid: i32, json: bool) -> Result<ExitCode> {
    let refusals = process::examine(pid).with_context(|| format!("cannot examine process {pid}"))?;
    let reason = |refusal: &process::Refusal| Reason { kind: refusal.kind().to_string(), reason: refusal.to_string() };
    let refusals: Vec<_> = refusals.iter().map(reason).collect();
    let can_be_forked = refusals.is_empty();
    if json {
        output::json(&Examination { pid, can_be_forked, refusals })?;
    } else if can_be_forked {
        outln!("process {pid} can be forked");
    } else {
        outln!("process {pid} cannot be forked:");
        refusals.iter().for_each(|reason| outln!("    {}: {}", reason.kind, reason.reason));
    }
    Ok(if can_be_forked { ExitCode::SUCCESS } else { ExitCode::from(5) })
}
