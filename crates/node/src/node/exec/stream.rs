//! The running command's streams, and the pumps between them and the client.
//!
//! ```text
//! client frames -> Decoder -> stdin (pipe or terminal), resize
//! stdout, stderr (pipes) or terminal -> frames -> client; after the command's end what is left in them, then Exit
//! ```
//!
//! A command that left a child behind may keep its pipes open for ever: after its end they are waited for only [`DRAIN_MAX`]. A slow client
//! is waited for until it leaves.

use std::{io, os::fd::OwnedFd, time::Duration};

use api::{
    TIMED_OUT,
    frame::{Decoder, Frame},
};
use sandbox::MemoryUse;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, unix::AsyncFd},
    sync::mpsc,
};

use super::{Exec, TimeLimit, group::CommandGroup, terminal};
use crate::{
    error::{Context, Result},
    keeper::message::Status,
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

/// Frames that may wait for a slow client before the command has to wait.
const FRAMES_WAITING_MAX: usize = 16;

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
    crate::descriptor::watched(fd).doing("watch a stream")
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
    pub(crate) async fn serve(self, client: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let Self { streams: Streams { input, outputs, terminal }, group, ended, limit, memory, notices } = self;
        let (mut from_client, to_client) = tokio::io::split(client);
        let (sender, frames) = mpsc::channel(FRAMES_WAITING_MAX);
        let mut pumps = tokio::task::JoinSet::new();
        for (kind, fd) in outputs {
            pumps.spawn(pump_output(kind, fd, sender.clone()));
        }
        drop(sender);
        // Aborted when this is dropped.
        let mut feeding = tokio::task::JoinSet::new();
        feeding.spawn(async move { feed(&mut from_client, input, terminal).await });
        let mut served = Served { frames, client: Outbox { sink: to_client, bytes: Vec::new() }, memory, notices };
        let end = served.until_end(ended, feeding, limit).await;
        served.finish(group, end).await;
    }
}

/// The way from the command to its client. Written from one place only, so that frames never mix.
struct Served<W> {
    frames: mpsc::Receiver<Frame>,
    client: Outbox<W>,
    memory: Watch,
    notices: bool,
}

impl<W: AsyncWrite + Unpin> Served<W> {
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
            let frame = tokio::select! {
                status = &mut ended => return End::Ended(status.ok()),
                Some(_) = feeding.join_next() => return End::ClientLeft,
                ms = &mut time_is_up => return End::TimeIsUp(ms),
                Some(frame) = self.frames.recv() => frame,
            };
            // Before anything is waited for: whatever is given up below, what was taken off the command is on its way to the client.
            frame.encode(&mut self.client.bytes);
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
            let frame = tokio::select! {
                _ = &mut end => return,
                frame = self.frames.recv() => frame,
            };
            let Some(frame) = frame else { break };
            if matches!(forward, Forward::ToClient) && self.client.put(&frame).await.is_err() {
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
            let frame = tokio::select! {
                biased;
                frame = self.frames.recv() => frame,
                () = &mut deadline => None,
            };
            let Some(frame) = frame else { break };
            if let Frame::Stdout(bytes) | Frame::Stderr(bytes) = &frame {
                taken += bytes.len();
            }
            self.client.put(&frame).await?;
        }
        Ok(())
    }

    async fn tell_end(&mut self, notice: Option<String>, status: Status) {
        let notice = notice.filter(|_| self.notices).map(Frame::Notice);
        for frame in notice.into_iter().chain([Frame::Exit(exit_status(status))]) {
            // A client that has left does not want to know.
            if self.client.put(&frame).await.is_err() {
                return;
            }
        }
        let _ = self.client.sink.shutdown().await;
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

/// Frames on their way to a client. Whatever is given up in the middle, what comes next goes behind the rest of it.
struct Outbox<W> {
    sink: W,
    bytes: Vec<u8>,
}

impl<W: AsyncWrite + Unpin> Outbox<W> {
    async fn put(&mut self, frame: &Frame) -> io::Result<()> {
        self.flush().await?;
        frame.encode(&mut self.bytes);
        self.flush().await
    }

    async fn flush(&mut self) -> io::Result<()> {
        while !self.bytes.is_empty() {
            let written = self.sink.write(&self.bytes).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.bytes.drain(..written);
        }
        self.sink.flush().await
    }
}

async fn pump_output(kind: Kind, fd: AsyncFd<OwnedFd>, frames: mpsc::Sender<Frame>) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let read = fd.async_io(Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut buffer)?)).await;
        // A terminal whose last program is gone answers EIO: its way to say end of file.
        let Ok(length) = read else { return };
        if length == 0 {
            return;
        }
        let bytes = buffer[..length].to_vec();
        let frame = match kind {
            Kind::Stdout => Frame::Stdout(bytes),
            Kind::Stderr => Frame::Stderr(bytes),
        };
        if frames.send(frame).await.is_err() {
            return;
        }
    }
}

/// Carries the client's frames to the command, until the client has left. A command that does not read any more stops its input, not the stream.
async fn feed(client: &mut (impl AsyncRead + Unpin), mut input: Option<AsyncFd<OwnedFd>>, terminal: Option<OwnedFd>) {
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        match client.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(length) => decoder.push(&buffer[..length]),
        }
        loop {
            match decoder.next_frame() {
                Ok(Some(Frame::Stdin(bytes))) => {
                    if let Some(fd) = &input
                        && write_all(fd, &bytes).await.is_err()
                    {
                        input = None;
                    }
                }
                Ok(Some(Frame::StdinEnd)) => end_input(&mut input, terminal.as_ref()).await,
                Ok(Some(Frame::Resize(size))) => {
                    if let Some(Err(error)) = terminal.as_ref().map(|master| terminal::resize(master, size)) {
                        tracing::debug!(error = crate::chain(&error), "the terminal keeps its size");
                    }
                }
                Ok(Some(Frame::Stdout(_) | Frame::Stderr(_) | Frame::Exit(_) | Frame::Notice(_))) => return,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "the client's frames are not understood");
                    return;
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
