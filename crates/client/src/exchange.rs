//! One request and its answer, on a connection of its own.

use std::{os::fd::AsFd, pin::pin};

use api::{ErrorBody, VERSION_PREFIX};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body, Incoming},
    header,
    http::request,
    upgrade::Upgraded,
};
use hyper_util::rt::TokioIo;
use rustix::net::{Shutdown, shutdown};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{net::UnixStream, signal::unix::Signal};

use crate::{Client, Error, Result, address::Address, line::talk};

/// A connection that speaks another protocol than HTTP by now.
pub type Connection = TokioIo<Upgraded>;

impl Client {
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        parse(self.stream(path).await?).await
    }

    pub(crate) async fn post<B: Serialize, T: DeserializeOwned>(&self, path: &str, body: &B) -> Result<T> {
        parse(self.post_stream(path, body).await?).await
    }

    pub(crate) async fn put<B: Serialize, T: DeserializeOwned>(&self, path: &str, body: &B) -> Result<T> {
        parse(self.send(Method::PUT, path, encode(body)?, None).await?).await
    }

    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        parse(self.send(Method::DELETE, path, Bytes::new(), None).await?).await
    }

    /// As [`Self::post`], with the end that the crate's documentation gives to `_until`.
    pub(crate) async fn post_until<B: Serialize, T: DeserializeOwned>(
        &self,
        interrupts: &mut Signal,
        path: &str,
        body: &B,
    ) -> Result<Option<T>> {
        self.until(interrupts, path, body, parse).await
    }

    pub(crate) async fn until<B: Serialize, T, F: Future<Output = Result<T>>>(
        &self,
        interrupts: &mut Signal,
        path: &str,
        body: &B,
        read: impl FnOnce(Response<Incoming>) -> F,
    ) -> Result<Option<T>> {
        let request = json_request(Method::POST, path, encode(body)?, None)?;
        let stream = self.connect().await?;
        let line = stream.as_fd().try_clone_to_owned().map_err(Error::HangUp)?;
        let mut answer = pin!(async { read(self.exchange(stream, request, StatusCode::OK).await?).await });
        tokio::select! {
            biased;
            answer = &mut answer => return answer.map(Some),
            _ = interrupts.recv() => shutdown(&line, Shutdown::Write).map_err(|error| Error::HangUp(error.into()))?,
        }
        tokio::select! {
            biased;
            answer = &mut answer => match answer {
                Err(error) if error.has_hung_up() => Ok(None),
                answer => answer.map(Some),
            },
            _ = interrupts.recv() => Ok(None),
        }
    }

    /// Sends a body as it comes.
    pub(crate) async fn post_body<B, T: DeserializeOwned>(&self, path: &str, body: B) -> Result<T>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + Unpin + 'static,
    {
        let request = builder(Method::POST, path).header(header::CONTENT_TYPE, "application/octet-stream");
        let request = request.body(body).map_err(|error| Error::Request(error.into()))?;
        parse(self.exchange(self.connect().await?, request, StatusCode::OK).await?).await
    }

    /// An answer whose body is read piece by piece. Dropping it hangs up.
    pub(crate) async fn stream(&self, path: &str) -> Result<Response<Incoming>> {
        self.send(Method::GET, path, Bytes::new(), None).await
    }

    /// As [`Self::stream`], with a body to send.
    pub(crate) async fn post_stream<B: Serialize>(&self, path: &str, body: &B) -> Result<Response<Incoming>> {
        self.send(Method::POST, path, encode(body)?, None).await
    }

    /// Switches the connection to another protocol.
    pub(crate) async fn upgrade(&self, method: Method, path: &str, body: Bytes, protocol: &str) -> Result<Connection> {
        let response = self.send(method, path, body, Some(protocol)).await?;
        hyper::upgrade::on(response).await.map(TokioIo::new).map_err(Error::BrokenOff)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        protocol: Option<&str>,
    ) -> Result<Response<Incoming>> {
        let expected = if protocol.is_some() { StatusCode::SWITCHING_PROTOCOLS } else { StatusCode::OK };
        let request = json_request(method, path, body, protocol)?;
        self.exchange(self.connect().await?, request, expected).await
    }

    async fn connect(&self) -> Result<UnixStream> {
        let stream = UnixStream::connect(&self.socket).await;
        stream.map_err(|error| Error::Unreachable { at: self.address(), source: error.into() })
    }

    fn address(&self) -> Address {
        Address::Socket(self.socket.clone())
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
        let response = talk(stream, request, &self.address()).await?;
        if response.status() == expected {
            return Ok(response);
        }
        let status = response.status();
        let body = response.into_body().collect().await.map_err(Error::BrokenOff)?.to_bytes();
        match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(ErrorBody { error }) => Err(Error::Node(error)),
            Err(_) => Err(Error::Status(status)),
        }
    }
}

/// A body in JSON.
pub(crate) fn encode<B: Serialize>(body: &B) -> Result<Bytes> {
    serde_json::to_vec(body).map(Bytes::from).map_err(|error| Error::Request(error.into()))
}

fn json_request(method: Method, path: &str, body: Bytes, protocol: Option<&str>) -> Result<Request<Full<Bytes>>> {
    let mut request = builder(method, path);
    if !body.is_empty() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    if let Some(protocol) = protocol {
        request = request.header(header::CONNECTION, "upgrade").header(header::UPGRADE, protocol);
    }
    request.body(Full::new(body)).map_err(|error| Error::Request(error.into()))
}

fn builder(method: Method, path: &str) -> request::Builder {
    Request::builder().method(method).uri(format!("{VERSION_PREFIX}{path}")).header(header::HOST, "node")
}

async fn parse<T: DeserializeOwned>(response: Response<Incoming>) -> Result<T> {
    let body = response.into_body().collect().await.map_err(Error::BrokenOff)?.to_bytes();
    serde_json::from_slice(&body).map_err(Error::NotUnderstood)
}
