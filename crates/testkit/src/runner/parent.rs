//! Starts a process per case, and waits for them.

use std::{
    fs::File,
    io::{Read, Seek},
    os::unix::process::ExitStatusExt,
    process::{Child, ExitStatus, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::{
    Case, child, guard,
    report::{Ended, Outcome, Report},
};

/// Cases at a time unless `PANDO_TEST_JOBS` says otherwise: on two CPUs most cases wait for something half of the time.
const JOBS: u32 = 4;

/// Seconds that a case may take unless it is marked as [`Case::slow`], and unless `PANDO_TEST_SECONDS` says otherwise. Far more than any takes where
/// nothing else runs: machines differ by a factor of two, and four cases share one.
const SECONDS_MAX: u32 = 120;

/// A case that has not ended after this many times the limit is killed, slow or not.
const KILLED_AFTER: u32 = 8;

pub(super) fn run(cases: &[Case], patterns: &[String]) -> i32 {
    if !rustix::process::geteuid().is_root() {
        println!("the host tests need root\n\n0 passed, 0 failed, {} skipped", cases.len());
        return 0;
    }
    let settings = setting("PANDO_TEST_JOBS", JOBS, 64)
        .and_then(|jobs| Ok((jobs, setting("PANDO_TEST_SECONDS", SECONDS_MAX, 1_000_000)?)));
    let (jobs, seconds_max) = match settings {
        Ok(settings) => settings,
        Err(error) => {
            println!("{error}");
            return 2;
        }
    };
    let wanted = |case: &&Case| patterns.is_empty() || patterns.iter().any(|pattern| case.name.contains(pattern));
    let (alone, mut together): (Vec<&Case>, Vec<&Case>) =
        cases.iter().filter(wanted).partition(|case| case.alone.is_some());
    // The longest ones first: otherwise the last one to begin is waited for alone.
    together.sort_by_key(|case| case.slow.is_none());
    let report = Mutex::new(Report::new(seconds_max));
    let limit = Duration::from_secs(u64::from(seconds_max * KILLED_AFTER));
    run_all(&together, jobs, &report, limit);
    run_all(&alone, 1, &report, limit);
    report.into_inner().unwrap_or_else(PoisonError::into_inner).finish()
}

/// The number in an environment variable, which is 1 to `max`.
fn setting(name: &str, default: u32, max: u32) -> Result<u32> {
    let Ok(text) = std::env::var(name) else { return Ok(default) };
    let number = text.parse().ok().filter(|number| (1..=max).contains(number));
    number.with_context(|| format!("{name} is `{text}`, and must be a number from 1 to {max}"))
}

fn run_all(cases: &[&Case], jobs: u32, report: &Mutex<Report>, limit: Duration) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let began = Instant::now();
                    let (outcome, printed) = run_case(case, limit)
                        .unwrap_or_else(|error| (Outcome::Failed, format!("the runner: {error:#}")));
                    let ended = Ended { case, outcome, printed, seconds: began.elapsed().as_secs_f64() };
                    report.lock().unwrap_or_else(PoisonError::into_inner).add(ended);
                }
            });
        }
    });
}

fn run_case(case: &Case, limit: Duration) -> Result<(Outcome, String)> {
    // A file and no pipe: processes that a failed case leaves would keep a pipe open.
    let mut output = tempfile::tempfile()?;
    let streams: [File; 2] = [output.try_clone()?, output.try_clone()?];
    let [stdout, stderr] = streams.map(Stdio::from);
    let mut command = child::command(&case.name)?;
    let mut process = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn().context("start unshare")?;
    let status = wait(&mut process, limit)?;
    let left = guard::left_by(process.id());
    let mut printed = Vec::new();
    output.rewind()?;
    output.read_to_end(&mut printed)?;
    let mut printed = String::from_utf8_lossy(&printed).into_owned();
    let outcome = match status {
        None => {
            printed += &format!("\nkilled: it did not end within {} s", limit.as_secs());
            Outcome::Failed
        }
        Some(status) if status.success() => Outcome::Passed,
        Some(status) if status.code() == Some(child::SKIPPED) => Outcome::Skipped,
        Some(status) => {
            if let Some(signal) = status.signal() {
                printed += &format!("\nkilled by signal {signal}");
            }
            Outcome::Failed
        }
    };
    if left.is_empty() {
        return Ok((outcome, printed));
    }
    printed += &format!("\nleft on the host: {left:?}");
    Ok((Outcome::Failed, printed))
}

/// Waits until the process ends. If it does not end within the limit, kills it and gives nothing.
fn wait(process: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = process.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > deadline {
            process.kill()?;
            process.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(10));
    }
}
