//! The pager of a private node: what was asked of it, and its end.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use pager::{Client, Status};
use rustix::process::{Pid, Signal, kill_process};

/// It learns of the end of the programs that it serves a moment after that.
const END_WAIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(5);

/// Faults, until it was asked.
#[derive(Debug, Clone)]
pub(super) struct Paged {
    pub(super) faults: u64,
    /// Different pages that programs faulted on.
    pub(super) working_set: u64,
}

/// What the pager of the node in `state_dir` has done so far; nothing if it has none.
pub(super) fn paged(state_dir: &Path) -> Result<Option<Paged>> {
    let Ok(mut client) = Client::connect(&node::pager_socket(state_dir)) else { return Ok(None) };
    let Status { images, counters, .. } = client.status()?;
    Ok(Some(Paged { faults: counters.faults, working_set: images.iter().map(|image| image.working_set_pages).sum() }))
}

/// Whether no program lacks memory. Asks the pager to fill all of them: without that it fills zygotes only.
pub(super) fn is_filled(state_dir: &Path) -> Result<bool> {
    let Some(mut client) = Client::find(&node::pager_socket(state_dir))? else { return Ok(true) };
    let lacking: Vec<_> = client.status()?.images.into_iter().filter(|image| image.processes > 0).collect();
    lacking.iter().try_for_each(|image| client.hurry(&image.name))?;
    Ok(lacking.is_empty())
}

/// Ends the pager of a node that has ended, with all its programs, and waits for that.
pub(super) fn end_pager(state_dir: &Path) {
    let socket = node::pager_socket(state_dir);
    let (began, mut family, mut killed) = (Instant::now(), Vec::new(), false);
    loop {
        let refusal = ask_to_end(&socket, &mut family);
        if !family.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
            return;
        }
        // Again and again: who is killed may have been replaced by one of the others.
        if began.elapsed() > END_WAIT {
            family.iter().copied().for_each(kill);
            if !std::mem::replace(&mut killed, true) {
                tracing::warn!(refusal, "the private node's pager does not end, and is killed");
            }
        }
        if began.elapsed() > END_WAIT * 2 {
            return;
        }
        std::thread::sleep(POLL);
    }
}

/// Asks a pager to end; notes its processes, and gives its reason if it refuses: it may not know yet that its programs are gone.
fn ask_to_end(socket: &Path, family: &mut Vec<i32>) -> Option<String> {
    let mut client = Client::connect(socket).ok()?;
    if let Ok(status) = client.status() {
        family.extend([status.guardian_pid, status.spare_pid, status.pager_pid].iter().filter(|pid| **pid > 0));
        family.sort_unstable();
        family.dedup();
    }
    client.shutdown().err().map(|error| error.to_string())
}

pub(super) fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, Signal::KILL);
    }
}
