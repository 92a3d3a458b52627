//! `pando doctor`: what this host can do, whether copies lose anything on it, and why a process could not be forked.

mod checks;
mod networks;
mod users;

use std::process::ExitCode;

use anyhow::{Context, Result};
use node::self_test::{self, Finding, Runner, Scope};
use serde::Serialize;

use crate::output;
use checks::{Check, Verdict};

/// Check the host: what it can do, what is missing and how to get it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Instead, tell why this process could not be forked. The process is looked at from outside and not stopped.
    #[arg(long, value_name = "PID", conflicts_with = "self_test")]
    process: Option<i32>,
    /// Instead, fork a small program, compare its registers, memory and guard pages, and try whether limits hold. Takes less than a second,
    /// needs root and no node, and leaves nothing.
    #[arg(long)]
    self_test: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Exits with 1 if something needed is missing or lost, with 5 if the process could not be forked.
pub(crate) async fn run(args: &Args) -> Result<ExitCode> {
    match args.process {
        Some(pid) => examine(pid, args.json),
        None if args.self_test => test_host(args.json).await,
        None => host(args.json).await,
    }
}

async fn test_host(json: bool) -> Result<ExitCode> {
    let dir = base::scratch::make("self-test")?;
    let runner = Runner { dir: dir.clone(), group: format!("self-test-{}", std::process::id()), scope: Scope::All };
    let findings = runner.run().await;
    // It is there only if the set-up failed.
    let _ = std::fs::remove_dir_all(dir);
    let findings = findings?;
    if json {
        output::json(&findings)?;
    } else {
        findings.iter().for_each(print_finding);
    }
    let failed = findings.iter().any(|finding| finding.verdict == self_test::Verdict::Failed);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print_finding(finding: &Finding) {
    let verdict = match finding.verdict {
        self_test::Verdict::Ok => "ok",
        self_test::Verdict::Skipped => "skipped",
        self_test::Verdict::Failed => "FAILED",
    };
    outln!("{verdict:<8} {:<28} {:<70} {:>6.1} ms", finding.probe, finding.found, finding.took_us as f64 / 1e3);
}

async fn host(json: bool) -> Result<ExitCode> {
    let mut checks = checks::all();
    checks.push(checks::names().await);
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
