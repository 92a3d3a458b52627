//! The node's side of the holder.
//!
//! Each request has a connection of its own, and a stream of events keeps its connection. When the holder dies, its
//! spare serves the same socket: a stream goes on behind the last byte that arrived.

mod events;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

pub use events::{Event, Events, Unsettled};

use crate::{
    SOCKET,
    error::Error,
    limits::REPLACED_MAX,
    message::{Family, Link, Received, Reply, Request},
    record::{self, Entry, Meta, Process, Reason, Status},
};

/// Pause before a socket whose queue is full is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(2);

/// The way to the holder of a folder.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// Of the holder that has this folder. It need not be there yet.
    pub fn new(folder: &std::path::Path) -> Self {
        Self { socket: folder.join(SOCKET) }
    }

    /// Whether a holder is there.
    pub async fn is_there(&self) -> bool {
        self.channel().await.is_ok()
    }

    /// A connection for requests, one after the other.
    pub async fn channel(&self) -> Result<Channel, Error> {
        let deadline = Instant::now() + REPLACED_MAX;
        loop {
            match self.connect() {
                Ok(link) => return Ok(Channel { link }),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                    tokio::time::sleep(FULL_PAUSE).await;
                }
                Err(error) => return Err(Error::system("reach the holder")(error)),
            }
        }
    }

    fn connect(&self) -> io::Result<Link> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(&self.socket)?)?;
        Link::new(socket)
    }

    /// Hands over the streams of a command that is about to start: outputs or terminal, and input if it has one. `before`
    /// is its output so far. The command counts from here on, and the holder refuses one too many.
    pub async fn hold(
        &self,
        meta: &Meta,
        before: &[Vec<u8>],
        outputs: &[BorrowedFd<'_>],
        input: Option<BorrowedFd<'_>>,
    ) -> Result<Starting, Error> {
        let record = record::create(meta, before).map_err(Error::system("make the record of a command"))?;
        let files: Vec<_> = [record.as_fd()].into_iter().chain(outputs.iter().copied()).chain(input).collect();
        let channel = self.channel().await?;
        channel.ask(&Request::Hold, &[], &files).await?;
        Ok(Starting { client: self.clone(), channel, key: meta.key.clone(), outputs: outputs.len() })
    }

    /// The events of a command, from its first byte on. Bytes that are not kept any more count as missed.
    pub async fn attach(&self, key: &str, outputs: usize) -> Result<Events, Error> {
        let channel = self.channel().await?;
        channel.ask(&Request::Attach { key: key.to_owned(), from: Vec::new() }, &[], &[]).await?;
        Ok(Events::new(self.clone(), channel.link, key.to_owned(), outputs))
    }

    /// All commands, or those of one sandbox.
    pub async fn list(&self, sandbox: Option<&str>) -> Result<Vec<Entry>, Error> {
        Ok(self.list_with(sandbox, 0).await?.into_iter().map(|(entry, _)| entry).collect())
    }

    /// The same, with the end of each of their outputs: at most `most` bytes.
    pub async fn list_with(&self, sandbox: Option<&str>, most: u64) -> Result<Vec<(Entry, Vec<Vec<u8>>)>, Error> {
        let channel = self.channel().await?;
        let request = Request::List { sandbox: sandbox.map(str::to_owned) };
        channel.link.send(&request, &[], &[]).await.map_err(lost)?;
        let mut entries = Vec::new();
        loop {
            match channel.hear().await? {
                Received { head: Reply::Entry, files, .. } => {
                    let file = files.into_iter().next().ok_or(Error::Answer)?;
                    let output = if most == 0 { Ok(Vec::new()) } else { record::last_output(&file, most) };
                    let entry = Entry::read(&file).and_then(|entry| Ok((entry, output?)));
                    entries.push(entry.map_err(Error::system("read the record of a command"))?);
                }
                Received { head: Reply::Done, .. } => return Ok(entries),
                other => return Err(unexpected(other.head)),
            }
        }
    }

    /// Ended commands that no node has settled, those of the past first.
    pub async fn watch(&self) -> Result<Unsettled, Error> {
        let channel = self.channel().await?;
        channel.link.send(&Request::Watch, &[], &[]).await.map_err(lost)?;
        Ok(Unsettled::new(channel.link))
    }

    /// Tells how a command ended, on kernels that do not keep it.
    pub async fn report(&self, key: &str, status: Status) -> Result<(), Error> {
        self.tell(Request::Report { key: key.to_owned(), status }).await
    }

    /// Says why a command is about to be ended.
    pub async fn mark(&self, key: &str, reason: Reason) -> Result<(), Error> {
        self.tell(Request::Mark { key: key.to_owned(), reason }).await
    }

    /// The node has done its part after the end of a command.
    pub async fn settle(&self, key: &str) -> Result<(), Error> {
        self.tell(Request::Settle { key: key.to_owned() }).await
    }

    /// Forgets the commands of a sandbox. Streams of events get what is kept.
    pub async fn forget_sandbox(&self, sandbox: &str) -> Result<(), Error> {
        self.tell(Request::ForgetSandbox { sandbox: sandbox.to_owned() }).await
    }

    /// Tells a terminal its size; the kernel tells the programs.
    pub async fn resize(&self, key: &str, rows: u16, columns: u16) -> Result<(), Error> {
        self.tell(Request::Resize { key: key.to_owned(), rows, columns }).await
    }

    /// Which processes there are.
    pub async fn family(&self) -> Result<Family, Error> {
        match self.channel().await?.exchange(&Request::Status, &[], &[]).await? {
            Reply::Family(family) => Ok(family),
            other => Err(unexpected(other)),
        }
    }

    /// Ends the holder and its spare, if they hold nothing.
    pub async fn shut_down(&self) -> Result<(), Error> {
        self.tell(Request::Shutdown).await
    }

    async fn tell(&self, request: Request) -> Result<(), Error> {
        self.channel().await?.ask(&request, &[], &[]).await
    }
}

/// A connection for requests, one after the other.
#[derive(Debug)]
pub struct Channel {
    link: Link,
}

impl Channel {
    /// Sends input, at most [`crate::INPUT_BYTES_MAX`] bytes: returns when the command's pipe or terminal has it. If
    /// the holder dies meanwhile, some of it may be there.
    pub async fn input(&self, key: &str, bytes: &[u8]) -> Result<(), Error> {
        self.ask(&Request::Input { key: key.to_owned() }, bytes, &[]).await
    }

    /// Ends the input.
    pub async fn close_input(&self, key: &str) -> Result<(), Error> {
        self.ask(&Request::CloseInput { key: key.to_owned() }, &[], &[]).await
    }

    async fn ask(&self, request: &Request, body: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), Error> {
        match self.exchange(request, body, files).await? {
            Reply::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    async fn exchange(&self, request: &Request, body: &[u8], files: &[BorrowedFd<'_>]) -> Result<Reply, Error> {
        self.link.send(request, body, files).await.map_err(lost)?;
        Ok(self.hear().await?.head)
    }

    async fn hear(&self) -> Result<Received<Reply>, Error> {
        self.link.receive::<Reply>().await.map_err(lost)?.ok_or(Error::Lost)
    }
}

/// A command whose streams the holder has, and that has not started. Dropped, the streams are closed.
#[derive(Debug)]
pub struct Starting {
    client: Client,
    channel: Channel,
    key: String,
    outputs: usize,
}

impl Starting {
    /// The command has started. Its events follow, from its first byte on.
    pub async fn begin(self, process: Process, pidfd: &OwnedFd) -> Result<Events, Error> {
        self.channel.ask(&Request::Begin { process }, &[], &[pidfd.as_fd()]).await?;
        Ok(Events::new(self.client, self.channel.link, self.key, self.outputs))
    }
}

fn lost(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Error::Lost,
        _ => Error::System { action: "talk to the holder", source: error },
    }
}

fn unexpected(reply: Reply) -> Error {
    match reply {
        Reply::Refused { refusal, message } => Error::Refused { refusal, message },
        _ => Error::Answer,
    }
}
