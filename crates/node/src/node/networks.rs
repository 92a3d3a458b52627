//! Networks of sandboxes: connected before anything runs in them, and what they may reach.

use std::{collections::HashSet, sync::Arc};

use base::id::SandboxId;
use keeper::protocol::{Call, Created, Files};
use model::NetworkPolicy;
use network::{Dns, Network, Sockets};
use sandbox::ProcessIdentity;

use super::Node;
use crate::{
    config::{Config, NetworkKind, RECORD},
    error::{Context, Error, Result, chain},
    records::{self, Durability},
};

/// The node's network, if it is to have one.
pub(super) fn open(config: &Config, id: &str) -> Result<Option<Arc<Network>>> {
    if config.network.kind == NetworkKind::None {
        return Ok(None);
    }
    match Network::open(&config.router(), id, &config.network.settings) {
        Ok(network) => Ok(Some(Arc::new(network))),
        Err(error) if config.network.kind == NetworkKind::Auto => {
            let why = "sandboxes have no network (`pando doctor` says more)";
            tracing::warn!(error = chain(&error), "{why}");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

impl Node {
    /// Has the keeper make a sandbox, and connects it. After a failure some of it may be left.
    pub(super) async fn create_connected<C: Call<Reply = Created>>(
        &self,
        id: &SandboxId,
        create: C,
        files: <C::Files as Files>::Lent<'_>,
    ) -> Result<Created> {
        let created = self.keepers.call(create, files).await?;
        self.connect(id, created.init).await?;
        Ok(created)
    }

    async fn connect(&self, id: &SandboxId, init: ProcessIdentity) -> Result<()> {
        let Some(network) = self.host.network.clone() else { return Ok(()) };
        let id = id.clone();
        let connect = move || {
            let inside = sandbox::in_network(init, Sockets::open)?;
            Ok(network.attach(&id, &inside.doing("talk to the kernel about a sandbox's network")?)?)
        };
        tokio::task::spawn_blocking(connect).await.doing("connect a sandbox")?
    }

    pub(super) async fn disconnect(&self, id: &SandboxId) {
        let Some(network) = self.host.network.clone() else { return };
        let id = id.clone();
        // A panic is logged.
        let _ = tokio::task::spawn_blocking(move || network.detach(&id)).await;
    }

    /// Has a sandbox reach what `policy` says, before it runs or while it does.
    pub(super) async fn apply_network(&self, id: &SandboxId, policy: &NetworkPolicy) -> Result<()> {
        let Some(network) = self.host.network.clone() else {
            // Nothing to close is there, and nothing to allow.
            return if policy.allow.is_empty() { Ok(()) } else { Err(Error::NoNetwork) };
        };
        let (id, policy) = (id.clone(), policy.clone());
        let apply = move || Ok(network.apply(&id, &policy)?);
        tokio::task::spawn_blocking(apply).await.doing("change the network of a sandbox")?
    }

    /// What a sandbox may reach.
    pub fn network_of(&self, id: &SandboxId) -> Result<NetworkPolicy> {
        self.state().sandbox(id).map(|record| record.network.clone())
    }

    /// Changes what a sandbox may reach, from now on. Connections that it does not allow stop.
    pub async fn set_network(&self, id: &SandboxId, policy: NetworkPolicy) -> Result<()> {
        self.state().running(id)?;
        self.apply_network(id, &policy).await?;
        let Some(record) = self.state().set_network(id, policy) else { return Err(Error::NoSandbox(id.clone())) };
        records::write(&self.host.config.sandbox_dir(id).join(RECORD), &record, Durability::Process)
    }

    /// Answers DNS queries of sandboxes. Never returns.
    pub(super) async fn serve_names(self: Arc<Self>) {
        let Some(network) = self.host.network.clone() else { return };
        match Dns::open(network, self.host.config.network.dns.clone()) {
            Ok(dns) => Arc::new(dns).serve().await,
            Err(error) => tracing::error!(error = chain(&error), "sandboxes have no DNS"),
        }
    }

    /// Takes over the networks of an earlier node's sandboxes.
    pub(super) async fn take_over_networks(&self) {
        let Some(network) = self.host.network.clone() else { return };
        let (policies, known): (Vec<_>, HashSet<_>) = {
            let state = self.state();
            let records = state.sandboxes();
            let known = records.iter().map(|record| record.id.clone()).collect();
            (records.into_iter().map(|record| (record.id, record.network)).collect(), known)
        };
        let take_over = move || {
            let connected = network.connected();
            connected.iter().filter(|id| !known.contains(id)).for_each(|id| network.detach(id));
            for (id, policy) in policies.into_iter().filter(|(id, _)| connected.contains(id)) {
                if let Err(error) = network.apply(&id, &policy) {
                    tracing::error!(sandbox = %id, error = chain(&error), "its network policy may not hold");
                }
            }
        };
        let _ = tokio::task::spawn_blocking(take_over).await;
    }
}
