//! Who there is: the addresses that the operator gives, and those in the database.

use std::sync::{Arc, Weak};

use store::{
    heads::{Heads, HeadsError, PeerEntry},
    id::Realm,
};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    Peers,
    limits::{DIRECTORY_PERIOD, DIRECTORY_WAIT},
};

/// A text that is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the address of a peer: use HOST:PORT")]
pub struct InvalidAddress(String);

/// Looks whether `text` is `HOST:PORT`, with a port that can be connected to.
pub fn check_address(text: &str) -> Result<(), InvalidAddress> {
    let refused = || InvalidAddress(text.chars().take(store::limits::PEER_ADDRESS_BYTES_MAX).collect());
    let (host, port) = text.rsplit_once(':').ok_or_else(refused)?;
    let good = !host.is_empty()
        && text.len() <= store::limits::PEER_ADDRESS_BYTES_MAX
        && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/')
        && port.parse::<u16>().is_ok_and(|port| port != 0);
    if good { Ok(()) } else { Err(refused()) }
}

/// The peers that the database names for one realm.
#[derive(Debug, Clone)]
pub struct Directory {
    /// Where they are named.
    pub heads: Heads,
    /// Whose chunks are served.
    pub realm: Realm,
    /// The id of this node, which does not ask itself.
    pub own: String,
}

impl Directory {
    /// Keeps `peers` up to date with `given` and the database, from now until it is dropped. Returns when the database was asked once, or
    /// has not answered in time. A database that does not answer leaves everything as it is.
    pub async fn follow(self, peers: &Arc<Peers>, given: Vec<String>) {
        let _ = timeout(DIRECTORY_WAIT, self.refresh(peers, &given)).await;
        let peers = Arc::downgrade(peers);
        tokio::spawn(async move {
            loop {
                sleep(DIRECTORY_PERIOD).await;
                let Some(peers) = Weak::upgrade(&peers) else { return };
                self.refresh(&peers, &given).await;
            }
        });
    }

    async fn refresh(&self, peers: &Peers, given: &[String]) {
        match self.heads.peers(&self.realm, &self.own).await {
            Ok(found) => {
                let found = found.into_iter().map(|peer| peer.address);
                let found = found.filter(|address| check_address(address).is_ok());
                let all: Vec<String> = given.iter().cloned().chain(found).collect();
                peers.choice.replace(&all);
            }
            Err(error) => tracing::debug!(%error, "the database names no peers now"),
        }
    }

    /// Announces this node at `address` now, and again and again until the task is aborted.
    pub async fn announce(self, address: String) -> Result<JoinHandle<()>, HeadsError> {
        let entry = PeerEntry { node: self.own.clone(), address };
        self.heads.announce_peer(&self.realm, &entry).await?;
        Ok(tokio::spawn(async move {
            loop {
                sleep(DIRECTORY_PERIOD).await;
                if let Err(error) = self.heads.announce_peer(&self.realm, &entry).await {
                    tracing::warn!(%error, "other nodes are not told that this one serves them");
                }
            }
        }))
    }

    /// This node serves nobody any more.
    pub async fn withdraw(&self) {
        if let Err(error) = self.heads.withdraw_peer(&self.realm, &self.own).await {
            tracing::debug!(%error, "a peer's row stays; it is outdated soon");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for good in ["10.0.0.1:7000", "[::1]:1", "node-3.internal:65535"] {
            assert_eq!(check_address(good), Ok(()), "{good}");
        }
        for wrong in ["", "host", ":7000", "host:0", "host:70000", "host:x", "http://host:1", "a b:1", "h\u{e4}:1"] {
            assert!(check_address(wrong).is_err(), "{wrong}");
        }
        assert!(check_address(&format!("{}:1", "h".repeat(300))).is_err());
    }
}
