//! `pando doctor`: what this host can do, whether copies lose anything on it, and why a process could not be forked.

mod checks;
mod networks;
mod users;

use std::process::ExitCode;

use anyhow::{Context, Result};
use api::Refusal;
use base::id::SandboxId;
use node::self_test::{self, Finding, Runner, Scope};
use process::Examined;
use serde::Serialize;

use crate::{
    address::Address,
    output,
    sandbox_id::{Among, SandboxName},
};
use checks::{Check, Verdict};

/// Check the host: what it can do, what is missing and how to get it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Instead, tell why this process and its descendants could not be forked. They are looked at from outside and not stopped.
    #[arg(long, value_name = "PID", conflicts_with_all = ["self_test", "sandbox"])]
    process: Option<i32>,
    /// Instead, tell why this sandbox of a node could not be forked or paused: its program, its commands and all that they have started. Nothing is
    /// stopped.
    #[arg(long, value_name = "SANDBOX", conflicts_with = "self_test")]
    sandbox: Option<SandboxName>,
    /// Instead, fork a small program, compare its registers, memory and guard pages, and try whether limits hold. Takes less than a second,
    /// needs root and no node, and leaves nothing.
    #[arg(long)]
    self_test: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Exits with 1 if something needed is missing or lost, with 5 if the process or sandbox could not be forked.
pub(crate) async fn run(args: Args, address: &Address) -> Result<ExitCode> {
    match (args.process, args.sandbox) {
        (Some(pid), _) => examine(pid, args.json),
        (None, Some(name)) => examine_sandbox(name, args.json, &address.only_node()?).await,
        (None, None) if args.self_test => test_host(args.json).await,
        (None, None) => host(args.json).await,
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

/// What `--process --json` and `--sandbox --json` print.
#[derive(Debug, Serialize)]
struct Examination<'a, T> {
    #[serde(flatten)]
    examined: T,
    can_be_forked: bool,
    refusals: &'a [Refusal],
}

#[derive(Debug, Serialize)]
struct Process {
    pid: i32,
}

#[derive(Debug, Serialize)]
struct Sandbox {
    sandbox: SandboxId,
}

fn examine(pid: i32, json: bool) -> Result<ExitCode> {
    let examined = Examined::process(pid).and_then(|examined| process::examine(&examined));
    let found = examined.with_context(|| format!("cannot examine process {pid}"))?;
    let refusal = |found: &process::Refusal| Refusal { kind: found.kind(), reason: found.to_string() };
    let refusals: Vec<Refusal> = found.iter().map(refusal).collect();
    tell(&format!("process {pid}"), Process { pid }, &refusals, json)
}

async fn examine_sandbox(name: SandboxName, json: bool, node: &client::Client) -> Result<ExitCode> {
    let sandbox = name.find(Among::Node, node).await?;
    let refusals = node.refusals(&sandbox).await?;
    tell(&format!("sandbox {sandbox}"), Sandbox { sandbox: sandbox.clone() }, &refusals, json)
}

fn tell(what: &str, examined: impl Serialize, refusals: &[Refusal], json: bool) -> Result<ExitCode> {
    let can_be_forked = refusals.is_empty();
    if json {
        output::json(&Examination { examined, can_be_forked, refusals })?;
    } else if can_be_forked {
        outln!("{what} can be forked");
    } else {
        outln!("{what} cannot be forked:");
        refusals.iter().for_each(|refusal| outln!("    {}: {}", refusal.kind, refusal.reason));
    }
    Ok(if can_be_forked { ExitCode::SUCCESS } else { ExitCode::from(5) })
}
