//! What the nodes of a case share: a store and a database.

use std::path::PathBuf;

use anyhow::{Context, Result};
use testkit::node::{Node, Setting};

/// What two nodes share, removed when dropped.
pub(crate) struct Shared(pub(crate) PathBuf);

impl Shared {
    pub(crate) fn new() -> Result<Self> {
        let path = PathBuf::from(format!("/var/tmp/pando-host-shared-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn node(&self) -> Result<Node> {
        self.node_with("master.keys", &[])
    }

    /// A node that shares nothing else: its state, its cache and its network are its own.
    pub(crate) fn distant_node(&self) -> Result<Node> {
        Node::start_with(Setting { own_network: true, ..self.setting("master.keys", &[]) })
    }

    /// A node whose clock is wrong, as `faketime` says it.
    pub(crate) fn node_with_clock(&self, wrong: &'static str) -> Result<Node> {
        Node::start_with(Setting { clock: Some(wrong), ..self.setting("master.keys", &[]) })
    }

    pub(crate) fn node_with(&self, keys: &str, more: &[&str]) -> Result<Node> {
        Node::start_with(self.setting(keys, more))
    }

    /// The address of a database in a file.
    pub(crate) fn database(&self) -> String {
        format!("sqlite://{}?mode=rwc", self.0.join("heads.db").display())
    }

    /// A node with objects and database somewhere, and its state on a file system of so many MiB.
    pub(crate) fn node_at(&self, objects: &str, database: &str, keys: &str, state_mib: Option<u32>) -> Result<Node> {
        let keys = self.0.join(keys).display().to_string();
        let arguments = ["--objects", objects, "--database", database, "--master-keys", &keys];
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Node::start_with(Setting { arguments, state_mib, ..Setting::default() })
    }

    pub(crate) fn setting(&self, keys: &str, more: &[&str]) -> Setting {
        let database = self.database();
        let path = |name: &str| self.0.join(name).display().to_string();
        let arguments = ["--objects", &path("objects"), "--database", &database, "--master-keys", &path(keys)];
        let arguments = arguments.iter().chain(more).map(|argument| (*argument).to_owned()).collect();
        Setting { arguments, ..Setting::default() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `body` with a node that has the template `geo`.
pub(crate) fn with_geo(body: impl FnOnce(&Shared, &mut Node) -> Result<()>) -> Result<()> {
    let shared = Shared::new()?;
    let mut node = shared.node()?;
    node.build_geo("geo", &["--nidx", "4"])?;
    body(&shared, &mut node).with_context(|| format!("log of the first node:\n{}", node.log_tail()))?;
    node.finish()
}

/// Runs `body` with a node that shares nothing.
pub(crate) fn with_node(setting: Setting, body: impl FnOnce(&mut Node) -> Result<()>) -> Result<()> {
    let mut node = Node::start_with(setting)?;
    body(&mut node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

/// A node with these arguments.
pub(crate) fn arguments(arguments: &[&str]) -> Setting {
    let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
    Setting { arguments, ..Setting::default() }
}
