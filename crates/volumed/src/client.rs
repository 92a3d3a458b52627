//! The server's side: requests by HTTP, mounts by descriptor. Starts the processes when they are first needed, and finds those that an
//! earlier server has started.

mod archive;
mod files;
mod volumes;

use std::{
    fs::File,
    io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Instant,
};

use api::{ErrorBody, VERSION_PREFIX};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response,
    body::{Body, Incoming},
    client::conn::http1,
    header::CONTENT_TYPE,
};
use hyper_util::rt::TokioIo;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
    sockopt::{Timeout, set_socket_timeout},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::net::UnixStream;

use crate::{
    BoxError, Error,
    limits::{ANSWER_MAX, CONTROL_ATTEMPTS, START_MAX, START_TICK},
    message::{self, Attach, Reply},
};

pub use self::{
    archive::Archive,
    files::{Attributes, Existing, Place, Whole},
    volumes::{Origin, Settled},
};
/// Where HTTP is served, in [`crate::Config::folder`].
pub(crate) const HTTP_SOCKET: &str = "http.sock";
/// Where [`message::Request`]s are.
pub(crate) const CONTROL_SOCKET: &str = "control.sock";

/// A handle; clones share it. Nothing is started before it is asked for something.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    /// Starts the guardian: the program and all its arguments.
    command: Vec<String>,
    /// The `cgroup.procs` of the control group that they are to be in.
    group: Option<File>,
    /// Held while it is started; true when it is not to be any more.
    starting: tokio::sync::Mutex<bool>,
}

impl Client {
    /// A client of the processes that have `folder`, or will have it: `command` starts them, with `--join` after it and `group` as its standard input
    /// if they are to join a control group, whose `cgroup.procs` that is.
    pub fn new(folder: PathBuf, command: Vec<String>, group: Option<File>) -> Self {
        Self { inner: Arc::new(Inner { folder, command, group, starting: tokio::sync::Mutex::default() }) }
    }

    /// Has a request answered: paths and bodies are those of the node's API. If the worker dies meanwhile this fails, and whether
    /// the request was carried out is not known.
    pub async fn forward<B>(&self, request: Request<B>) -> Result<Response<Incoming>, Error>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        forward_over(self.connect().await?, request).await
    }

    /// The metrics of the volumes that are open, in the text format of Prometheus; none if the processes do not run.
    pub async fn metrics(&self) -> Result<Option<String>, Error> {
        let stream = match UnixStream::connect(self.inner.folder.join(HTTP_SOCKET)).await {
            Err(error) if is_absent(&error) => return Ok(None),
            connected => connected.map_err(Error::system("reach the process of volumes"))?,
        };
        let request = Request::get(format!("{VERSION_PREFIX}/metrics")).body(Full::<Bytes>::default());
        let answer = forward_over(stream, request.map_err(not_json("ask the process of volumes"))?).await?;
        let is_answered = answer.status().is_success();
        let body = answer.into_body().collect().await?.to_bytes();
        match String::from_utf8(body.into()) {
            Ok(text) if is_answered => Ok(Some(text)),
            _ => Err(Error::NoAnswer),
        }
    }

    /// As [`Client::forward`], with JSON in both directions. A refusal is an error.
    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, Error> {
        self.begin(method, path, body).await?.end().await
    }

    /// As [`Client::ask`], as far as the answer has begun: it is not refused, and its body may take longer.
    async fn begin(&self, method: Method, path: &str, body: &(impl Serialize + Sync)) -> Result<Begun, Error> {
        let body = serde_json::to_vec(body).map_err(not_json("ask the process of volumes"))?;
        let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, "application/json");
        let request = request.body(Full::new(Bytes::from(body))).map_err(not_json("ask the process of volumes"))?;
        self.begin_with(request).await
    }

    async fn begin_with<B>(&self, request: Request<B>) -> Result<Begun, Error>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let begun = Begun(self.forward(request).await?);
        if begun.0.status().is_success() {
            return Ok(begun);
        }
        let ErrorBody { error } = begun.end().await?;
        Err(Error::Refused(Box::new(error.into())))
    }

    /// A mount that is attached nowhere yet, for [`Attach::holder`]. May be repeated: a holder counts once.
    pub async fn attach(&self, attach: Attach) -> Result<OwnedFd, Error> {
        drop(self.connect().await?);
        match self.control(message::Request::Attach(attach)).await? {
            (Reply::Done, Some(mount)) => Ok(mount),
            _ => Err(Error::NoAnswer),
        }
    }

    /// This holder has none of its mounts any more.
    pub async fn detach(&self, holder: &str) -> Result<(), Error> {
        self.unless_absent(message::Request::Detach { holder: holder.to_owned() }).await.map(drop)
    }

    /// Everybody who holds a volume, each once. For a new server, to let go of those that are gone.
    pub async fn holders(&self) -> Result<Vec<String>, Error> {
        let (mut all, mut request) = (Vec::new(), message::Request::Holders);
        loop {
            match self.unless_absent(request).await? {
                Some(Reply::Holders(holders)) => {
                    all.extend(holders);
                    return Ok(all);
                }
                Some(Reply::SomeHolders(holders)) => {
                    let after = holders.last().cloned().ok_or(Error::NoAnswer)?;
                    all.extend(holders);
                    request = message::Request::HoldersAfter { after };
                }
                Some(_) => return Err(Error::NoAnswer),
                None => return Ok(all),
            }
        }
    }

    /// Does not start the processes any more; those that run go on.
    pub async fn close(&self) {
        *self.inner.starting.lock().await = true;
    }

    /// Commits and closes all volumes and ends the processes. Refused while somebody holds a volume.
    pub async fn shutdown(&self) -> Result<(), Error> {
        self.unless_absent(message::Request::Shutdown).await.map(drop)
    }

    /// The answer of processes that run; none if they do not.
    async fn unless_absent(&self, request: message::Request) -> Result<Option<Reply>, Error> {
        match self.control(request).await {
            Ok((reply, _)) => Ok(Some(reply)),
            Err(Error::System { source, .. }) if is_absent(&source) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Asked again when the worker dies over it: all these requests may be repeated.
    async fn control(&self, request: message::Request) -> Result<(Reply, Option<OwnedFd>), Error> {
        let socket = self.inner.folder.join(CONTROL_SOCKET);
        let ask = move || {
            let answers = std::iter::repeat_with(|| ask(&socket, &request)).take(CONTROL_ATTEMPTS);
            let mut answers = answers.skip_while(|answer| matches!(answer, Err(Error::NoAnswer)));
            answers.next().unwrap_or(Err(Error::NoAnswer))
        };
        let asked = tokio::task::spawn_blocking(ask).await;
        asked.map_err(|error| Error::System { doing: "ask the process of volumes", source: io::Error::other(error) })?
    }

    async fn connect(&self) -> Result<UnixStream, Error> {
        let socket = self.inner.folder.join(HTTP_SOCKET);
        let connected = UnixStream::connect(&socket).await;
        match connected {
            Err(error) if is_absent(&error) => {}
            connected => return connected.map_err(Error::system("reach the process of volumes")),
        }
        let is_closed = self.inner.starting.lock().await;
        // Another request may have started it meanwhile.
        if let Ok(stream) = UnixStream::connect(&socket).await {
            return Ok(stream);
        }
        if *is_closed {
            return Err(Error::Closed);
        }
        self.start(&socket).await
    }

    async fn start(&self, socket: &Path) -> Result<UnixStream, Error> {
        let (program, arguments) = self.inner.command.split_first().ok_or(Error::NoCommand)?;
        let failed = || Error::system("start the process of volumes");
        let group = self.inner.group.as_ref().map(File::try_clone).transpose().map_err(failed())?;
        let mut command = Command::new(program);
        command.args(arguments).args(group.is_some().then_some("--join"));
        // Ctrl-C in the server's terminal is for the server.
        command.stdin(group.map_or_else(Stdio::null, Stdio::from)).stdout(Stdio::null()).process_group(0);
        let mut child = command.spawn().map_err(failed())?;
        let deadline = Instant::now() + START_MAX;
        let stream = loop {
            match UnixStream::connect(socket).await {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > deadline => {
                    return Err(Error::System { doing: "reach the process of volumes", source: error });
                }
                Err(_) => tokio::time::sleep(START_TICK).await,
            }
            if let Some(status) = child.try_wait().map_err(failed())? {
                return Err(Error::DiedAtOnce { status });
            }
        };
        // It ends by itself some day, and is reaped then.
        std::thread::spawn(move || child.wait());
        Ok(stream)
    }
}

/// An answer that has begun.
#[derive(Debug)]
struct Begun(Response<Incoming>);

impl Begun {
    /// The body.
    async fn end<T: DeserializeOwned>(self) -> Result<T, Error> {
        let answer = self.0.into_body().collect().await?.to_bytes();
        serde_json::from_slice(&answer).map_err(not_json("understand the process of volumes"))
    }
}

fn not_json<E: Into<BoxError>>(doing: &'static str) -> impl FnOnce(E) -> Error {
    move |error| Error::System { doing, source: io::Error::other(error) }
}

async fn forward_over<B>(stream: UnixStream, request: Request<B>) -> Result<Response<Incoming>, Error>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends when the answer was read or is dropped.
    tokio::spawn(connection);
    let answered = sender.send_request(request).await;
    answered.map_err(|error| if error.is_incomplete_message() { Error::NoAnswer } else { error.into() })
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn ask(path: &Path, request: &message::Request) -> Result<(Reply, Option<OwnedFd>), Error> {
    let reach = || Error::system("reach the process of volumes");
    let address = SocketAddrUnix::new(path).map_err(reach())?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(reach())?;
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, direction, Some(ANSWER_MAX)).map_err(reach())?;
    }
    connect(&socket, &address).map_err(reach())?;
    message::send(&socket, request, &[]).map_err(Error::system("ask the process of volumes"))?;
    match message::receive(&socket) {
        Ok(Some((Reply::Refused { error, .. }, _))) => Err(Error::Refused(Box::new(error.into()))),
        Ok(Some((reply, mut descriptors))) => Ok((reply, descriptors.pop())),
        Ok(None) => Err(Error::NoAnswer),
        // It was killed with the question unread.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(Error::NoAnswer),
        Err(source) => Err(Error::System { doing: "hear the process of volumes", source }),
    }
}
