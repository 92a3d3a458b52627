//! The node's operations. Handlers call them; they change the state, talk to the keeper and write records.
//!
//! Who owns what: [`State`] is behind one lock that is never held across an await; the current keeper is a `watch`
//! value that [`supervisor`] alone sets; every sandbox has one task that waits for the end of its program.

mod ahead;
mod bounded;
mod build;
mod builder;
mod checkpoints;
mod commands;
mod cut;
mod dial;
mod differences;
mod discard;
mod drivers;
pub mod exec;
mod files;
mod files_only;
mod fork;
mod fork_paused;
mod holder_link;
mod host_mounts;
mod idle;
mod images;
mod in_use;
mod inspect;
mod keepers;
mod layers;
mod ledger;
pub(crate) mod lifecycle;
mod lineage;
mod logs;
mod memory_limit;
mod merge;
mod metrics;
mod networks;
mod on_fork;
mod origins;
mod orphans;
mod output;
mod pager_link;
mod pause;
mod peers;
mod pool;
mod ready;
mod refusals;
mod restore;
mod resume;
mod scrape;
mod spec;
mod start;
mod startup;
mod stopped;
mod store;
mod supervisor;
mod transfer;
mod trust;
mod turns;
mod unseen;
mod usage;
mod users;
mod views;
mod volume_names;
pub(crate) mod volumes;
mod warm;
mod working_set;
mod write_back;

use std::{
    fs::OpenOptions,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, MutexGuard, OnceLock},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use base::id::{SandboxId, TemplateName};
use checkpoint::Durable;
use keeper::protocol::Status;
use model::{ExitStatus, SandboxState};
use network::Network;
use registry::Registry;
use rustix::fs::{IFlags, Mode, OFlags, ioctl_getflags, ioctl_setflags, open};
use sandbox::{Cgroups, Service};
use tokio::sync::oneshot;

use crate::{
    changes::Changes,
    config::{Config, RECORD},
    error::{Context, Result},
    records::{self, Durability, SandboxRecord, TemplateRecord},
    state::State,
};
use drivers::Drivers;
use files::Hands;
use holder_link::HolderLink;
use keepers::Keepers;
use ledger::Ledger;
use lifecycle::Operation;
use pager_link::PagerLink;
use volumes::Mounts;

pub use build::Progress;
use builder::is_of_a_build;
pub use builder::{BuildLog, BuildOptions};
pub use checkpoints::KeepProgress;
pub(crate) use commands::CommandStreams;
pub use commands::{CommandInput, CommandStream};
pub use discard::OfPaused;
pub use merge::MergeOrder;
pub(crate) use output::Carriage;
pub use spec::check_spec;
pub use transfer::Parts;
pub use users::Account;
pub use volume_names::StoredVolume;
pub use volumes::failed as volumes_failed;

/// Where a node runs, and as whom. Nothing of it changes while it runs.
struct Host {
    config: Config,
    id: String,
    began: Instant,
    cgroups: Arc<Cgroups>,
    changes: Changes,
    /// None: sandboxes have none.
    network: Option<Arc<Network>>,
    null: OwnedFd,
}

/// One node.
pub struct Node {
    host: Host,
    ledger: Ledger,
    keepers: Keepers,
    /// What is done with sandboxes, one operation after the other.
    drivers: Drivers,
    durable: Durable,
    mounts: Mounts,
    hands: Hands,
    pager: PagerLink,
    holder: Arc<HolderLink>,
    /// Held while something is given up that is kept of a paused sandbox.
    giving_up: Arc<tokio::sync::Mutex<()>>,
    /// Held while an image comes or goes.
    importing: Arc<tokio::sync::Mutex<()>>,
    registry: Registry,
    /// Held by what is about to stand on layers of images, and alone while such are removed.
    image_users: Arc<tokio::sync::RwLock<()>>,
    /// Who serves other nodes, and where; empty: this node serves none.
    serving: OnceLock<peers::Serving>,
    /// What sandboxes trust whose requests get headers, as PEM; none: not known yet.
    egress_certificate: tokio::sync::watch::Sender<Option<Arc<str>>>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("id", &self.host.id).finish_non_exhaustive()
    }
}

impl Node {
    /// Loads the state. Nothing runs yet: [`Self::supervise`] starts the keeper and the rest.
    pub async fn load(config: Config) -> Result<Arc<Self>> {
        let made = [config.templates_dir(), config.sandboxes_dir(), config.images_dir(), config.paused_dir()];
        for dir in made.into_iter().chain([config.host_mounts_dir(), config.unseen_dir(), config.lineage_dir()]) {
            std::fs::create_dir_all(&dir).at("create", &dir)?;
        }
        let id = records::node_id(&config.state_dir)?;
        for dir in [config.sandboxes_dir(), config.paused_dir()] {
            spread(&dir);
        }
        let mask = config.host_mask();
        std::fs::create_dir_all(&mask).at("create", &mask)?;
        sandbox::prepare_host_mask(&mask, &[config.state_dir.clone(), config.socket.clone()])?;
        let templates = load_records::<TemplateRecord>(&config.templates_dir());
        let sandboxes = pause::load(&config);
        remove_abandoned(&config.templates_dir(), &sandboxes);
        let is_needed = sandboxes.iter().any(|record| record.state != SandboxState::Paused);
        let null = OpenOptions::new().read(true).write(true).open("/dev/null").at("open", Path::new("/dev/null"))?;
        let (pool_limit, parked_limit) = (config.pool_limit, config.parked_limit);
        let durable = Durable::open(&config.durable, &config.state_dir, &id).await?;
        // After all that a wrong option can spoil: no later node removes the groups of a node that did not come to be.
        let cgroups = Arc::new(Cgroups::open(&id)?);
        let group = bounded::group(&cgroups, Service::Volumes, config.volumes_memory);
        let folder = crate::volumes_folder(&config.state_dir);
        let volumes = volumed::Client::new(folder, config.volumes_command.clone(), group);
        let mut state = State::new(templates, sandboxes, pool_limit, parked_limit);
        let lineage = lineage::load(&config, &state.parents());
        for mount in host_mounts::load(&config) {
            state.begin_host_mount(&mount)?;
            state.set_attached(&mount.path);
        }
        config.given.check()?;
        config.egress().check().map_err(|error| crate::Error::Invalid { message: crate::chain(&error), hint: None })?;
        let network = networks::open(&config, &id)?;
        let registry = images::registry(&config, network.as_deref())?;
        let pager = PagerLink::new(&config, Arc::clone(&cgroups));
        let holder = Arc::new(HolderLink::new(&config));
        Ok(Arc::new(Self {
            host: Host {
                changes: Changes::open(&config, is_needed)?,
                network,
                config,
                id,
                began: Instant::now(),
                cgroups,
                null: null.into(),
            },
            ledger: Ledger::new(state, lineage),
            keepers: Keepers::new(),
            drivers: Drivers::default(),
            durable,
            mounts: Mounts::new(volumes),
            hands: Hands::default(),
            pager,
            holder,
            giving_up: Arc::default(),
            importing: Arc::default(),
            registry,
            image_users: Arc::default(),
            serving: OnceLock::new(),
            egress_certificate: tokio::sync::watch::Sender::new(None),
        }))
    }

    /// The state, for a moment: never across an await.
    fn state(&self) -> MutexGuard<'_, State> {
        self.ledger.state()
    }

    /// What it runs with.
    pub fn config(&self) -> &Config {
        &self.host.config
    }

    /// Resolves when the first keeper runs and has adopted what there is.
    pub fn first_keeper(&self) -> impl Future<Output = ()> + Send + use<> {
        self.keepers.first()
    }

    /// All templates, by name.
    pub fn templates(&self) -> Vec<model::Template> {
        self.state().templates()
    }

    /// One template.
    pub fn template(&self, name: &TemplateName) -> Result<model::Template> {
        self.state().template(name)
    }

    /// All sandboxes, by id.
    pub fn sandboxes(&self) -> Vec<model::Sandbox> {
        self.state().sandboxes().iter().map(SandboxRecord::to_model).collect()
    }

    /// Sandboxes that were started in room which a control plane had reserved, with the names of the reservations.
    pub fn reserved(&self) -> Vec<(SandboxId, String)> {
        let records = self.state().sandboxes();
        records.into_iter().filter_map(|record| Some((record.id, record.reservation?))).collect()
    }

    /// The keys that seal what the node stores.
    pub fn data_keys(&self) -> &::store::keys::RealmKeys {
        self.durable.store.keys()
    }

    /// Fails if a sandbox could not be paused now.
    pub fn check_pausable(&self, id: &SandboxId) -> Result<()> {
        self.admits(id, Operation::Pause).map(drop)
    }

    /// What the node says about itself.
    pub fn info(&self) -> model::NodeInfo {
        let state = self.state();
        model::NodeInfo {
            id: self.host.id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            keeper_pid: self.keepers.pid(),
            keeper_restarts: self.keepers.restarts(),
            uptime_ms: self.host.began.elapsed().as_millis() as u64,
            state_dir: self.host.config.state_dir.display().to_string(),
            cgroups: self.host.cgroups.summary().group.display().to_string(),
            layers: self.host.changes.kind(),
            network: self.host.network.as_ref().map(|network| network.range()),
            registry: self.host.config.registry.default.name().to_owned(),
            templates: state.templates().len(),
            sandboxes: state.sandboxes().len(),
            shares_store: self.host.config.durable.database.is_some(),
            pool: state.pool_info(),
        }
    }

    /// Waits in the background for the end of a sandbox's program.
    fn monitor(self: &Arc<Self>, id: SandboxId, ended: oneshot::Receiver<Status>) {
        let node = Arc::clone(self);
        tokio::spawn(async move {
            // The sender goes with a dying keeper: the next one adopts the sandbox and a new monitor begins.
            if let Ok(status) = ended.await {
                node.program_ended(&id, status);
                node.explain_end(&id).await;
            }
        });
    }

    /// A sandbox outlives its program, but not its pid 1.
    fn program_ended(&self, id: &SandboxId, status: Status) {
        let alive = self.state().sandbox(id).is_ok_and(|record| record.init.is_alive());
        let state = if alive { SandboxState::Exited(exit_status(status)) } else { SandboxState::Lost };
        self.set_sandbox_state(id, state);
    }

    fn set_sandbox_state(&self, id: &SandboxId, state: SandboxState) {
        let changed = self.state().set_state(id, state);
        if changed.is_some() {
            tracing::info!(sandbox = %id, ?state, "the program ended");
        }
        if state == SandboxState::Lost {
            // Its mounts have gone with it.
            self.ledger.sweep_work.notify_one();
        }
        self.record_end(changed);
    }

    fn record_end(&self, changed: Option<SandboxRecord>) {
        let Some(record) = changed else { return };
        let path = self.host.config.sandbox_dir(&record.id).join(RECORD);
        if let Err(error) = records::write(&path, &record, Durability::Process) {
            tracing::warn!(sandbox = %record.id, error = crate::chain(&error), "its end could not be recorded");
        }
    }

    /// The directory of a sandbox.
    fn home(&self, id: &SandboxId) -> PathBuf {
        let paused = self.state().sandbox(id).is_ok_and(|record| record.state == SandboxState::Paused);
        if paused { self.host.config.paused_dir().join(id.as_str()) } else { self.host.config.sandbox_dir(id) }
    }
}

/// Every readable record below `dir`. A damaged one is named and left out: what it claimed is swept.
fn load_records<R: records::Record>(dir: &Path) -> Vec<R> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path().join(RECORD)));
    let read = |path: std::path::PathBuf| {
        records::read::<R>(&path).unwrap_or_else(|error| {
            tracing::error!(error = crate::chain(&error), "a record is left out");
            None
        })
    };
    paths.filter_map(read).collect()
}

/// Removes the directories of templates that have no record, of builds and removals that a node was killed in, unless sandboxes stand on their layers.
fn remove_abandoned(templates: &Path, sandboxes: &[SandboxRecord]) {
    let Ok(entries) = std::fs::read_dir(templates) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let is_used = || sandboxes.iter().flat_map(|sandbox| &sandbox.layers).any(|layer| layer.starts_with(&path));
        if path.join(RECORD).exists() || is_used() {
            continue;
        }
        match std::fs::remove_dir_all(&path) {
            Ok(()) => tracing::warn!(path = %path.display(), "removed a template that was not finished"),
            Err(error) => tracing::error!(path = %path.display(), %error, "a template that was not finished stays"),
        }
    }
}

fn exit_status(status: Status) -> ExitStatus {
    match status {
        Status::Code(code) => ExitStatus::Code(code),
        Status::Signal(signal) => ExitStatus::Signal(signal),
        Status::Unknown => ExitStatus::Unknown,
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Has ext4 put each directory below `directory` into a block group of its own (chattr(1), `T`). Where it makes a file it passes over all inodes
/// that were freed in the last minute, one by one; where sandboxes come and go, making one takes several times as long in the end.
fn spread(directory: &Path) {
    let spread = || {
        let opened = open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let flags = ioctl_getflags(&opened)?;
        ioctl_setflags(&opened, flags | IFlags::TOPDIR)
    };
    // Other file systems have no such flag, and need none.
    if let Err::<(), rustix::io::Errno>(error) = spread() {
        tracing::debug!(%error, directory = %directory.display(), "its subdirectories are not spread");
    }
}
