//! What all requests share: a node, and what is known of its sandboxes beyond it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use base::id::SandboxId;
use control::{Control, Sandbox, State};
use envd::Watchers;
use gateway::{
    domain::Domain,
    proxy::{Places, ProxyBounds},
    route::SandboxLabel,
};
use model::Keep;
use node::Node;

use super::{
    failed::{Failed, Result},
    history::History,
    sandboxes::finish,
};

/// How long a request waits until its sandbox has been resumed.
const WAKE_MAX: Duration = Duration::from_secs(30);
/// Between two looks at a sandbox that another request resumes.
const WAKE_LOOK: Duration = Duration::from_millis(50);

/// One server.
pub(crate) struct Platform {
    pub(crate) node: Arc<Node>,
    pub(crate) control: Control,
    /// With the port that clients use.
    pub(crate) domain: Domain,
    pub(crate) envd: envd::Service,
    pub(crate) watchers: Arc<Watchers>,
    pub(crate) history: History,
    /// For streams and calls of services that run.
    pub(crate) services: Arc<Places>,
}

impl Platform {
    pub(crate) fn new(node: Arc<Node>, control: Control, domain: Domain, services: ProxyBounds) -> Self {
        let watchers = Arc::<Watchers>::default();
        let (envd, services) = (envd::service(Arc::clone(&watchers)), Arc::new(Places::new(services)));
        Self { node, control, domain, envd, watchers, history: History::default(), services }
    }

    /// A sandbox that a request names by its host or header, of whatever team, running or paused.
    pub(crate) async fn named(&self, label: &SandboxLabel) -> Option<Sandbox> {
        let id = label.as_str().parse::<SandboxId>().ok()?;
        self.control.sandboxes().find(&id).await.ok()
    }

    /// The same, running. A paused one is resumed first, if traffic may do that: the caller has checked the token.
    pub(crate) async fn awake(self: &Arc<Self>, label: &SandboxLabel) -> Option<Sandbox> {
        let id = label.as_str().parse::<SandboxId>().ok()?;
        let deadline = Instant::now() + WAKE_MAX;
        loop {
            let found = self.control.sandboxes().find(&id).await.ok()?;
            match (found.state, found.doing) {
                (State::Running, _) => return self.control.check_here(&found).is_ok().then_some(found),
                (State::Paused(_), _) if !found.spec.lifetime.auto_resume => return None,
                // Another request does it.
                (State::Paused(_), Some(_)) => {}
                (State::Paused(_), None) => {
                    let (platform, of) = (Arc::clone(self), found.clone());
                    let lives = found.spec.lifetime.timeout;
                    let woken = finish(async move { platform.wake(&of.team, &of.id, lives, Keep::Memory).await }).await;
                    match woken {
                        Ok(sandbox) => return Some(sandbox),
                        Err(failed) => {
                            tracing::info!(sandbox = %id, error = failed.body().message, "traffic did not wake it")
                        }
                    }
                }
            }
            if Instant::now() > deadline {
                return None;
            }
            tokio::time::sleep(WAKE_LOOK).await;
        }
    }
}

/// An identifier out of a path. A text of another form is not found.
pub(crate) fn sandbox_id(text: &str) -> Result<SandboxId> {
    text.parse().map_err(|_| Failed::no_sandbox(text))
}
