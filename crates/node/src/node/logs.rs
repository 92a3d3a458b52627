//! The output files: read, followed, and kept below their bound.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    sync::Arc,
    time::Duration,
};

use base::{id::SandboxId, limits::LOG_BYTES_MAX};
use model::SandboxState;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use tokio::sync::mpsc;

use super::{Node, output::carried};
use crate::{config::output_file, error::Result};

/// How often a followed file is looked at.
const FOLLOW_EVERY: Duration = Duration::from_millis(100);

/// How long it is waited for that output which was written is in the file, at its end and in between.
pub(super) const CARRIED_MAX: Duration = Duration::from_millis(500);
const CARRIED_RUNNING_MAX: Duration = Duration::from_millis(50);

/// How often, and how soon again, a file is tried to be locked that pid 1 has locked, which takes microseconds each time.
const LOCK_TRIES: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_micros(500);

/// Bytes read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// How much of a file's end is searched for its last lines.
const TAIL_BYTES: u64 = 16 << 10;

impl Node {
    /// The sandbox's output so far, the part that was cut off included; with `follow` also what comes until its end.
    pub fn logs(self: &Arc<Self>, id: &SandboxId, follow: bool) -> Result<mpsc::Receiver<Vec<u8>>> {
        self.state().sandbox(id)?;
        let (sender, chunks) = mpsc::channel(4);
        let (node, id) = (Arc::clone(self), id.clone());
        tokio::spawn(async move {
            // The reader hangs up when it has enough.
            let _ = node.send_logs(&id, follow, &sender).await;
        });
        Ok(chunks)
    }

    async fn send_logs(&self, id: &SandboxId, follow: bool, sender: &mpsc::Sender<Vec<u8>>) -> Option<()> {
        let path = output_file(&self.home(id));
        let earlier = earlier_file(&path);
        if let Ok(mut file) = File::open(earlier) {
            send_rest(&mut file, sender).await?;
        }
        let mut file = File::open(&path).ok()?;
        loop {
            // Asked before reading: what it wrote before its end is then in the pipe, or in the file.
            let (init, goes_on) = {
                let state = self.state();
                let record = state.sandbox(id).ok()?;
                let goes_on = match record.state {
                    SandboxState::Running | SandboxState::Pausing => true,
                    SandboxState::Paused | SandboxState::Exited(_) | SandboxState::Lost => false,
                };
                (record.init, goes_on)
            };
            carried(init, if goes_on { CARRIED_RUNNING_MAX } else { CARRIED_MAX }).await;
            send_rest(&mut file, sender).await?;
            if !follow || !goes_on {
                return Some(());
            }
            tokio::select! {
                () = tokio::time::sleep(FOLLOW_EVERY) => {}
                // A silent program is not written for, either.
                () = sender.closed() => return None,
            }
            if file.metadata().ok()?.len() < file.stream_position().ok()? {
                // It was cut meanwhile.
                file.rewind().ok()?;
            }
        }
    }

    /// Cuts output files that have grown too long. Never returns.
    pub(super) async fn bound_outputs(self: Arc<Self>, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            let ids: Vec<_> = self.state().sandboxes_here().into_iter().map(|record| record.id).collect();
            for id in ids {
                let path = output_file(&self.host.config.sandbox_dir(&id));
                let cut = tokio::task::spawn_blocking(move || cut(&path, LOG_BYTES_MAX));
                if let Ok(Err(error)) = cut.await {
                    tracing::warn!(sandbox = %id, %error, "its output could not be cut");
                }
            }
        }
    }
}

/// Where the newest half of a cut file goes.
pub(super) fn earlier_file(path: &Path) -> std::path::PathBuf {
    path.with_extension("log.1")
}

/// Empties a file longer than `bytes_max` after copying its newest half beside it.
///
/// The sandbox's pid 1 appends to it through a descriptor of its own, so it must stay the same file. Pid 1 locks the file while it looks for the
/// end and writes there; without the lock it could write at the end that was before the cut, behind a hole. If pid 1 is frozen in between, the file
/// does not grow, and is cut later.
fn cut(path: &Path, bytes_max: u64) -> io::Result<()> {
    let length = match std::fs::metadata(path) {
        Ok(found) => found.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if length <= bytes_max {
        return Ok(());
    }
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    if !lock(&file)? {
        return Ok(());
    }
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes_max / 2)))?;
    let new = path.with_extension("log.new");
    io::copy(&mut file, &mut File::create(&new)?)?;
    file.set_len(0)?;
    // Not only by closing: a process that is being forked may have the descriptor for a moment.
    flock(&file, FlockOperation::Unlock)?;
    std::fs::rename(new, earlier_file(path))
}

/// Tries for a while; whether it is locked.
fn lock(file: &File) -> io::Result<bool> {
    for _ in 0..LOCK_TRIES {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            locked => return locked.map(|()| true).map_err(Into::into),
        }
    }
    Ok(false)
}

async fn send_rest(file: &mut File, sender: &mpsc::Sender<Vec<u8>>) -> Option<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        // A file read of this size takes microseconds; a thread for it would cost more.
        match file.read(&mut buffer) {
            Ok(0) => return Some(()),
            Ok(length) => sender.send(buffer[..length].to_vec()).await.ok()?,
            Err(_) => return None,
        }
    }
}

/// The last lines of a file; fewer or none if it cannot be read.
pub(super) fn last_lines(path: &Path, lines: usize) -> Vec<String> {
    let tail = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut tail = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut tail)?;
        Ok(tail)
    };
    let tail = tail().unwrap_or_default();
    let text = String::from_utf8_lossy(&tail);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].iter().map(|line| (*line).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_that_is_too_long_keeps_its_newest_half_and_its_identity() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output.log");
        let mut writer = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        writer.write_all(b"0123456789").unwrap();
        cut(&path, 10).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"0123456789", "within the bound");
        writer.write_all(b"ab").unwrap();
        cut(&path, 10).unwrap();
        writer.write_all(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read(earlier_file(&path)).unwrap(), b"789ab");
    }

    #[test]
    fn a_file_that_pid_1_is_writing_to_is_cut_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output.log");
        std::fs::write(&path, "0123456789").unwrap();
        let writer = File::options().write(true).open(&path).unwrap();
        flock(&writer, FlockOperation::LockExclusive).unwrap();
        cut(&path, 4).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"0123456789");
        flock(&writer, FlockOperation::Unlock).unwrap();
        cut(&path, 4).unwrap();
        assert_eq!(
            (std::fs::read(&path).unwrap(), std::fs::read(earlier_file(&path)).unwrap()),
            (vec![], b"89".into())
        );
    }

    #[test]
    fn the_last_lines_of_a_missing_file_are_none() {
        assert!(last_lines(Path::new("/no/such/file"), 3).is_empty());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output.log");
        std::fs::write(&path, "a\nb\nc\nd\n").unwrap();
        assert_eq!(last_lines(&path, 2), ["c", "d"]);
    }
}
