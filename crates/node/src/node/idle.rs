//! Sandboxes without a program: they live as long as their pid 1, and hold what commands start.

use std::sync::Arc;

use base::id::SandboxId;
use model::SandboxState;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::Node;

impl Node {
    /// Waits in the background for the end of a sandbox that has no program.
    pub(super) fn watch_idle(self: &Arc<Self>, id: &SandboxId) {
        let init = match self.state().sandbox(id) {
            // One that is being paused may go on.
            Ok(record)
                if matches!(record.state, SandboxState::Running | SandboxState::Pausing)
                    && record.program().is_none() =>
            {
                record.init
            }
            Ok(_) | Err(_) => return,
        };
        let pidfd = Pid::from_raw(init.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // After the pidfd was opened: it is that of this process, or of none.
        let pidfd = pidfd.filter(|_| init.is_alive());
        let (node, id) = (Arc::clone(self), id.clone());
        tokio::spawn(async move {
            if let Some(pidfd) = pidfd {
                match keeper::descriptor::watched(pidfd) {
                    // It becomes readable when the process ends; an error of the wait is no end.
                    Ok(pidfd) if pidfd.readable().await.is_ok() => {}
                    Ok(_) | Err(_) => return,
                }
            }
            let still = node.state().sandbox(&id).is_ok_and(|record| record.init == init);
            if still {
                node.set_sandbox_state(&id, SandboxState::Lost);
                node.explain_end(&id).await;
            }
        });
    }
}
