//! A connection for each request, and the request on it.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use bytes::Bytes;
use hyper::{
    Request, Response,
    body::{Body, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::TlsConnector;

use crate::{
    Error, Result,
    address::{Address, Url},
};

/// What a request is sent on.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// How one server or node is reached.
#[derive(Debug, Clone)]
pub(crate) enum Line {
    Socket(PathBuf),
    /// With the authorities that are trusted, if it is encrypted.
    Url(Url, Option<Arc<ClientConfig>>),
}

impl Line {
    /// A line to a server. It trusts the authorities of the system, or those that `SSL_CERT_FILE` names.
    pub(crate) fn to(url: Url) -> Result<Self> {
        let tls = url.tls.then(trusting).transpose()?;
        Ok(Self::Url(url, tls))
    }

    pub(crate) fn address(&self) -> Address {
        match self {
            Self::Socket(socket) => Address::Socket(socket.clone()),
            Self::Url(url, _) => Address::Url(url.clone()),
        }
    }

    fn unreachable(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Unreachable { at: self.address(), source: source.into() }
    }

    async fn connect(&self) -> Result<Box<dyn Io>> {
        match self {
            Self::Socket(socket) => {
                let stream = UnixStream::connect(socket).await;
                Ok(Box::new(stream.map_err(|error| self.unreachable(error))?))
            }
            Self::Url(url, tls) => {
                let stream = connect(url).await.map_err(|error| self.unreachable(error))?;
                let Some(tls) = tls else { return Ok(Box::new(stream)) };
                let name = ServerName::try_from(url.host.clone()).map_err(|error| self.unreachable(error))?;
                let encrypted = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await;
                Ok(Box::new(encrypted.map_err(|error| self.unreachable(error))?))
            }
        }
    }

    /// Sends one request. The connection closes when the answer is dropped.
    pub(crate) async fn send<B>(&self, request: Request<B>) -> Result<Response<Incoming>>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    {
        talk(self.connect().await?, request, &self.address()).await
    }
}

/// Sends one request on a stream.
pub(crate) async fn talk<S, B>(stream: S, request: Request<B>, at: &Address) -> Result<Response<Incoming>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let shaken = http1::handshake(TokioIo::new(stream)).await;
    let unreachable = |error: hyper::Error| Error::Unreachable { at: at.clone(), source: error.into() };
    let (mut sender, connection) = shaken.map_err(unreachable)?;
    // Ends with the request; the connection closes when the answer is dropped.
    tokio::spawn(connection.with_upgrades());
    sender.send_request(request).await.map_err(|error| match error.is_user() {
        // A body that cannot be read any more.
        true => Error::Upload(error),
        false => Error::NoAnswer { at: at.clone(), source: error },
    })
}

async fn connect(url: &Url) -> io::Result<TcpStream> {
    let stream = if url.is_local() {
        let both: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        TcpStream::connect(&both.map(|ip| SocketAddr::new(ip, url.port))[..]).await?
    } else {
        TcpStream::connect((url.host.as_str(), url.port)).await?
    };
    // Keys of a terminal go out one by one.
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn trusting() -> Result<Arc<ClientConfig>> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Request(error.into()))?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}
