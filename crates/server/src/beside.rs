//! The processes beside a node: of volumes, of commands, and of the pager. Each outlives the node that has started it.

use std::{ffi::OsString, path::Path, sync::Arc, time::Duration};

use checkpoint::{Opener, Settings, StoreOpener};

/// How long a pager stays that no sandbox needs, in case the next checkpoint is started soon.
const PAGER_IDLE: Duration = Duration::from_secs(30);

/// Runs one of the processes of volumes: the whole life of a process that has one thread so far.
///
/// `arguments`: those that this program was called with, without the role. `lag`: between two commits of a volume.
pub fn run_volumes(
    role: volumed::Role,
    settings: Settings,
    state_dir: &Path,
    lag: Duration,
    arguments: Vec<OsString>,
) -> anyhow::Result<()> {
    let options = volumed::Options { commit_pause: lag, ..volumed::Options::default() };
    let config = volumed::Config { folder: node::volumes_folder(state_dir), arguments, options };
    let opener = StoreOpener::new(settings, state_dir.to_owned(), node::node_id(state_dir)?);
    Ok(volumed::run(role, config, &opener)?)
}

/// Runs one of the processes that hold commands: the whole life of a process that has one thread so far.
///
/// `arguments`: those that this program was called with, without the role.
pub fn run_holder(role: holder::Role, state_dir: &Path, arguments: Vec<OsString>) -> anyhow::Result<()> {
    let config = holder::Config { folder: node::holder_folder(state_dir), arguments };
    Ok(holder::run(role, &config)?)
}

/// Runs the pager's guardian: the whole life of a process that has one thread so far.
pub fn run_pager(settings: Settings, state_dir: &Path) -> anyhow::Result<()> {
    sys::heap::return_large_allocations();
    let socket = node::pager_socket(state_dir);
    let config = pager::guardian::Config { socket, idle_exit: PAGER_IDLE, pager: pager::Options::default() };
    let opener = Opener::new(settings, state_dir.to_owned(), node::node_id(state_dir)?);
    Ok(pager::guardian::run(config, Arc::new(opener))?)
}
