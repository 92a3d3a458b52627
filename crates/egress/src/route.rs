//! Where a visit goes, and whether it may.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use model::DomainName;
use network::Reach;
use tokio::{net::TcpStream, sync::watch, task::spawn_blocking, time::timeout};

use crate::proxy::Proxy;

/// How long a name may take, and each address of it.
const NAME_MAX: Duration = Duration::from_secs(10);
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Addresses of a name that are tried.
const ADDRESSES_MAX: usize = 4;

/// Why a visit ends before it has begun.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("the network policy of this sandbox does not allow {0}")]
    Name(DomainName),
    #[error("the network policy of this sandbox does not allow {0}")]
    Address(SocketAddrV4),
    #[error("{name} has the address {address}, which is closed to sandboxes")]
    Closed { name: DomainName, address: Ipv4Addr },
    #[error("{0} has no address")]
    NoAddress(DomainName),
    #[error("{to} is not reached")]
    Unreachable {
        to: String,
        #[source]
        source: io::Error,
    },
}

impl Refused {
    /// Not because of what is on the other side.
    pub(crate) fn is_by_policy(&self) -> bool {
        match self {
            Self::Name(_) | Self::Address(_) | Self::Closed { .. } => true,
            Self::NoAddress(_) | Self::Unreachable { .. } => false,
        }
    }
}

/// Where a visit goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    /// None: the sandbox has chosen the address.
    pub(crate) name: Option<DomainName>,
    pub(crate) address: SocketAddrV4,
}

impl Route {
    pub(crate) fn holds(&self, reach: &Reach) -> bool {
        let is_named = |name| reach.allows(name, self.address.port()) && !reach.is_closed(*self.address.ip());
        self.name.as_ref().is_some_and(is_named) || reach.permits(self.address)
    }
}

/// The policy of a visit's sandbox, and the way that it takes now.
#[derive(Debug, Clone)]
pub(crate) struct Guest {
    reach: watch::Receiver<Reach>,
    way: Arc<Mutex<Option<Route>>>,
}

impl Guest {
    pub(crate) fn new(reach: watch::Receiver<Reach>) -> Self {
        Self { reach, way: Arc::default() }
    }

    pub(crate) fn reach(&self) -> Reach {
        self.reach.borrow().clone()
    }

    /// It goes there from now on. False: the policy has changed meanwhile, and does not allow it.
    fn takes(&self, route: &Route) -> bool {
        *self.way.lock().unwrap_or_else(PoisonError::into_inner) = Some(route.clone());
        // Only now: a change after it is seen by `loses`.
        route.holds(&self.reach.borrow())
    }

    /// Until it may not go on where it goes.
    pub(crate) async fn loses(mut self) {
        // An error: the sandbox is gone.
        while self.reach.changed().await.is_ok() {
            let reach = self.reach.borrow_and_update().clone();
            let way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
            if way.as_ref().is_some_and(|way| !way.holds(&reach)) {
                return;
            }
        }
    }
}

impl Proxy {
    /// Connects with a name, at an address that the proxy has asked for itself.
    pub(crate) async fn connect_to(&self, guest: &Guest, name: &DomainName, port: u16) -> Result<TcpStream, Refused> {
        let unreachable = |source: io::Error| Refused::Unreachable { to: format!("{name}:{port}"), source };
        let reach = guest.reach();
        let found = timeout(NAME_MAX, self.dns.resolve(&reach, name)).await;
        let found = found.unwrap_or_else(|late| Err(late.into())).map_err(unreachable)?;
        let mut last = Refused::NoAddress(name.clone());
        for address in found.into_iter().take(ADDRESSES_MAX) {
            let route = Route { name: Some(name.clone()), address: SocketAddrV4::new(address, port) };
            last = if reach.is_closed(address) {
                Refused::Closed { name: name.clone(), address }
            } else if !route.holds(&reach) {
                Refused::Name(name.clone())
            } else {
                match self.connect(guest, &route).await {
                    Ok(stream) => return Ok(stream),
                    Err(error) => error,
                }
            };
        }
        Err(last)
    }

    /// Connects with an address.
    pub(crate) async fn connect(&self, guest: &Guest, route: &Route) -> Result<TcpStream, Refused> {
        if !route.holds(&guest.reach()) {
            return Err(Refused::Address(route.address));
        }
        let network = Arc::clone(&self.network);
        let connecting = async {
            let socket = spawn_blocking(move || network.socket()).await.map_err(io::Error::other)??;
            socket.connect(route.address.into()).await
        };
        let connected = timeout(CONNECT_MAX, connecting).await.unwrap_or_else(|late| Err(late.into()));
        let stream = connected.map_err(|source| Refused::Unreachable { to: route.address.to_string(), source })?;
        if guest.takes(route) { Ok(stream) } else { Err(Refused::Address(route.address)) }
    }
}
