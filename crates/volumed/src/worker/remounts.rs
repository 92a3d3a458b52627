//! Mounts that somebody remounts read-only. For FUSE that makes the whole superblock read-only, and with it every mount of the volume in every
//! sandbox, which is undone: `fuse::keep_writable`.
//!
//! The kernel wakes those who poll the list of mounts when one of their namespace changes (proc_pid_mountinfo(5)). Programs in sandboxes may not remount.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use fuse::FuseError;
use tokio::io::{Interest, unix::AsyncFd};

use super::table::Table;
use crate::{error::chain, message::Source};

const MOUNTS: &str = "/proc/self/mountinfo";

/// Looks at each change, as long as the process lives.
pub(super) async fn watch(table: Arc<Table>) {
    let changes = match changes() {
        Ok(changes) => changes,
        Err(error) => {
            return tracing::warn!(error = chain(&error), "a remount of a volume is not seen before its next mount");
        }
    };
    loop {
        let link = table.link.clone();
        let look = move || {
            for source in link.sources() {
                if let Some(Ok((tree, _))) = link.descriptors(&source)
                    && let Err(error) = keep_writable(&source, tree.as_fd())
                {
                    tracing::error!(%source, error = chain(&error), "all mounts of a volume are read-only");
                }
            }
            Ok(())
        };
        // Fails only when the process ends.
        let _ = table.work.run_whole(look).await;
        match changes.ready(Interest::PRIORITY).await {
            Ok(mut ready) => ready.clear_ready(),
            Err(_) => return,
        }
    }
}

fn changes() -> io::Result<AsyncFd<File>> {
    // As in `control`: deprecated because of types that answer with another descriptor each time, and `File` cannot.
    #[allow(deprecated)]
    AsyncFd::with_interest(File::open(MOUNTS)?, Interest::PRIORITY)
}

/// Undoes what a remount did to the mounts of `source` that nobody remounted.
pub(super) fn keep_writable(source: &Source, tree: BorrowedFd<'_>) -> Result<(), FuseError> {
    if fuse::keep_writable(tree)? {
        tracing::warn!(%source, "one of its mounts was remounted read-only; the others can be written again");
    }
    Ok(())
}
