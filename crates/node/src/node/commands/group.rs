//! The control group of a command of a client: all that the command starts is in it, whatever session it makes for
//! itself.
//!
//! ```text
//! made by the keeper, with the command
//!   the command ended ------------------------------- what it left behind joins the sandbox's group --> removed
//!   its time is up, its foreground client left,
//!   or nothing holds the command any more ----------- SIGTERM, 2 s, SIGKILL --------------------------> removed
//! ```
//!
//! So a group that is there is that of a command which is held, or is about to be.

use std::{
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

use procfs::CgroupPaths;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::{
    error::{Context, Result},
    node::inspect::members,
};

/// How long what is told to end may take.
const TERM_MAX: Duration = Duration::from_secs(2);
/// How long what has a terminal has after the hang-up.
const HANGUP_MAX: Duration = Duration::from_millis(100);
/// How long what was killed may take. What is left then goes with the sandbox.
const KILLED_MAX: Duration = Duration::from_secs(5);
/// Between two looks, at first and at most.
const LOOK_MIN: Duration = Duration::from_millis(1);
const LOOK_MAX: Duration = Duration::from_millis(50);
/// A group counts its last process for a moment after that has ended.
const REMOVALS_MAX: usize = 100;

/// Sends SIGTERM to all that is in the group now.
pub(super) fn terminate(group: &Path) {
    tell(group, Signal::TERM);
    // What is stopped would not hear of it.
    tell(group, Signal::CONT);
}

/// Kills all that is in the group. What has a terminal hears that it hung up, and has a moment for that.
pub(super) async fn kill_now(group: &Path, terminal: bool) {
    if terminal {
        tell(group, Signal::HUP);
        tell(group, Signal::CONT);
        if is_empty_within(group, HANGUP_MAX).await {
            return;
        }
    }
    kill(group);
    // Who has killed a command expects a sandbox without it: to pause it, for example.
    is_empty_within(group, KILLED_MAX).await;
}

/// Ends all that is in the group, with SIGTERM and, after a while, SIGKILL. Then the group is gone.
pub(super) async fn end(group: &Path) {
    terminate(group);
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
pub(super) async fn remove(group: &Path) {
    for _ in 0..REMOVALS_MAX {
        if let Err(error) = move_up(group) {
            let error = crate::chain(&error);
            tracing::warn!(group = %group.display(), error, "what a command left behind stays in its group");
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
