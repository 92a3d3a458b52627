//! The control group of a command of a client: all that the command starts is in it, whatever session it makes for itself.
//!
//! ```text
//! made by the keeper, with the command --+-- the command ended: what it left behind joins the sandbox's group --> removed
//!                                        +-- its client left, or its time is up: SIGTERM, 2 s, SIGKILL -------> removed
//!                                        +-- the node was killed: the next one ends it as well
//! ```
//!
//! So a group that is there is that of a command whose client is there, and nobody else's.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use procfs::CgroupPaths;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::task::JoinSet;

use crate::{
    error::{Context, Result},
    node::{Node, images::random_suffix, inspect::members},
};

/// How long what is told to end may take.
const TERM_MAX: Duration = Duration::from_secs(2);
/// How long what was killed may take. What is left then goes with the sandbox.
const KILLED_MAX: Duration = Duration::from_secs(5);
/// Between two looks, at first and at most.
const LOOK_MIN: Duration = Duration::from_millis(1);
const LOOK_MAX: Duration = Duration::from_millis(50);
/// A group counts its last process for a moment after that has ended.
const REMOVALS_MAX: usize = 100;

/// One of them. Dropped, it ends what is in it.
#[derive(Debug)]
pub(super) struct CommandGroup {
    name: String,
    /// None: it is gone.
    path: Option<PathBuf>,
}

impl CommandGroup {
    /// A new one in the sandbox whose group is `sandbox`; the keeper makes it.
    pub(super) fn new(sandbox: &Path) -> Self {
        let name = format!("exec-{}", random_suffix());
        Self { path: Some(sandbox.join(&name)), name }
    }

    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    /// The command has ended by itself: what it has left behind goes on in the sandbox.
    pub(super) async fn release(mut self) {
        if let Some(path) = self.path.take() {
            remove(&path).await;
        }
    }

    /// Ends all that is in it.
    pub(super) async fn end(mut self) {
        if let Some(path) = self.path.take() {
            end(&path).await;
        }
    }
}

impl Drop for CommandGroup {
    fn drop(&mut self) {
        let Some(path) = self.path.take() else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move { end(&path).await })),
            // Nobody is there who could wait.
            Err(_) => kill(&path),
        }
    }
}

impl Node {
    /// The commands of clients that run now in the sandboxes of this node.
    pub(in crate::node) fn commands(&self) -> Commands {
        let below = |group: PathBuf| fs::read_dir(group).into_iter().flatten().flatten();
        let entries = self.ids_here().iter().flat_map(|id| below(self.group(id))).collect::<Vec<_>>();
        let groups = entries.iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        Commands(groups.map(fs::DirEntry::path).collect())
    }
}

/// Commands whose clients are gone, because their node is or is about to be.
pub(in crate::node) struct Commands(Vec<PathBuf>);

impl Commands {
    /// Ends them, side by side.
    pub(in crate::node) async fn end(self) {
        let mut ends: JoinSet<()> = self.0.into_iter().map(|group| async move { end(&group).await }).collect();
        while ends.join_next().await.is_some() {}
    }
}

async fn end(group: &Path) {
    tell(group, Signal::TERM);
    // What is stopped would not hear of it.
    tell(group, Signal::CONT);
    if !is_empty_within(group, TERM_MAX).await {
        kill(group);
        is_empty_within(group, KILLED_MAX).await;
    }
    // The keeper may be about to start the command in it: it must not join the sandbox's then.
    for _ in 0..REMOVALS_MAX {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => kill(group),
            _ => break,
        }
        tokio::time::sleep(LOOK_MIN).await;
    }
    remove(group).await;
}

/// Sends `signal` to all that is in the group now.
fn tell(group: &Path, signal: Signal) {
    // In a group that cannot be read are none that could be told; the kill is for them.
    for pid in members(group).unwrap_or_default() {
        // Open first, then look: what the descriptor names cannot change any more. What has ended need not be told.
        if let Some(Ok(pidfd)) = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()))
            && is_in(pid, group)
        {
            let _ = pidfd_send_signal(&pidfd, signal);
        }
    }
}

/// Whether the process is in the group, by that and the sandbox's, which no other has.
fn is_in(pid: i32, group: &Path) -> bool {
    let Ok(found) = CgroupPaths::read(pid) else { return false };
    let mut names = group.iter().rev();
    let (Some(own), Some(sandbox)) = (names.next(), names.next()) else { return false };
    let end = Path::new(sandbox).join(own);
    found.unified().is_some_and(|path| Path::new(path).ends_with(&end))
}

fn kill(group: &Path) {
    match fs::write(group.join("cgroup.kill"), "1") {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(group = %group.display(), %error, "the processes of a command cannot be killed");
        }
        _ => {}
    }
}

async fn is_empty_within(group: &Path, most: Duration) -> bool {
    let (began, mut look) = (Instant::now(), LOOK_MIN);
    loop {
        // One that is gone is empty.
        let events = fs::read_to_string(group.join("cgroup.events")).unwrap_or_default();
        if !events.lines().any(|line| line == "populated 1") {
            return true;
        }
        if began.elapsed() >= most {
            return false;
        }
        tokio::time::sleep(look).await;
        look = (look * 2).min(LOOK_MAX);
    }
}

/// Removes the group; what is still in it joins the sandbox's.
async fn remove(group: &Path) {
    for _ in 0..REMOVALS_MAX {
        if let Err(error) = move_up(group) {
            tracing::warn!(group = %group.display(), error = crate::chain(&error), "what a command left behind stays in its group");
            return;
        }
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => tokio::time::sleep(LOOK_MIN).await,
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(group = %group.display(), %error, "the group of a command stays");
                return;
            }
            _ => return,
        }
    }
    tracing::debug!(group = %group.display(), "the group of a command goes with its sandbox");
}

/// A move of a process stalls all forks of the host for some milliseconds; only what is left behind needs one.
fn move_up(group: &Path) -> Result<()> {
    let Some(sandbox) = group.parent() else { return Ok(()) };
    let path = sandbox.join("cgroup.procs");
    for pid in members(group)? {
        match fs::write(&path, pid.to_string()) {
            // It ended in the meantime.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
            written => written.at("write", &path)?,
        }
    }
    Ok(())
}
