//! Commits by the clock, and before its time when much is dirty: bounds what the loss of the node costs, and the log.

use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::{
    Volume,
    compact::Effort,
    limits::{COMMIT_BACKOFF, COMPACT_COMMITS},
    pressure::Pause,
};

/// A thread that commits a volume while this exists. With it, writers wait when too much is dirty.
pub struct Committer {
    volume: Arc<Volume>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    /// Commits `volume` each `pause`, and earlier when a quarter is dirty of what makes writers wait. While that fails it is tried again, ever less often; writers
    /// wait, and nothing is dropped.
    pub fn start(volume: Arc<Volume>, pause: Duration) -> io::Result<Self> {
        volume.engine().pressure().set_committing(true);
        let ours = volume.clone();
        let thread = thread::Builder::new().name("volume-commits".to_owned()).spawn(move || run(&ours, pause))?;
        Ok(Self { volume, thread: Some(thread) })
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.volume.engine().pressure().set_committing(false);
        if let Some(thread) = self.thread.take() {
            // If it panicked, its message is in the log.
            let _ = thread.join();
        }
    }
}

fn run(volume: &Volume, pause: Duration) {
    let (mut failures, mut next, mut commits) = (0, (pause, Pause::Work), 0);
    while volume.engine().pressure().sleep(next.0, next.1) {
        match volume.commit() {
            Ok(()) => {
                (failures, next, commits) = (0, (pause, Pause::Work), commits + 1);
                if commits % COMPACT_COMMITS == 0
                    && let Err(error) = volume.compact(Effort::Worthwhile)
                {
                    tracing::warn!(volume = volume.name(), %error, "segments that are little used stay for now");
                }
            }
            Err(_) if volume.engine().is_read_only() => break,
            Err(error) => {
                failures += 1;
                tracing::warn!(volume = volume.name(), %error, failures, "a commit failed and will be tried again");
                let time = COMMIT_BACKOFF.min(Duration::from_millis(50) * 2u32.saturating_pow(failures));
                next = (time, Pause::Backoff);
            }
        }
    }
    volume.engine().pressure().set_committing(false);
}
