//! A foreground command and its client.
//!
//! ```text
//! client: Inputs  -> input of the command, size of its terminal
//! events of the command -> client: Outputs; after the end of the command its exit
//! ```
//!
//! The holder waits for the client as for any reader. A client that leaves ends the command.

use std::io;

use holder::INPUT_BYTES_MAX;
use model::{CommandEnd, CommandEvent, EndReason, ExitStatus, TIMED_OUT, TerminalSize};
use sandbox::MemoryUse;

use super::Exec;
use crate::node::{
    commands::{CommandInput, CommandStream},
    memory_limit::{Watch, limit},
};

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

/// Why the command is not served any more.
enum End {
    Ended(CommandEnd),
    ClientLeft,
}

impl Exec {
    /// Serves the client until the command has ended. When the client goes away, or the time is up, the node ends the
    /// command and what it has started.
    pub async fn serve(self, mut from_client: impl Inputs + 'static, to_client: impl Outputs) {
        let Self { foreground, stream, timeout_ms, memory } = self;
        let input = stream.input();
        // Aborted when this is dropped.
        let mut feeding = tokio::task::JoinSet::new();
        feeding.spawn(async move { feed(&mut from_client, input).await });
        let mut served = Served { stream, client: to_client, memory: Some(memory), timeout_ms };
        match served.until_end(feeding).await {
            End::Ended(end) => {
                foreground.release();
                served.tell_end(end).await;
            }
            End::ClientLeft => {
                // The command must not wait for this reader when it writes its last words.
                drop(served);
                foreground.end().await;
            }
        }
    }
}

/// Serves a client that is attached to a command, until the command has ended or the client has left, which ends
/// nothing.
pub async fn serve_attached(stream: CommandStream, mut from_client: impl Inputs + 'static, to_client: impl Outputs) {
    let input = stream.input();
    let mut feeding = tokio::task::JoinSet::new();
    feeding.spawn(async move { feed(&mut from_client, input).await });
    let mut served = Served { stream, client: to_client, memory: None, timeout_ms: None };
    if let End::Ended(end) = served.until_end(feeding).await {
        served.tell_end(end).await;
    }
}

/// The way from the command to its client.
struct Served<C> {
    stream: CommandStream,
    client: C,
    memory: Option<Watch>,
    timeout_ms: Option<u64>,
}

impl<C: Outputs> Served<C> {
    async fn until_end(&mut self, mut feeding: tokio::task::JoinSet<()>) -> End {
        loop {
            let event = tokio::select! {
                event = self.stream.next() => event,
                Some(_) = feeding.join_next() => return End::ClientLeft,
            };
            let output = match event {
                Some(CommandEvent::Ended(end)) => return End::Ended(end),
                Some(CommandEvent::Stdout(bytes) | CommandEvent::Terminal(bytes)) => Output::Stdout(bytes),
                Some(CommandEvent::Stderr(bytes)) => Output::Stderr(bytes),
                Some(CommandEvent::Missed(bytes)) => Output::Notice(missed(bytes)),
                Some(CommandEvent::Started(_)) => continue,
                None => return End::ClientLeft,
            };
            // Before anything is waited for: whatever is given up below, what was taken off the command is on its way
            // to the client.
            self.client.put(output);
            tokio::select! {
                sent = self.client.flush() => {
                    if sent.is_err() {
                        return End::ClientLeft;
                    }
                }
                Some(_) = feeding.join_next() => return End::ClientLeft,
            }
        }
    }

    async fn tell_end(mut self, CommandEnd { status, reason }: CommandEnd) {
        let (notice, status) = match reason {
            Some(EndReason::TimedOut) => (Some(timed_out(self.timeout_ms)), ExitStatus::Code(TIMED_OUT)),
            // The client says it, or follows the command again: the sandbox may have been paused.
            Some(EndReason::Lost) => (None, status),
            Some(EndReason::ClientLeft) | None => {
                let found = self.memory.as_ref().and_then(Watch::killed);
                (found.map(|found| killed(&found, status)), status)
            }
        };
        for output in notice.map(Output::Notice).into_iter().chain([Output::Exit(status)]) {
            self.client.put(output);
            // A client that has left does not want to know.
            if self.client.flush().await.is_err() {
                return;
            }
        }
        self.client.close().await;
    }
}

fn timed_out(timeout_ms: Option<u64>) -> String {
    let limit = timeout_ms.map_or_else(|| "its time limit".to_owned(), |ms| format!("{ms} ms"));
    format!("the command did not end within {limit}, and was ended with all that it had started")
}

fn missed(bytes: u64) -> String {
    format!("{bytes} bytes of output are missing here: another client read faster")
}

/// What the memory limit has to do with the end of a command.
fn killed(found: &MemoryUse, status: ExitStatus) -> String {
    match (status, found.killed) {
        (ExitStatus::Signal(9), 1) => format!("the kernel killed the command at the sandbox's {}", limit(found)),
        (_, killed) => {
            let processes = if killed == 1 { "a process".to_owned() } else { format!("{killed} processes") };
            format!("while the command ran the kernel killed {processes} of the sandbox at its {}", limit(found))
        }
    }
}

/// Carries the client's inputs to the command, until the client has left. A command that does not read any more stops
/// its input, not the stream.
async fn feed(client: &mut impl Inputs, input: CommandInput) {
    let mut open = true;
    while let Some(next) = client.next().await {
        match next {
            Input::Stdin(bytes) if open => {
                for part in bytes.chunks(INPUT_BYTES_MAX) {
                    open = open && input.send(part).await.is_ok();
                }
            }
            Input::StdinEnd if open => {
                open = false;
                if let Err(error) = input.close().await {
                    tracing::debug!(error = crate::chain(&error), "the input of a command had ended before");
                }
            }
            Input::Stdin(_) | Input::StdinEnd => {}
            Input::Resize(size) => {
                if let Err(error) = input.resize(size).await {
                    tracing::debug!(error = crate::chain(&error), "the terminal keeps its size");
                }
            }
        }
    }
}
