//! What daily work goes to. A node and a server offer the same, and what is printed has one form for both.

mod node;
mod server;

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use api::{ErrorDetail, NetworkPolicy, SandboxState, Usage, VolumeMount};
use async_trait::async_trait;
use base::id::SandboxId;
use client::{Client, Download, Inside, Port};
use serde::Serialize;
use tokio::{net::TcpStream, signal::unix::Signal};

use crate::{exit::Failure, output::Progress, sandbox_id::Among};

/// The label that is the name of a sandbox.
pub(crate) const NAME_LABEL: &str = "name";

/// A node or a server.
#[async_trait]
pub(crate) trait Target: Send + Sync {
    /// All sandboxes. A server lists those of its team, and `among` makes no difference.
    async fn list(&self, among: Among) -> Result<Vec<Shown>>;
    /// Starts sandboxes. None: an interrupt came first, and nothing is left of them.
    async fn create(&self, wanted: &Wanted, interrupts: &mut Signal) -> Result<Option<Started>>;
    /// Removes one sandbox, running or paused.
    async fn kill(&self, id: &SandboxId) -> Result<()>;
    /// Removes all. Gives those that are gone.
    async fn kill_all(&self, paused: Paused) -> Result<Vec<SandboxId>>;
    /// Ends a sandbox after this time.
    async fn set_timeout(&self, id: &SandboxId, timeout: Duration) -> Result<()>;
    /// Pauses a sandbox.
    async fn pause(&self, id: &SandboxId, files_only: bool, progress: &mut Progress) -> Result<Kept>;
    /// Continues a paused sandbox.
    async fn resume(&self, id: &SandboxId, options: &Resume) -> Result<Shown>;
    /// Forks a sandbox. None: as of [`Self::create`].
    async fn fork(&self, id: &SandboxId, options: &Fork, interrupts: &mut Signal) -> Result<Option<Forked>>;
    /// What sandboxes use now. None: it does not run.
    async fn usage(&self, ids: &[SandboxId]) -> Result<Vec<Option<Usage>>>;
    /// What a sandbox may reach.
    async fn network(&self, id: &SandboxId) -> Result<NetworkPolicy>;
    /// Replaces that, while it runs.
    async fn set_network(&self, id: &SandboxId, policy: &NetworkPolicy) -> Result<()>;
    /// What the program has printed.
    async fn logs(&self, id: &SandboxId, follow: bool) -> Result<Download>;
    /// Why the program has ended, if that is known.
    async fn reason(&self, id: &SandboxId) -> Result<Option<String>>;
    /// Commands and files of a running sandbox.
    async fn inside(&self, id: &SandboxId) -> Result<Inside>;
    /// The way to a port in a running sandbox.
    async fn door(&self, id: &SandboxId, port: u16) -> Result<Door>;
    /// The node, if this is one: its commands in the foreground end with their client in any case.
    fn as_node(&self) -> Option<&Client>;
}

/// Whether paused sandboxes are removed with the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paused {
    Kept,
    Killed,
}

/// One sandbox, as it is printed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Shown {
    pub(crate) id: SandboxId,
    /// The label `name`.
    pub(crate) name: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) template: String,
    pub(crate) parent: Option<SandboxId>,
    pub(crate) state: SandboxState,
    /// Why its program was ended, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    pub(crate) created_ms: u64,
    /// When it ends by itself. None: never, or it is paused.
    pub(crate) ends_ms: Option<u64>,
    /// How long its start took. None: a server does not tell.
    pub(crate) start_us: Option<u64>,
    /// On the node. None: a server does not tell.
    pub(crate) main_pid: Option<i32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) volumes: Vec<VolumeMount>,
}

/// What is asked for at a start.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) template: String,
    pub(crate) count: u32,
    pub(crate) stepping: bool,
    pub(crate) volumes: Vec<VolumeMount>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) at_end: Option<AtEnd>,
    /// Traffic and commands continue it when it is paused.
    pub(crate) auto_resume: bool,
    pub(crate) network: NetworkPolicy,
}

/// What happens to a sandbox when its time is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum AtEnd {
    /// It is removed.
    Kill,
    /// It is paused.
    Pause,
}

/// What was started.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Started {
    pub(crate) sandboxes: Vec<Shown>,
    pub(crate) total_us: u64,
    pub(crate) notices: Vec<String>,
    pub(crate) failures: Vec<ErrorDetail>,
}

/// What was paused. A server tells no sizes.
#[derive(Debug, Serialize)]
pub(crate) struct Kept {
    pub(crate) sandbox: Shown,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) stored_memory_bytes: Option<u64>,
    pub(crate) layer_bytes: Option<u64>,
    pub(crate) total_us: u64,
}

/// How to continue.
#[derive(Debug)]
pub(crate) struct Resume {
    pub(crate) force: bool,
    pub(crate) files_only: bool,
    pub(crate) timeout: Option<Duration>,
}

/// How to fork.
#[derive(Debug)]
pub(crate) struct Fork {
    pub(crate) count: u32,
    pub(crate) files_only: bool,
    pub(crate) timeout: Option<Duration>,
}

/// What was forked. A server tells no times of its parts.
#[derive(Debug, Serialize)]
pub(crate) struct Forked {
    pub(crate) sandboxes: Vec<Shown>,
    pub(crate) pause_us: Option<u64>,
    pub(crate) capture_us: Option<u64>,
    pub(crate) build_us: Option<u64>,
    pub(crate) total_us: u64,
    pub(crate) failures: Vec<ErrorDetail>,
}

/// A port in a sandbox.
pub(crate) enum Door {
    /// Of a node: any bytes pass.
    Node(Client, SandboxId, u16),
    /// Of a server: HTTP passes.
    Server(Port),
}

impl Door {
    /// Serves one connection to its end.
    pub(crate) async fn pass(&self, mut stream: TcpStream) -> Result<()> {
        match self {
            Self::Node(node, id, port) => {
                let mut program = node.dial(id, *port).await?;
                // An end of either side is an end, not a failure.
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut program).await;
            }
            Self::Server(port) => port.forward(stream).await,
        }
        Ok(())
    }
}

/// Something that only a server keeps was asked of a node.
fn needs_server(what: &str) -> anyhow::Error {
    Failure::Usage(format!("{what} needs a server: name it with --url or PANDO_URL, and its key with PANDO_KEY")).into()
}

/// Something that only a node does was asked of a server.
pub(crate) fn needs_node(what: &str) -> anyhow::Error {
    Failure::Usage(format!("{what} needs the node's socket: name it with --socket")).into()
}
