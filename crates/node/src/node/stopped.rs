//! Why a program was killed: at the memory limit, which its control group counts; or a restored one because a page could not be had, which only the
//! pager knows, and forgets when it ends.

use std::{path::Path, sync::Arc, time::Duration};

use base::id::SandboxId;
use keeper::protocol::Status;
use model::{ExitStatus, SandboxState};
use pager::Client;

use super::{Node, start::Source};
use crate::error::{Context, Error};

/// The pager writes down whom it killed after it did so.
const TRIES: u32 = 20;
const TICK: Duration = Duration::from_millis(50);

impl Node {
    /// Finds out whether the memory limit, or the pager, has ended the program of a sandbox, and keeps the reason.
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
        if let Some(reason) = self.killed_at_limit(id).filter(|_| killed) {
            tracing::warn!(sandbox = %id, reason, "the program was killed");
            self.keep_reason(id, reason);
            return;
        }
        let pid = record.program().map(|program| program.pid);
        let Some(pages) = record.pages.filter(|_| killed) else { return };
        let socket = self.pager.socket();
        let asked = tokio::task::spawn_blocking(move || reason(&socket, &pages, pid)).await;
        if let Ok(Some(reason)) = asked.doing("ask the pager") {
            tracing::warn!(sandbox = %id, reason, "the pager stopped its program");
            self.keep_reason(id, format!("its memory could not be had: {reason}"));
        }
    }

    fn keep_reason(&self, id: &SandboxId, reason: String) {
        let explained = self.state().explain(id, reason);
        self.record_end(explained);
    }

    /// The same of a copy that has ended in its start: the keeper knows only that it was killed.
    pub(super) async fn explain_failed_start(&self, source: &Source, error: Error) -> Error {
        let (Error::Keeper { action, message }, Some(pages)) = (&error, source.pages.clone()) else { return error };
        if *message != Status::Signal(rustix::process::Signal::KILL.as_raw()).in_start() {
            return error;
        }
        let socket = self.pager.socket();
        let asked = tokio::task::spawn_blocking(move || reason(&socket, &pages, None)).await;
        match asked.doing("ask the pager") {
            Ok(Some(reason)) => Error::Keeper { action, message: format!("{message}: {reason}") },
            Ok(None) | Err(_) => error,
        }
    }
}

/// Why the pager stopped process `pid`, or the last one, of the image `pages`, if it did. Blocks.
fn reason(socket: &Path, pages: &str, pid: Option<i32>) -> Option<String> {
    for _ in 0..TRIES {
        let failures = Client::connect(socket).and_then(|mut client| client.status()).ok()?.failures;
        let mut of_image = failures.into_iter().rev().filter(|failure| failure.image == pages).peekable();
        // Without any it was somebody else.
        of_image.peek()?;
        if let Some(failure) = of_image.find(|failure| pid.is_none() || failure.pid == pid) {
            return Some(failure.reason);
        }
        std::thread::sleep(TICK);
    }
    None
}
