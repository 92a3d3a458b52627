//! One node: templates, sandboxes, the pool and the keeper, composed of the engines. It knows no HTTP.
//!
//! ```text
//! (an adapter) -> node (operations) -> state (one lock, pure transitions) + records (disk)
//!                                        |
//!                                        +-> keeper::KeeperClient ==SEQPACKET==> keeper (own process; crate `keeper`)
//! ```

pub mod config;
pub mod durable;
pub mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod node;
mod records;
pub mod self_test;
mod state;

pub use config::Config;
pub use error::{Context, Error, Result, chain};
pub use node::{KeepProgress, Node, OfPaused, Parts, Progress, check_spec, exec, volumes_failed};
pub use records::node_id;

/// Where the pager of a node listens.
pub fn pager_socket(state_dir: &std::path::Path) -> std::path::PathBuf {
    state_dir.join("store").join("pager.sock")
}

/// Where the processes of a node's volumes have their sockets and logs.
pub fn volumes_folder(state_dir: &std::path::Path) -> std::path::PathBuf {
    state_dir.join("volumes")
}

/// How long a pager stays that nobody needs, in case the next checkpoint is started soon.
const PAGER_IDLE: std::time::Duration = std::time::Duration::from_secs(30);

/// Runs one of the processes of volumes: the whole life of a process that has one thread so far. `arguments` are those that this program
/// was called with, without the role. `lag`: between two commits of a volume.
pub fn run_volumes(
    role: volumed::Role,
    settings: durable::Settings,
    state_dir: &std::path::Path,
    lag: std::time::Duration,
    arguments: Vec<std::ffi::OsString>,
) -> std::result::Result<(), volumed::Error> {
    let options = volumed::Options { commit_pause: lag, ..volumed::Options::default() };
    let config = volumed::Config { folder: volumes_folder(state_dir), arguments, options };
    volumed::run(role, config, &durable::StoreOpener::new(settings, state_dir.to_owned()))
}

/// Runs the pager's guardian: the whole life of a process that has one thread so far.
pub fn run_pager(settings: durable::Settings, state_dir: &std::path::Path) -> std::result::Result<(), pager::Error> {
    sys::heap::return_large_allocations();
    let socket = pager_socket(state_dir);
    let config = pager::guardian::Config { socket, idle_exit: PAGER_IDLE, pager: pager::Options::default() };
    let opener = durable::Opener::new(settings, state_dir.to_owned());
    pager::guardian::run(config, std::sync::Arc::new(opener))
}
