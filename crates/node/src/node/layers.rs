//! Layers: those that are about to be stood on stay, and what cannot be stacked any more is refused before anything is captured, not when it is
//! to be started.

use std::{path::PathBuf, sync::Arc};

use base::id::SandboxId;
use sandbox::LAYERS_MAX;

use super::Node;
use crate::{
    error::{Error, Forked, Result},
    records::SandboxRecord,
};

/// Layers that stay while this lives, whatever is removed meanwhile.
pub(super) struct Pinned {
    node: Arc<Node>,
    layers: Vec<PathBuf>,
}

impl Pinned {
    /// Removes those that nothing else uses, to the end.
    pub(super) async fn unpin(mut self) {
        let layers = std::mem::take(&mut self.layers);
        let unused = self.node.state().unpin(&layers);
        self.node.remove_layers(unused).await;
    }
}

impl Drop for Pinned {
    /// For those that do not get so far: the same in the background.
    fn drop(&mut self) {
        if self.layers.is_empty() {
            return;
        }
        let unused = self.node.state().unpin(&self.layers);
        let node = Arc::clone(&self.node);
        tokio::spawn(async move { node.remove_layers(unused).await });
    }
}

impl Node {
    /// Keeps layers that a sandbox is about to be made with.
    pub(super) fn pin(self: &Arc<Self>, layers: Vec<PathBuf>) -> Pinned {
        self.state().pin(&layers);
        self.pinned(layers)
    }

    /// Those that the state has pinned.
    pub(super) fn pinned(self: &Arc<Self>, layers: Vec<PathBuf>) -> Pinned {
        Pinned { node: Arc::clone(self), layers }
    }
}

/// Whether copies of a sandbox, which have one layer more, can have a root filesystem.
pub(super) fn check(record: &SandboxRecord) -> Result<()> {
    check_count(&record.id, record.layers.len())
}

fn check_count(id: &SandboxId, layers: usize) -> Result<()> {
    if layers < LAYERS_MAX {
        return Ok(());
    }
    let reason = format!(
        "its files lie in {layers} layers, one for each fork, checkpoint or pause that it came through, and a root filesystem has {LAYERS_MAX} at most: \
         copy what it has to a new sandbox, or keep its files in a volume"
    );
    Err(Error::CannotFork { what: Forked::Sandbox(id.clone()), refusals: vec![reason] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_layer_that_can_be_stacked_is_no_reason_and_one_more_is() {
        let id = "s0123456789ab".parse().unwrap();
        check_count(&id, LAYERS_MAX - 1).unwrap();
        assert!(matches!(check_count(&id, LAYERS_MAX), Err(Error::CannotFork { .. })));
    }
}
