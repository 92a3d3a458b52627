//! The running command's streams, and the pumps between them and the client.
//!
//! ```text
//! client frames -> Decoder -> stdin (pipe or terminal), resize
//! stdout, stderr (pipes) or terminal -> frames -> client; after the command's end what is left in them, then Exit
//! ```
//!
//! A command that left a child behind may keep its pipes open for ever: after its end the pumps get only [`DRAIN_MAX`].

use std::{io, os::fd::OwnedFd, time::Duration};

use api::frame::{Decoder, Frame};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sandbox::ProcessIdentity;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, unix::AsyncFd},
    sync::mpsc,
};

use super::{Exec, terminal};
use crate::{
    error::{Context, Result},
    keeper::message::Status,
    node::exit_status,
};

/// How long output is still read after the command's end.
const DRAIN_MAX: Duration = Duration::from_millis(500);

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

impl Exec {
    /// Serves the client until the command has ended, or kills the command when the client goes away.
    pub(crate) async fn serve(self, client: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let Self { streams: Streams { input, outputs, terminal }, pid, mut ended } = self;
        let (mut from_client, mut to_client) = tokio::io::split(client);
        let (sender, mut frames) = mpsc::channel(FRAMES_WAITING_MAX);
        let mut pumps = tokio::task::JoinSet::new();
        for (kind, fd) in outputs {
            pumps.spawn(pump_output(kind, fd, sender.clone()));
        }
        drop(sender);
        let feeding = tokio::spawn(async move { feed(&mut from_client, input, terminal).await });
        let feeding_abort = feeding.abort_handle();
        let mut gone = feeding;
        let mut client_left = false;
        // Written from one place only, so that frames never mix.
        let status = loop {
            tokio::select! {
                status = &mut ended => break Some(status.unwrap_or(Status::Unknown)),
                Some(frame) = frames.recv() => {
                    if write(&mut to_client, &frame).await.is_err() {
                        break None;
                    }
                }
                left = &mut gone, if !client_left => {
                    client_left = true;
                    if matches!(left, Ok(Feed::ClientLeft) | Err(_)) {
                        break None;
                    }
                }
            }
        };
        feeding_abort.abort();
        match status {
            Some(status) => finish(&mut to_client, &mut frames, status).await,
            None => kill(pid),
        }
    }
}

async fn finish(to_client: &mut (impl AsyncWrite + Unpin), frames: &mut mpsc::Receiver<Frame>, status: Status) {
    let drain = async {
        while let Some(frame) = frames.recv().await {
            write(to_client, &frame).await?;
        }
        io::Result::Ok(())
    };
    if !matches!(tokio::time::timeout(DRAIN_MAX, drain).await, Ok(Err(_))) {
        // A client that has left does not want to know.
        let _ = write(to_client, &Frame::Exit(exit_status(status))).await;
        let _ = to_client.shutdown().await;
    }
}

async fn write(to_client: &mut (impl AsyncWrite + Unpin), frame: &Frame) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(CHUNK_BYTES + 8);
    frame.encode(&mut bytes);
    to_client.write_all(&bytes).await?;
    to_client.flush().await
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

enum Feed {
    /// The connection ended.
    ClientLeft,
}

/// Carries the client's frames to the command. A command that does not read any more stops its input, not the stream.
async fn feed(
    client: &mut (impl AsyncRead + Unpin),
    mut input: Option<AsyncFd<OwnedFd>>,
    terminal: Option<OwnedFd>,
) -> Feed {
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        match client.read(&mut buffer).await {
            Ok(0) | Err(_) => return Feed::ClientLeft,
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
                Ok(Some(Frame::Stdout(_) | Frame::Stderr(_) | Frame::Exit(_))) => return Feed::ClientLeft,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "the client's frames are not understood");
                    return Feed::ClientLeft;
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

fn kill(pid: ProcessIdentity) {
    let Some(number) = Pid::from_raw(pid.pid) else { return };
    // Open first, then compare: what the descriptor names cannot change any more.
    if let Ok(pidfd) = pidfd_open(number, PidfdFlags::empty())
        && pid.is_alive()
    {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    }
}
