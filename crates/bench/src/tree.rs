//! Trees of processes: how long they stand still for a fork, until copies run and answer, and what a copy costs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::{Interpreter, NetworkPolicy, Ready, RunRequest, TemplateSpec};
use base::id::SandboxId;
use client::Start;

use crate::{
    TreeArgs,
    node::{Ahead, PrivateNode, Started, spec},
    proc::bytes_of,
    program,
    report::{Goal, Report, median, progress},
    start,
};

const TREE: &str = include_str!("tree/tree.py");

/// Processes beside the server, and the memory of all of them in MiB.
const WORKERS: u32 = 11;
const MIB: u32 = 500;
/// Pre-forked workers that wait.
const WAITING: u32 = 64;
/// Copies of one fork.
const COPIES: u32 = 10;
/// How long a tree may take until it answers.
const MAX: Duration = Duration::from_secs(60);

pub(super) async fn measure(args: &TreeArgs) -> Result<Report> {
    let mut report = Report::of("Python servers with workers, which every answer has asked");
    let rounds = if args.quick { 5 } else { 20 };
    let mib = if args.quick { MIB / 5 } else { MIB };
    progress("starting a private node");
    let node = PrivateNode::start(Ahead::Yes).await?;
    let measured = all(&node, rounds, mib, &mut report).await;
    node.stop().await?;
    measured?;
    Ok(report)
}

async fn all(node: &PrivateNode, rounds: u32, mib: u32, report: &mut Report) -> Result<()> {
    let tree = |workers: u32, mib: u32| {
        program::python(TREE, &[&program::PORT.to_string(), &workers.to_string(), &mib.to_string()])
    };
    node.build("tree", tree(WORKERS, mib)).await?;
    node.build("waiting", tree(WAITING, 0)).await?;
    node.build_spec(&TemplateSpec { ready: Ready::Listening, ..spec("idle", Vec::new())? }).await?;
    node.rest().await?;
    progress("starts of the template");
    let started = start::series(node, "tree", rounds).await?;
    let times = |of: fn(&Started) -> Duration| started.iter().map(of).collect();
    let name = format!("{} processes, {mib} MiB", WORKERS + 1);
    let running =
        report.add(format!("{name}: start, forked ahead, until it runs"), times(|started| started.running), "");
    report.add(format!("{name}: start, until it has answered"), times(|started| started.answered), "");
    report.goal(Goal::at_most("start of a tree, forked ahead", "ms", None, ms(running), 3.0));

    let (sandbox, _) = node.start_one("tree").await?;
    let (pause, one) = forks(node, &sandbox.id, &name, 1, rounds, report).await?;
    report.goal(Goal::at_most("pause of a fork of a tree from a template", "ms", None, ms(pause), 5.0));
    report.goal(Goal::at_most("fork of a tree until the copy runs", "ms", None, ms(one), 40.0));
    let (_, ten) = forks(node, &sandbox.id, &name, COPIES, rounds.div_ceil(4), report).await?;
    report.goal(Goal::at_most("fork of a tree until 10 copies run", "ms", None, ms(ten), 50.0));
    memory(node, &sandbox.id, report).await?;
    node.remove_all().await?;

    let (sandbox, _) = node.start_one("waiting").await?;
    let name = format!("{} processes that wait", WAITING + 1);
    let (pause, _) = forks(node, &sandbox.id, &name, 1, rounds, report).await?;
    report.goal(Goal::at_most("pause of a fork with 64 pre-forked workers", "ms", None, ms(pause), 20.0));
    node.remove_all().await?;

    progress("a tree that a command has started");
    by_command(node, tree(WORKERS, mib), mib, rounds, report).await
}

/// Memory of no template: the kernel's fork copies page tables of 4 KiB pages.
async fn by_command(
    node: &PrivateNode,
    command: Vec<String>,
    mib: u32,
    rounds: u32,
    report: &mut Report,
) -> Result<()> {
    let request = RunRequest {
        count: 1,
        interpreter: Interpreter::InProcess,
        volumes: Vec::new(),
        network: NetworkPolicy::default(),
    };
    let sandbox = node.client.run(&"idle".parse()?, &request).await?.sandboxes.pop().context("nothing started")?;
    let start = Start { command, ..Start::default() };
    let _events = node.client.inside(&sandbox.id).start(&start).await?;
    let began = Instant::now();
    while node.request(&sandbox.id).await.is_err() {
        ensure!(began.elapsed() < MAX, "the tree of a command does not answer within {MAX:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let name = format!("{} processes, {mib} MiB, begun by a command", WORKERS + 1);
    forks(node, &sandbox.id, &name, 1, rounds, report).await?;
    node.remove_all().await
}

/// Gives the medians of the pause and of the time until all copies run.
async fn forks(
    node: &PrivateNode,
    id: &SandboxId,
    name: &str,
    copies: u32,
    rounds: u32,
    report: &mut Report,
) -> Result<(Duration, Duration)> {
    progress(&format!("forks of {name}"));
    let (mut pauses, mut totals, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    // The first one pays for what is touched for the first time.
    for round in 0..=rounds {
        let began = Instant::now();
        let response = node.fork(id, copies).await?;
        let first = response.sandboxes.first().context("no copy")?;
        node.request(&first.id).await?;
        if round > 0 {
            answers.push(began.elapsed());
            pauses.push(Duration::from_micros(response.pause_us));
            totals.push(Duration::from_micros(response.total_us));
        }
        for copy in response.sandboxes {
            node.remove(&copy.id).await?;
        }
    }
    let medians = (median(&pauses), median(&totals));
    let of = |what: &str| format!("{name}: fork of {copies}, {what}");
    report.add(of("pause"), pauses, "");
    report.add(of("until they run"), totals, "");
    report.add(of("until one has answered"), answers, "");
    Ok(medians)
}

/// What a copy that has answered has of its own.
async fn memory(node: &PrivateNode, id: &SandboxId, report: &mut Report) -> Result<()> {
    let response = node.fork(id, 1).await?;
    let copy = &response.sandboxes.first().context("no copy")?.id;
    node.request(copy).await?;
    let processes = node.inspect(copy).await?.processes;
    let mut own = 0;
    for process in &processes {
        own += bytes_of(&format!("/proc/{}/smaps_rollup", process.pid), "Private_Dirty:").unwrap_or(0);
        own += bytes_of(&format!("/proc/{}/status", process.pid), "VmPTE:").unwrap_or(0);
    }
    let each = own as f64 / processes.len().max(1) as f64 / f64::from(1 << 20);
    report.fact("own pages and page tables of a copy that has answered", base::text::bytes(own));
    report.goal(Goal::at_most("memory of a further copy, each process", "MiB", None, each, 1.0));
    node.remove(copy).await
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
