//! HTTP over the node's unix socket.

use std::{os::fd::AsFd, path::PathBuf, pin::pin};

use anyhow::{Context, Result};
use api::{ErrorBody, VERSION_PREFIX};
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body, Bytes, Incoming},
    client::conn::http1,
    header,
    http::request,
    upgrade::Upgraded,
};
use hyper_util::rt::TokioIo;
use rustix::net::{Shutdown, shutdown};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{net::UnixStream, signal::unix::Signal};

use crate::exit::Failure;

/// Whether to wait for another line.
pub(crate) enum Flow<T> {
    Continue,
    Done(T),
}

/// One node.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    socket: PathBuf,
}

impl Client {
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        parse(self.send(Method::GET, path, Bytes::new(), None).await?).await
    }

    pub(crate) async fn post<B: Serialize, T: DeserializeOwned>(&self, path: &str, body: &B) -> Result<T> {
        parse(self.post_stream(path, body).await?).await
    }

    /// As [`Self::post`], for what the node undoes if nobody waits for the answer. At an interrupt this hangs up for its own part only: an
    /// answer that was under way by then is still the answer. `None`: there was none, or the user has interrupted again.
    pub(crate) async fn post_until<B: Serialize, T: DeserializeOwned>(
        &self,
        interrupts: &mut Signal,
        path: &str,
        body: &B,
    ) -> Result<Option<T>> {
        self.until(interrupts, path, body, parse).await
    }

    async fn until<B: Serialize, T, F: Future<Output = Result<T>>>(
        &self,
        interrupts: &mut Signal,
        path: &str,
        body: &B,
        read: impl FnOnce(Response<Incoming>) -> F,
    ) -> Result<Option<T>> {
        let request = Self::json_request(Method::POST, path, serde_json::to_vec(body)?.into(), None)?;
        let stream = self.connect().await?;
        let line = stream.as_fd().try_clone_to_owned().context("cannot copy a descriptor")?;
        let mut answer = pin!(async { read(self.exchange(stream, request, StatusCode::OK).await?).await });
        tokio::select! {
            biased;
            answer = &mut answer => return answer.map(Some),
            _ = interrupts.recv() => shutdown(&line, Shutdown::Write).context("cannot hang up")?,
        }
        tokio::select! {
            biased;
            answer = &mut answer => match answer {
                Err(error) if has_hung_up(&error) => Ok(None),
                answer => answer.map(Some),
            },
            _ = interrupts.recv() => Ok(None),
        }
    }

    /// Sends bytes as they come.
    pub(crate) async fn post_body<B, T: DeserializeOwned>(&self, path: &str, body: B) -> Result<T>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + Unpin + 'static,
    {
        let request = Self::request(Method::POST, path).header(header::CONTENT_TYPE, "application/octet-stream");
        parse(self.exchange(self.connect().await?, request.body(body)?, StatusCode::OK).await?).await
    }

    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        parse(self.send(Method::DELETE, path, Bytes::new(), None).await?).await
    }

    /// An answer whose body is read piece by piece. Dropping it hangs up.
    pub(crate) async fn get_stream(&self, path: &str) -> Result<Response<Incoming>> {
        self.send(Method::GET, path, Bytes::new(), None).await
    }

    /// As [`Self::get_stream`], with a body to send.
    pub(crate) async fn post_stream<B: Serialize>(&self, path: &str, body: &B) -> Result<Response<Incoming>> {
        self.send(Method::POST, path, serde_json::to_vec(body)?.into(), None).await
    }

    /// An answer of one JSON document per line. `take` looks at each until it has what it waits for.
    pub(crate) async fn post_lines<B: Serialize, E: DeserializeOwned, T>(
        &self,
        path: &str,
        body: &B,
        take: impl FnMut(E) -> Result<Flow<T>>,
    ) -> Result<T> {
        let found = lines(self.post_stream(path, body).await?, take).await?;
        found.ok_or_else(|| Failure::HungUp.into())
    }

    /// [`Self::post_lines`] with an end as that of [`Self::post_until`].
    pub(crate) async fn post_lines_until<B: Serialize, E: DeserializeOwned, T>(
        &self,
        interrupts: &mut Signal,
        path: &str,
        body: &B,
        take: impl FnMut(E) -> Result<Flow<T>>,
    ) -> Result<Option<T>> {
        let read = |answer| async { lines(answer, take).await?.ok_or_else(|| Failure::HungUp.into()) };
        self.until(interrupts, path, body, read).await
    }

    /// As [`Self::post_lines`], for all of the lines.
    pub(crate) async fn get_lines<E: DeserializeOwned>(
        &self,
        path: &str,
        mut take: impl FnMut(E) -> Result<()>,
    ) -> Result<()> {
        let answer = self.get_stream(path).await?;
        lines(answer, |event| take(event).map(|()| Flow::Continue::<()>)).await.map(drop)
    }

    /// Switches the connection to another protocol.
    pub(crate) async fn upgrade(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        protocol: &str,
    ) -> Result<TokioIo<Upgraded>> {
        let response = self.send(method, path, body, Some(protocol)).await?;
        let upgraded = hyper::upgrade::on(response).await.context("the node did not switch protocols")?;
        Ok(TokioIo::new(upgraded))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        protocol: Option<&str>,
    ) -> Result<Response<Incoming>> {
        let expected = if protocol.is_some() { StatusCode::SWITCHING_PROTOCOLS } else { StatusCode::OK };
        let request = Self::json_request(method, path, body, protocol)?;
        self.exchange(self.connect().await?, request, expected).await
    }

    fn json_request(method: Method, path: &str, body: Bytes, protocol: Option<&str>) -> Result<Request<Full<Bytes>>> {
        let mut request = Self::request(method, path);
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(protocol) = protocol {
            request = request.header(header::CONNECTION, "upgrade").header(header::UPGRADE, protocol);
        }
        Ok(request.body(Full::new(body))?)
    }

    fn request(method: Method, path: &str) -> request::Builder {
        Request::builder().method(method).uri(format!("{VERSION_PREFIX}{path}")).header(header::HOST, "node")
    }

    async fn connect(&self) -> Result<UnixStream> {
        UnixStream::connect(&self.socket).await.map_err(|error| self.unreachable(error.to_string()))
    }

    fn unreachable(&self, cause: String) -> anyhow::Error {
        Failure::Unreachable { socket: self.socket.display().to_string(), cause }.into()
    }

    async fn exchange<B>(
        &self,
        stream: UnixStream,
        request: Request<B>,
        expected: StatusCode,
    ) -> Result<Response<Incoming>>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + Unpin + 'static,
    {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.unreachable(error.to_string()))?;
        // Ends with the request; the connection closes when the answer is dropped.
        tokio::spawn(connection.with_upgrades());
        let response = sender.send_request(request).await.map_err(|error| match error.is_user() {
            // A body that cannot be read any more.
            true => anyhow::Error::new(error).context("cannot read what is to be sent"),
            false => self.unreachable(format!("it hung up: {error}")),
        })?;
        if response.status() == expected {
            return Ok(response);
        }
        let status = response.status();
        let body = response.into_body().collect().await.context("the node's answer broke off")?.to_bytes();
        match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(ErrorBody { error }) => Err(Failure::Node(error).into()),
            Err(_) => anyhow::bail!("the node answered {status}, which this program does not understand"),
        }
    }
}

/// Whether there is no answer, or not all of it.
fn has_hung_up(error: &anyhow::Error) -> bool {
    let of_transport = error.chain().any(|cause| cause.is::<hyper::Error>());
    of_transport || matches!(error.downcast_ref(), Some(Failure::Unreachable { .. } | Failure::HungUp))
}

/// Reads lines until `take` has what it waits for, or they end.
async fn lines<E: DeserializeOwned, T>(
    answer: Response<Incoming>,
    mut take: impl FnMut(E) -> Result<Flow<T>>,
) -> Result<Option<T>> {
    let mut answer = answer.into_body();
    let mut buffer = Vec::new();
    while let Some(frame) = answer.frame().await {
        buffer.extend_from_slice(&frame.context("the node's answer broke off")?.into_data().unwrap_or_default());
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let event = serde_json::from_slice(&line).context("the node's answer is not understood")?;
            if let Flow::Done(done) = take(event)? {
                return Ok(Some(done));
            }
        }
    }
    Ok(None)
}

async fn parse<T: DeserializeOwned>(response: Response<Incoming>) -> Result<T> {
    let body = response.into_body().collect().await.context("the node's answer broke off")?.to_bytes();
    serde_json::from_slice(&body).context("the node's answer is not understood; it may be of another version")
}
