//! Pager, spare, guardian, keeper and server killed at random while checkpoints are taken, restored and all their memory is read.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use testkit::{node::Node, runner::Case};

use super::{
    checkpoint::{kill, pagers},
    crash::{Choices, number},
    faults::{expect_right, take},
    shared::Shared,
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("kills::of_any_process_under_load_leave_no_wrong_byte", under_load)
            .slow("it kills processes again and again"),
    ]
}

/// Kills of one round.
const KILLS: u64 = 8;
const COPIES: usize = 3;
/// The pager's processes replace each other within this, also on a busy machine.
const REPLACED_MAX: Duration = Duration::from_secs(5);

fn under_load() -> Result<()> {
    let rounds = number("PANDO_ROUNDS").unwrap_or(2);
    let mut choices = Choices::new("kills::of_any_process_under_load_leave_no_wrong_byte", rounds);
    let shared = Shared::new()?;
    let (node, mut other) = (shared.node()?, shared.node()?);
    node.build_geo("geo", &["--nidx", "2", "--hotels", "2000", "--mb", "24"])?;
    let mut kills = 0;
    for round in 0..rounds {
        let killed = kill_round(&node, &mut other, &mut choices, round);
        kills += killed.with_context(|| {
            format!(
                "round {round}, after {kills} kills; log of the first:\n{}\n\nof the second:\n{}",
                node.log_tail(),
                other.log_tail()
            )
        })?;
    }
    println!("kills::of_any_process_under_load_leave_no_wrong_byte: {kills} kills in {rounds} rounds");
    other.finish()?;
    node.finish()
}

fn kill_round(node: &Node, other: &mut Node, choices: &mut Choices, round: u64) -> Result<u64> {
    if round.is_multiple_of(4) {
        if round > 0 {
            node.ok(&["checkpoint", "rm", "warm"])?;
            node.ok(&["store", "gc"])?;
        }
        take(node, "warm")?;
    }
    let ids: Vec<String> = other.run("warm", COPIES)?.iter().map(|sandbox| sandbox.id.to_string()).collect();
    let mut killed = 0;
    for _ in 0..KILLS {
        std::thread::sleep(Duration::from_micros(choices.below(150_000)));
        match choices.below(8) {
            0 => {
                other.kill_server()?;
                other.start_server()?;
            }
            1 => kill(keeper(other)? as i32)?,
            number => kill_one_of_the_pager(other, number)?,
        }
        killed += 1;
        let id = &ids[choices.below(COPIES as u64) as usize];
        verify_beside(other, id, choices)?;
    }
    // Whatever was killed, also what is made of it now is right.
    for id in &ids {
        right_despite_kills(other, id)?;
    }
    if round % 4 == 1 {
        let fork = other.json(&["fork", &ids[0], "--json"])?;
        expect_right(other, fork["sandboxes"][0]["id"].as_str().context("no copy")?, "warm")?;
        other.ok(&["checkpoint", &ids[1], "--name", "again", "--replace"])?;
        let id = node.run("again", 1)?[0].id.to_string();
        expect_right(node, &id, "warm")?;
        node.ok(&["kill", &id])?;
        node.ok(&["template", "rm", "again"])?;
    }
    let listed = other.ps()?;
    ensure!(listed.iter().all(|sandbox| sandbox.state == api::SandboxState::Running), "stopped: {listed:?}");
    other.ok(&["kill", "--all", "--force"])?;
    other.ok(&["template", "rm", "warm"])?;
    other.expect_only_itself()?;
    Ok(killed)
}

/// A copy reads all its memory while one more of the pager's processes is killed.
fn verify_beside(other: &Node, id: &str, choices: &mut Choices) -> Result<()> {
    let (done, delay) = (AtomicBool::new(false), Duration::from_micros(choices.below(30_000)));
    let victim = choices.below(8);
    std::thread::scope(|scope| {
        let killing = scope.spawn(|| {
            std::thread::sleep(delay);
            if done.load(Relaxed) { Ok(()) } else { kill_one_of_the_pager(other, victim) }
        });
        let right = right_despite_kills(other, id);
        done.store(true, Relaxed);
        killing.join().map_err(|_| anyhow::anyhow!("panicked"))?.and(right)
    })
}

/// A command that meets the keeper's end says so, and is repeated. (A copy that was stopped never gets right.)
fn right_despite_kills(node: &Node, id: &str) -> Result<()> {
    for _ in 0..5 {
        match expect_right(node, id, "warm") {
            Err(error) if format!("{error:#}").contains("the keeper died") => {}
            found => return found,
        }
    }
    expect_right(node, id, "warm")
}

/// The keeper's pid, waited for: another one may be starting.
fn keeper(node: &Node) -> Result<u32> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(pid) = node.info()?.keeper_pid {
            return Ok(pid);
        }
        ensure!(Instant::now() < deadline, "no keeper comes");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// One of guardian, spare and pager, once all three are there: only their death at once loses memory, and is not promised against.
fn kill_one_of_the_pager(node: &Node, which: u64) -> Result<()> {
    let deadline = Instant::now() + REPLACED_MAX;
    loop {
        let family = pagers(node)?;
        if family.len() == 3 {
            return kill(family[(which % 3) as usize]);
        }
        ensure!(Instant::now() < deadline, "the pager's processes are not replaced: {family:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
