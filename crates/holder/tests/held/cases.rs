//! What is promised of commands, without a node.

use std::{future::Future, pin::Pin, time::Duration};

use anyhow::{Context, Result, ensure};
use holder::{Event, Events, Refusal, Status};

use crate::place::{Place, kill};

type Case = fn() -> Pin<Box<dyn Future<Output = Result<()>>>>;

pub(crate) const CASES: &[(&str, Case)] = &[
    ("a_burst_at_exit_arrives_whole_with_the_status", || Box::pin(burst())),
    ("without_readers_the_last_mebibyte_stays", || Box::pin(unread())),
    ("a_slow_reader_is_told_what_it_missed", || Box::pin(slow())),
    ("input_arrives_and_ends_once", || Box::pin(input())),
    ("a_terminal_has_the_last_size_and_an_end", || Box::pin(terminal())),
    ("a_child_that_keeps_the_pipe_does_not_delay_the_end", || Box::pin(left_behind())),
    ("output_goes_on_when_holder_or_spare_is_killed", || Box::pin(killed())),
    ("a_status_is_known_to_the_spare_that_takes_over", || Box::pin(taken_over())),
    ("a_status_is_known_although_no_parent_reaps", || Box::pin(unreaped())),
    ("a_reported_status_does_not_replace_that_of_the_kernel", || Box::pin(reported())),
    ("ten_readers_of_one_command_get_the_same", || Box::pin(many())),
    ("when_both_die_the_status_is_unknown", || Box::pin(both())),
    ("ended_commands_are_named_until_they_are_settled", || Box::pin(settled())),
    ("readers_of_a_command_that_moves_are_not_told_of_an_end", || Box::pin(moved())),
];

const MAX: Duration = Duration::from_secs(20);

async fn all(events: Events) -> Result<(Vec<Vec<u8>>, u64, Status)> {
    tokio::time::timeout(MAX, events.collect()).await.context("no end")
}

async fn burst() -> Result<()> {
    let place = Place::new().await?;
    for bytes in [0usize, 1, 32_768, 65_537, 1 << 20, 3 << 20] {
        let key = format!("burst-{bytes}");
        let (running, events) =
            place.start(&key, &format!("head -c {bytes} /dev/zero; echo words >&2; exit 7")).await?;
        running.reap();
        let (outputs, missed, status) = all(events).await?;
        ensure!(outputs[0].len() == bytes && outputs[1] == b"words\n", "{bytes}: {} bytes", outputs[0].len());
        ensure!(missed == 0 && status == Status::Code(7), "{bytes}: {missed} missed, {status:?}");
        // Who comes later gets the same, as far as it is kept.
        let (outputs, missed, status) = all(place.client.attach(&key, 2).await?).await?;
        ensure!(outputs[0].len() == bytes.min(1 << 20) && missed as usize == bytes - outputs[0].len(), "{bytes}");
        ensure!(status == Status::Code(7), "{status:?}");
    }
    Ok(())
}

async fn unread() -> Result<()> {
    let place = Place::new().await?;
    let (running, events) = place.start("unread", "seq 1000000; exit 3").await?;
    running.reap();
    drop(events);
    let entry = loop {
        let entry = place.client.list(None).await?.remove(0);
        if entry.end.is_some() {
            break entry;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let (outputs, missed, status) = all(place.client.attach("unread", 2).await?).await?;
    ensure!(outputs[0].len() == 1 << 20 && outputs[0].ends_with(b"\n1000000\n"), "{} bytes", outputs[0].len());
    ensure!(missed + (1 << 20) == entry.totals[0] && entry.totals[0] == 6_888_896, "{missed} {entry:?}");
    ensure!(status == Status::Code(3), "{status:?}");
    Ok(())
}

async fn slow() -> Result<()> {
    let place = Place::new().await?;
    let (running, fast) = place.start("slow", "sleep 0.3; head -c 20000000 /dev/zero").await?;
    running.reap();
    let mut slow = place.client.attach("slow", 2).await?;
    let (outputs, missed, _) = all(fast).await?;
    ensure!(outputs[0].len() == 20_000_000 && missed == 0, "the fast one: {} {missed}", outputs[0].len());
    let (mut bytes, mut missed) = (0, 0);
    while let Some(event) = tokio::time::timeout(MAX, slow.next()).await? {
        match event {
            Event::Output { bytes: more, .. } => bytes += more.len() as u64,
            Event::Missed { bytes: more, .. } => missed += more,
            Event::Ended(_) => {}
        }
    }
    ensure!(missed > 0 && bytes + missed == 20_000_000, "the slow one: {bytes} and {missed} missed");
    Ok(())
}

async fn input() -> Result<()> {
    let place = Place::new().await?;
    let (running, mut events) = place.start_with("cat", "cat; echo done", true).await?;
    running.reap();
    let channel = place.client.channel().await?;
    channel.input("cat", b"one ").await?;
    place.client.channel().await?.input("cat", b"two\n").await?;
    channel.close_input("cat").await?;
    let again = channel.close_input("cat").await.map_err(|error| error.refusal());
    ensure!(matches!(again, Err(Some(Refusal::NoInput | Refusal::Ended))), "{again:?}");
    let mut seen = Vec::new();
    while let Some(event) = tokio::time::timeout(MAX, events.next()).await? {
        if let Event::Output { bytes, .. } = event {
            seen.extend(bytes);
        }
    }
    ensure!(seen == b"one two\ndone\n", "{:?}", String::from_utf8_lossy(&seen));
    let late = channel.input("cat", b"more").await.map_err(|error| error.refusal());
    ensure!(late == Err(Some(Refusal::Ended)), "{late:?}");
    // Input that the command does not read waits, and keeps neither the end nor others.
    let (mut running, events) = place.start_with("deaf", "exec sleep 1000", true).await?;
    let waiting = tokio::spawn(async move {
        let big = vec![0; holder::INPUT_BYTES_MAX];
        loop {
            if let Err(error) = channel.input("deaf", &big).await {
                return error.refusal();
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    ensure!(!waiting.is_finished(), "input without end was taken");
    running.kill()?;
    running.reap();
    ensure!(all(events).await?.2 == Status::Signal(9), "killed");
    let refusal = tokio::time::timeout(MAX, waiting).await??;
    ensure!(matches!(refusal, Some(Refusal::Ended | Refusal::NoInput)), "{refusal:?}");
    let (running, events) = place.start("none", "cat; echo end").await?;
    let refusal = place.client.channel().await?.input("none", b"x").await.map_err(|error| error.refusal());
    running.reap();
    ensure!(matches!(refusal, Err(Some(Refusal::NoInput | Refusal::Ended))), "{refusal:?}");
    ensure!(all(events).await?.0[0] == b"end\n", "no end of file");
    Ok(())
}

async fn terminal() -> Result<()> {
    let place = Place::new().await?;
    // Without a trap of WINCH: one that comes during `read` would end it.
    let script = "read go; stty size; test -t 0 && exit 5";
    let (running, events) = place.start_on_terminal("tty", script).await?;
    running.reap();
    for size in 1..=20 {
        place.client.resize("tty", 10 + size, 100 + size).await?;
    }
    place.client.channel().await?.input("tty", b"go\n").await?;
    let (outputs, _, status) = all(events).await?;
    let text = String::from_utf8_lossy(&outputs[0]).into_owned();
    ensure!(text.contains("30 120") && status == Status::Code(5), "{text:?} {status:?}");
    let refusal = place.client.resize("tty", 1, 1).await.map_err(|error| error.refusal());
    ensure!(refusal.is_ok() || refusal == Err(Some(Refusal::Failed)), "{refusal:?}");
    Ok(())
}

async fn left_behind() -> Result<()> {
    let place = Place::new().await?;
    let began = std::time::Instant::now();
    let (running, events) = place.start("behind", "sleep 9 & echo here; exit 4").await?;
    running.reap();
    let (outputs, _, status) = all(events).await?;
    ensure!(outputs[0] == b"here\n" && status == Status::Code(4), "{outputs:?} {status:?}");
    ensure!(began.elapsed() < Duration::from_secs(8), "the end came after {:?}", began.elapsed());
    Ok(())
}

async fn killed() -> Result<()> {
    let place = Place::new().await?;
    let script = "i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); sleep 0.005; done; exit 9";
    let (running, first) = place.start("killed", script).await?;
    running.reap();
    let second = place.client.attach("killed", 2).await?;
    let readers = [tokio::spawn(first.collect()), tokio::spawn(second.collect())];
    for round in 0..6 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        let family = place.family().await?;
        kill(if round % 2 == 0 { family.holder } else { family.spare })?;
        place.changed(family).await?;
    }
    let expected: String = (0..400).map(|line| format!("line {line}\n")).collect();
    for reader in readers {
        let (outputs, missed, status) = tokio::time::timeout(MAX, reader).await??;
        ensure!(outputs[0] == expected.as_bytes(), "{} of {} bytes", outputs[0].len(), expected.len());
        ensure!(missed == 0 && status == Status::Code(9), "{missed} {status:?}");
    }
    Ok(())
}

async fn taken_over() -> Result<()> {
    let place = Place::new().await?;
    let family = place.family().await?;
    let (running, events) = place.start_with("late", "cat; exit 11", true).await?;
    drop(events);
    place.client.channel().await?.input("late", b"words").await?;
    place.client.channel().await?.close_input("late").await?;
    kill(family.holder)?;
    running.reap();
    let family = place.changed(family).await?;
    let (outputs, _, status) = all(place.client.attach("late", 2).await?).await?;
    ensure!(outputs[0] == b"words" && status == Status::Code(11), "{outputs:?} {status:?}");
    // Ended ones are handed over, too.
    kill(family.holder)?;
    place.changed(family).await?;
    let (outputs, _, status) = all(place.client.attach("late", 2).await?).await?;
    ensure!(outputs[0] == b"words" && status == Status::Code(11), "{outputs:?} {status:?}");
    Ok(())
}

/// As with an init that does not reap, or late.
async fn unreaped() -> Result<()> {
    let place = Place::new().await?;
    let (_running, events) = place.start("zombie", "exit 13").await?;
    ensure!(all(events).await?.2 == Status::Code(13), "the status of a zombie");
    let (mut running, events) = place.start("killed", "exec sleep 1000").await?;
    running.kill()?;
    ensure!(all(events).await?.2 == Status::Signal(9), "the signal of a zombie");
    Ok(())
}

async fn reported() -> Result<()> {
    let place = Place::new().await?;
    let (running, events) = place.start("reported", "read go; exit 14").await?;
    place.client.report("reported", Status::Code(14)).await?;
    running.reap();
    ensure!(all(events).await?.2 == Status::Code(14), "reported");
    place.client.report("reported", Status::Code(15)).await?;
    ensure!(all(place.client.attach("reported", 2).await?).await?.2 == Status::Code(14), "after the end");
    Ok(())
}

async fn many() -> Result<()> {
    let place = Place::new().await?;
    let (running, first) = place.start("many", "sleep 0.3; seq 100000; exit 2").await?;
    running.reap();
    let mut readers = vec![tokio::spawn(first.collect())];
    for _ in 0..9 {
        readers.push(tokio::spawn(place.client.attach("many", 2).await?.collect()));
    }
    for reader in readers {
        let (outputs, missed, status) = tokio::time::timeout(MAX, reader).await??;
        ensure!(outputs[0].len() as u64 + missed == 588_895 && missed == 0, "{} and {missed}", outputs[0].len());
        ensure!(outputs[0].ends_with(b"\n100000\n") && status == Status::Code(2), "{status:?}");
    }
    Ok(())
}

async fn both() -> Result<()> {
    let mut place = Place::new().await?;
    let family = place.family().await?;
    let (mut running, events) = place.start("both", "exec sleep 1000").await?;
    kill(family.spare)?;
    kill(family.holder)?;
    let (_, _, status) = all(events).await?;
    ensure!(status == Status::Unknown, "{status:?}");
    running.kill()?;
    place.again().await?;
    ensure!(place.client.list(None).await?.is_empty(), "a new family holds nothing");
    Ok(())
}

async fn settled() -> Result<()> {
    let place = Place::new().await?;
    let (running, events) = place.start("early", "exit 0").await?;
    running.reap();
    all(events).await?;
    let mut watch = place.client.watch().await?;
    ensure!(watch.next().await.map(|(key, _)| key).as_deref() == Some("early"), "of the past");
    let (running, events) = place.start("later", "exit 0").await?;
    running.reap();
    all(events).await?;
    ensure!(watch.next().await.map(|(key, _)| key).as_deref() == Some("later"), "of now");
    place.client.settle("early").await?;
    let mut again = place.client.watch().await?;
    ensure!(again.next().await.map(|(key, _)| key).as_deref() == Some("later"), "the other one is settled");
    ensure!(place.client.shut_down().await.map_err(|error| error.refusal()) == Err(Some(Refusal::Busy)), "busy");
    place.client.forget_sandbox("s0123456789ab").await?;
    ensure!(place.client.list(None).await?.is_empty(), "forgotten");
    Ok(())
}

async fn moved() -> Result<()> {
    let place = Place::new().await?;
    let (running, events) = place.start("moved", "echo here; sleep 60").await?;
    while place.client.list(None).await?[0].totals[0] == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    place.client.forget_sandbox("s0123456789ab").await?;
    // Not how this process ends.
    let (outputs, _, status) = all(events).await?;
    ensure!(outputs[0] == b"here\n" && status == Status::Unknown, "{outputs:?} {status:?}");
    drop(running);
    Ok(())
}
