//! The memory of the server while a client works.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::Result;
use tokio::task::AbortHandle;

use crate::proc::bytes_of;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// Looks at a process until it is dropped.
pub(super) struct Peak {
    pid: i32,
    most: Arc<AtomicU64>,
    looking: AbortHandle,
}

impl Peak {
    /// Of this process, from now on.
    pub(super) fn of(pid: i32) -> Result<Self> {
        let most = Arc::new(AtomicU64::new(resident(pid)?));
        let seen = Arc::clone(&most);
        let looking = tokio::spawn(async move {
            // It ends with the process.
            while let Ok(now) = resident(pid) {
                seen.fetch_max(now, Relaxed);
                tokio::time::sleep(LOOK).await;
            }
        });
        Ok(Self { pid, most, looking: looking.abort_handle() })
    }

    /// Forgets what it saw. What the process has now.
    pub(super) fn restart(&self) -> Result<u64> {
        let now = resident(self.pid)?;
        self.most.store(now, Relaxed);
        Ok(now)
    }

    /// The most since [`Self::restart`].
    pub(super) fn most(&self) -> u64 {
        self.most.load(Relaxed)
    }
}

impl Drop for Peak {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

/// The memory of a process, in bytes.
pub(super) fn resident(pid: i32) -> Result<u64> {
    bytes_of(&format!("/proc/{pid}/status"), "VmRSS:")
}
