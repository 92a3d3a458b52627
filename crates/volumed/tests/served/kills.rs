//! Processes that are killed while programs work.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use api::volume::FileInfo;
use hyper::Method;
use rustix::process::Pid;

use crate::place::{FAST, Node, is_alive, kill, wait_until};

const PROGRAMS: usize = 4;

/// Of the case in which two volumes are mounted.
const MOUNTS: usize = 2;

pub(crate) fn either_process_may_be_killed_at_any_moment() -> Result<()> {
    let rounds = std::env::var("PANDO_ROUNDS").map_or(Ok(15), |text| text.parse())?;
    while_programs_work(FAST, |work| kill_at_random(work, rounds))
}

pub(crate) fn a_worker_may_die_at_each_of_its_places() -> Result<()> {
    // Often, because segments are emptied after so many commits.
    const COMMIT_PAUSE_MS: u64 = 20;
    while_programs_work([COMMIT_PAUSE_MS, FAST[1], FAST[2]], |work| {
        // A tree in several segments: what is in one of them is never moved.
        for part in 0..4 {
            let folder = work.mount.join(format!("part{part}"));
            fs::create_dir(&folder)?;
            (0..500).try_for_each(|number| fs::write(folder.join(number.to_string()), "x"))?;
            thread::sleep(Duration::from_millis(4 * COMMIT_PAUSE_MS));
        }
        work.node.create("other")?;
        let mount = work.node.mount("other")?;
        fs::write(mount.path.join("base"), "base")?;
        let stop = AtomicBool::new(false);
        let restores = thread::scope(|scope| {
            let clerk = scope.spawn(|| clerk(work.node, &mount.path, &stop));
            let died = die_at_each_place(work, || clerk.is_finished());
            stop.store(true, Relaxed);
            clerk.join().expect("it does not panic").and_then(|restores| died.map(|()| restores))
        })?;
        println!("   {restores} restores beside it");
        mount.leave()
    })
}

/// Programs at work in a mount, while something is done to the processes that serve it.
struct Work<'n> {
    node: &'n Node,
    mount: &'n Path,
    /// What the programs have done so far, together.
    steps: &'n AtomicU64,
    /// A program that has ended before it was told to has failed.
    failed: &'n dyn Fn() -> bool,
}

impl Work<'_> {
    /// Every program has gone on since there were `before` steps.
    fn goes_on(&self, before: u64) -> bool {
        self.steps.load(Relaxed) > before + PROGRAMS as u64
    }
}

/// No program sees an error, and what each has written is there: in the mount, and on another node afterwards.
fn while_programs_work(options: [u64; 3], disturb: impl FnOnce(&Work<'_>) -> Result<()>) -> Result<()> {
    let node = Node::new(options)?;
    node.create("ws")?;
    let mount = node.mount("ws")?;
    let (stop, steps) = (AtomicBool::new(false), AtomicU64::new(0));
    let written = thread::scope(|scope| {
        let (stop, steps) = (&stop, &steps);
        let programs: Vec<_> = (0..PROGRAMS)
            .map(|number| {
                let home = mount.path.join(format!("p{number}"));
                scope.spawn(move || {
                    program(&home, number as u64, stop, steps).with_context(|| format!("program {number}"))
                })
            })
            .collect();
        let failed = || programs.iter().any(|program| program.is_finished());
        let disturbed = disturb(&Work { node: &node, mount: &mount.path, steps, failed: &failed });
        stop.store(true, Relaxed);
        let written: Result<Vec<_>> =
            programs.into_iter().map(|program| program.join().expect("it does not panic")).collect();
        // Why a program failed says more.
        written.and_then(|written| disturbed.map(|()| written))
    })?;
    println!("   {} steps", steps.load(Relaxed));
    for (number, files) in written.iter().enumerate() {
        check(&mount.path.join(format!("p{number}")), files)?;
    }
    mount.leave()?;
    node.finish()?;
    // All of it is in the store: another node has it.
    let other = node.neighbour("other")?;
    for (number, files) in written.iter().enumerate() {
        for (name, content) in files {
            let answer = other.send(Method::GET, &format!("/volumes/ws/files/p{number}/{name}"), "")?;
            ensure!(answer.body == content, "p{number}/{name}: {}", answer.status);
        }
    }
    other.finish()
}

/// Keeps, restores and forks states of another volume until it is told to stop. A worker that dies takes its answers along; who uses the mount sees
/// no error, and finds what was to stay.
fn clerk(node: &Node, mount: &Path, stop: &AtomicBool) -> Result<u64> {
    let mut restores = 0;
    let ask = |method, path: &str, body: String| {
        let json = [("content-type", "application/json")];
        node.send_with(method, &format!("/volumes{path}"), body, &json).is_ok_and(|a| a.status.is_success())
    };
    for round in 0u64.. {
        if stop.load(Relaxed) {
            break;
        }
        let snapshot = format!(r#"{{"snapshot": "s{round}"}}"#);
        fs::write(mount.join("changing"), round.to_string()).context("write")?;
        if ask(Method::POST, "/other/snapshots", snapshot.clone()) {
            fs::write(mount.join("changing"), "undone").context("write again")?;
            if ask(Method::POST, "/other/restore", snapshot) {
                restores += 1;
                let found = fs::read_to_string(mount.join("changing")).context("read")?;
                ensure!(found == round.to_string(), "restored to {round}: {found:?}");
            }
        }
        // A volume that is opened anew.
        let fork = format!("fork{round}");
        ask(Method::POST, "/other/fork", format!(r#"{{"name": "{fork}"}}"#));
        ask(Method::GET, &format!("/{fork}/files/base"), String::new());
        ask(Method::DELETE, &format!("/{fork}"), String::new());
        let base = fs::read(mount.join("base")).context("read what stays")?;
        ensure!(base == b"base", "{base:?}");
    }
    Ok(restores)
}

fn die_at_each_place(work: &Work<'_>, clerk_failed: impl Fn() -> bool) -> Result<()> {
    let node = work.node;
    let nobody_failed = || {
        ensure!(!(work.failed)() && !clerk_failed(), "a program failed");
        Ok(())
    };
    // Both passes as a soak. Otherwise every place has one of them, and chance says which.
    let (both, odd) = (std::env::var_os("PANDO_ROUNDS").is_some(), fastrand::usize(..2));
    for (number, place) in volume::CRASH_POINTS.into_iter().enumerate() {
        for pass in [1, 3].into_iter().filter(|pass| both || (pass / 2 + number) % 2 == odd) {
            // One that has seen workers die takes its time with the next.
            let guardian = node.guardian().context("it lives")?;
            kill(guardian)?;
            wait_until("its heir has the mounts", || {
                let heir = node.guardian().filter(|heir| *heir != guardian);
                Ok(heir.is_some_and(|heir| devices(heir) == MOUNTS))
            })?;
            let worker = node.worker().context("it lives")?;
            fs::write(node.to_die().with_extension("new"), format!("{place}:{pass}"))?;
            fs::rename(node.to_die().with_extension("new"), node.to_die())?;
            let dies = wait_until("the worker has died there", || nobody_failed().map(|()| !is_alive(worker)));
            dies.with_context(|| format!("{place}:{pass}"))?;
            // What they did since was answered by another worker, which has all that the guardian had to give.
            let before = work.steps.load(Relaxed);
            let goes_on = wait_until("there is another, and programs go on", || {
                nobody_failed().map(|()| node.worker().is_some() && work.goes_on(before))
            });
            goes_on.with_context(|| format!("after {place}:{pass}"))?;
        }
    }
    Ok(())
}

/// How many superblocks of FUSE a process holds.
fn devices(pid: Pid) -> usize {
    let held = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).into_iter().flatten().flatten();
    held.filter(|held| fs::read_link(held.path()).is_ok_and(|link| link == Path::new("/dev/fuse"))).count()
}

fn kill_at_random(work: &Work<'_>, rounds: u64) -> Result<()> {
    let node = work.node;
    for round in 0..rounds {
        ensure!(!(work.failed)(), "a program failed before round {round}");
        thread::sleep(Duration::from_millis(fastrand::u64(0..300)));
        let (worker, guardian) = (node.worker(), node.guardian());
        let victim = if fastrand::u8(0..3) == 0 { guardian } else { worker };
        let Some(victim) = victim else { continue };
        kill(victim)?;
        let before = work.steps.load(Relaxed);
        wait_until("both are there, and programs go on", || {
            let alive =
                node.worker().is_some_and(|pid| pid != victim) && node.guardian().is_some_and(|pid| pid != victim);
            Ok(alive && work.goes_on(before))
        })
        .with_context(|| format!("round {round}"))?;
    }
    Ok(())
}

/// Works until it is told to stop; any error is one. Gives what its files hold.
fn program(home: &Path, seed: u64, stop: &AtomicBool, steps: &AtomicU64) -> Result<BTreeMap<String, Vec<u8>>> {
    fs::create_dir(home)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let log = OpenOptions::new().create(true).append(true).open(home.join("log"))?;
    let nameless = nameless(home)?;
    for step in 0u64.. {
        if stop.load(Relaxed) {
            break;
        }
        steps.fetch_add(1, Relaxed);
        one_step(home, &mut random, &mut files, step).with_context(|| format!("step {step}"))?;
        (&log).write_all(&step.to_le_bytes())?;
        files.entry("log".to_owned()).or_default().extend(step.to_le_bytes());
        nameless.write_all_at(&step.to_le_bytes(), 8 * (step % 1000))?;
        let mut read = [0; 8];
        nameless.read_exact_at(&mut read, 8 * (step % 1000))?;
        ensure!(read == step.to_le_bytes(), "the file without a name");
    }
    Ok(files)
}

/// A file that is open and has no name any more.
fn nameless(home: &Path) -> Result<File> {
    let path = home.join("nameless");
    let file = OpenOptions::new().create_new(true).read(true).write(true).open(&path)?;
    fs::remove_file(path)?;
    Ok(file)
}

fn one_step(home: &Path, random: &mut fastrand::Rng, files: &mut BTreeMap<String, Vec<u8>>, step: u64) -> Result<()> {
    let name = format!("f{}", random.u8(..40));
    let path = home.join(&name);
    match (random.u8(..6), files.contains_key(&name)) {
        (0, true) => {
            fs::remove_file(&path).context("remove")?;
            files.remove(&name);
        }
        (1, true) => {
            let to = format!("f{}", random.u8(..40));
            fs::rename(&path, home.join(&to)).context("rename")?;
            let content = files.remove(&name).context("it is known")?;
            files.insert(to, content);
        }
        (2, true) => {
            let read = fs::read(&path).context("read")?;
            ensure!(Some(&read) == files.get(&name), "{name}: {} bytes", read.len());
        }
        (3, false) => {
            let directory = home.join(format!("d{step}"));
            fs::create_dir(&directory).context("make a directory")?;
            fs::remove_dir(&directory).context("remove a directory")?;
        }
        _ => {
            let content: Vec<u8> = (0..random.usize(..60_000)).map(|n| (n as u64 * 31 + step) as u8).collect();
            let mut file = File::create(&path).context("create")?;
            file.write_all(&content).context("write")?;
            if random.u8(..4) == 0 {
                file.sync_all().context("sync")?;
            }
            files.insert(name, content);
        }
    }
    Ok(())
}

fn check(home: &Path, files: &BTreeMap<String, Vec<u8>>) -> Result<()> {
    let mut found: Vec<String> = Vec::new();
    for entry in fs::read_dir(home)? {
        found.push(entry?.file_name().into_string().expect("all names are text"));
    }
    found.sort();
    let expected: Vec<&String> = files.keys().collect();
    ensure!(found.iter().eq(expected.iter().copied()), "{found:?} {expected:?}");
    for (name, content) in files {
        let read = fs::read(home.join(name))?;
        ensure!(&read == content, "{name}: {} bytes, expected {}", read.len(), content.len());
    }
    Ok(())
}

pub(crate) fn mounts_outlive_a_worker_that_finds_no_store() -> Result<()> {
    let node = Node::new(FAST)?;
    node.create("ws")?;
    let mount = node.mount("ws")?;
    fs::write(mount.path.join("a"), b"1")?;
    fs::write(node.away(), b"")?;
    kill(node.worker().context("it lives")?)?;
    let path = mount.path.join("b");
    let writer = thread::spawn(move || fs::write(path, b"2"));
    thread::sleep(Duration::from_millis(700));
    ensure!(!writer.is_finished(), "it waits for the store");
    kill(node.guardian().context("it lives")?)?;
    fs::remove_file(node.away())?;
    writer.join().expect("it does not panic")?;
    ensure!(fs::read(mount.path.join("a"))? == b"1" && fs::read(mount.path.join("b"))? == b"2");
    node.send(Method::PUT, "/volumes/ws/files/c", "3")?.parsed::<FileInfo>()?;
    ensure!(fs::read(mount.path.join("c"))? == b"3");
    mount.leave()?;
    node.finish()
}
