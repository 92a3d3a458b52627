//! Why a restored program was stopped: only the pager knows that a page could not be had, and forgets it when it ends.

use std::{path::Path, sync::Arc, time::Duration};

use api::{ExitStatus, SandboxState};
use base::id::SandboxId;
use pager::Client;

use super::Node;
use crate::error::Context;

/// The pager writes down whom it killed after it did so.
const TRIES: u32 = 20;
const TICK: Duration = Duration::from_millis(50);

impl Node {
    /// Asks the pager whether it stopped the program of a sandbox that has ended, and keeps its reason.
    pub(super) async fn explain_end(self: &Arc<Self>, id: &SandboxId) {
        let Ok(record) = self.state().sandbox(id).cloned() else { return };
        let killed = match record.state {
            SandboxState::Exited(ExitStatus::Signal(signal)) => signal == rustix::process::Signal::KILL.as_raw(),
            SandboxState::Exited(ExitStatus::Unknown) | SandboxState::Lost => true,
            SandboxState::Exited(ExitStatus::Code(_))
            | SandboxState::Running
            | SandboxState::Pausing
            | SandboxState::Paused => false,
        };
        let Some(pages) = record.pages.filter(|_| killed) else { return };
        let (socket, pid) = (crate::pager_socket(&self.config.state_dir), record.main.pid);
        let asked = tokio::task::spawn_blocking(move || reason(&socket, &pages, pid)).await;
        if let Ok(Some(reason)) = asked.doing("ask the pager") {
            tracing::warn!(sandbox = %id, reason, "the pager stopped its program");
            let explained = self.state().explain(id, reason);
            self.record_end(explained);
        }
    }
}

/// Why the pager stopped process `pid` of the image `pages`, if it did. Blocks.
fn reason(socket: &Path, pages: &str, pid: i32) -> Option<String> {
    for _ in 0..TRIES {
        let failures = Client::connect(socket).and_then(|mut client| client.status()).ok()?.failures;
        let mut of_image = failures.into_iter().filter(|failure| failure.image == pages).peekable();
        // Without any it was somebody else.
        of_image.peek()?;
        if let Some(failure) = of_image.find(|failure| failure.pid == Some(pid)) {
            return Some(failure.reason);
        }
        std::thread::sleep(TICK);
    }
    None
}
