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
    errors::Refusal,
    proxy::{Places, ProxyBounds},
    route::SandboxLabel,
};
use model::Keep;
use node::Node;

use super::{
    failed::Failed,
    history::History,
    sandboxes::finish,
    templates::{builds::Jobs, snapshots::Notes},
};

/// How long a request waits until its sandbox has been resumed.
const WAKE_MAX: Duration = Duration::from_secs(30);
/// How often one request tries that itself. Clients need no key for it, and each try writes to the database.
const WAKE_TRIES: u32 = 3;
/// Seconds after which a client may try again.
const WAKE_RETRY_S: u64 = 5;
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
    /// Of snapshots that may have no row.
    pub(crate) notes: Notes,
    /// Builds of templates.
    pub(crate) jobs: Jobs,
    /// Held while a template of the node is noted: each is noted once.
    pub(crate) noting: tokio::sync::Mutex<()>,
}

impl Platform {
    pub(crate) fn new(node: Arc<Node>, control: Control, domain: Domain, services: ProxyBounds) -> Self {
        let watchers = Arc::<Watchers>::default();
        let (envd, services) = (envd::service(Arc::clone(&watchers)), Arc::new(Places::new(services)));
        let notes = Notes::within(&node.config().state_dir);
        let jobs = Jobs::within(&node.config().state_dir);
        Self {
            node,
            control,
            domain,
            envd,
            watchers,
            history: History::default(),
            services,
            notes,
            jobs,
            noting: tokio::sync::Mutex::default(),
        }
    }

    /// A sandbox that a request names by its host or header, of whatever team, running or paused.
    pub(crate) async fn named(&self, label: &SandboxLabel) -> Option<Sandbox> {
        let id = label.as_str().parse::<SandboxId>().ok()?;
        self.control.sandboxes().find(&id).await.ok()
    }

    /// The same, running. A paused one is resumed first, if traffic may do that: the caller has checked the token.
    pub(crate) async fn awake(self: &Arc<Self>, label: &SandboxLabel) -> Result<Sandbox, Refusal> {
        let id = label.as_str().parse::<SandboxId>().map_err(|_| Refusal::NoSandbox)?;
        let (deadline, mut tries) = (Instant::now() + WAKE_MAX, 0);
        loop {
            let found = self.control.sandboxes().find(&id).await.map_err(|_| Refusal::NoSandbox)?;
            match (found.state, found.doing) {
                (State::Running, _) => return self.here(found),
                (State::Paused(_), _) if !found.spec.lifetime.auto_resume => return Err(Refusal::NoSandbox),
                // Another request does it.
                (State::Paused(_), Some(_)) => {}
                (State::Paused(_), None) => {
                    let (platform, of) = (Arc::clone(self), found.clone());
                    let lives = found.spec.lifetime.timeout;
                    let woken = finish(async move { platform.wake(&of.team, &of.id, lives, Keep::Memory).await }).await;
                    match woken {
                        Ok(sandbox) => return Ok(sandbox),
                        Err(failed) => {
                            tracing::info!(sandbox = %id, error = failed.body().message, "traffic did not wake it");
                            tries += 1;
                            // A conflict is another request that wakes it. All else stays for a while, such as a quota.
                            if !failed.is_conflict() || tries == WAKE_TRIES {
                                return Err(Refusal::Busy { retry_after_s: WAKE_RETRY_S });
                            }
                        }
                    }
                }
            }
            if Instant::now() > deadline {
                return Err(Refusal::Busy { retry_after_s: WAKE_RETRY_S });
            }
            tokio::time::sleep(WAKE_LOOK).await;
        }
    }

    /// A running sandbox, if it is on this server's node.
    pub(crate) fn here(&self, sandbox: Sandbox) -> Result<Sandbox, Refusal> {
        match self.control.check_here(&sandbox) {
            Ok(()) => Ok(sandbox),
            Err(_) => Err(Refusal::Busy { retry_after_s: WAKE_RETRY_S }),
        }
    }
}

/// An identifier out of a path. A text of another form is not found.
pub(crate) fn sandbox_id(text: &str) -> Result<SandboxId, Failed> {
    text.parse().map_err(|_| Failed::no_sandbox(text))
}
