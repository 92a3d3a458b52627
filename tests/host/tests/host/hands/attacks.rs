//! A program inside interferes with file work.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use hands::Error;
use rustix::process::{Pid, Signal, kill_process};

use super::place::{Place, get, put};

/// How long an attacker tries.
const ATTACK: Duration = Duration::from_secs(3);

/// Swaps a directory for a link to /etc and back, and a file for a link to a file of the host's, as fast as it can.
const SWAP: &str = "import os
os.chdir('/home/user')
os.makedirs('real', exist_ok=True)
os.symlink('/etc', 'link')
open('file', 'w').close()
os.symlink('/etc/hosts', 'hosts')
while True:
    for a, b in (('real', 'd'), ('link', 'd'), ('file', 'f'), ('hosts', 'f')):
        try:
            os.rename(a, b)
            os.rename(b, a)
        except OSError:
            pass
";

pub(super) fn swapped_links(place: &Place) -> Result<()> {
    let id = place.sandbox()?;
    place.runtime.block_on(async {
        let digest =
            "cd /etc && find . -type f -readable | sort | xargs md5sum 2>/dev/null | md5sum; ls -lA /etc | grep -v ^total | md5sum";
        let before = place.shell(&id, digest).await?;
        let hand = place.hand(&id).await?;
        put(&hand, "/home/user/attack.py", SWAP.as_bytes()).await?;
        place.shell(&id, "python3 /home/user/attack.py > /dev/null 2>&1 & sleep 0.2").await?;
        let until = Instant::now() + ATTACK;
        let (mut done, mut refused) = (0, 0);
        while Instant::now() < until {
            for outcome in [
                put(&hand, "/home/user/d/x", b"attack").await.map(drop),
                put(&hand, "/home/user/d/passwd", b"attack").await.map(drop),
                put(&hand, "/home/user/f", b"attack").await.map(drop),
                hand.remove(Path::new("/home/user/d")).await,
                hand.rename(Path::new("/home/user/f"), Path::new("/home/user/d/hosts")).await.map(drop),
                hand.list(Path::new("/home/user"), 3).await.map(drop),
            ] {
                match outcome {
                    Ok(()) => done += 1,
                    Err(error @ (Error::Interrupted { .. } | Error::Deadline { .. })) => return Err(error.into()),
                    Err(_) => refused += 1,
                }
            }
        }
        ensure!(done > 0 && refused > 0, "{done} done and {refused} refused: no race");
        place.shell(&id, "pkill -9 python3").await?;
        ensure!(place.shell(&id, digest).await? == before, "something in /etc changed");
        Ok(())
    })
}

pub(super) fn killed(place: &Place) -> Result<()> {
    let ids = [place.sandbox()?, place.sandbox()?];
    place.runtime.block_on(async {
        let hands = [place.hand(&ids[0]).await?, place.hand(&ids[1]).await?];
        put(&hands[0], "/home/user/f", b"0").await?;
        let first = *place.hands().first().context("there is no hand")?;
        put(&hands[1], "/home/user/f", b"1").await?;
        place.expect_hands(2)?;
        let mut writer = hands[0].write(Path::new("/home/user/half"), None).await?;
        writer.write(b"half").await?;
        kill_process(Pid::from_raw(first).context("no pid")?, Signal::KILL)?;
        let interrupted = writer.finish().await;
        ensure!(matches!(interrupted, Err(Error::Interrupted { .. })), "{interrupted:?}");
        ensure!(get(&hands[1], "/home/user/f").await? == b"1", "the other sandbox");
        // The next request gets another one.
        let again = place.hand(&ids[0]).await?;
        ensure!(get(&again, "/home/user/f").await? == b"0");
        place.expect_hands(2)
    })
}

pub(super) fn broken_upload(place: &Place) -> Result<()> {
    let id = place.sandbox()?;
    place.runtime.block_on(async {
        let hand = place.hand(&id).await?;
        for round in 0..20 {
            let path = format!("/home/user/half{round}");
            let mut writer = hand.write(Path::new(&path), None).await?;
            writer.write(&vec![1; round << 16]).await?;
            drop(writer);
        }
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            let left = place.shell(&id, "ls /home/user").await?;
            if left.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < until, "left: {left}");
        }
    })
}
