//! What all requests share: a node, and what is known of its sandboxes beyond it.

use std::sync::Arc;

use base::id::SandboxId;
use control::{Control, Sandbox};
use envd::Watchers;
use gateway::{domain::Domain, route::SandboxLabel};
use node::Node;

use super::failed::{Failed, Result};

/// One server.
pub(crate) struct Platform {
    pub(crate) node: Arc<Node>,
    pub(crate) control: Control,
    /// With the port that clients use.
    pub(crate) domain: Domain,
    pub(crate) envd: envd::Service,
    pub(crate) watchers: Arc<Watchers>,
}

impl Platform {
    pub(crate) fn new(node: Arc<Node>, control: Control, domain: Domain) -> Self {
        let watchers = Arc::<Watchers>::default();
        Self { node, control, domain, envd: envd::service(Arc::clone(&watchers)), watchers }
    }

    /// A sandbox that a request names by its host or header, of whatever team: its token is checked by the caller.
    pub(crate) async fn labelled(&self, label: &SandboxLabel) -> Option<Sandbox> {
        let id = label.as_str().parse::<SandboxId>().ok()?;
        self.control.sandboxes().find(&id).await.ok()
    }
}

/// An identifier out of a path. A text of another form is not found.
pub(crate) fn sandbox_id(text: &str) -> Result<SandboxId> {
    text.parse().map_err(|_| Failed::no_sandbox(text))
}
