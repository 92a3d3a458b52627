//! The node itself.

/// What a node says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// Chosen at the first start of the state directory.
    pub id: String,
    /// Of the program.
    pub version: String,
    /// Process id of the server.
    pub pid: u32,
    /// Process id of the keeper; none while a new one is being started.
    pub keeper_pid: Option<u32>,
    /// How often the keeper had to be started again.
    pub keeper_restarts: u64,
    /// Milliseconds since the server started.
    pub uptime_ms: u64,
    /// Where its state is.
    pub state_dir: String,
    /// How it groups processes.
    pub cgroups: String,
    /// What keeps the files that new sandboxes change: `btrfs` (snapshots) or `copy`.
    pub layers: &'static str,
    /// The range of the addresses that sandboxes have outside; none: they have no network.
    pub network: Option<ipnet::Ipv4Net>,
    /// The registry of images whose names have none.
    pub registry: String,
    /// Templates known.
    pub templates: usize,
    /// Sandboxes known.
    pub sandboxes: usize,
    /// Other nodes may have its store: it was told the database of the store's names.
    pub shares_store: bool,
    /// Blank sandboxes.
    pub pool: PoolInfo,
}

/// How full the pool is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolInfo {
    /// Blank sandboxes of a template that are ready.
    pub ready: usize,
    /// Those without a root filesystem, for any template.
    pub bare: usize,
    /// The most it keeps, of either.
    pub limit: usize,
    /// Of those that are ready, the ones with a copy forked ahead.
    pub ahead: usize,
    /// The most of these.
    pub ahead_limit: usize,
}
