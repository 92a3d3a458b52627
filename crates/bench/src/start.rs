//! The comparison of starts.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use base::id::SandboxId;
use base::text;
use tokio::task::JoinSet;

use super::{
    StartArgs,
    cold::{self, Plain},
    criu::{self, Criu},
    node::{Ahead, PrivateNode, Started},
    program,
    report::{Report, duration, median, progress, times},
};

/// How much is measured.
#[derive(Debug, Clone, Copy)]
struct Extent {
    /// Cold starts one at a time.
    cold: u32,
    /// Cold starts at once.
    at_once: &'static [u32],
    /// Starts one at a time.
    rounds: u32,
    /// Samples of what needs no more to be steady.
    few: u32,
    /// Whether larger programs, and programs with many threads, are measured, too.
    others: bool,
}

const LONG: Extent = Extent { cold: 4, at_once: &[10, 50], rounds: 50, few: 20, others: true };
/// Cold starts take most of the time: five at once on two CPUs take ten seconds.
const SHORT: Extent = Extent { cold: 3, at_once: &[5], rounds: 15, few: 10, others: false };

/// Starts at once, measured in either form. In the short one nothing is compared with them.
const MANY: u32 = 50;
/// The first starts, by which a node learns what copies touch first.
const SEEN_FIRST: u32 = 5;
/// Between starts the pool is filled again, as on a node that is not saturated.
const PAUSE_BETWEEN: Duration = Duration::from_millis(50);

pub(super) async fn measure(args: &StartArgs) -> Result<Report> {
    let mut report = Report::of("examples/geo.py (CPython, threads and asyncio)");
    let form = if args.quick { SHORT } else { LONG };
    let extent = Extent { rounds: args.rounds.unwrap_or(form.rounds), ..form };
    if args.quick {
        report.about("form", "short, with few samples; `pando bench start` runs the long one, which takes minutes");
    }
    let criu = criu::find(args.criu.as_deref());
    if args.criu.is_some() && criu.is_err() {
        return criu.map(|_| report).context("--criu");
    }
    let floor = measure_cold(&extent, criu, &mut report).await?;
    for ahead in [Ahead::Yes, Ahead::No] {
        progress(match ahead {
            Ahead::Yes => "starting a private node that forks copies ahead",
            Ahead::No => "starting a private node that does not",
        });
        let node = Arc::new(PrivateNode::start(ahead).await?);
        let measured = measure_node(&extent, ahead, &node, &floor, &mut report).await;
        if let Some(node) = Arc::into_inner(node) {
            node.stop().await?;
        }
        measured?;
    }
    report.fact("start, fork", "a start takes a copy that was forked ahead; a fork has none (`pando node --ahead 0`)");
    Ok(report)
}

/// How a row names what it measures.
fn verb(ahead: Ahead) -> &'static str {
    match ahead {
        Ahead::Yes => "start",
        Ahead::No => "fork",
    }
}

/// What the plain program costs.
struct Cold {
    fork: Duration,
    resident_bytes: u64,
    /// Concurrency and the mean time of each.
    at_once: Vec<(u32, Duration, Duration)>,
    /// CRIU's lazy restore to the first answer.
    criu_lazy: Option<Duration>,
}

async fn measure_cold(extent: &Extent, criu: Result<Criu>, report: &mut Report) -> Result<Cold> {
    progress("cold starts, one at a time");
    let mut alone = Vec::new();
    for _ in 1..extent.cold {
        let plain = Plain::start().await?;
        alone.push(plain.answered);
        plain.stop().await?;
    }
    let plain = Plain::start().await?;
    alone.push(plain.answered);
    let pid = plain.pid()?;
    let few = extent.few as usize;
    let forks = tokio::task::spawn_blocking(move || process::time_forks(pid, few)).await??;
    let resident_bytes = plain.resident_bytes()?;
    plain.stop().await?;
    let alone_median = report.add("cold start to first answer", alone, "");
    let fork = report.add("bare fork() of that process (the floor)", forks, text::bytes(resident_bytes));
    let mut at_once = vec![(1, alone_median, alone_median)];
    for &count in extent.at_once {
        progress(&format!("{count} cold starts at once"));
        let began = Instant::now();
        let times = cold::at_once(count).await?;
        let total = began.elapsed();
        let mean = times.iter().sum::<Duration>() / count;
        report.add(format!("cold start, {count} at once"), times, format!("total {}", duration(total)));
        at_once.push((count, mean, total));
    }
    let criu_lazy = measure_criu(extent.few, criu, alone_median, report).await;
    Ok(Cold { fork, resident_bytes, at_once, criu_lazy })
}

/// Gives what CRIU's lazy restore takes to the first answer, if it could be measured.
async fn measure_criu(few: u32, criu: Result<Criu>, cold: Duration, report: &mut Report) -> Option<Duration> {
    match criu {
        Ok(criu) => {
            progress("CRIU's restores");
            criu::compare(&criu, few, cold, report).await
        }
        Err(reason) => {
            report.fact("criu", format!("{reason:#}"));
            None
        }
    }
}

async fn measure_node(
    extent: &Extent,
    ahead: Ahead,
    node: &Arc<PrivateNode>,
    cold: &Cold,
    report: &mut Report,
) -> Result<()> {
    progress("building the template");
    let template = node.build("geo", program::geo(0, program::PORT)).await?;
    let memory = template.facts.map_or(0, |facts| facts.memory_bytes);
    progress("starts, one at a time");
    let base = one_at_a_time(extent, ahead, node, cold, memory, report).await?;
    for (count, cold_mean, cold_total) in cold.at_once.iter().filter(|(count, ..)| *count > 1) {
        many(node, ahead, (*count, *cold_mean, *cold_total), report).await?;
    }
    if !extent.at_once.contains(&MANY) {
        many(node, ahead, (MANY, Duration::ZERO, Duration::ZERO), report).await?;
    }
    if ahead == Ahead::Yes {
        idle_memory(node, cold, report).await?;
        live_forks(node, "geo", extent.few, memory, report).await?;
    }
    node.remove_all().await?;
    if extent.others {
        for extra_mib in [390, 900] {
            larger(node, ahead, (extra_mib, extent.few), base, report).await?;
        }
        if ahead == Ahead::No {
            threads(node, extent.few, report).await?;
        }
    }
    Ok(())
}

/// Starts one copy after the other, each removed before the next.
pub(super) async fn series(node: &PrivateNode, template: &str, count: u32) -> Result<Vec<Started>> {
    let mut started = Vec::new();
    for n in 0..=count {
        tokio::time::sleep(PAUSE_BETWEEN).await;
        let (sandbox, times) = node.start_one(template).await?;
        // The first one also pays for what is touched for the first time.
        if n > 0 {
            started.push(times);
        }
        node.remove(&sandbox.id).await?;
    }
    Ok(started)
}

/// Gives the median until a copy runs.
async fn one_at_a_time(
    extent: &Extent,
    ahead: Ahead,
    node: &PrivateNode,
    cold: &Cold,
    memory: u64,
    report: &mut Report,
) -> Result<Duration> {
    let (sandbox, _) = node.start_one("geo").await?;
    let mut own = Vec::new();
    for _ in 0..extent.rounds {
        let began = Instant::now();
        node.request(&sandbox.id).await?;
        own.push(began.elapsed());
    }
    let own_answer = match ahead {
        Ahead::Yes => report.add("own answer: request to a running copy", own, ""),
        Ahead::No => median(&own),
    };
    node.remove(&sandbox.id).await?;
    // The first few are looked at, to learn what copies touch first; then copies are forked ahead.
    series(node, "geo", SEEN_FIRST).await?;
    let started = series(node, "geo", extent.rounds).await?;
    let running: Vec<Duration> = started.iter().map(|started| started.running).collect();
    let answered: Vec<Duration> = started.iter().map(|started| started.answered).collect();
    let running = report.add(format!("{} until it runs", verb(ahead)), running, text::bytes(memory));
    let (_, cold_mean, _) = cold.at_once[0];
    let answered_median = median(&answered);
    let allowed = cold.fork * 2 + own_answer;
    let criu = cold.criu_lazy.map_or_else(String::new, |lazy| {
        format!("{:.1}x faster than CRIU's lazy restore; ", times(lazy, answered_median))
    });
    let beside = format!(
        "{:.0}x faster than cold; {criu}{:.2} of (2 x floor + own answer)",
        times(cold_mean, answered_median),
        times(answered_median, allowed)
    );
    report.add(format!("{} to first answer", verb(ahead)), answered, beside);
    Ok(running)
}

/// Starts many copies at once; all stay until their answers are in.
async fn many(
    node: &Arc<PrivateNode>,
    ahead: Ahead,
    (count, cold_mean, cold_total): (u32, Duration, Duration),
    report: &mut Report,
) -> Result<()> {
    progress(&format!("{count} starts at once"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    let mut starts = JoinSet::new();
    for _ in 0..count {
        let node = node.clone();
        starts.spawn(async move { node.start_one("geo").await });
    }
    let mut answered = Vec::new();
    while let Some(started) = starts.join_next().await {
        answered.push(started??.1.answered);
    }
    let total = began.elapsed();
    let mean = answered.iter().sum::<Duration>() / count;
    let beside = match cold_mean.is_zero() {
        true => format!("total {}", duration(total)),
        false => format!(
            "total {}; {:.0}x faster than cold (total {:.0}x)",
            duration(total),
            times(cold_mean, mean),
            times(cold_total, total)
        ),
    };
    report.add(format!("{} to first answer, {count} at once", verb(ahead)), answered, beside);
    node.remove_all().await
}

/// Memory that copies cost which have answered once and then idle.
async fn idle_memory(node: &Arc<PrivateNode>, cold: &Cold, report: &mut Report) -> Result<()> {
    progress("memory of 50 idle copies");
    let mut ids: Vec<SandboxId> = Vec::new();
    for _ in 0..50 {
        ids.push(node.start_one("geo").await?.0.id);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut shares = Vec::new();
    for id in &ids {
        let detail = node.inspect(id).await?;
        let main = detail.processes.iter().find(|process| process.pid == detail.sandbox.main_pid);
        shares.push(main.context("a copy has ended")?.pss_bytes);
    }
    shares.sort_unstable();
    let largest = shares.last().copied().unwrap_or_default();
    let percent = largest as f64 * 100.0 / cold.resident_bytes as f64;
    report.fact(
        "memory of 50 idle copies",
        format!(
            "PSS median {}, largest {} = {percent:.1} % of the cold program's {} resident",
            text::bytes(shares[shares.len() / 2]),
            text::bytes(largest),
            text::bytes(cold.resident_bytes)
        ),
    );
    node.remove_all().await
}

/// Pauses of a running copy that is forked.
async fn live_forks(node: &PrivateNode, template: &str, count: u32, memory: u64, report: &mut Report) -> Result<()> {
    progress(&format!("live forks of {}", text::bytes(memory)));
    let (sandbox, _) = node.start_one(template).await?;
    let (mut pauses, mut totals) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let response = node.fork(&sandbox.id, 1).await?;
        pauses.push(Duration::from_micros(response.pause_us));
        totals.push(Duration::from_micros(response.total_us));
        for copy in response.sandboxes {
            node.request(&copy.id).await?;
            node.remove(&copy.id).await?;
        }
    }
    report.add("live fork: pause of the source", pauses, text::bytes(memory));
    report.add("live fork: until the copy runs", totals, "");
    node.remove(&sandbox.id).await
}

/// A larger zygote beside the small one.
async fn larger(
    node: &PrivateNode,
    ahead: Ahead,
    (extra_mib, few): (u32, u32),
    base: Duration,
    report: &mut Report,
) -> Result<()> {
    progress(&format!("a zygote with {extra_mib} MiB more"));
    let name = format!("geo-{extra_mib}");
    let template = node.build(&name, program::geo(extra_mib, program::PORT)).await?;
    let (memory, huge) = template.facts.map_or((0, 0), |facts| (facts.memory_bytes, facts.huge_bytes));
    series(node, &name, SEEN_FIRST).await?;
    let started = series(node, &name, few).await?;
    let running: Vec<Duration> = started.iter().map(|started| started.running).collect();
    let ratio = times(median(&running), base);
    let beside = format!("{} ({} huge); {ratio:.2}x of the small one", text::bytes(memory), text::bytes(huge));
    report.add(format!("{} until it runs, {extra_mib} MiB more", verb(ahead)), running, beside);
    match ahead {
        Ahead::Yes => live_forks(node, &name, few / 4, memory, report).await,
        Ahead::No => Ok(()),
    }
}

/// What threads cost.
async fn threads(node: &PrivateNode, few: u32, report: &mut Report) -> Result<()> {
    const MANY: u32 = 400;
    progress(&format!("a program with {MANY} threads"));
    let mut medians = Vec::new();
    for count in [0, MANY] {
        let name = format!("threads-{count}");
        node.build(&name, program::threads(count)).await?;
        let running: Vec<Duration> = series(node, &name, few).await?.iter().map(|started| started.running).collect();
        let beside = match medians.first() {
            None => String::new(),
            Some(none) => {
                let each = (median(&running).saturating_sub(*none)) / MANY;
                format!("{:.1} us a thread", each.as_secs_f64() * 1e6)
            }
        };
        medians.push(median(&running));
        report.add(format!("fork until it runs, {count} threads more"), running, beside);
    }
    Ok(())
}
