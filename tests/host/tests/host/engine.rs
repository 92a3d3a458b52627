//! The fork engine on real programs, without a node.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, WaitOptions};
use sandbox::User;
use testkit::{
    engine::{Bench, Place, wait_until},
    runner::Case,
};

mod differential;
mod refused;
mod single;

pub(crate) fn cases() -> Vec<Case> {
    [differential::cases(), refused::cases(), single::cases()].into_iter().flatten().collect()
}

fn on_a_bench(body: impl FnOnce(&Bench) -> Result<()>) -> Result<()> {
    on_a_bench_of(User::PROGRAM, body)
}

fn on_a_bench_of(user: User, body: impl FnOnce(&Bench) -> Result<()>) -> Result<()> {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/programs");
    let bench = Bench::new(&programs)?.with_user(user);
    let result = body(&bench);
    let finished = bench.finish();
    result.and(finished)
}

/// How a program went on: its output after *ready* and how it ended.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    printed: Vec<String>,
    ended: String,
}

/// How often each differential case is run: `PANDO_ROUNDS`, once without.
fn rounds() -> Result<u32> {
    std::env::var("PANDO_ROUNDS").map_or(Ok(1), |rounds| rounds.parse().context("PANDO_ROUNDS"))
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
    place.touch("/tmp/go")?;
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
