//! Starts of checkpoints on nodes that have never seen them.
//!
//! Every figure is of a node of its own, started for it: own state directory, empty cache, no connection warm. Starting it is not measured:
//! the time runs from the request to the first answer of the program. Dropping template and cache of one node would be no cheaper by much,
//! and would leave keys, connections and the allocator warm.

mod fresh;
mod further;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use api::Checkpoint;
use base::text;

use self::fresh::{First, first_answers, many_at_once};
use super::{
    RestoreArgs,
    cold::Plain,
    criu,
    node::{Ahead, PrivateNode},
    pages::Paged,
    place::{Place, Way},
    program,
    report::{Report, duration, median, progress, times},
};

/// Added to the program's own 100 MB and never touched, in MiB.
const UNTOUCHED_MIB: [u32; 2] = [10, 500];
const UNTOUCHED_LONG_MIB: u32 = 2048;
/// Added to each answer of the S3 service.
const LATENCIES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(10)];
const AT_ONCE: u32 = 50;
/// Nodes on which so many start at once: each gives that many samples.
const AT_ONCE_NODES: u32 = 3;
const COLD_STARTS: usize = 3;
const CHECKPOINTS: usize = 3;

/// The checkpoint of the program without anything added.
const PLAIN: &str = "geo";

/// What all of a run needs.
struct Run<'a> {
    args: &'a RestoreArgs,
    rounds: u32,
    /// CRIU's lazy restore to the first answer.
    criu_lazy: Option<Duration>,
}

pub(super) async fn measure(args: &RestoreArgs) -> Result<Report> {
    let criu = args.criu.as_deref().map(|path| criu::find(Some(path))).transpose().context("--criu")?;
    let rounds = args.rounds.unwrap_or(if args.quick { 10 } else { 30 });
    let mut report = Report::of("examples/geo.py (CPython, threads and asyncio)");
    let cold = cold_starts(&mut report).await?;
    let mut run = Run { args, rounds, criu_lazy: None };
    if let Some(criu) = criu {
        progress("CRIU's restores");
        run.criu_lazy = criu::compare(&criu.with_archives(), rounds, cold, &mut report).await;
    }
    run.local(&mut report).await?;
    if let Some(service) = &args.s3 {
        run.far(&Place::s3(service)?, &mut report).await?;
    }
    report
        .fact("fresh node", "a node of its own for each sample (for 50 at once: for each 50): own state, empty cache");
    Ok(report)
}

async fn cold_starts(report: &mut Report) -> Result<Duration> {
    progress("cold starts");
    let mut answered = Vec::new();
    for _ in 0..COLD_STARTS {
        let plain = Plain::start().await?;
        answered.push(plain.answered);
        plain.stop().await?;
    }
    Ok(report.add("cold start to first answer", answered, ""))
}

fn name(untouched_mib: u32) -> String {
    format!("{PLAIN}-{untouched_mib}")
}

impl Run<'_> {
    async fn local(&self, report: &mut Report) -> Result<()> {
        const LABEL: &str = "directory";
        let way = Place::local()?.directly();
        let checkpoint = self.take_checkpoints(&way, LABEL, report).await?;
        let one = self.one(&way, LABEL, &checkpoint, report).await?;
        self.at_once(&way, LABEL, one, report).await?;
        progress("memory of further copies");
        further::memory_of_each(&way, PLAIN, report).await?;
        self.sizes(&way, LABEL, report).await
    }

    async fn far(&self, place: &Arc<Place>, report: &mut Report) -> Result<()> {
        let direct = place.directly();
        let checkpoint = self.take_checkpoints(&direct, "S3", report).await?;
        let undelayed = direct.probe().await?;
        for (number, latency) in LATENCIES.into_iter().enumerate() {
            let way = place.delayed(latency)?;
            let label = format!("S3 at {} ms", latency.as_millis());
            let request =
                format!("a small request takes {}, {} directly", duration(way.probe().await?), duration(undelayed));
            report.fact(&*label, request);
            let one = self.one(&way, &label, &checkpoint, report).await?;
            self.at_once(&way, &label, one, report).await?;
            if number == 0 {
                self.sizes(&way, &label, report).await?;
            }
        }
        Ok(())
    }

    fn untouched(&self) -> Vec<u32> {
        UNTOUCHED_MIB.into_iter().chain((!self.args.quick).then_some(UNTOUCHED_LONG_MIB)).collect()
    }

    /// Fills the store; gives the checkpoint of the plain program.
    async fn take_checkpoints(&self, way: &Way, label: &str, report: &mut Report) -> Result<Checkpoint> {
        progress(&format!("a private node takes checkpoints, {label}"));
        let node = PrivateNode::start_with(Ahead::No, &way.arguments()).await?;
        let plain = take(&node, (PLAIN, 0), CHECKPOINTS, label, report).await?;
        for mib in self.untouched() {
            take(&node, (&name(mib), mib), 1, label, report).await?;
        }
        node.stop().await?;
        Ok(plain)
    }

    /// One at a time; gives the median.
    async fn one(&self, way: &Way, label: &str, checkpoint: &Checkpoint, report: &mut Report) -> Result<Duration> {
        progress(&format!("first answers, {label}"));
        let (firsts, recording) = first_answers(way, PLAIN, self.rounds).await?;
        let answered: Vec<Duration> = firsts.iter().map(|first| first.started.answered).collect();
        let running: Vec<Duration> = firsts.iter().map(|first| first.started.running).collect();
        let median = median(&answered);
        let criu = self.criu_lazy.map(|lazy| format!("; {:.2}x of CRIU's lazy restore", times(median, lazy)));
        let beside = format!("runs after {}{}", duration(self::median(&running)), criu.unwrap_or_default());
        report.add(format!("first answer, fresh node, {label}"), answered, beside);
        let again = firsts.iter().map(|first| first.again.answered).collect();
        report.add(format!("first answer of a second one on that node, {label}"), again, "");
        fetched(&firsts, recording.as_ref(), label, checkpoint, report);
        Ok(median)
    }

    async fn at_once(&self, way: &Way, label: &str, one: Duration, report: &mut Report) -> Result<()> {
        let (mut started, mut totals) = (Vec::new(), Vec::new());
        for _ in 0..AT_ONCE_NODES {
            progress(&format!("{AT_ONCE} first answers at once, {label}"));
            let (times, total) = many_at_once(way, PLAIN, AT_ONCE).await?;
            started.extend(times);
            totals.push(total);
        }
        let running: Vec<Duration> = started.iter().map(|started| started.running).collect();
        let answered: Vec<Duration> = started.iter().map(|started| started.answered).collect();
        let (running, half, total) = (median(&running), median(&answered), median(&totals));
        let beside = format!(
            "{:.2}x of one; runs after {}; all after {} = {:.2}x",
            times(half, one),
            duration(running),
            duration(total),
            times(total, one)
        );
        report.add(format!("first answer, fresh node, {AT_ONCE} at once, {label}"), answered, beside);
        Ok(())
    }

    /// The same with more and more memory that is never touched.
    async fn sizes(&self, way: &Way, label: &str, report: &mut Report) -> Result<()> {
        let mut smallest = None;
        for mib in self.untouched() {
            progress(&format!("first answers with {mib} MiB untouched, {label}"));
            let (firsts, _) = first_answers(way, &name(mib), self.rounds.div_ceil(2)).await?;
            let answered: Vec<Duration> = firsts.iter().map(|first| first.started.answered).collect();
            let (median, bytes) = (median(&answered), fetched_bytes(&firsts));
            let mut beside = format!("{:.2}x of the smallest", times(median, *smallest.get_or_insert(median)));
            if let Some(bytes) = bytes {
                beside += &format!("; {} fetched before it", text::bytes(bytes));
            }
            report.add(format!("first answer, fresh node, {mib} MiB untouched, {label}"), answered, beside);
        }
        Ok(())
    }
}

/// Builds a template, and takes checkpoints of a copy of it under one name. Gives the last.
async fn take(
    node: &PrivateNode,
    (name, untouched_mib): (&str, u32),
    count: usize,
    label: &str,
    report: &mut Report,
) -> Result<Checkpoint> {
    node.build(name, program::geo(untouched_mib, program::PORT)).await?;
    let (sandbox, _) = node.start_one(name).await?;
    let (mut took, mut last) = (Vec::new(), None);
    for round in 0..count {
        if round > 0 {
            // With one to compare with the next would not be whole.
            node.remove_checkpoint(name).await?;
        }
        let began = Instant::now();
        last = Some(node.checkpoint(&sandbox.id, name).await?);
        took.push(began.elapsed());
    }
    node.remove(&sandbox.id).await?;
    let checkpoint = last.context("no checkpoint was asked for")?;
    let beside = format!(
        "{} of memory, {} stored; pause {}",
        text::bytes(checkpoint.memory_bytes),
        text::bytes(checkpoint.stored_memory_bytes + checkpoint.layer_bytes),
        text::micros(checkpoint.pause_us)
    );
    report.add(format!("checkpoint until durable, {untouched_mib} MiB untouched, {label}"), took, beside);
    Ok(checkpoint)
}

fn middle(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

/// What came from the objects before the first answer.
fn fetched_bytes(firsts: &[First]) -> Option<u64> {
    middle(firsts.iter().filter_map(|first| first.bytes).collect())
}

/// Says what a first answer needs, and what was moved for it.
fn fetched(firsts: &[First], recording: Option<&Paged>, label: &str, checkpoint: &Checkpoint, report: &mut Report) {
    const PAGE: u64 = memory::PAGE_BYTES as u64;
    let working_set = recording.map(|paged| paged.working_set).filter(|pages| *pages > 0);
    if let Some(pages) = working_set {
        let value = format!("{pages} pages, {} of {}", text::bytes(pages * PAGE), text::bytes(checkpoint.memory_bytes));
        report.fact(format!("faulted on until the first answer while the working set was recorded, {label}"), value);
    }
    let faults = middle(firsts.iter().filter_map(|first| first.paged.as_ref()).map(|paged| paged.faults).collect());
    if let Some(faults) = faults {
        report.fact(format!("faults until the first answer with a working set, {label}"), faults.to_string());
    }
    let Some(bytes) = fetched_bytes(firsts) else { return };
    let stored = checkpoint.stored_memory_bytes as f64 / checkpoint.memory_bytes.max(1) as f64;
    let ratios = working_set.map_or_else(String::new, |pages| {
        let set = (pages * PAGE) as f64;
        let (raw, packed) = (bytes as f64 / set, bytes as f64 / (set * stored).max(1.0));
        format!("; {raw:.2}x of the working set, {packed:.2}x of what such pages take compressed on average")
    });
    let value = format!("{} on the wire, with all that a fresh node asks for{ratios}", text::bytes(bytes));
    report.fact(format!("fetched until the first answer, {label}"), value);
}
