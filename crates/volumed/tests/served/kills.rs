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

use crate::place::{FAST, Node, kill, wait_until};

const PROGRAMS: usize = 4;

pub(crate) fn either_process_may_be_killed_at_any_moment() -> Result<()> {
    let rounds = std::env::var("PANDO_ROUNDS").map_or(Ok(15), |text| text.parse())?;
    let node = Node::new(FAST)?;
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
        // A program that has ended before it was told to has failed.
        let killed = kill_at_random(&node, rounds, steps, || programs.iter().any(|program| program.is_finished()));
        stop.store(true, Relaxed);
        let written: Result<Vec<_>> =
            programs.into_iter().map(|program| program.join().expect("it does not panic")).collect();
        // Why a program failed says more.
        written.and_then(|written| killed.map(|()| written))
    })?;
    println!("   {} steps over {rounds} kills", steps.load(Relaxed));
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

fn kill_at_random(node: &Node, rounds: u64, steps: &AtomicU64, failed: impl Fn() -> bool) -> Result<()> {
    for round in 0..rounds {
        ensure!(!failed(), "a program failed before round {round}");
        thread::sleep(Duration::from_millis(fastrand::u64(0..300)));
        let (worker, guardian) = (node.worker(), node.guardian());
        let victim = if fastrand::u8(0..3) == 0 { guardian } else { worker };
        let Some(victim) = victim else { continue };
        kill(victim)?;
        let before = steps.load(Relaxed);
        wait_until("both are there, and programs go on", || {
            let alive =
                node.worker().is_some_and(|pid| pid != victim) && node.guardian().is_some_and(|pid| pid != victim);
            Ok(alive && steps.load(Relaxed) > before + PROGRAMS as u64)
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
