//! Transitions of sandboxes and of the layers they stand on.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use base::id::SandboxId;
use model::{NetworkPolicy, SandboxState, TemplateSpec};
use sandbox::UPPER;

use super::State;
use crate::{
    error::{Error, Result},
    records::SandboxRecord,
};

/// Name of the layer in a fork point's directory.
pub(crate) const FORK_LAYER: &str = "layer";

impl State {
    /// A new id that the sweep must leave alone.
    pub(crate) fn claim(&mut self) -> SandboxId {
        loop {
            let id = SandboxId::random();
            if self.claimed.insert(id.clone()) {
                return id;
            }
        }
    }

    /// It is to be removed: from here on it is no sandbox any more, but its id stays claimed until nothing is left of it.
    /// Returns the layers that nothing else uses.
    pub(crate) fn forget(&mut self, id: &SandboxId) -> Vec<PathBuf> {
        let mut layers = self.take_out(id);
        layers.extend(self.drop_useless_fork_points());
        self.unused(layers)
    }

    /// Removes its record; gives the layers that it had.
    pub(super) fn take_out(&mut self, id: &SandboxId) -> Vec<PathBuf> {
        self.unbound.remove(id);
        let layers = self.sandboxes.remove(id).map(|record| record.needs().cloned().collect());
        layers.unwrap_or_default()
    }

    /// Nothing of it is left.
    pub(crate) fn release(&mut self, id: &SandboxId) {
        self.claimed.remove(id);
    }

    /// Whether the sweep must leave it alone: it is claimed, or a fork point that is a layer of something.
    pub(crate) fn keeps(&self, id: &SandboxId) -> bool {
        let is_point = |layer: &PathBuf| fork_point(layer).is_some_and(|point| point == *id);
        self.claimed.contains(id) || self.records(id) || self.pinned.iter().any(is_point)
    }

    /// Whether it outlives the node: a sandbox that was started, or a fork point that one stands on, or a template.
    pub(crate) fn records(&self, id: &SandboxId) -> bool {
        let is_point = |layer: &PathBuf| fork_point(layer).is_some_and(|point| point == *id);
        self.sandboxes.get(id).is_some_and(|record| record.state != SandboxState::Paused)
            || self.sandboxes.values().flat_map(SandboxRecord::needs).any(is_point)
            || self
                .templates
                .values()
                .filter_map(|template| template.record.as_ref())
                .any(|record| is_point(&record.layer))
    }

    /// Keeps layers that a sandbox is about to be made with.
    pub(crate) fn pin(&mut self, layers: &[PathBuf]) {
        self.pinned.extend_from_slice(layers);
    }

    /// Undoes [`Self::pin`]. Returns the layers that nothing uses any more.
    pub(crate) fn unpin(&mut self, layers: &[PathBuf]) -> Vec<PathBuf> {
        for layer in layers {
            if let Some(at) = self.pinned.iter().position(|pinned| pinned == layer) {
                self.pinned.swap_remove(at);
            }
        }
        self.unused(layers.to_vec())
    }

    /// Of these layers, those that nothing uses.
    ///
    /// Fork points among them are claimed until [`Self::layer_removed`]: a sweep beside the removal finds no leftover.
    pub(crate) fn unused(&mut self, mut layers: Vec<PathBuf>) -> Vec<PathBuf> {
        layers.sort_unstable();
        layers.dedup();
        layers.retain(|layer| !self.uses_layer(layer));
        self.claimed.extend(layers.iter().filter_map(|layer| fork_point(layer)));
        layers
    }

    /// A layer that was unused has been removed; what is left of it is for the sweep.
    pub(crate) fn layer_removed(&mut self, layer: &Path) {
        if let Some(point) = fork_point(layer) {
            self.claimed.remove(&point);
        }
    }

    /// A sandbox runs.
    pub(crate) fn started(&mut self, record: SandboxRecord) {
        self.unbound.insert(record.id.clone());
        self.claimed.insert(record.id.clone());
        self.sandboxes.insert(record.id.clone(), record);
    }

    /// Its state changed; the record to write, if it is known and this is news.
    pub(crate) fn set_state(&mut self, id: &SandboxId, state: SandboxState) -> Option<SandboxRecord> {
        let record = self.sandboxes.get_mut(id).filter(|record| record.state != state)?;
        match record.state {
            SandboxState::Running | SandboxState::Exited(_) | SandboxState::Lost => {}
            // Its processes are ended, or somebody ended them: that counts only if it is not paused in the end.
            SandboxState::Pausing => {
                self.ended.insert(id.clone(), state);
                return None;
            }
            SandboxState::Paused => return None,
        }
        record.state = state;
        Some(record.clone())
    }

    /// Its network policy has changed; the record to write, if it is still there.
    pub(crate) fn set_network(&mut self, id: &SandboxId, network: NetworkPolicy) -> Option<SandboxRecord> {
        let record = self.sandboxes.get_mut(id)?;
        record.network = network;
        Some(record.clone())
    }

    /// It is known why its program ended; the record to write, if it is still there.
    pub(crate) fn explain(&mut self, id: &SandboxId, reason: String) -> Option<SandboxRecord> {
        let record = self.sandboxes.get_mut(id)?;
        record.reason = Some(reason);
        Some(record.clone())
    }

    /// One sandbox.
    pub(crate) fn sandbox(&self, id: &SandboxId) -> Result<&SandboxRecord> {
        self.sandboxes.get(id).ok_or_else(|| Error::NoSandbox(id.clone()))
    }

    /// What a sandbox was started from.
    pub(crate) fn spec_of(&self, record: &SandboxRecord) -> Result<TemplateSpec> {
        let template = || self.template_record(&record.template).map(|template| template.spec.clone());
        record.spec.clone().or_else(template).ok_or_else(|| Error::NoTemplate(record.template.clone()))
    }

    /// One sandbox whose program runs.
    pub(crate) fn running(&self, id: &SandboxId) -> Result<&SandboxRecord> {
        let record = self.sandbox(id)?;
        match record.state {
            SandboxState::Running => Ok(record),
            state @ (SandboxState::Pausing | SandboxState::Paused | SandboxState::Exited(_) | SandboxState::Lost) => {
                Err(Error::NotRunning { id: id.clone(), state })
            }
        }
    }

    /// Sandboxes from which others were forked that are there.
    pub(crate) fn parents(&self) -> BTreeSet<SandboxId> {
        self.sandboxes.values().filter_map(|record| record.parent.clone()).collect()
    }

    /// All sandboxes, oldest first.
    pub(crate) fn sandboxes(&self) -> Vec<SandboxRecord> {
        let mut all: Vec<_> = self.sandboxes.values().cloned().collect();
        all.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
        all
    }

    /// Whether `path` is a layer of a template, a sandbox or a blank.
    pub(crate) fn uses_layer(&self, path: &Path) -> bool {
        let in_use = |layers: &[PathBuf]| layers.iter().any(|layer| layer == path);
        self.templates.values().filter_map(|template| template.record.as_ref()).any(|record| in_use(&record.layers()))
            || self.sandboxes.values().flat_map(SandboxRecord::needs).any(|layer| layer == path)
            || self.pool.values().flatten().any(|blank| in_use(&blank.layers))
            || in_use(&self.pinned)
    }

    /// Sandboxes whose limits are to be bound.
    pub(crate) fn take_unbound(&mut self) -> BTreeSet<SandboxId> {
        std::mem::take(&mut self.unbound)
    }
}

/// The fork point whose layer this is, if it is one: `.../sandboxes/ID/layer`, or `.../changes/ID/upper`.
fn fork_point(layer: &Path) -> Option<SandboxId> {
    let is_layer = layer.file_name().is_some_and(|name| name == FORK_LAYER || name == UPPER);
    let directory = layer.parent().filter(|_| is_layer)?;
    directory.file_name()?.to_str()?.parse().ok()
}
