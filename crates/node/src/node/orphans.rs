//! Reaping what a dead keeper leaves behind.
//!
//! The server is a subreaper: the sandboxes of a keeper that died become its children. They run on and are adopted by the
//! next keeper, but only a parent can reap them, and a pid namespace ends only when all its processes are reaped. The
//! host's own init would do it too; some containers have one that takes seconds.

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use tokio::signal::unix::{SignalKind, signal};

/// Reaps orphans as they end. Never returns, unless it cannot be done.
pub(super) async fn reap() {
    let subreaper = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let (Ok(()), Ok(mut ends)) = (subreaper, signal(SignalKind::child())) else {
        tracing::warn!("orphans of a keeper that dies are left to the host's init");
        return;
    };
    while ends.recv().await.is_some() {
        for pid in children() {
            // The keeper itself is among them: its status is of no interest, and whoever waits for it sees that it has gone.
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }
}

/// Children of every thread of this process.
fn children() -> Vec<Pid> {
    let own = std::process::id() as i32;
    let threads = procfs::numbers("/proc/self/task").unwrap_or_default();
    let children = threads.into_iter().flat_map(|thread| procfs::children(own, thread).unwrap_or_default());
    children.filter_map(Pid::from_raw).collect()
}
