//! Each program runs once undisturbed and once forked between *ready* and *go*. The source of the fork, a copy started by the blob, one that
//! was parked, one started by stepping, one of a zygote that was restored from a checkpoint's bytes, a live fork of a copy and a fork of that
//! must all print, and exit with, what the undisturbed one did.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use process::Zygote;
use sandbox::User;
use testkit::{
    engine::{Bench, How, PROGRAMS},
    runner::Case,
    twins,
};

use super::{Outcome, begin, go_on, on_a_bench, on_a_bench_of, rounds};

pub(super) fn cases() -> Vec<Case> {
    let java = [
        "/usr/bin/java",
        "-XX:+UseSerialGC",
        "-Xmx64m",
        "-XX:TieredStopAtLevel=1",
        "-Xshare:auto",
        "-cp",
        PROGRAMS,
        "Probe",
    ];
    let java_default = ["/usr/bin/java", "-cp", PROGRAMS, "Probe"];
    let mut cases: Vec<Case> = [
        "avx512",
        "robust_mutex",
        "rseq",
        "rseq_section",
        "sigaltstack",
        "signals",
        "timers",
        "restart",
        "descriptors",
        "descriptors_watch",
        "memory",
        "guards",
        "identity",
        "privileges",
        "threads400",
        "many_eventfds",
        "queues",
        "shared",
        "handlers",
        "locks",
        "gone_files",
        "socket_options",
        "binding",
        "unix_names",
        "registrations",
        "deleted",
        "attributes",
        "lowered_limits",
        "probe-go",
        "tree",
        "forks_children",
        "shared_with_child",
        "system_v",
        "pidfds",
        "on_their_way",
    ]
    .iter()
    .map(|name| differential(name, &[&format!("{PROGRAMS}/{name}")]))
    .collect();
    cases.push(differential("cpython", &["/usr/bin/python3", &format!("{PROGRAMS}/probe.py")]));
    cases.push(differential("node", &["/usr/bin/node", &format!("{PROGRAMS}/probe.js")]));
    cases.push(differential("bash", &["/usr/bin/bash", &format!("{PROGRAMS}/probe.sh")]));
    cases.push(differential("tree-of-python", &["/usr/bin/python3", &format!("{PROGRAMS}/tree.py")]));
    cases.push(differential("tree-of-bash", &["/usr/bin/bash", &format!("{PROGRAMS}/tree.sh")]));
    cases.push(differential("on_their_way-alone", &[&format!("{PROGRAMS}/on_their_way"), "--alone", "yes"]));
    cases.push(differential("stopped-jobs", &["/usr/bin/python3", &format!("{PROGRAMS}/jobs.py")]));
    cases.push(differential("perl", &["/usr/bin/perl", &format!("{PROGRAMS}/probe.pl")]));
    for name in ["privileges", "identity", "descriptors", "threads400"] {
        let argv = [format!("{PROGRAMS}/{name}")];
        let as_root = move || on_a_bench_of(User::ROOT, |bench| compare_on(bench, &argv, USUAL));
        cases.push(Case::new(format!("differential::{name}-as-root"), as_root));
    }
    cases.push(differential("jvm-serial", &java));
    cases.push(differential("jvm-default", &java_default));
    cases.push(Case::new("differential::clocks_of_copies_go_on_from_their_capture", clocks));
    cases.push(
        Case::new("differential::timers_for_a_time_of_day_keep_it", wall_timers)
            .slow("its timers are due seconds later")
            .alone("its timers are due within tenths of a second"),
    );
    cases.push(Case::new("differential::an_older_kernel_is_pretended_and_made_up_for", on_an_old_kernel));
    cases
}

fn differential(name: &str, argv: &[&str]) -> Case {
    let argv: Vec<String> = argv.iter().map(|arg| (*arg).to_owned()).collect();
    let case = Case::new(format!("differential::{name}"), move || compare(&argv));
    if MEASURED.contains(&name) { case.alone("it measures how long its source stands still") } else { case }
}

/// Programs that hold much of something. Their sources may not be stopped for longer than [`PAUSE_MAX`].
const MEASURED: [&str; 2] = ["threads400", "many_eventfds"];

/// Far above what they need, far below what a quadratic step takes.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How old the zygote is when copies of it are started, and how long a parked copy waits.
#[derive(Debug, Clone, Copy)]
struct Ages {
    zygote: Duration,
    parked: Duration,
}

/// Parked for longer than any timer of the programs would take to be late by it.
const USUAL: Ages = Ages { zygote: Duration::ZERO, parked: Duration::from_millis(400) };

/// Copies of an old zygote, and one that has waited, see no time pass: every step that they see is a good deal shorter.
fn clocks() -> Result<()> {
    const AGES: Ages = Ages { zygote: Duration::from_secs(2), parked: Duration::from_secs(2) };
    let argv = [format!("{PROGRAMS}/clocks"), "--gap-max".into(), (AGES.zygote / 2).as_millis().to_string()];
    on_a_bench(|bench| compare_on(bench, &argv, AGES))
}

/// Copies of an old zygote, and one that has waited, have timers that are due at the same time of day.
fn wall_timers() -> Result<()> {
    const AGES: Ages = Ages { zygote: Duration::from_millis(1_200), parked: Duration::from_millis(1_200) };
    on_a_bench(|bench| compare_on(bench, &[format!("{PROGRAMS}/wall_timers")], AGES))
}

/// What kernels before 6.15 lack is done another way: layers of the root, numbers of timers.
fn on_an_old_kernel() -> Result<()> {
    sys::kernel::pretend_old(true);
    let result = compare(&[format!("{PROGRAMS}/timers")]);
    sys::kernel::pretend_old(false);
    result
}

fn compare(argv: &[String]) -> Result<()> {
    (0..rounds()?).try_for_each(|round| compare_once(argv).with_context(|| format!("round {round}")))
}

fn compare_once(argv: &[String]) -> Result<()> {
    on_a_bench(|bench| compare_on(bench, argv, USUAL))
}

fn compare_on(bench: &Bench, argv: &[String], ages: Ages) -> Result<()> {
    let undisturbed = bench.place(&[])?;
    let pid = begin(&undisturbed, argv).context("undisturbed")?;
    let expected = go_on(&undisturbed, pid).context("undisturbed")?;
    ensure!(!expected.printed.is_empty(), "the program printed nothing to compare");
    let source = bench.place(&[])?;
    let source_pid = begin(&source, argv).context("source")?;
    let layer = |n: u32| bench.dir.path().join(format!("layer{n}"));
    let first = vec![layer(1)];
    let built = bench.zygote(&source, source_pid, &first, None)?;
    let is_measured = MEASURED.iter().any(|name| argv[0].ends_with(name));
    ensure!(!is_measured || built.pause < PAUSE_MAX, "the source was stopped for {:?}", built.pause);
    let restored = bench.restore(&built, &first).context("restored")?;
    expect_twins(&built.zygote, &restored)?;
    let zygote = built.zygote;
    std::thread::sleep(ages.zygote);
    let mut places = vec![("source", source, source_pid)];
    let starts = [
        ("copy", &zygote, How::AtOnce),
        ("parked copy", &zygote, How::Parked(ages.parked)),
        ("stepped copy", &zygote, How::Stepping),
        ("restored copy", &restored, How::AtOnce),
    ];
    for (name, zygote, how) in starts {
        let place = bench.place(&first)?;
        let pid = place.start(zygote, how).with_context(|| name.to_owned())?;
        places.push((name, place, pid));
    }
    // A live fork: a copy that runs is itself the source of a zygote that branches off the one it came from; and once more.
    let (_, copy, copy_pid) = &places[1];
    let second = vec![layer(2), layer(1)];
    let branch = bench.zygote(copy, *copy_pid, &second, Some(&zygote)).context("branch")?.zygote;
    let forked = bench.place(&second)?;
    let forked_pid = forked.start(&branch, How::AtOnce).context("fork of a copy")?;
    let third = vec![layer(3), layer(2), layer(1)];
    let twig = bench.zygote(&forked, forked_pid, &third, Some(&branch)).context("branch of the branch")?.zygote;
    places.push(("fork of a copy", forked, forked_pid));
    let place = bench.place(&third)?;
    let pid = place.start(&twig, How::AtOnce).context("fork of a fork")?;
    places.push(("fork of a fork", place, pid));
    for (how, place, pid) in places {
        let outcome = go_on(&place, pid).with_context(|| how.to_owned());
        place.sandbox.destroy()?;
        check(how, &expected, &outcome?)?;
    }
    undisturbed.sandbox.destroy()?;
    Ok(())
}

/// Page for page the restored zygote has the memory of the still, of which the other was made.
fn expect_twins(zygote: &Zygote, restored: &Zygote) -> Result<()> {
    let (first, second) = (&zygote.facts, &restored.facts);
    let compared = twins::compare(first.pid, second.pid, &[first.arena, second.arena]).context("restored")?;
    ensure!(compared.pages > 0 && compared.differing.is_empty(), "restored memory: {compared:x?}");
    ensure!(compared.unshared.is_empty(), "restored mappings: {compared:x?}");
    Ok(())
}

fn check(how: &str, expected: &Outcome, found: &Outcome) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let differing: Vec<String> = (0..expected.printed.len().max(found.printed.len()))
        .map(|n| (expected.printed.get(n), found.printed.get(n)))
        .filter(|(a, b)| a != b)
        .take(12)
        .map(|(a, b)| format!("        expected {a:?}\n        found    {b:?}"))
        .collect();
    bail!("{how} differs: ended {} (expected {})\n{}", found.ended, expected.ended, differing.join("\n"))
}
