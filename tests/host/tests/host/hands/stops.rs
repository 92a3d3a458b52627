//! File work in a sandbox that stops.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use hands::Error;
use node::KeepProgress;

use super::place::{Place, get, put};

pub(super) fn pause(place: &Place) -> Result<()> {
    let id = place.sandbox()?;
    place.runtime.block_on(async {
        let hand = place.hand(&id).await?;
        put(&hand, "/home/user/dir/sub/file", b"deep").await?;
        // Files are written, one after the other, until the pause ends that. One upload never ends.
        let mut endless = hand.write(Path::new("/home/user/endless"), None).await?;
        endless.write(b"half").await?;
        let writing = tokio::spawn(async move {
            let mut written = Vec::new();
            for number in 0.. {
                let path = format!("/home/user/f{number}");
                match put(&hand, &path, path.as_bytes()).await {
                    Ok(_) => written.push(path),
                    Err(error) => return (written, error),
                }
            }
            unreachable!("the numbers do not end")
        });
        tokio::time::sleep(Duration::from_millis(200)).await;
        let began = Instant::now();
        let (sender, _client) = tokio::sync::mpsc::unbounded_channel();
        place.node.pause(&id, model::Keep::Memory, &KeepProgress::to(sender, |progress| progress)).await?;
        ensure!(began.elapsed() < Duration::from_secs(20), "the pause took {:?}", began.elapsed());
        let (written, error) = writing.await?;
        ensure!(matches!(error, Error::Interrupted { .. }), "{error:?}");
        ensure!(!written.is_empty(), "nothing was written");
        let interrupted = endless.finish().await;
        ensure!(matches!(interrupted, Err(Error::Interrupted { .. })), "{interrupted:?}");
        place.expect_hands(0)?;
        let paused = place.node.files(&id, None).await;
        ensure!(matches!(paused, Err(node::Error::NotRunning { .. })), "a paused sandbox");
        let how = model::ResumeOptions { takeover: model::Takeover::Refused, keep: model::Keep::Memory };
        place.node.resume(&id, how).await?;
        let hand = place.hand(&id).await?;
        for path in &written {
            ensure!(get(&hand, path).await? == path.as_bytes(), "{path} is lost");
        }
        // Now it is of a lower layer.
        hand.rename(Path::new("/home/user/dir"), Path::new("/home/user/new/dir")).await?;
        ensure!(get(&hand, "/home/user/new/dir/sub/file").await? == b"deep");
        ensure!(hand.stat(Path::new("/home/user/dir")).await.is_err(), "a renamed directory stays");
        ensure!(hand.stat(Path::new("/home/user/endless")).await.is_err(), "half an upload is kept");
        Ok(())
    })
}

/// Files that a client writes while a sandbox is forked.
const WRITTEN: [&str; 2] = ["/home/user/large", "/home/user/small"];

pub(super) fn forks(place: &Place) -> Result<()> {
    let id = place.sandbox()?;
    place.runtime.block_on(async {
        let hand = place.hand(&id).await?;
        for (path, length) in WRITTEN.into_iter().zip([700_000, 5_000]) {
            put(&hand, path, &vec![0; length]).await?;
        }
        let writing = tokio::spawn(async move {
            for number in (1_u8..=255).cycle() {
                for (path, length) in WRITTEN.into_iter().zip([700_000, 5_000]) {
                    if put(&hand, path, &vec![number; length]).await.is_err() {
                        return;
                    }
                }
            }
        });
        for round in 0..4 {
            tokio::time::sleep(Duration::from_millis(20 + 7 * round)).await;
            let keep = if round % 2 == 0 { model::Keep::Memory } else { model::Keep::Files };
            let forks = place.node.fork(&id, &model::ForkSpec { count: 1, keep, reservation: None }).await?;
            ensure!(forks.failures.is_empty(), "{:?}", forks.failures);
            let copy = &forks.sandboxes[0].id;
            let hand = place.hand(copy).await?;
            for (path, length) in WRITTEN.into_iter().zip([700_000, 5_000]) {
                let content = get(&hand, path).await.with_context(|| format!("round {round}: {path}"))?;
                let whole = content.len() == length && content.iter().all(|byte| *byte == content[0]);
                ensure!(whole, "round {round}: {path} has {} bytes, begins with {:?}", content.len(), content.first());
            }
            place.node.remove(copy).await?;
        }
        writing.abort();
        Ok(())
    })
}

pub(super) fn frozen(place: &Place) -> Result<()> {
    let id = place.sandbox()?;
    let freeze = freezer(place, &id)?;
    place.runtime.block_on(async {
        let hand = place.hand(&id).await?;
        put(&hand, "/home/user/f", b"x").await?;
        fs::write(&freeze, "1").context("cannot freeze it")?;
        ensure!(get(&hand, "/home/user/f").await? == b"x");
        ensure!(hand.list(Path::new("/"), 1).await?.len() > 3);
        fs::write(&freeze, "0")?;
        Ok(())
    })
}

/// The file by which the kernel freezes a sandbox.
fn freezer(place: &Place, id: &base::id::SandboxId) -> Result<PathBuf> {
    let pid = place.node.inspect(id)?.processes.first().context("no process")?.pid;
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/")).context("no group of v2")?;
    let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(|mount| Path::new(mount).join(group));
    let found = mounts.into_iter().map(|group| group.join("cgroup.freeze")).find(|file| file.exists());
    found.context("no v2 hierarchy")
}

pub(super) fn removal(place: &Place) -> Result<()> {
    let ids = [place.sandbox()?, place.sandbox()?, place.sandbox()?];
    place.runtime.block_on(async {
        let mut kept = Vec::new();
        for id in &ids {
            let hand = place.hand(id).await?;
            let mut writer = hand.write(Path::new("/home/user/half"), None).await?;
            writer.write(b"half").await?;
            let watch = hand.watch(Path::new("/home/user"), hands::WatchOptions::default()).await?;
            kept.push((writer, watch));
        }
        place.expect_hands(3)?;
        for id in &ids[..2] {
            let began = Instant::now();
            place.node.remove(id).await?;
            ensure!(began.elapsed() < Duration::from_secs(2), "the removal took {:?}", began.elapsed());
        }
        place.expect_hands(1)?;
        for (at, (writer, mut watch)) in kept.into_iter().take(2).enumerate() {
            let interrupted = writer.finish().await;
            ensure!(matches!(interrupted, Err(Error::Interrupted { .. })), "{at}: {interrupted:?}");
            ensure!(matches!(watch.next().await, Err(Error::Interrupted { .. })), "{at}: the watch");
        }
        place.node.remove(&ids[2]).await?;
        place.expect_hands(0)
    })?;
    place.stop_node()?;
    place.expect_hands(0)
}

/// How many hands come and go where descriptors are counted.
const ROUNDS: usize = 40;

/// The node keeps nothing of hands that have ended. The pool of sandboxes has a few descriptors now and then.
pub(super) fn comings_and_goings(place: &Place) -> Result<()> {
    let id = place.sandbox()?;
    let descriptors = || fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    place.runtime.block_on(async {
        let before = descriptors();
        for round in 0..ROUNDS {
            let hand = place.hand(&id).await?;
            let mut writer = hand.write(Path::new("/home/user/half"), None).await?;
            let mut watch = hand.watch(Path::new("/home/user"), hands::WatchOptions::default()).await?;
            let mut reader = hand.read(Path::new("/etc/passwd"), 0, None).await?;
            ensure!(reader.read(&mut &mut [0; 10][..]).await? == 10, "round {round}");
            writer.write(b"half").await?;
            hand.close();
            let interrupted = writer.finish().await;
            ensure!(matches!(interrupted, Err(Error::Interrupted { .. })), "round {round}: {interrupted:?}");
            while watch.next().await.is_ok() {}
        }
        place.expect_hands(0)?;
        let now = descriptors();
        ensure!(now < before + ROUNDS / 2, "descriptors: {before} before, {now} after {ROUNDS} hands");
        Ok(())
    })
}
