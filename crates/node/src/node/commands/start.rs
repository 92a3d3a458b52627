//! Starting a command: its streams go to the holder first, then its process begins, then the holder reads.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
};

use base::{
    id::SandboxId,
    limits::{COMMAND_TAG_BYTES_MAX, COMMAND_TIMEOUT_MS_MAX},
};
use holder::{Meta, Process, Starting, Status};
use keeper::{Spawned, protocol};
use model::{Command, CommandSpec, SandboxState};
use rustix::pipe::{PipeFlags, pipe_with};
use sandbox::monotonic_ns;
use tokio::sync::oneshot;

use super::{CommandStream, group, is_absent, terminal, to_model};
use crate::{
    error::{Context, Error, Result},
    node::{
        Node,
        exec::{check, command},
        holder_link::{StartGuard, failed},
        images::random_suffix,
        lifecycle::Operation,
        now_ms,
    },
};

/// A command that has just begun.
pub(in crate::node) struct Begun {
    pub(in crate::node) command: Command,
    pub(in crate::node) key: String,
    pub(in crate::node) stream: CommandStream,
}

/// The process's ends of its streams, and where the holder has the others.
struct Stdio {
    process: [OwnedFd; 3],
    starting: Starting,
}

impl Node {
    /// Starts a command that outlives its client and this node. Who has the stream is attached from the first byte on;
    /// dropping it ends nothing.
    #[tracing::instrument(skip_all, fields(sandbox = %id))]
    pub async fn start_command(
        self: &Arc<Self>,
        id: &SandboxId,
        spec: CommandSpec,
    ) -> Result<(Command, CommandStream)> {
        let Begun { command, stream, .. } = self.begin_command(id, spec, false).await?;
        Ok((command, stream))
    }

    /// Starts a command. If this is given up, nothing of the command stays.
    pub(in crate::node) async fn begin_command(
        self: &Arc<Self>,
        id: &SandboxId,
        request: CommandSpec,
        foreground: bool,
    ) -> Result<Begun> {
        let (init, spec) = {
            self.admits(id, Operation::Command)?;
            let state = self.state();
            let record = state.sandbox(id)?;
            (record.init, state.spec_of(record)?)
        };
        check_request(&request)?;
        let account = self.account(id, request.user.as_deref()).await?;
        // What the request says goes before it.
        let env = [self.trust_variables(id)?, request.env.clone()].concat();
        let mut command =
            command(&self.host.config.given, &spec, &account, request.command.clone(), &env, request.cwd.as_deref());
        check(&command)?;
        let key = format!("exec-{}", random_suffix());
        let unfinished = Unfinished::new(self, &key, self.group(id).join(&key));
        command.group = Some(key.clone());
        command.tty = request.terminal.is_some();
        if command.tty && !command.env.iter().any(|(name, _)| name == "TERM") {
            command.env.push(("TERM".to_owned(), "xterm-256color".to_owned()));
        }
        let mut meta = meta(id, &key, &request, (&account.name, &command.cwd), foreground);
        let Stdio { process, starting } = self.hold_streams(&mut meta, init.pid, &request).await?;
        let (node, of) = (Arc::clone(self), id.clone());
        let spawn = async move {
            let [stdin, stdout, stderr] = &process;
            node.spawn_whole(&of, command, false, [stdin, stdout, stderr]).await
        };
        let spawned = self.drive(id, Operation::Command, spawn).await;
        self.ledger.metrics.command(&spawned);
        let spawned = match spawned {
            Err(Error::Keeper { .. }) if !init.is_alive() => {
                return Err(Error::NotRunning { id: id.clone(), state: SandboxState::Lost });
            }
            spawned => spawned?,
        };
        let begun = self.begin_held(id, meta, spawned, starting).await?;
        unfinished.finish();
        Ok(begun)
    }

    /// The holder has the streams from here on.
    async fn begin_held(
        self: &Arc<Self>,
        id: &SandboxId,
        meta: Meta,
        spawned: Spawned,
        starting: Starting,
    ) -> Result<Begun> {
        let Spawned { process, inside, pidfd, ended, .. } = spawned;
        let pidfd = pidfd.ok_or(std::io::ErrorKind::InvalidData).doing("take the process of the command")?;
        let process = Process { inside, outside: process.pid, start_ticks: process.start_ticks };
        let events = starting.begin(process, &pidfd).await.map_err(failed("hand over the command"))?;
        self.report_end(&meta.key, ended);
        if let Some(deadline_ns) = meta.deadline_ns {
            self.end_at(id, &meta.key, deadline_ns);
        }
        let totals = vec![0; if meta.terminal { 1 } else { 2 }];
        let key = meta.key.clone();
        let entry = holder::Entry { meta, process, end: None, settled: false, totals, input_closed: false };
        let stream = CommandStream::new(Arc::clone(self), id.clone(), &entry, events);
        Ok(Begun { command: to_model(&entry), key, stream })
    }

    /// Makes the streams and hands our ends to the holder.
    async fn hold_streams(&self, meta: &mut Meta, init: i32, request: &CommandSpec) -> Result<Stdio> {
        if let Some(size) = request.terminal {
            let terminal::Opened { master, slave, number } = terminal::open_new(init)?;
            terminal::resize(&master, size)?;
            meta.streams = vec![file_of(&slave)?];
            meta.terminal_number = Some(number);
            let starting = self.hold(meta, &[], &[master.as_fd()], None).await?;
            let share = || slave.try_clone().doing("share the terminal");
            return Ok(Stdio { process: [share()?, share()?, share()?], starting });
        }
        let (stdin_read, stdin_write) = pipe()?;
        let (stdout_read, stdout_write) = pipe()?;
        let (stderr_read, stderr_write) = pipe()?;
        meta.streams = [&stdin_read, &stdout_write, &stderr_write].map(file_of).into_iter().collect::<Result<_>>()?;
        // Without input, the other end closes here: the command reads end of file at once.
        let input = request.stdin.then(|| stdin_write.as_fd());
        let starting = self.hold(meta, &[], &[stdout_read.as_fd(), stderr_read.as_fd()], input).await?;
        Ok(Stdio { process: [stdin_read, stdout_write, stderr_write], starting })
    }

    /// The holder is started if there is none.
    pub(super) async fn hold(
        &self,
        meta: &Meta,
        before: &[Vec<u8>],
        outputs: &[BorrowedFd<'_>],
        input: Option<BorrowedFd<'_>>,
    ) -> Result<Starting> {
        let holder = self.holder.client();
        let held = match holder.hold(meta, before, outputs, input).await {
            // It may have been about to end, because it was idle.
            Err(error) if matches!(error, holder::Error::Lost) || is_absent(&error) => {
                self.holder.reach().await?;
                holder.hold(meta, before, outputs, input).await
            }
            held => held,
        };
        held.map_err(failed("hold the streams of the command"))
    }

    /// On kernels that keep no status, the keeper's word is all there is.
    pub(super) fn report_end(self: &Arc<Self>, key: &str, ended: oneshot::Receiver<protocol::Status>) {
        let (node, key) = (Arc::clone(self), key.to_owned());
        tokio::spawn(async move {
            let status = match ended.await {
                Ok(protocol::Status::Code(code)) => Status::Code(code),
                Ok(protocol::Status::Signal(signal)) => Status::Signal(signal),
                // The kernel may know.
                Ok(protocol::Status::Unknown) | Err(_) => return,
            };
            // One that was forgotten meanwhile needs no status.
            let _ = node.holder.client().report(&key, status).await;
        });
    }
}

/// A command that is not held yet. Dropped before it is, it ends.
struct Unfinished {
    guard: Option<StartGuard>,
    group: PathBuf,
}

impl Unfinished {
    fn new(node: &Arc<Node>, key: &str, group: PathBuf) -> Self {
        Self { guard: Some(node.holder.begin_start(key)), group }
    }

    fn finish(mut self) {
        drop(self.guard.take());
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            let group = std::mem::take(&mut self.group);
            tokio::spawn(async move {
                group::end(&group).await;
                drop(guard);
            });
        }
    }
}

fn meta(id: &SandboxId, key: &str, request: &CommandSpec, (user, cwd): (&str, &str), foreground: bool) -> Meta {
    Meta {
        key: key.to_owned(),
        sandbox: id.to_string(),
        argv: request.command.clone(),
        env: request.env.clone(),
        cwd: cwd.to_owned(),
        tag: request.tag.clone(),
        user: user.to_owned(),
        terminal: request.terminal.is_some(),
        stdin: request.stdin && request.terminal.is_none() || request.terminal.is_some(),
        foreground,
        started_ms: now_ms(),
        deadline_ns: request.timeout_ms.map(|ms| monotonic_ns().saturating_add(ms * 1_000_000)),
        timeout_ms: request.timeout_ms,
        streams: Vec::new(),
        terminal_number: None,
    }
}

/// Device and inode of a stream. Both ends of a pipe are one file.
pub(super) fn file_of(stream: &OwnedFd) -> Result<(u64, u64)> {
    let status = rustix::fs::fstat(stream).doing("look at a stream")?;
    Ok((status.st_dev, status.st_ino))
}

fn check_request(request: &CommandSpec) -> Result<()> {
    let invalid = |message: String| Err(Error::Invalid { message, hint: None });
    if request.timeout_ms.is_some_and(|ms| !(1..=COMMAND_TIMEOUT_MS_MAX).contains(&ms)) {
        return invalid("a command's time limit is 1 ms to 30 days".to_owned());
    }
    if request.tag.as_ref().is_some_and(|tag| tag.is_empty() || tag.len() > COMMAND_TAG_BYTES_MAX) {
        return invalid(format!("a command's tag has 1 to {COMMAND_TAG_BYTES_MAX} bytes"));
    }
    Ok(())
}

pub(super) fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    pipe_with(PipeFlags::CLOEXEC).doing("make a pipe")
}
