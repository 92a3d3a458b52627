//! Watching what programs do.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use hands::{EventKind, Watch, WatchEvent, WatchOptions};

use super::place::{Place, put};

const HOME: &str = "/home/user";

pub(super) fn of_programs(place: &Place) -> Result<()> {
    let id = place.sandbox()?;
    place.runtime.block_on(async {
        let hand = place.hand(&id).await?;
        let options = WatchOptions { recursive: true, entries: false };
        let mut watch = hand.watch(Path::new(HOME), options).await?;
        put(&hand, "/home/user/f", b"hello").await?;
        let heard = until_end(place, &id, &mut watch).await?;
        ensure!(heard == ["Create f", "Chmod f", "Write f"], "{heard:?}");
        place.shell(&id, "cd /home/user; mkdir -p d/e; sleep 0.1; echo x > d/e/g; mv d/e h; rm f").await?;
        let heard = until_end(place, &id, &mut watch).await?;
        let wanted = [
            "Create d",
            "Create d/e",
            "Create d/e/g",
            "Write d/e/g",
            "Rename d/e",
            "Create h",
            "Create h/g",
            "Remove f",
        ];
        // Files in a new directory may be found there and be reported as well.
        let wanted = wanted.map(str::to_owned);
        ensure!(wanted.iter().all(|event| heard.contains(event)), "{heard:?}");
        place.shell(&id, "echo y >> /home/user/h/g").await?;
        let heard = until_end(place, &id, &mut watch).await?;
        ensure!(heard == ["Write h/g"], "{heard:?}");
        let program = "import os\nfor n in range(10000): os.mkdir('/home/user/h/%d' % n)";
        place.shell(&id, &format!("python3 -c \"{program}\"")).await?;
        let heard = until_end(place, &id, &mut watch).await?;
        let lost = heard.iter().any(|event| event == "Lost");
        let made = heard.iter().filter(|event| event.starts_with("Create h/")).count();
        ensure!(lost || made == 10_000, "{made} events, and no loss is said");
        ensure!(!lost, "a loss is said, of {made} events");
        Ok(())
    })
}

/// The events until a directory is made for this.
async fn until_end(place: &Place, id: &base::id::SandboxId, watch: &mut Watch) -> Result<Vec<String>> {
    place.shell(id, "mkdir /home/user/end; rmdir /home/user/end").await?;
    let mut heard = Vec::new();
    let mut ended = false;
    loop {
        let event = tokio::time::timeout(std::time::Duration::from_secs(10), watch.next()).await;
        match event.context("no event comes")?? {
            WatchEvent::Change { name, kind, .. } if name.as_path() == Path::new("end") => {
                ended |= kind == EventKind::Create;
                if kind == EventKind::Remove {
                    ensure!(ended, "its end came first");
                    return Ok(heard);
                }
            }
            WatchEvent::Change { name, kind, .. } => heard.push(format!("{kind:?} {}", name.as_path().display())),
            WatchEvent::Lost => heard.push("Lost".to_owned()),
            // Of ten thousand directories not all can be.
            WatchEvent::Unwatched { .. } => {}
        }
    }
}
