//! Which nodes serve chunks to others of their realm. Advice only: nothing depends on a row being there, or right.
//!
//! Times are of the database's clock, the one that all nodes share; if it jumps, peers are not found for a while.

use sqlx::{AssertSqlSafe, Row, any::AnyRow};

use super::{Heads, HeadsError, database};
use crate::{
    id::Realm,
    limits::{PEER_ADDRESS_BYTES_MAX, PEER_ROW_MAX, PEER_SEEN_MAX, PEERS_LISTED_MAX},
};

/// A node that serves chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerEntry {
    /// Its id.
    pub node: String,
    /// Where it listens: `HOST:PORT`.
    pub address: String,
}

impl Heads {
    /// Says that `peer` serves chunks of `realm` now, and forgets who has not said so for ten minutes.
    pub async fn announce_peer(&self, realm: &Realm, peer: &PeerEntry) -> Result<(), HeadsError> {
        let failed = || database("announce a peer");
        let now = self.database.now();
        let mut transaction = self.database.begin_relaxed().await?;
        let delete = format!("DELETE FROM peers WHERE seen_s < {now} - {}", PEER_ROW_MAX.as_secs());
        sqlx::query(AssertSqlSafe(delete)).execute(&mut *transaction).await.map_err(failed())?;
        let insert = format!(
            "INSERT INTO peers (realm, node, address, seen_s) VALUES ($1, $2, $3, {now})
            ON CONFLICT (realm, node) DO UPDATE SET address = excluded.address, seen_s = excluded.seen_s"
        );
        let insert = sqlx::query(AssertSqlSafe(insert)).bind(realm.as_str());
        let insert = insert.bind(peer.node.clone()).bind(peer.address.clone());
        insert.execute(&mut *transaction).await.map_err(failed())?;
        transaction.commit().await.map_err(failed())
    }

    /// Says that `node` serves no chunks of `realm` any more.
    pub async fn withdraw_peer(&self, realm: &Realm, node: &str) -> Result<(), HeadsError> {
        let failed = || database("withdraw a peer");
        let mut transaction = self.database.begin_relaxed().await?;
        let delete = sqlx::query("DELETE FROM peers WHERE realm = $1 AND node = $2").bind(realm.as_str());
        delete.bind(node.to_owned()).execute(&mut *transaction).await.map_err(failed())?;
        transaction.commit().await.map_err(failed())
    }

    /// Who has announced itself for `realm` in the last half minute, but for the node `own`; the last seen first.
    pub async fn peers(&self, realm: &Realm, own: &str) -> Result<Vec<PeerEntry>, HeadsError> {
        let select = format!(
            "SELECT node, address FROM peers WHERE realm = $1 AND node <> $2 AND seen_s >= {} - {}
            ORDER BY seen_s DESC, node LIMIT {PEERS_LISTED_MAX}",
            self.database.now(),
            PEER_SEEN_MAX.as_secs()
        );
        let select = sqlx::query(AssertSqlSafe(select)).bind(realm.as_str()).bind(own.to_owned());
        let rows = select.fetch_all(self.database.pool()).await.map_err(database("look for peers"))?;
        rows.iter().map(entry).collect()
    }
}

fn entry(row: &AnyRow) -> Result<PeerEntry, HeadsError> {
    let failed = || database("read a peer's row");
    let (node, address): (String, String) = (row.try_get(0).map_err(failed())?, row.try_get(1).map_err(failed())?);
    if address.len() > PEER_ADDRESS_BYTES_MAX {
        return Err(HeadsError::Damaged { expected: "peer's address", value: node });
    }
    Ok(PeerEntry { node, address })
}
