//! Other nodes: what this one gives them, and how asking them goes.

use std::sync::Arc;

use ::peers::{Directory, Server};
use model::PeerStats;
use tokio::{net::TcpListener, task::JoinHandle};

use super::Node;
use crate::error::{Context, Result, Storing};

/// What serves other nodes.
pub(super) struct Serving {
    server: Arc<Server>,
    address: String,
    directory: Directory,
    /// Serving and announcing.
    tasks: [JoinHandle<()>; 2],
}

impl Node {
    /// Listens for other nodes if that is wanted, and tells them so. What it needs to answer is read before.
    pub async fn serve_peers(&self) -> Result<()> {
        let Some(peer_listen) = &self.host.config.peer_listen else { return Ok(()) };
        let listener = TcpListener::bind(peer_listen.listen).await.doing("listen for other nodes (--peer-listen)")?;
        let bound = listener.local_addr().doing("listen for other nodes (--peer-listen)")?;
        let address = peer_listen.address.clone().unwrap_or_else(|| bound.to_string());
        let server = Server::new(self.durable.store.clone());
        let directory = self.durable.directory(&self.host.id);
        let announcing = directory.clone().announce(address.clone()).await.storing("tell other nodes of this one")?;
        let serving = tokio::spawn(Arc::clone(&server).serve(listener));
        tracing::info!(%bound, address, "serves other nodes");
        let _ = self.serving.set(Serving { server, address, directory, tasks: [serving, announcing] });
        Ok(())
    }

    /// Serves other nodes no more, and tells them so.
    pub async fn leave_peers(&self) {
        if let Some(serving) = self.serving.get() {
            serving.tasks.iter().for_each(JoinHandle::abort);
            serving.directory.withdraw().await;
        }
    }

    /// What was asked of other nodes, and what they asked.
    pub(super) fn peer_stats(&self) -> PeerStats {
        let mut stats = PeerStats::default();
        if let Some(peers) = &self.durable.peers {
            let asked = peers.counters();
            stats.known = peers.known() as u64;
            (stats.hits, stats.misses, stats.failures) = (asked.hits, asked.misses, asked.failures);
        }
        if let Some(serving) = self.serving.get() {
            let served = serving.server.counters();
            stats.address = Some(serving.address.clone());
            (stats.served, stats.served_bytes, stats.refused) = (served.chunks, served.bytes, served.refused);
        }
        stats
    }
}
