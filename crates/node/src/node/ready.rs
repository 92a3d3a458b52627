//! Waiting until a template's program is ready.

use std::{
    os::fd::AsFd,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use base::id::SandboxId;
use keeper::protocol::Status;
use model::{Ready, TemplateSpec};
use rustix::{
    fs::{Mode, OFlags, ResolveFlags, open, openat2},
    process::{Pid, PidfdFlags, Signal, pidfd_open},
};
use sandbox::ProcessIdentity;
use sys::{
    diag,
    namespace::{Kind, inside},
};
use tokio::sync::oneshot;

use super::{
    Account, Node, exit_status,
    logs::{CARRIED_MAX, last_lines},
    output::carried,
};
use crate::{
    config::output_file,
    error::{Context, Error, Result},
};

/// How often to look: soon at first, because many programs are ready within milliseconds.
const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_millis(100);

/// A program that is ready has to be there this long afterwards: one that fails right behind its first words has told why by then.
const SETTLED: Duration = Duration::from_millis(100);

/// How much of the output goes into the message of a failure.
const OUTPUT_LINES: usize = 20;

impl Node {
    /// Waits until the program `main` of the sandbox is ready, and is still there [`SETTLED`] later; it ends early when the program does. Gives
    /// when it was ready.
    pub(super) async fn wait_until_ready(
        self: &Arc<Self>,
        spec: &TemplateSpec,
        id: &SandboxId,
        account: &Account,
        (init, main): (ProcessIdentity, ProcessIdentity),
        ended: &mut oneshot::Receiver<Status>,
    ) -> Result<Instant> {
        let timeout = Duration::from_millis(spec.ready_timeout_ms);
        let ready = tokio::select! {
            biased;
            status = &mut *ended => return Err(self.ended_early(id, init, status.ok()).await),
            ready = tokio::time::timeout(timeout, self.poll_ready(spec, id, account, main.pid)) => ready,
        };
        let Ok(ready) = ready else {
            let (ready, output) = (spec.ready.to_string(), self.last_output(id, init).await);
            return Err(Error::NotReadyInTime { ready, timeout_ms: spec.ready_timeout_ms, output });
        };
        ready?;
        let ready = Instant::now();
        tokio::select! {
            status = ended => Err(self.ended_early(id, init, status.ok()).await),
            () = tokio::time::sleep(SETTLED) => Ok(ready),
        }
    }

    /// The error of a capture; or that the program has ended, if it has, which explains more.
    pub(super) async fn or_its_end(
        &self,
        id: &SandboxId,
        (init, main): (ProcessIdentity, ProcessIdentity),
        ended: &mut oneshot::Receiver<Status>,
        error: Error,
    ) -> Error {
        if main.is_alive() {
            return error;
        }
        match tokio::time::timeout(SETTLED, ended).await {
            Ok(Ok(status)) => self.ended_early(id, init, Some(status)).await,
            Ok(Err(_)) | Err(_) => error,
        }
    }

    async fn last_output(&self, id: &SandboxId, init: ProcessIdentity) -> Vec<String> {
        carried(init, CARRIED_MAX).await;
        last_lines(&output_file(&self.host.config.sandbox_dir(id)), OUTPUT_LINES)
    }

    async fn ended_early(&self, id: &SandboxId, init: ProcessIdentity, status: Option<Status>) -> Error {
        let Some(status) = status else { return Error::KeeperLost { action: "wait until the program is ready" } };
        let reason = self.killed_at_limit(id).filter(|_| status == Status::Signal(Signal::KILL.as_raw()));
        Error::ProgramEnded { status: exit_status(status), reason, output: self.last_output(id, init).await }
    }

    pub(super) async fn poll_ready(
        self: &Arc<Self>,
        spec: &TemplateSpec,
        id: &SandboxId,
        account: &Account,
        main: i32,
    ) -> Result<()> {
        let began = Instant::now();
        while !self.is_ready(spec, id, account, main).await? {
            // An eighth of the time waited so far: the look costs the wait 12 % at most.
            tokio::time::sleep((began.elapsed() / 8).clamp(LOOK_MIN, LOOK_MAX)).await;
        }
        Ok(())
    }

    async fn is_ready(
        self: &Arc<Self>,
        spec: &TemplateSpec,
        id: &SandboxId,
        account: &Account,
        main: i32,
    ) -> Result<bool> {
        match &spec.ready {
            Ready::Listening => Ok(!listening_ports(main)?.is_empty()),
            Ready::Port(port) => Ok(listening_ports(main)?.contains(port)),
            Ready::File(path) => Ok(file_exists(main, path)),
            Ready::Command(argv) => self.succeeds(spec, id, account, argv).await,
        }
    }

    /// A command that is not there will not be there the next time: that is an error at once.
    async fn succeeds(
        self: &Arc<Self>,
        spec: &TemplateSpec,
        id: &SandboxId,
        account: &Account,
        argv: &[String],
    ) -> Result<bool> {
        let command = super::exec::command(&self.host.config.given, spec, account, argv.to_vec(), &[], None);
        match self.spawn(id, command, false, [&self.host.null; 3]).await {
            Ok((_, ended)) => Ok(matches!(ended.await, Ok(Status::Code(0)))),
            Err(Error::ProgramMissing { message } | Error::ProgramNotExecutable { message }) => {
                Err(Error::NoReadyCommand { message })
            }
            Err(error) => {
                tracing::debug!(sandbox = %id, error = crate::chain(&error), "the ready command did not start");
                Ok(false)
            }
        }
    }
}

/// TCP ports that something listens on in the network namespace of `pid`: none if it has ended, which its waiter learns anyway.
fn listening_ports(pid: i32) -> Result<Vec<u16>> {
    let process = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let listed = process.and_then(|process| inside(process.as_fd(), Kind::Network, diag::listening_ports).ok());
    listed.unwrap_or_else(|| Ok(Vec::new())).doing("list the ports that a program listens on")
}

/// Whether the file exists as the process sees it. Links are followed inside its root only: the program chose them.
fn file_exists(pid: i32, path: &str) -> bool {
    let root = open(Path::new(&format!("/proc/{pid}/root")), OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let found = root.and_then(|root| {
        openat2(
            &root,
            path,
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        )
    });
    found.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_of_this_process_is_seen() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listening_ports(std::process::id() as i32).unwrap().contains(&port));
    }

    #[test]
    fn files_are_looked_up_inside_the_root() {
        let own = std::process::id() as i32;
        assert!(file_exists(own, "/proc/self/stat") || file_exists(own, "/etc"));
        assert!(!file_exists(own, "/no/such/file"));
    }
}
