//! The other comparison: CRIU's restore of the same program, eager (all memory first) and lazy (memory follows as it is touched).
//!
//! One thread drives it, in a mount namespace of its own with an empty /run: there CRIU keeps what it found out about the
//! kernel, but only on a tmpfs, and two builds of CRIU throw away each other's. So every start that is measured finds it, and
//! nothing of it stays on the host. Whatever happens, the thread ends what it started and removes its directory.

mod restore;

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use base::text;
use tokio::sync::oneshot;

use super::report::{Report, duration, median, times};
use restore::{Archived, Restored};

/// Older ones fail on the kernels that Pando needs.
const OLDEST: (u32, u32) = (4, 1);
const VERSION_WAIT: Duration = Duration::from_secs(10);
/// Short beside what is measured, and cheap enough not to disturb it.
const POLL: Duration = Duration::from_micros(250);

/// A usable CRIU.
pub(super) struct Criu {
    path: PathBuf,
    version: String,
    /// The least that a start of it took, without any work.
    start: Duration,
    /// Whether its images are packed, too.
    archives: bool,
}

impl Criu {
    /// Also packs the images into archives, and restores from these.
    pub(super) fn with_archives(self) -> Self {
        Self { archives: true, ..self }
    }
}

/// Everything that was measured.
struct Measured {
    eager: Vec<Restored>,
    lazy: Vec<Restored>,
    dump: Duration,
    /// Until its images were on the disk, after that.
    synced: Duration,
    images_bytes: u64,
    archives: Vec<Archived>,
}

/// The CRIU that was given, or the one in PATH.
///
/// # Errors
/// There is none, it does not start, or it is too old. The message says what to do.
pub(super) fn find(given: Option<&Path>) -> Result<Criu> {
    const HINT: &str = "scripts/criu.sh unpacks one beside the system, for --criu";
    let path = match given {
        Some(path) => std::path::absolute(path)?,
        None => in_path().with_context(|| format!("not in PATH, so not compared ({HINT})"))?,
    };
    let (version, mut start) =
        ask_version(&path).with_context(|| format!("cannot ask {} its version", path.display()))?;
    let numbers = version_numbers(&version).with_context(|| format!("{version:?} is no version of criu"))?;
    ensure!(
        numbers >= OLDEST,
        "{} is {version}, too old to compare with: {}.{} or newer is needed ({HINT})",
        path.display(),
        OLDEST.0,
        OLDEST.1
    );
    // The first one may have read it from disk.
    for _ in 0..4 {
        start = start.min(ask_version(&path)?.1);
    }
    Ok(Criu { path, version, start, archives: false })
}

fn in_path() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join("criu")).find(|candidate| candidate.is_file())
}

fn ask_version(path: &Path) -> Result<(String, Duration)> {
    let mut command = Command::new(path);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let began = Instant::now();
    let mut process = command.spawn()?;
    let ended = Watch::default().until(VERSION_WAIT, "criu --version", || Ok(process.try_wait()?));
    let start = began.elapsed();
    if ended.is_err() {
        process.kill()?;
    }
    let output = process.wait_with_output()?;
    ended?;
    let output = String::from_utf8_lossy(&output.stdout);
    let version = output.lines().find_map(|line| line.strip_prefix("Version:")).context("it names none")?;
    Ok((version.trim().to_owned(), start))
}

/// The major and the minor number.
fn version_numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Measures `rounds` restores of each kind and adds them to the report; gives the median of the lazy ones. That CRIU cannot do
/// it on this host is a fact of the report, and no error.
pub(super) async fn compare(criu: &Criu, rounds: u32, cold: Duration, report: &mut Report) -> Option<Duration> {
    let measured = match Worker::measure(criu, rounds).await {
        Ok(measured) => measured,
        Err(error) => {
            report.fact("criu", format!("{} cannot be compared on this host: {error:#}", criu.version));
            return None;
        }
    };
    let Measured { eager, lazy, dump, synced, images_bytes, archives } = measured;
    add("CRIU eager restore", eager, cold, report);
    let lazy = add("CRIU lazy restore", lazy, cold, report);
    report.fact(
        "criu",
        format!(
            "{}; one dump of {} in {} and {} more until it is on the disk, restored from the page cache; of each restore {} are the bare start of criu",
            criu.version,
            text::bytes(images_bytes),
            duration(dump),
            duration(synced),
            duration(criu.start)
        ),
    );
    for archived in archives {
        add_archived(archived, dump, images_bytes, report);
    }
    Some(lazy)
}

fn add_archived(archived: Archived, dump: Duration, images_bytes: u64, report: &mut Report) {
    let Archived { filter, packed, bytes, answered } = archived;
    let beside = format!(
        "dumped and packed in {}: {}, on disk at most {}",
        duration(dump + packed),
        text::bytes(bytes),
        text::bytes(bytes + images_bytes)
    );
    report.add(format!("CRIU's images by tar and {filter}: unpack and restore to first answer"), answered, beside);
}

fn add(case: &str, restored: Vec<Restored>, cold: Duration, report: &mut Report) -> Duration {
    let answered: Vec<Duration> = restored.iter().map(|restored| restored.answered).collect();
    let beside = format!("{:.0}x faster than cold", times(cold, median(&answered)));
    report.add(format!("{case} until it returns"), restored.iter().map(|restored| restored.returned).collect(), "");
    report.add(format!("{case} to first answer"), answered, beside)
}

/// The thread that measures. Dropped (an error, Ctrl-C), it is told to stop, and waited for: it cleans up.
struct Worker {
    cancelled: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    async fn measure(criu: &Criu, rounds: u32) -> Result<Measured> {
        let (path, archives) = (criu.path.clone(), criu.archives);
        let watch = Watch::default();
        let cancelled = watch.cancelled.clone();
        let (done, measured) = oneshot::channel();
        let body = move || {
            // If this fails, the caller has stopped waiting.
            let _ = done.send(restore::measure(path, rounds, archives, watch));
        };
        let thread = std::thread::Builder::new().name("criu".to_owned()).spawn(body)?;
        let _worker = Self { cancelled, thread: Some(thread) };
        measured.await.context("the measuring thread has failed")?
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Bounded waits that end early when the measurement is cancelled.
#[derive(Default)]
struct Watch {
    cancelled: Arc<AtomicBool>,
}

impl Watch {
    /// Calls `probe` until it gives something.
    ///
    /// # Errors
    /// Those of `probe`; `limit` has passed; cancelled.
    fn until<T>(&self, limit: Duration, what: &str, mut probe: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let began = Instant::now();
        loop {
            if let Some(value) = probe()? {
                return Ok(value);
            }
            if self.cancelled.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            ensure!(began.elapsed() < limit, "{what} took longer than {limit:?}");
            std::thread::sleep(POLL);
        }
    }
}

/// The errors at the end of one of CRIU's logs, or nothing.
fn last_errors(log: &Path) -> String {
    const LINES: usize = 3;
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let errors: Vec<&str> = text.lines().filter(|line| line.contains("Error")).collect();
    errors[errors.len().saturating_sub(LINES)..].join("; ")
}

/// A command that runs CRIU with what all its tasks need. `log` is a name in `dir`.
fn criu_command(criu: &Path, task: &str, dir: &Path, log: &str) -> Command {
    // An earlier task's errors are not this one's.
    let _ = std::fs::remove_file(dir.join(log));
    let mut command = Command::new(criu);
    // Nobody's settings, and only errors: a chatty CRIU is slow, and one that spins fills the disk.
    command.env_remove("CRIU_CONFIG_FILE").args([task, "--no-default-config", "-v1"].map(OsStr::new));
    command.arg("--images-dir").arg(dir).args(["--log-file", log]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(version_numbers("4.2.1"), Some((4, 2)));
        assert_eq!(version_numbers("4.10"), Some((4, 10)));
        assert_eq!(version_numbers("criu"), None);
        assert!(version_numbers("3.17.1") < Some(OLDEST) && version_numbers("4.10") > Some(OLDEST));
    }

    #[test]
    fn a_criu_that_is_not_there_is_named() {
        let error = find(Some(Path::new("/nonexistent/criu"))).err().map(|error| format!("{error:#}"));
        assert!(error.is_some_and(|error| error.contains("/nonexistent/criu")));
    }
}
