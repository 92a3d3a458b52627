//! The proxy of a node: takes connections, and gives each a visit.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use network::{Dns, Network};
use tokio::net::{TcpListener, TcpStream};

use crate::{
    places::{Place, Places},
    route::Guest,
    visit::Visit,
};

/// Waits after an error that is of no connection: too many files are open.
const REST: Duration = Duration::from_millis(10);

/// See the crate.
pub struct Proxy {
    pub(crate) network: Arc<Network>,
    pub(crate) dns: Arc<Dns>,
    listener: TcpListener,
    places: Arc<Places>,
}

impl Proxy {
    /// Opens the door in the router. `dns` is asked for addresses.
    pub fn open(network: Arc<Network>, dns: Arc<Dns>) -> std::io::Result<Self> {
        let listener = network.listen()?;
        Ok(Self { network, dns, listener, places: Arc::default() })
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
