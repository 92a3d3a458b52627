//! Networks of sandboxes: connected before anything runs in them, and what they may reach.

use std::{collections::HashSet, sync::Arc};

use base::id::SandboxId;
use egress::Proxy;
use keeper::protocol::{Call, Created, Files};
use model::{Hidden, NetworkPolicy, SandboxState};
use network::{Dns, Network, Sockets};
use sandbox::ProcessIdentity;

use super::{Node, lifecycle::Operation};
use crate::{
    config::{Config, NetworkKind, RECORD},
    error::{Context, Error, Result, Storing, chain},
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

/// An error of a client's policy, or of the node.
fn refused(error: network::Error) -> Error {
    use network::Error as E;
    match error {
        E::TooLong(_)
        | E::TooManyPorts(_)
        | E::TooManyRules(_)
        | E::TooManyServers(_)
        | E::Rule(_)
        | E::Bandwidth
        | E::OpenBeside(_)
        | E::ClosedServer(_) => Error::Invalid { message: error.to_string(), hint: None },
        error => Error::Network(error),
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
            let asks_nothing = policy.allowed().next().is_none() && policy.rules.is_empty();
            return if asks_nothing { Ok(()) } else { Err(Error::NoNetwork) };
        };
        let (id, policy) = (id.clone(), policy.clone());
        let apply = move || network.apply(&id, &policy).map_err(refused);
        tokio::task::spawn_blocking(apply).await.doing("change the network of a sandbox")?
    }

    /// What a sandbox may reach.
    pub fn network_of(&self, id: &SandboxId) -> Result<NetworkPolicy> {
        self.state().sandbox(id).map(|record| record.network.clone())
    }

    /// Changes what a sandbox may reach, from now on. Connections that it does not allow stop.
    pub async fn set_network(self: &Arc<Self>, id: &SandboxId, policy: NetworkPolicy) -> Result<()> {
        let (node, of) = (Arc::clone(self), id.clone());
        let policy = self.sealed(policy).await?;
        let has_rules = !policy.rules.is_empty();
        // In its turn: a pause keeps the policy that it finds.
        let changed = self.drive(id, Operation::Capture, async move {
            node.apply_network(&of, &policy).await?;
            let record = node.state().set_network(&of, policy);
            let record = record.ok_or_else(|| Error::NoSandbox(of.clone()))?;
            records::write(&node.host.config.sandbox_dir(&of).join(RECORD), &record, Durability::Process)
        });
        changed.await?;
        if has_rules {
            self.trust(id).await;
        }
        Ok(())
    }

    /// With the values of its headers sealed, as a policy is kept.
    pub(super) async fn sealed(&self, mut policy: NetworkPolicy) -> Result<NetworkPolicy> {
        if let Some(network) = &self.host.network {
            // Before what is wrong cannot be seen any more.
            network.check(&policy).map_err(refused)?;
        }
        for rule in &mut policy.rules {
            for at in 0..rule.headers.len() {
                let header = &rule.headers[at];
                if let Hidden::Plain(value) = &header.value {
                    let placed = format!("{}{value}", rule.place_of(&header.name));
                    let sealed = store::text::seal(self.data_keys(), placed.as_bytes()).await;
                    rule.headers[at].value = Hidden::Sealed(sealed.storing("seal the value of a header")?);
                }
            }
        }
        Ok(policy)
    }

    /// Answers DNS queries of sandboxes, and makes their connections with domains. Never returns.
    pub(super) async fn serve_networks(self: Arc<Self>) {
        let Some(network) = self.host.network.clone() else { return };
        let dns = match Dns::open(Arc::clone(&network), self.host.config.network.dns.clone()) {
            Ok(dns) => Arc::new(dns),
            Err(error) => return tracing::error!(error = chain(&error), "sandboxes have no DNS"),
        };
        let proxy = async {
            let settings = self.host.config.egress();
            match Proxy::open(network, Arc::clone(&dns), self.durable.store.clone(), &settings) {
                Ok(proxy) => {
                    self.egress_certificate.send_replace(Some(proxy.certificate().into()));
                    Arc::new(proxy).serve().await;
                }
                Err(error) => tracing::error!(error = chain(&error), "sandboxes reach no domains"),
            }
        };
        tokio::join!(Arc::clone(&dns).serve(), proxy);
    }

    /// Takes over the networks of an earlier node's sandboxes.
    pub(super) async fn take_over_networks(&self) {
        let Some(network) = self.host.network.clone() else { return };
        let (policies, known): (Vec<_>, HashSet<_>) = {
            let mut records = self.state().sandboxes();
            records.retain(|record| record.state != SandboxState::Paused);
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
