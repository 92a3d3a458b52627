//! The running command's streams, and the pumps between them and the client.
//!
//! ```text
//! client: Inputs  -> stdin (pipe or terminal), size of the terminal
//! stdout, stderr (pipes) or terminal -> client: Outputs; after the command's end what is left in them, then its exit
//! ```
//!
//! A command that left a child behind may keep its pipes open for ever: after its end they are waited for only [`DRAIN_MAX`]. A slow client
//! is waited for until it leaves.

use std::{io, os::fd::OwnedFd, time::Duration};

use keeper::protocol::Status;
use model::{ExitStatus, TIMED_OUT, TerminalSize};
use sandbox::MemoryUse;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::mpsc,
};

use super::{Exec, TimeLimit, group::CommandGroup, terminal};
use crate::{
    error::{Context, Result},
    node::{
        exit_status,
        memory_limit::{Watch, limit},
    },
};

/// How long output is still waited for after the command's end.
const DRAIN_MAX: Duration = Duration::from_millis(500);

/// How much of it is taken at most: what it may have left in a pipe (`fs.pipe-max-size`), and in the frames that wait.
const DRAIN_BYTES_MAX: usize = 2 << 20;

/// Bytes of one frame; a page-multiple well below the frame's limit.
const CHUNK_BYTES: usize = 32 << 10;

/// Outputs that may wait for a slow client before the command has to wait.
const OUTPUTS_WAITING_MAX: usize = 16;

/// Something of a command for its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Bytes of standard output, or of the terminal: at most 32 KiB.
    Stdout(Vec<u8>),
    /// Bytes of standard error: at most 32 KiB.
    Stderr(Vec<u8>),
    /// A line for people about the command, such as why it was ended.
    Notice(String),
    /// How the command ended. Nothing follows.
    Exit(ExitStatus),
}

/// Something of a client for its command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Bytes for standard input.
    Stdin(Vec<u8>),
    /// No more standard input.
    StdinEnd,
    /// The client's terminal changed its size.
    Resize(TerminalSize),
}

/// The way from a command to its client, in whatever way that is spoken to.
pub trait Outputs: Send {
    /// Puts `output` behind what was put before. It is on its way then, whatever is cancelled later.
    fn put(&mut self, output: Output);
    /// Sends all that was put. May be cancelled and called again: no byte is lost or sent twice.
    fn flush(&mut self) -> impl Future<Output = io::Result<()>> + Send;
    /// There is no more.
    fn close(&mut self) -> impl Future<Output = ()> + Send;
}

/// The way from a client to its command.
pub trait Inputs: Send {
    /// What comes next; none when the client has left, or does not speak as it should.
    fn next(&mut self) -> impl Future<Output = Option<Input>> + Send;
}

/// Our ends of the command's streams.
#[derive(Debug)]
pub(in crate::node) struct Streams {
    input: Option<AsyncFd<OwnedFd>>,
    outputs: Vec<(Kind, AsyncFd<OwnedFd>)>,
    terminal: Option<OwnedFd>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Stdout,
    Stderr,
}

impl Streams {
    pub(super) fn pipes(stdin: OwnedFd, stdout: OwnedFd, stderr: OwnedFd) -> Result<Self> {
        let outputs = vec![(Kind::Stdout, watch(stdout)?), (Kind::Stderr, watch(stderr)?)];
        Ok(Self { input: Some(watch(stdin)?), outputs, terminal: None })
    }

    pub(super) fn terminal(master: OwnedFd) -> Result<Self> {
        let share = || master.try_clone().doing("share the terminal");
        Ok(Self {
            input: Some(watch(share()?)?),
            outputs: vec![(Kind::Stdout, watch(share()?)?)],
            terminal: Some(master),
        })
    }
}

fn watch(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>> {
    keeper::descriptor::watched(fd).doing("watch a stream")
}

/// Why the command is not served any more.
enum End {
    /// It has ended; unknown if nobody could tell.
    Ended(Option<Status>),
    ClientLeft,
    TimeIsUp(u64),
}

impl Exec {
    /// Serves the client until the command has ended. When the client goes away, or the time is up, ends the command and what it has started.
    pub async fn serve(self, mut from_client: impl Inputs + 'static, to_client: impl Outputs) {
        let Self { streams: Streams { input, outputs, terminal }, group, ended, limit, memory } = self;
        let (sender, outputs_of_command) = mpsc::channel(OUTPUTS_WAITING_MAX);
        let mut pumps = tokio::task::JoinSet::new();
        for (kind, fd) in outputs {
            pumps.spawn(pump_output(kind, fd, sender.clone()));
        }
        drop(sender);
        // Aborted when this is dropped.
        let mut feeding = tokio::task::JoinSet::new();
        feeding.spawn(async move { feed(&mut from_client, input, terminal).await });
        let mut served = Served { outputs: outputs_of_command, client: to_client, memory };
        let end = served.until_end(ended, feeding, limit).await;
        served.finish(group, end).await;
    }
}

/// The way from the command to its client. Written from one place only, so that outputs never mix.
struct Served<C> {
    outputs: mpsc::Receiver<Output>,
    client: C,
    memory: Watch,
}

impl<C: Outputs> Served<C> {
    async fn until_end(
        &mut self,
        mut ended: tokio::sync::oneshot::Receiver<Status>,
        mut feeding: tokio::task::JoinSet<()>,
        limit: Option<TimeLimit>,
    ) -> End {
        let time_is_up = async {
            match limit {
                Some(TimeLimit { at, ms }) => (tokio::time::sleep_until(at).await, ms).1,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(time_is_up);
        loop {
            let output = tokio::select! {
                status = &mut ended => return End::Ended(status.ok()),
                Some(_) = feeding.join_next() => return End::ClientLeft,
                ms = &mut time_is_up => return End::TimeIsUp(ms),
                Some(output) = self.outputs.recv() => output,
            };
            // Before anything is waited for: whatever is given up below, what was taken off the command is on its way to the client.
            self.client.put(output);
            // A client that does not read keeps the command waiting, but not its end.
            tokio::select! {
                sent = self.client.flush() => {
                    if sent.is_err() {
                        return End::ClientLeft;
                    }
                }
                status = &mut ended => return End::Ended(status.ok()),
                Some(_) = feeding.join_next() => return End::ClientLeft,
                ms = &mut time_is_up => return End::TimeIsUp(ms),
            }
        }
    }

    async fn finish(&mut self, group: CommandGroup, end: End) {
        match end {
            End::Ended(Some(status)) => {
                let drained = self.drain().await;
                // Before the client knows: what it does next finds all as it stays.
                group.release().await;
                if drained.is_ok() {
                    let notice = self.memory.killed().map(|found| killed(&found, status));
                    self.tell_end(notice, status).await;
                }
            }
            End::Ended(None) => {
                group.end().await;
                self.tell_end(None, Status::Unknown).await;
            }
            End::ClientLeft => self.forward_while(group.end(), Forward::Nowhere).await,
            End::TimeIsUp(ms) => {
                self.forward_while(group.end(), Forward::ToClient).await;
                if self.drain().await.is_ok() {
                    let notice =
                        format!("the command did not end within {ms} ms, and was ended with all that it had started");
                    self.tell_end(Some(notice), Status::Code(TIMED_OUT)).await;
                }
            }
        }
    }

    /// Takes output off the command until `end` is done, so that it can write last words.
    async fn forward_while(&mut self, end: impl Future<Output = ()> + Send + 'static, mut forward: Forward) {
        // Of its own: a client that does not read must not keep it.
        let mut end = tokio::spawn(end);
        loop {
            let output = tokio::select! {
                _ = &mut end => return,
                output = self.outputs.recv() => output,
            };
            let Some(output) = output else { break };
            if matches!(forward, Forward::ToClient) && self.send(output).await.is_err() {
                forward = Forward::Nowhere;
            }
        }
        // It cannot be cancelled, and does not panic.
        let _ = end.await;
    }

    /// Sends what the command has written before its end. An error is the client's.
    async fn drain(&mut self) -> io::Result<()> {
        self.client.flush().await?;
        let deadline = tokio::time::sleep(DRAIN_MAX);
        tokio::pin!(deadline);
        let mut taken = 0;
        while taken < DRAIN_BYTES_MAX {
            let output = tokio::select! {
                biased;
                output = self.outputs.recv() => output,
                () = &mut deadline => None,
            };
            let Some(output) = output else { break };
            if let Output::Stdout(bytes) | Output::Stderr(bytes) = &output {
                taken += bytes.len();
            }
            self.send(output).await?;
        }
        Ok(())
    }

    async fn tell_end(&mut self, notice: Option<String>, status: Status) {
        for output in notice.map(Output::Notice).into_iter().chain([Output::Exit(exit_status(status))]) {
            // A client that has left does not want to know.
            if self.send(output).await.is_err() {
                return;
            }
        }
        self.client.close().await;
    }

    async fn send(&mut self, output: Output) -> io::Result<()> {
        self.client.put(output);
        self.client.flush().await
    }
}

/// What the memory limit has to do with the end of a command.
fn killed(found: &MemoryUse, status: Status) -> String {
    match (status, found.killed) {
        (Status::Signal(9), 1) => format!("the kernel killed the command at the sandbox's {}", limit(found)),
        (_, killed) => {
            let processes = if killed == 1 { "a process".to_owned() } else { format!("{killed} processes") };
            format!("while the command ran the kernel killed {processes} of the sandbox at its {}", limit(found))
        }
    }
}

/// What becomes of output.
enum Forward {
    ToClient,
    Nowhere,
}

async fn pump_output(kind: Kind, fd: AsyncFd<OwnedFd>, outputs: mpsc::Sender<Output>) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let read = fd.async_io(Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut buffer)?)).await;
        // A terminal whose last program is gone answers EIO: its way to say end of file.
        let Ok(length) = read else { return };
        if length == 0 {
            return;
        }
        let bytes = buffer[..length].to_vec();
        let output = match kind {
            Kind::Stdout => Output::Stdout(bytes),
            Kind::Stderr => Output::Stderr(bytes),
        };
        if outputs.send(output).await.is_err() {
            return;
        }
    }
}

/// Carries the client's inputs to the command, until the client has left. A command that does not read any more stops its input, not the stream.
async fn feed(client: &mut impl Inputs, mut input: Option<AsyncFd<OwnedFd>>, terminal: Option<OwnedFd>) {
    while let Some(next) = client.next().await {
        match next {
            Input::Stdin(bytes) => {
                if let Some(fd) = &input
                    && write_all(fd, &bytes).await.is_err()
                {
                    input = None;
                }
            }
            Input::StdinEnd => end_input(&mut input, terminal.as_ref()).await,
            Input::Resize(size) => {
                if let Some(Err(error)) = terminal.as_ref().map(|master| terminal::resize(master, size)) {
                    tracing::debug!(error = crate::chain(&error), "the terminal keeps its size");
                }
            }
        }
    }
}

/// A pipe is closed; a terminal gets its end-of-file character (^D), because its program holds it open.
async fn end_input(input: &mut Option<AsyncFd<OwnedFd>>, terminal: Option<&OwnedFd>) {
    if let (Some(_), Some(fd)) = (terminal, &*input) {
        let _ = write_all(fd, b"\x04").await;
    }
    *input = None;
}

async fn write_all(fd: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = fd.async_io(Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, bytes)?)).await?;
        bytes = &bytes[written..];
    }
    Ok(())
}
