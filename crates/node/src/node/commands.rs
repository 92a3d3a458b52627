//! Commands of clients in sandboxes. They outlive their clients and the node, unless they run in the foreground of a
//! client.
//!
//! ```text
//! client ── start ──> node ── streams ──> holder (keeps output and status)
//!                      │ spawn                 ▲ events
//!                      ▼                       │
//!                   keeper ── forks ──> the command, in a control group of its own
//! ```
//!
//! The holder knows nothing of control groups. What ends commands and tidies up behind them is here: [`group`],
//! [`follow`].

mod along;
mod follow;
mod forked;
mod group;
mod start;
mod terminal;

use std::sync::Arc;

use base::id::SandboxId;
use holder::{Channel, Client, Entry, Event, Status};
use model::{Command, CommandEnd, CommandEvent, CommandSignal, EndReason, ExitStatus, Selector, TerminalSize};
use tokio::sync::Mutex as AsyncMutex;

use super::{Node, holder_link::failed};
use crate::error::{CommandError, Result};

pub(super) use along::Along;
pub(crate) use forked::CommandStreams;
pub(super) use start::Begun;

impl Node {
    /// The commands of a sandbox: those that run, and the last ones that have ended. The oldest first.
    pub async fn commands(&self, id: &SandboxId) -> Result<Vec<Command>> {
        self.state().sandbox(id)?;
        Ok(self.entries(id).await?.iter().map(to_model).collect())
    }

    /// Attaches to a command, which may have ended: all of its output that is kept, then what comes. Any number of
    /// clients can be attached.
    ///
    /// The command waits for the fastest of them. Dropping the stream ends nothing.
    pub async fn attach(self: &Arc<Self>, id: &SandboxId, selector: &Selector) -> Result<CommandStream> {
        let entry = self.find_command(id, selector).await?;
        let events = self.holder.client().attach(&entry.meta.key, entry.totals.len()).await;
        let events = events.map_err(failed("attach to the command"))?;
        Ok(CommandStream::new(Arc::clone(self), id.clone(), &entry, events))
    }

    /// The way to a command's input and terminal, for more than one call.
    pub async fn input(&self, id: &SandboxId, selector: &Selector) -> Result<CommandInput> {
        let entry = self.find_command(id, selector).await?;
        Ok(CommandInput::new(self.holder.client(), &entry.meta.key))
    }

    /// Sends input to a command. Returns when the command's pipe or terminal has all of it.
    pub async fn send_input(&self, id: &SandboxId, selector: &Selector, bytes: &[u8]) -> Result<()> {
        self.input(id, selector).await?.send(bytes).await
    }

    /// Ends the input of a command. A terminal gets Ctrl-D.
    pub async fn close_input(&self, id: &SandboxId, selector: &Selector) -> Result<()> {
        self.input(id, selector).await?.close().await
    }

    /// Tells the terminal of a command its size.
    pub async fn resize(&self, id: &SandboxId, selector: &Selector, size: TerminalSize) -> Result<()> {
        self.input(id, selector).await?.resize(size).await
    }

    /// Sends a signal to all processes of a command that runs. What it left behind after its end is not its any more.
    pub async fn signal(&self, id: &SandboxId, selector: &Selector, signal: CommandSignal) -> Result<()> {
        let entry = self.find_command(id, selector).await?;
        if entry.end.is_some() {
            return Err(CommandError::Ended.into());
        }
        let group = self.group(id).join(&entry.meta.key);
        match signal {
            CommandSignal::Terminate => group::terminate(&group),
            CommandSignal::Kill => group::kill_now(&group, entry.meta.terminal).await,
        }
        Ok(())
    }

    /// Commands of a sandbox as the holder has them, the oldest first. Without a holder there is none.
    async fn entries(&self, id: &SandboxId) -> Result<Vec<Entry>> {
        Ok(self.entries_with(id, 0).await?.into_iter().map(|(entry, _)| entry).collect())
    }

    /// The same, with the end of each of their outputs: at most `most` bytes.
    async fn entries_with(&self, id: &SandboxId, most: u64) -> Result<Vec<(Entry, Vec<Vec<u8>>)>> {
        let mut entries = match self.holder.client().list_with(Some(id.as_str()), most).await {
            Err(error) if is_absent(&error) => Vec::new(),
            entries => entries.map_err(failed("list the commands"))?,
        };
        entries.sort_by_key(|(entry, _)| (entry.meta.started_ms, entry.process.inside));
        Ok(entries)
    }

    async fn find_command(&self, id: &SandboxId, selector: &Selector) -> Result<Entry> {
        self.state().sandbox(id)?;
        let is_it = |entry: &Entry| match selector {
            Selector::Pid(pid) => entry.process.inside == *pid,
            Selector::Tag(tag) => entry.meta.tag.as_ref() == Some(tag),
        };
        // One that runs before one that has ended, the newest first.
        let entries = self.entries(id).await?.into_iter().filter(is_it);
        let found = entries.max_by_key(|entry| (entry.end.is_none(), entry.meta.started_ms));
        found.ok_or_else(|| CommandError::NotFound { id: id.clone(), selector: selector.clone() }.into())
    }

    /// Forgets the commands of a sandbox that is removed.
    pub(super) async fn forget_commands(&self, id: &SandboxId) {
        match self.holder.client().forget_sandbox(id.as_str()).await {
            Err(error) if !is_absent(&error) => {
                tracing::warn!(sandbox = %id, error = crate::chain(&error), "its commands are forgotten later");
            }
            _ => {}
        }
    }
}

/// Whether there is no holder.
fn is_absent(error: &holder::Error) -> bool {
    use std::io::ErrorKind;
    match error {
        holder::Error::System { source, .. } => {
            matches!(source.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
        }
        holder::Error::InUse(_) | holder::Error::Lost | holder::Error::Refused { .. } | holder::Error::Answer => false,
    }
}

/// The input of a command, and the size of its terminal. Inputs of several clients do not mix within one call.
#[derive(Debug)]
pub struct CommandInput {
    key: String,
    client: Client,
    channel: AsyncMutex<Option<Channel>>,
}

impl CommandInput {
    fn new(client: &Client, key: &str) -> Self {
        Self { key: key.to_owned(), client: client.clone(), channel: AsyncMutex::default() }
    }

    /// Sends bytes. Returns when the command's pipe or terminal has all of them. If the holder dies meanwhile, some may
    /// be there.
    pub async fn send(&self, bytes: &[u8]) -> Result<()> {
        for part in bytes.chunks(holder::INPUT_BYTES_MAX) {
            self.ask(Some(part)).await.map_err(failed("send input to the command"))?;
        }
        Ok(())
    }

    /// There is no more. A terminal gets Ctrl-D.
    pub async fn close(&self) -> Result<()> {
        self.ask(None).await.map_err(failed("end the input of the command"))
    }

    /// Tells the terminal its size.
    pub async fn resize(&self, size: TerminalSize) -> Result<()> {
        let resized = self.client.resize(&self.key, size.rows, size.columns).await;
        resized.map_err(failed("resize the terminal"))
    }

    /// Sends a part of the input, or its end, on the connection that there is or on a new one.
    async fn ask(&self, part: Option<&[u8]>) -> Result<(), holder::Error> {
        let mut slot = self.channel.lock().await;
        // Out of its place meanwhile: if this is given up, a late answer must not be taken for that of the next
        // request.
        let channel = match slot.take() {
            Some(channel) => channel,
            None => self.client.channel().await?,
        };
        let asked = match part {
            Some(part) => channel.input(&self.key, part).await,
            None => channel.close_input(&self.key).await,
        };
        if matches!(asked, Ok(()) | Err(holder::Error::Refused { .. })) {
            *slot = Some(channel);
        }
        asked
    }
}

/// What a command does, for one client. Dropped, nothing of the command ends.
#[derive(Debug)]
pub struct CommandStream {
    node: Arc<Node>,
    sandbox: SandboxId,
    started: Option<i32>,
    terminal: bool,
    events: holder::Events,
    end: Option<CommandEnd>,
    /// The client knows of the end.
    told: bool,
}

impl CommandStream {
    fn new(node: Arc<Node>, sandbox: SandboxId, entry: &Entry, events: holder::Events) -> Self {
        let (started, terminal) = (Some(entry.process.inside), entry.meta.terminal);
        Self { node, sandbox, started, terminal, events, end: None, told: false }
    }

    /// The way to the input of the command.
    pub fn input(&self) -> CommandInput {
        CommandInput::new(self.node.holder.client(), self.events.key())
    }

    /// The next event; none after the end. May be cancelled: no event is lost.
    pub async fn next(&mut self) -> Option<CommandEvent> {
        if let Some(pid) = self.started.take() {
            return Some(CommandEvent::Started(pid));
        }
        if self.end.is_none() {
            match self.events.next().await? {
                Event::Output { bytes, .. } if self.terminal => return Some(CommandEvent::Terminal(bytes)),
                Event::Output { output: 0, bytes } => return Some(CommandEvent::Stdout(bytes)),
                Event::Output { bytes, .. } => return Some(CommandEvent::Stderr(bytes)),
                Event::Missed { bytes, .. } => return Some(CommandEvent::Missed(bytes)),
                Event::Ended(end) => self.end = Some(end.map_or(LOST, of_end)),
            }
        }
        let end = self.end.filter(|_| !self.told)?;
        if end.reason != Some(EndReason::Lost) {
            // Before the client knows: what it does next finds all as it stays. The holder hears of it from the watch. A
            // lost command may still run, and is ended elsewhere.
            self.node.leave_group(&self.sandbox, self.events.key()).await;
        }
        self.told = true;
        Some(CommandEvent::Ended(end))
    }
}

/// Nothing holds the command any more.
const LOST: CommandEnd = CommandEnd { status: ExitStatus::Unknown, reason: Some(EndReason::Lost) };

fn of_end(end: holder::End) -> CommandEnd {
    let status = match end.status {
        Status::Code(code) => ExitStatus::Code(code),
        Status::Signal(signal) => ExitStatus::Signal(signal),
        Status::Unknown => ExitStatus::Unknown,
    };
    let reason = end.reason.map(|reason| match reason {
        holder::Reason::TimedOut => EndReason::TimedOut,
        holder::Reason::ClientLeft => EndReason::ClientLeft,
    });
    CommandEnd { status, reason }
}

fn to_model(entry: &Entry) -> Command {
    let meta = entry.meta.clone();
    Command {
        pid: entry.process.inside,
        command: meta.argv,
        env: meta.env,
        cwd: meta.cwd,
        tag: meta.tag,
        user: meta.user,
        terminal: meta.terminal,
        stdin: meta.stdin,
        started_ms: meta.started_ms,
        end: entry.end.map(of_end),
    }
}
