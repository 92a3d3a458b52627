//! Checkpoints of programs: their size beside what others make of the same pages, their time, and what they cost the program and the node.

mod programs;
mod sizes;

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use api::Checkpoint;
use base::text;

use self::{
    programs::{Program, Services},
    sizes::Sizes,
};
use super::{
    MemoryArgs,
    node::{Ahead, PrivateNode},
    proc::bytes_of,
    report::{Report, duration, median, progress, times},
};

/// Bare forks of each program.
const FORKS: usize = 20;

pub(super) async fn measure(args: &MemoryArgs) -> Result<Report> {
    let mut report = Report::of("examples/: geo.py, geo-go, node/server.js; and one like an inference server");
    let services = Services::place()?;
    for program in services.programs(args.quick) {
        match program {
            Ok(program) => {
                progress(&format!("a private node warms {} up", program.name));
                // A node for each: what one leaves behind is no other's peak.
                let node = PrivateNode::start_with(Ahead::No, &[]).await?;
                measure_program(&node, &program, &mut report).await?;
                node.stop().await?;
            }
            Err(missing) => report.fact("not measured", format!("{missing:#}")),
        }
    }
    report.fact(
        "sizes",
        "of the program's own pages; LZ4 of each page alone, and one stream of zstd level 3 over all of them (what geo gets with 1 GB \
         repeats itself every MiB but for 8 bytes a page, which only a stream sees)",
    );
    report.fact(
        "bare fork",
        "of the very process whose checkpoints are taken, after a request each, with what it keeps from its own forks (some 20 us are the tracer's)",
    );
    Ok(report)
}

async fn measure_program(node: &PrivateNode, program: &Program, report: &mut Report) -> Result<()> {
    node.build_spec(&program.spec).await.with_context(|| format!("cannot warm {} up", program.name))?;
    let (sandbox, _) = node.start_one(program.spec.name.as_str()).await?;
    let pid = sandbox.main_pid;
    progress(&format!("checkpoints of {}", program.name));
    let taken = checkpoints(node, &sandbox, program.checkpoints).await?;
    // Only now: a checkpoint looks at every process of the sandbox, and ended forks are among them until the keeper has time to reap them.
    let mut forks = Vec::new();
    for _ in 0..FORKS {
        // As before a checkpoint: the program has worked since it was stopped.
        node.request(&sandbox.id).await?;
        forks.extend(tokio::task::spawn_blocking(move || process::time_forks(pid, 1)).await??);
    }
    progress(&format!("what others make of the pages of {}", program.name));
    let sizes = tokio::task::spawn_blocking(move || sizes::of(pid)).await??;
    add(program, forks, taken, &sizes, report)
}

/// What taking checkpoints gave.
struct Taken {
    last: Checkpoint,
    took: Vec<Duration>,
    pauses: Vec<Duration>,
    /// The most that the node's server grew by.
    extra_bytes: u64,
    /// Objects of one checkpoint: sealed, with everything.
    object_bytes: u64,
    /// One more, taken while there was another.
    next: Checkpoint,
}

async fn checkpoints(node: &PrivateNode, sandbox: &api::Sandbox, count: usize) -> Result<Taken> {
    let (mut took, mut pauses) = (Vec::new(), Vec::new());
    let (mut last, mut extra_bytes, mut object_bytes) = (None, 0, 0);
    for round in 0..count {
        let before = reset_peak(node.pid()?)?;
        let began = Instant::now();
        let checkpoint = node.checkpoint(&sandbox.id, "measured").await?;
        took.push(began.elapsed());
        pauses.push(Duration::from_micros(checkpoint.pause_us));
        extra_bytes = extra_bytes.max(status(node.pid()?, "VmHWM:")?.saturating_sub(before));
        if round == 0 {
            let stats = node.store_stats().await?;
            object_bytes = stats.segments.bytes + stats.manifests.bytes;
        }
        if round + 1 < count {
            // With one to compare with the next would not be whole.
            node.remove_checkpoint("measured").await?;
        }
        // The program goes on as it would: what it still shares with the last checkpoint's zygote is copied when it writes.
        node.request(&sandbox.id).await?;
        last = Some(checkpoint);
    }
    let next = node.checkpoint(&sandbox.id, "next").await?;
    Ok(Taken { last: last.context("no checkpoint was taken")?, took, pauses, extra_bytes, object_bytes, next })
}

fn add(program: &Program, forks: Vec<Duration>, taken: Taken, sizes: &Sizes, report: &mut Report) -> Result<()> {
    let Taken { last, took, pauses, extra_bytes, object_bytes, next } = taken;
    let name = &program.name;
    let memory = text::bytes(last.memory_bytes);
    let fork = report.add(format!("{name}: bare fork"), forks, &*memory);
    let beside = format!("{:.2}x of the bare fork", times(median(&pauses), fork));
    report.add(format!("{name}: pause of a checkpoint"), pauses, beside);
    let rate = last.memory_bytes as f64 / 1e6 / median(&took).as_secs_f64().max(1e-9);
    let beside = format!("{rate:.0} MB/s; the server grows by {}", text::bytes(extra_bytes));
    report.add(format!("{name}: checkpoint until durable"), took, beside);
    let stored = last.stored_memory_bytes as f64;
    let of = |bytes: u64| stored / bytes.max(1) as f64;
    report.fact(
        format!("{name}: size"),
        format!(
            "{} of {memory} = {:.3} of raw; {:.3}x of LZ4 per page ({}), {:.3}x of one zstd stream ({}, by {}); objects {} (sealed, with index, state and files)",
            text::bytes(last.stored_memory_bytes),
            of(last.memory_bytes),
            of(sizes.lz4_pages),
            text::bytes(sizes.lz4_pages),
            of(sizes.zstd_stream),
            text::bytes(sizes.zstd_stream),
            duration(sizes.zstd_took),
            text::bytes(object_bytes),
        ),
    );
    report.fact(
        format!("{name}: the next one"),
        format!(
            "{} ({:.3}x of the whole one)",
            text::bytes(next.stored_memory_bytes),
            next.stored_memory_bytes as f64 / stored.max(1.0)
        ),
    );
    let looked = sizes.raw as f64 / last.memory_bytes.max(1) as f64;
    if (looked - 1.0).abs() > 0.01 {
        report.fact(format!("{name}: caution"), format!("the comparison saw {} of memory", text::bytes(sizes.raw)));
    }
    Ok(())
}

/// Forgets the peak of a process's resident memory; gives what it has now.
fn reset_peak(pid: i32) -> Result<u64> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").context("cannot reset the peak of the server's memory")?;
    status(pid, "VmRSS:")
}

fn status(pid: i32, field: &str) -> Result<u64> {
    bytes_of(&format!("/proc/{pid}/status"), field)
}
