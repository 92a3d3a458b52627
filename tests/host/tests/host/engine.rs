//! The fork engine on real programs: each runs once undisturbed and once forked between *ready* and *go*; the source of the fork, a copy
//! started by the blob, one that was parked, one started by stepping, one of a zygote that was restored from a checkpoint's bytes, a live fork of a copy and a fork of that must all print, and exit with, what the undisturbed one did.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use pando_host_tests::{
    engine::{Bench, How, PROGRAMS, Place, filters, killed, wait_until},
    runner::Case,
    twins,
};
use process::Zygote;
use rustix::process::{Pid, WaitOptions};

pub(crate) fn cases() -> Vec<Case> {
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
    ]
    .iter()
    .map(|name| differential(name, &[&format!("{PROGRAMS}/{name}")]))
    .collect();
    cases.push(differential("cpython", &["/usr/bin/python3", &format!("{PROGRAMS}/probe.py")]));
    cases.push(differential("node", &["/usr/bin/node", &format!("{PROGRAMS}/probe.js")]));
    cases.push(differential("bash", &["/usr/bin/bash", &format!("{PROGRAMS}/probe.sh")]));
    cases.push(differential("perl", &["/usr/bin/perl", &format!("{PROGRAMS}/probe.pl")]));
    cases.push(differential("jvm-serial", &java));
    cases.push(differential("jvm-default", &java_default));
    cases.push(Case::new("differential::clocks_of_copies_go_on_from_their_capture", clocks));
    cases.push(
        Case::new("differential::timers_for_a_time_of_day_keep_it", wall_timers)
            .slow("its timers are due seconds later"),
    );
    cases.push(Case::new("differential::an_older_kernel_is_pretended_and_made_up_for", on_an_old_kernel));
    cases.extend(REFUSED.iter().map(|(what, text)| {
        let case = Case::new(format!("refused::{what}"), || refused(what, text));
        if what.starts_with("huge_") { case.alone("it changes the number of huge pages of the host") } else { case }
    }));
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
            .slow("a thread rarely ends at the right moment: it captures 400 times"),
    );
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

/// What the probe `refused` holds, and what must be said about it.
const REFUSED: &[(&str, &str)] = &[
    ("lease", "holds a lease on /tmp/leased (LEASE)"),
    ("many_locks", "it has 5000 locks, more than the 4096 that can be forked"),
    ("gone_file", "holds 1073745920 bytes, more than the 1073741824 that a fork carries"),
    ("thread_directory", "does not share working directory and umask with the main thread"),
    ("thread_files", "does not share descriptors with the main thread"),
    ("deleted_directory", "its working directory /tmp/gone (deleted) was deleted or replaced"),
    ("replaced_directory", "its working directory /tmp/gone (deleted) was deleted or replaced"),
    ("replaced_socket", "is a unix socket bound to /tmp/socket, which is gone"),
    ("socket_is_a_file", "is a unix socket bound to /tmp/socket, which is gone"),
    ("many_guards", "it has 65531 guard regions, more than the 65530 that can be forked"),
    ("daemon", "refused): only a single process can be forked"),
    ("shared_memory", "holds 314572800 bytes, more than the 268435456 that a fork carries"),
    ("inotify_events", "bytes of events wait at inotify instance"),
    ("inotify_gone", "watches something that was not found in the root filesystem"),
    ("waiting_connection", "1 connections wait at unix socket"),
    ("foreign_owner", "sends its signals (F_SETOWN) to process"),
    ("message_of_closed", "a socket at which a message of another one (/tmp/closed) waits"),
    ("peer_of_closed", "a socket that sends to another one (/tmp/second), whose own peer is closed"),
    ("urgent_byte", "a byte waits that was sent out of band (MSG_OOB)"),
    ("other_name", "is /tmp/first (deleted), where another file is now, or none"),
    ("registered_elsewhere", "watches a file that has no descriptor any more"),
    ("own_filter", "it installed 1 seccomp filters of its own"),
    ("thread_filter", "it installed 1 seccomp filters of its own"),
    ("replaced_program", "its program file /tmp/self (deleted) was deleted or replaced"),
    ("huge_mapping", "uses huge pages of hugetlbfs"),
    ("huge_memfd", "a memfd of huge pages"),
    ("sibling", "it started processes that are not its children"),
    ("child_and_lease", "holds a lease on /tmp/leased (LEASE)"),
    ("traced", "traces it"),
    ("traced_thread", "traces it"),
    ("semaphores", "System V objects"),
    ("message_queue", "System V objects"),
    ("detached_segment", "System V objects"),
    ("named_queue", "POSIX message queues (kept)"),
    ("open_queue", "is the POSIX message queue /kept"),
    ("closed_directory", "is /tmp/closed/file, which a copy cannot open: the program may not search /tmp/closed"),
    ("nameless_queue", "is the POSIX message queue /kept"),
];

/// Some huge pages of hugetlbfs, which a machine keeps none of by itself.
struct HugePages {
    before: String,
}

impl HugePages {
    const COUNT: &str = "/proc/sys/vm/nr_hugepages";

    fn reserve() -> Result<Self> {
        let before = std::fs::read_to_string(Self::COUNT)?;
        let pages = Self { before };
        let count: u32 = pages.before.trim().parse()?;
        std::fs::write(Self::COUNT, (count + 2).to_string())?;
        Ok(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(Self::COUNT, &self.before) {
            eprintln!("the number of huge pages stays changed: {error}");
        }
    }
}

/// The fork is refused in these words, and the source runs on.
fn refused(what: &str, text: &str) -> Result<()> {
    let _pages = what.starts_with("huge_").then(HugePages::reserve).transpose()?;
    on_a_bench(|bench| refused_on(bench, what, text))
}

fn on_a_bench(body: impl FnOnce(&Bench) -> Result<()>) -> Result<()> {
    let bench = Bench::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/programs"))?;
    let result = body(&bench);
    let finished = bench.finish();
    result.and(finished)
}

fn refused_on(bench: &Bench, what: &str, text: &str) -> Result<()> {
    let source = bench.place(&[])?;
    let pid = begin(&source, &[format!("{PROGRAMS}/refused"), what.to_owned()])?;
    match bench.zygote(&source, pid, &[bench.dir.path().join("layer")], None) {
        Ok(_) => bail!("it was forked"),
        Err(error) => ensure!(format!("{error:#}").contains(text), "it was not said why: {error:#}"),
    }
    if what == "traced_thread" {
        reap_traced(&source, pid)?;
    }
    let outcome = go_on(&source, pid)?;
    ensure!(outcome.printed == ["done"], "the source did not go on: {outcome:?}");
    source.sandbox.destroy()?;
    Ok(())
}

/// Lets the program end, and waits for its threads that this process traces: without that it never ends.
fn reap_traced(source: &Place, pid: i32) -> Result<()> {
    let tids = std::fs::read_dir(format!("/proc/{pid}/task"))?.map(|entry| entry.map(|entry| entry.file_name()));
    let tids: Vec<std::ffi::OsString> = tids.collect::<Result<_, _>>()?;
    std::fs::write(source.inside("/tmp/go"), "")?;
    let tids = tids.iter().filter_map(|tid| tid.to_str()?.parse().ok()).filter(|tid| *tid != pid);
    for tid in tids {
        while !matches!(sys::ptrace::wait(tid)?, sys::ptrace::Stop::Ended(_)) {}
    }
    Ok(())
}

/// A copy whose main thread waits for a processor, which its own threads and other copies have, is forked the moment it was started: the
/// attempts to find it outside of its start leave it time to come there.
fn busy(bench: &Bench) -> Result<()> {
    const OTHERS: usize = 5;
    const FORKS: usize = 25;
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
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
        let line = limits.lines().find_map(|line| line.strip_prefix("Max cpu time")).context("no limit of CPU time")?;
        Ok(line.split_whitespace().next().unwrap_or_default().to_owned())
    };
    ensure!(cpu_time(pid)? == "60", "the program has no limit");
    ensure!(cpu_time(zygote.facts.pid)? == "unlimited", "the zygote has a limit of {} s", cpu_time(zygote.facts.pid)?);
    Ok(source.sandbox.destroy()?)
}

/// A copy goes back to the usual filter of what a core file has. A zygote that branches off the copy's own had another.
fn usual_core_filter(bench: &Bench) -> Result<()> {
    let filter = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/coredump_filter"));
    let source = bench.place(&[])?;
    let pid = begin(&source, &[format!("{PROGRAMS}/attributes")])?;
    let first = vec![bench.dir.path().join("layer1")];
    let zygote = bench.zygote(&source, pid, &first, None)?.zygote;
    let usual = filter("self")?;
    ensure!(filter(&zygote.facts.pid.to_string())? != usual, "the program has the usual filter");
    let copy = bench.place(&first)?;
    let pid = copy.start(&zygote, How::AtOnce)?;
    std::fs::write(format!("/proc/{pid}/coredump_filter"), format!("0x{}", usual.trim()))?;
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
    captured_in_a_row(bench, "ending_threads", 400)
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
        std::fs::remove_file(copy.inside(&format!("/tmp/deleted/{file}")))?;
    }
    std::fs::remove_dir(copy.inside("/tmp/deleted/directory"))?;
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
    const LATE: usize = 2;
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

/// How a program went on: its output after *ready* and how it ended.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    printed: Vec<String>,
    ended: String,
}

fn compare(argv: &[String]) -> Result<()> {
    (0..rounds()?).try_for_each(|round| compare_once(argv).with_context(|| format!("round {round}")))
}

/// How often each differential case is run: `PANDO_ROUNDS`, once without.
fn rounds() -> Result<u32> {
    std::env::var("PANDO_ROUNDS").map_or(Ok(1), |rounds| rounds.parse().context("PANDO_ROUNDS"))
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

fn begin(place: &Place, argv: &[String]) -> Result<i32> {
    let mut argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    argv.extend(["--ready-file", "/tmp/ready", "--go", "/tmp/go"]);
    let pid = place.spawn(&argv)?;
    let ready = place.inside("/tmp/ready");
    if let Err(error) = wait_until("ready", Duration::from_secs(30), || ready.exists()) {
        bail!("{error}; it printed: {}", place.printed()?);
    }
    // Ready means that all its threads are where the program wants them, which some reach an instant later.
    std::thread::sleep(Duration::from_millis(300));
    Ok(pid)
}

fn go_on(place: &Place, pid: i32) -> Result<Outcome> {
    std::fs::write(place.inside("/tmp/go"), "")?;
    let child = Pid::from_raw(pid).context("no pid")?;
    let mut status = None;
    let waited = wait_until("end of the program", Duration::from_secs(60), || {
        match rustix::process::waitpid(Some(child), WaitOptions::NOHANG) {
            Ok(None) => return false,
            Ok(Some((_, ended))) => status = Some(ended),
            Err(_) => {}
        }
        true
    });
    let printed = place.printed()?;
    if let Err(error) = waited {
        bail!("{error}; it printed:\n{printed}");
    }
    let printed =
        printed.lines().filter(|line| *line != "ready" && !line.starts_with("note:")).map(str::to_owned).collect();
    Ok(Outcome { printed, ended: format!("{status:?}") })
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
