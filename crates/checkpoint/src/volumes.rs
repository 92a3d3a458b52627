//! The store, as the processes of volumes open it: of their own, with what the node was told.

use std::path::PathBuf;

use store::{Store, heads::Heads};
use tokio::runtime::Handle;
use volumed::{BoxError, OpenStore};

use super::{Durable, Settings};

/// Opens it when it is asked to, not before: it is made while the process has one thread.
pub struct StoreOpener {
    settings: Settings,
    state_dir: PathBuf,
    node: String,
}

impl StoreOpener {
    /// For the node of this id, with this state.
    pub fn new(settings: Settings, state_dir: PathBuf, node: String) -> Self {
        Self { settings, state_dir, node }
    }
}

impl OpenStore for StoreOpener {
    fn open(&self, runtime: &Handle) -> std::result::Result<(Heads, Store), BoxError> {
        let Durable { heads, store, .. } =
            runtime.block_on(Durable::open(&self.settings, &self.state_dir, &self.node))?;
        Ok((heads, store))
    }
}
