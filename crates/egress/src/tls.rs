//! TLS on both sides of a connection whose requests the proxy changes: an authority of the node's own towards the sandbox, and the system's authorities
//! towards the host.

use std::{
    num::NonZeroUsize,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use authority::{Authority, Error, of_authority, of_server};
use lru::LruCache;
use model::DomainName;
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// A certificate for a host is valid for so long, and used for so long.
const VALID: Duration = Duration::from_secs(8 * 86_400);
const USED: Duration = Duration::from_secs(86_400);
/// Certificates that are kept: a wildcard stands for any number of names.
const KEPT_MAX: NonZeroUsize = NonZeroUsize::new(1_024).expect("not zero");
/// What both sides speak inside.
const HTTP: &[u8] = b"http/1.1";

/// See the module.
pub(crate) struct Tls {
    text: String,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl Tls {
    /// With the authority in `dir`, which is made if it is not there. `roots` are files of authorities that hosts may have beside those that the system
    /// knows.
    pub(crate) fn open(dir: &Path, roots: &[std::path::PathBuf]) -> Result<Self, Error> {
        let authority = Authority::open(dir, authority_params)?;
        let text = authority.text().to_owned();
        let kept = Mutex::new(LruCache::new(KEPT_MAX));
        let signer = Signer { authority, key: KeyPair::generate()?, kept };
        let provider = Arc::new(ring::default_provider());
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(signer));
        server.alpn_protocols = vec![HTTP.to_vec()];
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(known(roots)?)
            .with_no_client_auth();
        client.alpn_protocols = vec![HTTP.to_vec()];
        Ok(Self { text, acceptor: Arc::new(server).into(), connector: Arc::new(client).into() })
    }

    /// The certificate that sandboxes trust, as PEM.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Speaks for the host that a sandbox wants.
    pub(crate) async fn accept<S>(&self, client: S) -> std::io::Result<server::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.acceptor.accept(client).await
    }

    /// Speaks with that host, whose certificate must be right.
    pub(crate) async fn connect(
        &self,
        name: &DomainName,
        stream: TcpStream,
    ) -> std::io::Result<client::TlsStream<TcpStream>> {
        let name = ServerName::try_from(name.as_str().to_owned()).map_err(std::io::Error::other)?;
        self.connector.connect(name, stream).await
    }
}

/// The authorities that hosts may have.
fn known(files: &[std::path::PathBuf]) -> Result<RootCertStore, Error> {
    let mut roots = given(files)?;
    // Those that cannot be read are no reason to have none.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    Ok(roots)
}

/// Fails if a file of the operator's has no certificates.
pub(crate) fn given(files: &[std::path::PathBuf]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for path in files {
        let failed = |error: rustls::pki_types::pem::Error| Error::Content {
            path: path.clone(),
            reason: error.to_string(),
            hint: "give a file of certificates as PEM",
        };
        for certificate in CertificateDer::pem_file_iter(path).map_err(failed)? {
            roots.add(certificate.map_err(failed)?)?;
        }
    }
    Ok(roots)
}

/// Makes certificates for the names that sandboxes ask for.
struct Signer {
    authority: Authority,
    /// Of all certificates: making one is then one signature.
    key: KeyPair,
    kept: Mutex<LruCache<DomainName, (Instant, Arc<CertifiedKey>)>>,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signer")
    }
}

impl Signer {
    fn certified(&self, name: &DomainName) -> Result<Arc<CertifiedKey>, Error> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((made, certified)) = kept.get(name)
            && made.elapsed() < USED
        {
            return Ok(Arc::clone(certified));
        }
        let params = of_server("Pando egress proxy", vec![name.as_str().to_owned()], VALID)?;
        let certified = Arc::new(self.authority.certify(&params, &self.key)?);
        kept.put(name.clone(), (Instant::now(), Arc::clone(&certified)));
        Ok(certified)
    }
}

impl ResolvesServerCert for Signer {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let certified = self.certified(&hello.server_name()?.parse().ok()?);
        certified.inspect_err(|error| tracing::warn!(%error, "no certificate for the host of a rule")).ok()
    }
}

fn authority_params(key: &KeyPair) -> CertificateParams {
    // Sandboxes that were on several nodes trust several: each has a name of its own.
    let mark = base::id::hex(&CertificateParams::default().key_identifier(key)[..4]);
    of_authority(&format!("Pando egress authority {mark}"))
}
