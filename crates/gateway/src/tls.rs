//! Certificates: those of a local authority, or the user's own.
//!
//! The local authority's certificate for the server lives in memory only, and is made anew long before it expires. Own
//! certificates are read again when their files change, and on SIGHUP.

mod authority;
mod bundle;
mod own;

use std::{
    fmt, io,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use rustls::{
    ServerConfig,
    crypto::{CryptoProvider, ring},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::{
    net::TcpStream,
    signal::unix::{SignalKind, signal},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

pub use ::authority::{Error, write_file};
pub use authority::Authority;
pub use own::Own;

/// How often the files of own certificates are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The only cryptography of this program.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Where certificates come from.
#[derive(Debug)]
enum Source {
    Local(Box<Authority>),
    Own(Own),
}

/// TLS of a server: certificates that are replaced while it runs. A clone is the same.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    current: Arc<Current>,
    source: Arc<Source>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("source", &self.source).finish_non_exhaustive()
    }
}

/// The certificate that the next handshake gets, whatever name it asks for.
#[derive(Debug)]
struct Current(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Tls {
    /// With certificates of the local authority.
    pub fn local(authority: Authority) -> Result<Self, Error> {
        let key = authority.certify()?;
        Self::new(Source::Local(Box::new(authority)), key)
    }

    /// With the user's own certificate.
    pub fn own(own: Own) -> Result<Self, Error> {
        let key = own.load()?;
        Self::new(Source::Own(own), key)
    }

    fn new(source: Source, key: CertifiedKey) -> Result<Self, Error> {
        let current = Arc::new(Current(RwLock::new(Arc::new(key))));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&current) as _);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), current, source: Arc::new(source) })
    }

    /// A handshake.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.acceptor.accept(stream).await
    }

    /// Takes the certificate anew. If that fails, the earlier one stays.
    pub fn reload(&self) -> Result<(), Error> {
        let key = match &*self.source {
            Source::Local(authority) => authority.certify()?,
            Source::Own(own) => own.load()?,
        };
        *self.current.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(key);
        Ok(())
    }

    /// Replaces the certificate whenever that is due. Does not end.
    pub(crate) async fn upkeep(&self) {
        match &*self.source {
            Source::Local(_) => loop {
                tokio::time::sleep(authority::RENEW_EVERY).await;
                self.told(self.reload());
            },
            Source::Own(own) => self.follow(own).await,
        }
    }

    async fn follow(&self, own: &Own) {
        let mut hangups = signal(SignalKind::hangup())
            .inspect_err(|error| tracing::warn!(%error, "SIGHUP will not reload the certificate"))
            .ok();
        let mut seen = own.stamp();
        loop {
            let asked = async {
                match &mut hangups {
                    Some(hangups) => drop(hangups.recv().await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = asked => {}
                () = tokio::time::sleep(LOOK_EVERY) => {
                    if own.stamp() == seen {
                        continue;
                    }
                }
            }
            // Before it is read: a change in between is seen next time.
            seen = own.stamp();
            self.told(self.reload());
        }
    }

    fn told(&self, reloaded: Result<(), Error>) {
        match reloaded {
            Ok(()) => tracing::info!("the server has a new certificate"),
            Err(error) => {
                tracing::error!(error = base::error::chain(&error), "the server keeps its earlier certificate");
            }
        }
    }
}
