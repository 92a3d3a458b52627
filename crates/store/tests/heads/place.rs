//! A new database for one test, removed with it.

use std::{sync::Arc, time::Duration};

use store::{
    heads::{Head, HeadName, Heads, Lease, Protected},
    id::{ManifestId, Realm},
};

use crate::postgres::Postgres;

/// Long enough that no lease expires by itself in a test.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

pub(crate) struct Place {
    pub(crate) url: String,
    /// How many race: in SQLite they wait for each other by sleeping, so more would only take longer.
    pub(crate) writers: usize,
    _directory: Option<tempfile::TempDir>,
    _server: Option<Arc<Postgres>>,
}

impl Place {
    pub(crate) fn sqlite() -> Self {
        let directory = tempfile::Builder::new().prefix("pando-heads").tempdir().unwrap();
        let url = format!("sqlite://{}?mode=rwc", directory.path().join("heads.db").display());
        Self { url, writers: 2, _directory: Some(directory), _server: None }
    }

    pub(crate) async fn postgres() -> Self {
        let server = Postgres::shared();
        let url = server.new_database().await;
        Self { url, writers: 4, _directory: None, _server: Some(server) }
    }

    /// Connections of their own, as another node has them.
    pub(crate) async fn open(&self) -> Heads {
        Heads::open(&self.url).await.unwrap()
    }
}

pub(crate) fn realm() -> Realm {
    "default".parse().unwrap()
}

pub(crate) fn name(text: &str) -> HeadName {
    text.parse().unwrap()
}

pub(crate) async fn lease(heads: &Heads) -> Lease {
    heads.lease(&realm(), "test", HOUR).await.unwrap()
}

/// A lease that keeps `manifest`.
pub(crate) async fn lease_of(heads: &Heads, manifest: ManifestId) -> Lease {
    let lease = lease(heads).await;
    heads.protect(&lease, &[Protected::Manifest(manifest)]).await.unwrap();
    lease
}

pub(crate) async fn create(heads: &Heads, text: &str) -> Head {
    let manifest = ManifestId::random();
    heads.create(&realm(), &name(text), manifest, &lease_of(heads, manifest).await).await.unwrap()
}
