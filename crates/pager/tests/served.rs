//! Real processes, served by a real pager: every byte is checked by the process itself.
//!
//! No harness: this program is also the guardian, which must be forked before there are threads.

mod common;

use std::{
    os::fd::OwnedFd,
    path::Path,
    process::{Child, ExitCode},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use common::{Guardian, Mode, Picture, Victim, be_guardian, victim_program, wait_until};
use pager::{Client, Counters, RECORDING};
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process},
};

const FAST: u64 = 1 << 34;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("guardian") => be_guardian(&arguments[1..]),
        filter => run_all(filter.filter(|text| !text.starts_with('-')).unwrap_or_default()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

type Case = fn(&Path) -> Result<()>;

fn run_all(filter: &str) -> Result<()> {
    let cases: &[(&str, Case)] = &[
        ("a_process_reads_what_the_image_has", a_process_reads_what_the_image_has),
        ("first_faults_are_recorded_before_anything_is_filled", first_faults_are_recorded_before_anything_is_filled),
        ("forks_of_what_stands_still_need_no_store", forks_of_what_stands_still_need_no_store),
        ("forks_of_what_stands_still_are_filled_in_a_hurry_or_when_it_is_gone", hurried),
        ("forks_moves_and_removals_are_followed", forks_moves_and_removals_are_followed),
        ("what_is_touched_in_the_instant_of_a_fork_is_in_the_child", touched_while_forking),
        ("failures_that_pass_are_not_noticed", failures_that_pass_are_not_noticed),
        ("a_lost_page_stops_who_needs_it_and_nobody_else", a_lost_page_stops_who_needs_it_and_nobody_else),
        ("an_image_that_cannot_be_opened_stops_its_process", an_image_that_cannot_be_opened_stops_its_process),
        ("images_give_their_places_to_later_ones", images_give_their_places_to_later_ones),
        ("a_guardian_without_work_ends", a_guardian_without_work_ends),
        ("a_takeover_is_not_the_end", a_takeover_is_not_the_end),
        ("a_pager_that_is_alone_ends_what_it_has_and_others_begin", alone),
        ("any_of_them_may_be_killed_at_any_moment", any_of_them_may_be_killed_at_any_moment),
    ];
    let dir = tempfile::tempdir()?;
    let program = victim_program(dir.path())?;
    for (name, case) in cases.iter().filter(|(name, _)| name.contains(filter)) {
        let start = Instant::now();
        case(&program).with_context(|| format!("{name} failed"))?;
        println!("ok {name} ({:.1} s)", start.elapsed().as_secs_f32());
    }
    Ok(())
}

fn picture(seed: u64) -> Picture {
    Picture { seed, pages: 2000, cluster_pages: 16, keeps: true, wait_us: 200, ..Picture::default() }
}

fn begin(program: &Path, guardian: &Guardian, name: &str, picture: &Picture, ops: u64) -> Result<Child> {
    let victim = Victim::start(program, picture, ops)?;
    victim.serve(guardian, name, picture)?;
    victim.go()
}

fn ends_well(mut victim: Child) -> Result<()> {
    let status = victim.wait()?;
    ensure!(status.success(), "the victim ended with {status}");
    Ok(())
}

fn a_process_reads_what_the_image_has(program: &Path) -> Result<()> {
    let guardian = Guardian::start(FAST, 5000, 60_000)?;
    ends_well(begin(program, &guardian, "plain", &picture(1), 0)?)?;
    let status = guardian.client()?.status()?;
    ensure!(status.failures.is_empty() && status.counters.faults > 0, "{status:?}");
    guardian.finish()
}

fn first_faults_are_recorded_before_anything_is_filled(program: &Path) -> Result<()> {
    for _ in 0..20 {
        let start = Instant::now();
        let guardian = Guardian::start(FAST, 5000, 60_000)?;
        let picture = Picture { unrecorded: true, cluster_pages: 1, ..picture(2) };
        let victim = Victim::start(program, &picture, 0)?;
        victim.serve(&guardian, "hot", &picture)?;
        ensure!(guardian.client()?.shutdown().is_err(), "it must not end while pages are missing");
        ends_well(victim.go()?)?;
        let status = guardian.client()?.status()?;
        // A busy machine may take longer than the recording.
        let is_meaningful = start.elapsed() < RECORDING;
        ensure!(!is_meaningful || status.counters.fill_pages == 0, "{status:?}");
        let order = guardian.client()?.working_set("hot")?;
        ensure!(!is_meaningful || order.len() > 1000, "{} pages, {order:x?}", order.len());
        guardian.client()?.forget("hot")?;
        wait_until("it is forgotten", || Ok(guardian.client()?.status()?.images.is_empty()))?;
        guardian.finish()?;
        if is_meaningful {
            return Ok(());
        }
    }
    bail!("the machine is too busy: no victim came to its end within {RECORDING:?}")
}

/// A parked process that has all its pages, and its child, which has none and waits.
fn parked(program: &Path, guardian: &Guardian, picture: &Picture) -> Result<Victim> {
    let victim = Victim::start(program, picture, 0)?;
    victim.serve(guardian, "still", picture)?;
    let mut seen = 0;
    wait_until("the parked one is whole, and its child is not", || {
        let status = guardian.client()?.status()?;
        let processes = status.images.first().map_or(0, |image| image.processes);
        seen = processes.max(seen);
        Ok(seen == 2 && processes == 1)
    })?;
    Ok(victim)
}

fn forks_of_what_stands_still_need_no_store(program: &Path) -> Result<()> {
    let guardian = Guardian::start(8 << 20, 1000, 60_000)?;
    let away = tempfile::tempdir()?.path().join("away");
    let picture = Picture { mode: Mode::Parked, away: Some(away.clone()), ..picture(3) };
    let mut victim = parked(program, &guardian, &picture)?;
    std::fs::create_dir_all(&away)?;
    let before = guardian.client()?.status()?;
    std::thread::sleep(Duration::from_millis(100));
    let after = guardian.client()?.status()?;
    ensure!(before.images == after.images, "its child is filled unasked: {after:?}");
    victim.tell()?;
    let status = victim.child.wait()?;
    std::fs::remove_dir_all(away)?;
    ensure!(status.success(), "{status}: {:?}", guardian.client()?.status()?.failures);
    guardian.finish()
}

fn hurried(program: &Path) -> Result<()> {
    let guardian = Guardian::start(8 << 20, 1000, 60_000)?;
    let picture = Picture { mode: Mode::Parked, ..picture(4) };
    let is_whole = || Ok(guardian.client()?.status()?.images.iter().all(|image| image.processes == 0));
    let mut victim = parked(program, &guardian, &picture)?;
    guardian.client()?.hurry("still")?;
    wait_until("the child has all its pages", is_whole)?;
    victim.tell()?;
    ensure!(victim.child.wait()?.success());
    guardian.client()?.forget("still")?;
    wait_until("it is forgotten", || Ok(guardian.client()?.status()?.images.is_empty()))?;

    let mut victim = parked(program, &guardian, &picture)?;
    victim.child.kill()?;
    victim.child.wait()?;
    wait_until("its child has all its pages without it", is_whole)?;
    victim.tell()?;
    guardian.finish()
}

fn forks_moves_and_removals_are_followed(program: &Path) -> Result<()> {
    let guardian = Guardian::start(4 << 20, 5000, 60_000)?;
    // Four of ten pictures, from the smallest clusters to the largest: the others are a soak.
    let rounds: u64 = std::env::var("PANDO_ROUNDS").map_or(Ok(4), |rounds| rounds.parse())?;
    for seed in (0..10).step_by(if rounds < 10 { 3 } else { 1 }) {
        let picture = Picture { cluster_pages: 1 + seed * 7 % 64, keeps: seed % 2 == 0, ..picture(seed) };
        let victims: Result<Vec<Child>> =
            (0..3).map(|i| begin(program, &guardian, &format!("moves {seed} {i}"), &picture, 400)).collect();
        victims?.into_iter().try_for_each(ends_well)?;
    }
    let status = guardian.client()?.status()?;
    ensure!(status.failures.is_empty(), "{:?}", status.failures);
    guardian.finish()
}

fn touched_while_forking(program: &Path) -> Result<()> {
    let guardian = Guardian::start(FAST, 5000, 60_000)?;
    for seed in 0..10 {
        // Not filled meanwhile: all comes by faults, which are answered at once.
        let picture = Picture { mode: Mode::Forks, unrecorded: true, cluster_pages: 64, wait_us: 0, ..picture(seed) };
        ends_well(begin(program, &guardian, &format!("forks {seed}"), &picture, 0)?)?;
    }
    let status = guardian.client()?.status()?;
    ensure!(status.failures.is_empty(), "{:?}", status.failures);
    guardian.finish()
}

fn failures_that_pass_are_not_noticed(program: &Path) -> Result<()> {
    let guardian = Guardian::start(FAST, 30_000, 60_000)?;
    let picture = Picture { failing: 40, keeps: false, ..picture(5) };
    ends_well(begin(program, &guardian, "failing", &picture, 200)?)?;
    let status = guardian.client()?.status()?;
    ensure!(status.counters.retries > 0 && status.failures.is_empty(), "{status:?}");
    guardian.finish()
}

fn a_lost_page_stops_who_needs_it_and_nobody_else(program: &Path) -> Result<()> {
    let guardian = Guardian::start(1 << 20, 2000, 60_000)?;
    let lost = Picture { lost: Some(1500), wait_us: 20, ..picture(6) };
    let mut stopped = begin(program, &guardian, "lost", &lost, 300)?;
    let other = begin(program, &guardian, "whole", &picture(7), 300)?;
    let status = stopped.wait()?;
    ensure!(!status.success(), "it must not have read the lost page");
    ends_well(other)?;
    // Its children, which only their memory identifies, were stopped like itself.
    wait_until("all that lack the page are gone", || {
        let status = guardian.client()?.status()?;
        Ok(status.images.iter().find(|image| image.name == "lost").is_none_or(|image| image.processes == 0))
    })?;
    let failures = guardian.client()?.status()?.failures;
    ensure!(!failures.is_empty() && failures.iter().all(|failure| failure.image == "lost"), "{failures:?}");
    ensure!(failures.iter().all(|failure| failure.reason.contains("lost") && failure.pid.is_some()), "{failures:?}");
    guardian.finish()
}

fn an_image_that_cannot_be_opened_stops_its_process(program: &Path) -> Result<()> {
    let guardian = Guardian::start(FAST, 1000, 60_000)?;
    let picture = picture(8);
    let victim = Victim::start(program, &picture, 0)?;
    victim.serve_bytes(&guardian, "broken", &picture, b"not a picture")?;
    // It may be gone before it hears that.
    let _ = victim.tell();
    let mut victim = victim.child;
    ensure!(!victim.wait()?.success());
    wait_until("it is reported", || Ok(guardian.client()?.status()?.failures.len() == 1))?;
    guardian.finish()
}

/// A guardian that always has something to do never ends, and nobody tells it what is not asked for any more.
fn images_give_their_places_to_later_ones(program: &Path) -> Result<()> {
    let guardian = Guardian::start(FAST, 1000, 60_000)?;
    let small = |seed| Picture { pages: 16, ..picture(seed) };
    for number in 0..pager::limits::IMAGES_MAX as u64 + 5 {
        ends_well(begin(program, &guardian, &format!("image-{number}"), &small(number), 0)?)
            .with_context(|| format!("image {number}"))?;
    }
    let images = guardian.client()?.status()?.images;
    ensure!(images.iter().any(|image| image.name == "image-260") && images.iter().all(|image| image.name != "image-0"));
    guardian.finish()
}

fn a_guardian_without_work_ends(program: &Path) -> Result<()> {
    let mut guardian = Guardian::start(FAST, 1000, 3000)?;
    ends_well(begin(program, &guardian, "short", &picture(9), 0)?)?;
    let pager = Pid::from_raw(guardian.client()?.status()?.pager_pid).context("a pager")?;
    ensure!(guardian.child.wait()?.success());
    wait_until("the pager is gone", || Ok(test_kill_process(pager).is_err()))?;
    ensure!(guardian.client().is_err());
    Ok(())
}

fn alone(program: &Path) -> Result<()> {
    let mut guardian = Guardian::start(4 << 20, 20_000, 60_000)?;
    let before = begin(program, &guardian, "before", &picture(11), 2000)?;
    let status = guardian.client()?.status()?;
    ensure!(status.images.iter().any(|image| image.processes > 0), "it has all its pages already");
    let mut waiting = guardian.client()?;
    let pidfd =
        |pid: i32| Ok::<_, anyhow::Error>(pidfd_open(Pid::from_raw(pid).context("a pid")?, PidfdFlags::empty())?);
    let (first, spare, pager) = (pidfd(status.guardian_pid)?, pidfd(status.spare_pid)?, pidfd(status.pager_pid)?);
    // It would make another spare.
    pidfd_send_signal(&first, Signal::STOP)?;
    for victim in [&spare, &first] {
        pidfd_send_signal(victim, Signal::KILL)?;
        poll(&mut [PollFd::new(victim, PollFlags::IN)], None)?;
    }
    wait_until("clients hear that nobody listens", || Ok(Client::find(&guardian.socket)?.is_none()))?;
    ensure!(waiting.status().is_err(), "one that was connected hears it, too");
    guardian.start_another()?;
    ends_well(begin(program, &guardian, "after", &picture(12), 600)?)?;
    ends_well(before)?;
    poll(&mut [PollFd::new(&pager, PollFlags::IN)], None)?;
    guardian.finish()
}

/// Somebody listens all the time: clients that heard otherwise would start others beside them.
fn a_takeover_is_not_the_end(_: &Path) -> Result<()> {
    let guardian = Guardian::start(FAST, 5000, 60_000)?;
    for round in 0..500 {
        let (mut pids, mut is_heard) = ([0, 0], true);
        wait_until("a spare is there", || {
            let status = guardian.client()?.status()?;
            pids = [status.guardian_pid, status.spare_pid];
            Ok(pids.iter().all(|pid| is_alive(*pid)))
        })?;
        let killed = pids[round % 2];
        let victim = pidfd_open(Pid::from_raw(killed).context("a pid")?, PidfdFlags::empty())?;
        pidfd_send_signal(&victim, Signal::KILL)?;
        wait_until("there is another one", || {
            let Some(mut client) = Client::find(&guardian.socket)? else {
                is_heard = false;
                return Ok(true);
            };
            let status = client.status()?;
            Ok(![status.guardian_pid, status.spare_pid].contains(&killed) && is_alive(status.spare_pid))
        })?;
        ensure!(is_heard, "round {round}: for a moment nobody listens");
    }
    guardian.finish()
}

/// Kills one of the three, or the pager and one of the others, as soon as all are there again.
fn kill_some(guardian: &Guardian) -> Result<()> {
    let mut family = Vec::new();
    wait_until("all three are there", || {
        let status = guardian.client()?.status()?;
        family = vec![status.pager_pid, status.guardian_pid, status.spare_pid];
        Ok(family.iter().all(|pid| is_alive(*pid)))
    })?;
    let pid = |index: usize| Pid::from_raw(family[index]).context("a pid");
    let failures = guardian.client()?.status()?.failures;
    ensure!(failures.is_empty(), "{failures:?}");
    let victims: &[usize] = match fastrand::u32(0..8) {
        0..=3 => &[0],
        4 => &[1],
        5 => &[2],
        6 => &[0, 1],
        _ => &[0, 2],
    };
    let opened: Result<Vec<OwnedFd>> =
        victims.iter().map(|index| Ok(pidfd_open(pid(*index)?, PidfdFlags::empty())?)).collect();
    let opened = opened?;
    for victim in &opened {
        pidfd_send_signal(victim, Signal::KILL)?;
    }
    // A busy machine takes its time. Who is only about to die still looks alive, and the next round would kill the last one.
    for victim in &opened {
        poll(&mut [PollFd::new(victim, PollFlags::IN)], None)?;
    }
    Ok(())
}

fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
}

fn any_of_them_may_be_killed_at_any_moment(program: &Path) -> Result<()> {
    let rounds: u64 = std::env::var("PANDO_ROUNDS").map_or(Ok(200), |rounds| rounds.parse())?;
    let guardian = Guardian::start(4 << 20, 20_000, 60_000)?;
    let (mut kills, mut number) = (0, 0u64);
    let mut victims: Vec<(String, Child)> = Vec::new();
    while kills < rounds || !victims.is_empty() {
        while victims.len() < 3 && kills < rounds {
            let name = format!("killed {number}");
            let picture = Picture { failing: 5, keeps: number.is_multiple_of(2), ..picture(number) };
            victims.push((name.clone(), begin(program, &guardian, &name, &picture, 600)?));
            number += 1;
        }
        std::thread::sleep(Duration::from_micros(fastrand::u64(0..15_000)));
        kill_some(&guardian)?;
        kills += 1;
        for (name, mut victim) in std::mem::take(&mut victims) {
            match victim.try_wait()? {
                None => victims.push((name, victim)),
                Some(status) => {
                    ensure!(status.success(), "{name} ended with {status} after {kills} kills");
                    wait_until("it is forgotten", || Ok(guardian.client()?.forget(&name).is_ok()))?;
                }
            }
        }
    }
    wait_until("nothing is missing", || Ok(guardian.client()?.status()?.images.iter().all(|i| i.processes == 0)))?;
    let status = guardian.client()?.status()?;
    ensure!(status.failures.is_empty(), "{:?}", status.failures);
    let Counters { pager_starts, takeovers, .. } = status.counters;
    println!("   {kills} kills, {number} victims, {pager_starts} pagers, {takeovers} takeovers");
    wait_until("it ends", || Ok(guardian.client()?.shutdown().is_ok()))
}
