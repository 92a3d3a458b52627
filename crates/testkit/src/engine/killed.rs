//! The process that captures a program is killed, again and again, at any moment. The program must not notice.

use std::{
    os::{fd::AsFd, unix::fs::MetadataExt},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use base::id::Arena;
use base::id::fill_random;
use process::{CaptureSpec, Stream, StreamFile};
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, waitid, waitpid};

use super::{Bench, How, Place};

/// Counts in its main thread while others sleep, wait for locks and compute, so that a capture meets threads in all kinds of places.
const PROGRAM: &str = "import threading, time\n\
    lock = threading.Lock()\n\
    def hold():\n    while True:\n        with lock: time.sleep(0.0005)\n\
    def spin():\n    n = 0\n    while True: n += 1\n\
    for body in (hold, hold, spin): threading.Thread(target=body, daemon=True).start()\n\
    n = 0\n\
    while True:\n    n += 1\n    print(n, flush=True)\n    time.sleep(0.0005)\n";

/// The argument by which the runner is called as the one that captures: then follow the process, and begin and end of its arena.
pub const CAPTURE: &str = "--capture";

/// Captures a program over and over, until it is killed.
pub fn capture_for_ever(arguments: &[&str]) -> Result<()> {
    let [pid, start, end] = arguments else { anyhow::bail!("{CAPTURE} PID START END") };
    let arena = Arena { start: start.parse()?, end: end.parse()? };
    let streams = [(0, Stream::STDIN), (1, Stream::STDOUT)].map(|(number, stream)| {
        let status = std::fs::metadata(format!("/proc/{pid}/fd/{number}"))?;
        anyhow::Ok((StreamFile { dev: status.dev(), ino: status.ino() }, stream))
    });
    let streams = streams.into_iter().collect::<Result<_>>()?;
    let spec = CaptureSpec {
        init: None,
        pid: pid.parse()?,
        streams,
        earlier_arena: Some(arena),
        mount_points: Vec::new(),
        volumes: Vec::new(),
        commands: Vec::new(),
        without_program: false,
        started: Vec::new(),
        memory_files: None,
    };
    loop {
        process::capture(&spec, &mut || Ok(()))?;
    }
}

/// A copy runs on, whenever its tracer is killed.
pub fn a_copy_outlives_its_tracers(bench: &Bench, rounds: u32) -> Result<()> {
    let source = bench.place(&[])?;
    let pid = source.spawn(&["/usr/bin/python3", "-c", PROGRAM])?;
    progress(&source, 0)?;
    let layer = bench.dir.path().join("layer");
    let zygote = bench.zygote(&source, pid, std::slice::from_ref(&layer), None)?.zygote;
    source.sandbox.destroy()?;
    let copy = bench.place(&[layer])?;
    let pid = copy.start(&zygote, How::AtOnce)?;
    let Arena { start, end } = zygote.facts.arena;
    let mut last = progress(&copy, 0)?;
    for round in 0..rounds {
        let mut tracer = Command::new(std::env::current_exe()?)
            .arg(CAPTURE)
            .args([pid.to_string(), start.to_string(), end.to_string()])
            .stdin(Stdio::null())
            .spawn()?;
        let mut byte = [0];
        fill_random(&mut byte);
        std::thread::sleep(Duration::from_micros(8_000 + u64::from(byte[0]) * 50));
        let early = tracer.try_wait()?;
        tracer.kill()?;
        tracer.wait()?;
        ensure!(early.is_none(), "the tracer ended by itself: {early:?}");
        reap_stills(pid)?;
        last = progress(&copy, last).with_context(|| format!("round {round}"))?;
    }
    copy.sandbox.destroy()?;
    Ok(())
}

/// Waits until the program has counted further than `last`, each number once; gives how far.
fn progress(place: &Place, last: u64) -> Result<u64> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let printed = place.printed()?;
        let numbers: Vec<u64> = printed.lines().filter_map(|line| line.parse().ok()).collect();
        let gap = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1);
        ensure!(gap.is_none(), "a gap or a repetition at {gap:?}");
        match numbers.last() {
            Some(reached) if *reached > last => return Ok(*reached),
            _ => ensure!(Instant::now() < deadline, "it stands still at {last}; it printed:\n{}", tail(&printed)),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

/// The clones of the killed ones are children of ours, and those of captures that are done with. If the program itself has ended, says how.
pub fn reap_stills(program: i32) -> Result<()> {
    loop {
        let program = Pid::from_raw(program).context("no pid")?;
        let pidfd = rustix::process::pidfd_open(program, rustix::process::PidfdFlags::empty())?;
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = waitid(WaitId::PidFd(pidfd.as_fd()), look)?;
        ensure!(ended.is_none(), "the program has ended: {ended:?}");
        match waitpid(None, WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
