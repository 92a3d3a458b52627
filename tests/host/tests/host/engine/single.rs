//! Cases of their own kind.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use procfs::CgroupPaths;
use testkit::{
    engine::{Bench, How, PROGRAMS, Place, filters, killed},
    runner::Case,
};

use super::{begin, go_on, on_a_bench, rounds};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.push(Case::new("engine::seccomp_stays_on_in_the_source", filters::outside_of_a_sandbox));
    cases.push(Case::new("engine::a_session_may_have_begun_in_another_pid_namespace", filters::in_a_pid_namespace));
    cases.push(Case::new("engine::a_copy_outlives_its_tracers", || {
        on_a_bench(|bench| killed::a_copy_outlives_its_tracers(bench, KILLS * rounds()?))
    }));
    cases.push(
        Case::new("engine::a_busy_copy_is_forked_at_once", || on_a_bench(busy))
            .slow("each of its forks competes with five programs that compute"),
    );
    cases
        .push(Case::new("engine::whether_a_thread_has_filters_of_its_own_is_told_by_ptrace", filters::several_filters));
    cases.push(Case::new("engine::a_zygote_has_no_limit_of_its_own_time", || on_a_bench(no_limit_of_time)));
    cases.push(Case::new("engine::a_fork_of_a_copy_has_the_core_filter_of_that", || on_a_bench(usual_core_filter)));
    cases.push(
        Case::new("engine::threads_may_end_at_any_moment", || on_a_bench(ending_threads))
            .slow("a thread rarely ends at the right moment: it captures 150 times"),
    );
    cases.push(Case::new("engine::threads_that_wait_for_a_processor_are_waited_for", || on_a_bench(throttled)));
    cases.push(Case::new("engine::files_of_a_layer_may_be_deleted_while_open", || on_a_bench(deleted_from_a_layer)));
    cases.push(
        Case::new("engine::a_child_that_is_about_to_end_is_waited_for", || on_a_bench(ending_children))
            .alone("it waits for 100 ms of a child that works"),
    );
    cases.push(Case::new("engine::files_are_cut_once_however_late_it_is_refused", || on_a_bench(ending_siblings)));
    cases
}

/// Tracers that are killed in a run.
const KILLS: u32 = 30;

/// A copy whose main thread waits for a processor, which its own threads and other copies have, is forked the moment it was started: the
/// attempts to find it outside of its start leave it time to come there.
fn busy(bench: &Bench) -> Result<()> {
    const OTHERS: usize = 5;
    const FORKS: usize = 10;
    let source = bench.place(&[])?;
    let pid = begin(&source, &[format!("{PROGRAMS}/avx512")])?;
    let first = vec![bench.dir.path().join("layer0")];
    let zygote = bench.zygote(&source, pid, &first, None)?.zygote;
    let start = || -> Result<(Place, i32)> {
        let place = bench.place(&first)?;
        let pid = place.start(&zygote, How::AtOnce)?;
        Ok((place, pid))
    };
    let others: Vec<(Place, i32)> = (0..OTHERS).map(|_| start()).collect::<Result<_>>()?;
    for n in 1..=FORKS {
        let (place, pid) = start()?;
        let layers = [vec![bench.dir.path().join(format!("layer{n}"))], first.clone()].concat();
        bench.zygote(&place, pid, &layers, Some(&zygote)).with_context(|| format!("fork {n}"))?;
        place.sandbox.destroy()?;
    }
    others.into_iter().chain([(source, pid)]).try_for_each(|(place, _)| Ok(place.sandbox.destroy()?))
}

/// The zygote's own time is not the program's: by the limit of that a zygote would be killed when it has made enough copies.
fn no_limit_of_time(bench: &Bench) -> Result<()> {
    let source = bench.place(&[])?;
    let pid = begin(&source, &[format!("{PROGRAMS}/lowered_limits")])?;
    let zygote = bench.zygote(&source, pid, &[bench.dir.path().join("layer")], None)?.zygote;
    let cpu_time = |pid: i32| -> Result<String> {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
        let line = limits.lines().find_map(|line| line.strip_prefix("Max cpu time")).context("no limit of CPU time")?;
        Ok(line.split_whitespace().next().unwrap_or_default().to_owned())
    };
    ensure!(cpu_time(pid)? == "60", "the program has no limit");
    ensure!(cpu_time(zygote.facts.pid)? == "unlimited", "the zygote has a limit of {} s", cpu_time(zygote.facts.pid)?);
    Ok(source.sandbox.destroy()?)
}

/// A copy goes back to the usual filter of what a core file has. A zygote that branches off the copy's own had another.
fn usual_core_filter(bench: &Bench) -> Result<()> {
    let filter = |pid: &str| fs::read_to_string(format!("/proc/{pid}/coredump_filter"));
    let source = bench.place(&[])?;
    let pid = begin(&source, &[format!("{PROGRAMS}/attributes")])?;
    let first = vec![bench.dir.path().join("layer1")];
    let zygote = bench.zygote(&source, pid, &first, None)?.zygote;
    let usual = filter("self")?;
    ensure!(filter(&zygote.facts.pid.to_string())? != usual, "the program has the usual filter");
    let copy = bench.place(&first)?;
    let pid = copy.start(&zygote, How::AtOnce)?;
    fs::write(format!("/proc/{pid}/coredump_filter"), format!("0x{}", usual.trim()))?;
    let second = [vec![bench.dir.path().join("layer2")], first].concat();
    let branch = bench.zygote(&copy, pid, &second, Some(&zygote))?.zygote;
    let forked = bench.place(&second)?;
    let forked_pid = forked.start(&branch, How::AtOnce)?;
    ensure!(
        filter(&forked_pid.to_string())? == usual,
        "the fork has filter {}",
        filter(&forked_pid.to_string())?.trim()
    );
    [source, copy, forked].into_iter().try_for_each(|place| Ok(place.sandbox.destroy()?))
}

/// A thread that ends while the program is being stopped is no reason to fail.
fn ending_threads(bench: &Bench) -> Result<()> {
    captured_in_a_row(bench, "ending_threads", 150)
}

fn captured_in_a_row(bench: &Bench, program: &str, captures: usize) -> Result<()> {
    let source = bench.place(&[])?;
    let pid = begin(&source, &[format!("{PROGRAMS}/{program}")])?;
    let spec = source.capture_spec(pid, None)?;
    for n in 1..=captures {
        process::capture(&spec, &mut || Ok(())).with_context(|| format!("capture {n}"))?;
        killed::reap_stills(pid)?;
    }
    Ok(source.sandbox.destroy()?)
}

/// A program that has used up its share of a processor stops when it gets the next one, here more than a second later.
fn throttled(bench: &Bench) -> Result<()> {
    let source = bench.place(&[])?;
    let pid = begin(&source, &[format!("{PROGRAMS}/ending_threads")])?;
    throttle(pid)?;
    let spec = source.capture_spec(pid, None)?;
    for n in 1..=3 {
        std::thread::sleep(Duration::from_millis(1_500));
        process::capture(&spec, &mut || Ok(())).with_context(|| format!("capture {n}"))?;
        killed::reap_stills(pid)?;
    }
    Ok(source.sandbox.destroy()?)
}

/// From now on the process's control group has a millisecond of a processor in each second.
fn throttle(pid: i32) -> Result<()> {
    let groups = CgroupPaths::read(pid)?;
    let is_legacy = |controllers: &str| controllers.split(',').any(|name| name == "cpu");
    match groups.iter().find(|group| group.controllers.is_some_and(is_legacy)) {
        Some(group) => {
            let directory = format!("/sys/fs/cgroup/cpu{}", group.path);
            fs::write(format!("{directory}/cpu.cfs_period_us"), "1000000").context(directory.clone())?;
            fs::write(format!("{directory}/cpu.cfs_quota_us"), "1000").context(directory)
        }
        None => {
            let file = format!("/sys/fs/cgroup{}/cpu.max", groups.unified().unwrap_or("/"));
            fs::write(&file, "1000 1000000").context(file)
        }
    }
}

/// What a copy has open lies in a layer of its root filesystem, whose files say that they have a name also when the copy has deleted them.
fn deleted_from_a_layer(bench: &Bench) -> Result<()> {
    let argv = [format!("{PROGRAMS}/deleted"), "--keep".into(), "yes".into()];
    let source = bench.place(&[])?;
    let pid = begin(&source, &argv)?;
    let first = vec![bench.dir.path().join("layer1")];
    let zygote = bench.zygote(&source, pid, &first, None)?.zygote;
    let copy = bench.place(&first)?;
    let pid = copy.start(&zygote, How::AtOnce)?;
    for file in ["file", "named"] {
        fs::remove_file(copy.inside(&format!("/tmp/deleted/{file}")))?;
    }
    fs::remove_dir(copy.inside("/tmp/deleted/directory"))?;
    let second = [vec![bench.dir.path().join("layer2")], first].concat();
    let branch = bench.zygote(&copy, pid, &second, Some(&zygote)).context("fork of the copy")?.zygote;
    let forked = bench.place(&second)?;
    let forked_pid = forked.start(&branch, How::AtOnce)?;
    for (how, place, pid) in [("copy", copy, pid), ("fork", forked, forked_pid)] {
        let outcome = go_on(&place, pid).context(how)?;
        ensure!(outcome.printed.last().is_some_and(|last| last == "done"), "{how}: {outcome:?}");
        place.sandbox.destroy()?;
    }
    Ok(source.sandbox.destroy()?)
}

/// A child that ends within the time that is given to it is no reason to refuse, whenever it is seen.
fn ending_children(bench: &Bench) -> Result<()> {
    captured_in_a_row(bench, "ending_children", 20)
}

/// What a capture does while the program is stopped it does once: files that were copied already cannot be copied again.
fn ending_siblings(bench: &Bench) -> Result<()> {
    const LATE: usize = 1;
    const CAPTURES_MAX: usize = 2_000;
    let source = bench.place(&[])?;
    let pid = begin(&source, &[format!("{PROGRAMS}/ending_children"), "--siblings".into(), "yes".into()])?;
    let spec = source.capture_spec(pid, None)?;
    let (mut late, mut n) = (0, 0);
    while late < LATE {
        n += 1;
        ensure!(n <= CAPTURES_MAX, "of {CAPTURES_MAX} captures {late} were refused late");
        let mut cuts = 0;
        let captured = process::capture(&spec, &mut || {
            cuts += 1;
            Ok(())
        });
        ensure!(cuts <= 1, "capture {n} cut the files {cuts} times");
        match captured {
            Ok(_) => {}
            Err(process::Error::Refused(refusals)) => {
                late += usize::from(cuts == 1);
                ensure!(refusals.iter().all(|refusal| refusal.kind() == "siblings"), "capture {n}: {refusals:?}");
            }
            Err(error) => return Err(error).with_context(|| format!("capture {n}")),
        }
        killed::reap_stills(pid)?;
    }
    Ok(source.sandbox.destroy()?)
}
