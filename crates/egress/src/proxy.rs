//! The proxy of a node: takes connections, and gives each a visit.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use hyper::header::{HeaderName, HeaderValue};
use model::{Header, HeaderRule, Hidden};
use network::{Dns, Network};
use store::Store;
use tokio::net::{TcpListener, TcpStream};

use crate::{
    places::{Place, Places},
    route::Guest,
    tls::Tls,
    visit::{Result, Visit},
};

/// Waits after an error that is of no connection: too many files are open.
const REST: Duration = Duration::from_millis(10);

/// What an operator chooses.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The directory of the authority that sandboxes trust. It is made if it is not there.
    pub authority: PathBuf,
    /// Files of authorities, as PEM, that hosts may have beside those that the system knows.
    pub roots: Vec<PathBuf>,
}

impl Settings {
    /// Fails if a file of authorities has none: a node says so when it starts.
    pub fn check(&self) -> std::result::Result<(), authority::Error> {
        crate::tls::given(&self.roots).map(drop)
    }
}

/// See the crate.
pub struct Proxy {
    pub(crate) network: Arc<Network>,
    pub(crate) dns: Arc<Dns>,
    pub(crate) tls: Tls,
    store: Store,
    listener: TcpListener,
    places: Arc<Places>,
}

impl Proxy {
    /// Opens the door in the router. `dns` is asked for addresses, and `store` has the keys that open the values of headers.
    pub fn open(
        network: Arc<Network>,
        dns: Arc<Dns>,
        store: Store,
        settings: &Settings,
    ) -> std::result::Result<Self, authority::Error> {
        let tls = Tls::open(&settings.authority, &settings.roots)?;
        let listen =
            |source| authority::Error::File { action: "listen at", path: "the sandboxes' router".into(), source };
        let listener = network.listen().map_err(listen)?;
        Ok(Self { network, dns, tls, store, listener, places: Arc::default() })
    }

    /// What sandboxes have to trust where requests get headers, as PEM.
    pub fn certificate(&self) -> &str {
        self.tls.text()
    }

    /// Values of headers, opened.
    pub(crate) async fn open_values(&self, rule: &HeaderRule) -> Result<Vec<(HeaderName, HeaderValue)>> {
        let mut opened = Vec::new();
        for Header { name, value } in &rule.headers {
            let bytes = match value {
                Hidden::Sealed(text) => store::text::open(self.store.keys(), text).await?,
                Hidden::Plain(_) => return Err("the value of a header is not sealed".into()),
            };
            let value = bytes.strip_prefix(rule.place_of(name).as_bytes());
            let value = value.ok_or("the value of a header was sealed for another rule")?;
            let mut value = HeaderValue::from_bytes(value)?;
            value.set_sensitive(true);
            opened.push((name.parse()?, value));
        }
        Ok(opened)
    }

    /// Takes connections. Never returns.
    pub async fn serve(self: Arc<Self>) {
        loop {
            match self.listener.accept().await {
                Ok((stream, from)) => self.receive(stream, from),
                Err(_) => tokio::time::sleep(REST).await,
            }
        }
    }

    fn receive(self: &Arc<Self>, stream: TcpStream, from: SocketAddr) {
        let IpAddr::V4(address) = from.ip() else { return };
        // Its policy had no domain meanwhile, or it is gone.
        let Some((id, reach)) = self.network.guest_at(address) else { return };
        let Some(place) = self.places.take(address) else {
            tracing::debug!(sandbox = %id, "has as many connections with the egress proxy as it may have");
            return;
        };
        let Ok(to) = rustix::net::sockopt::ip_original_dst(&stream) else { return };
        let visit = Visit { proxy: Arc::clone(self), guest: Guest::new(reach), to };
        tokio::spawn(async move {
            let _place: Place = place;
            if let Err(error) = visit.run(stream).await {
                tracing::debug!(sandbox = %id, %to, error = &*error, "a connection is refused, or broke off");
            }
        });
    }
}
