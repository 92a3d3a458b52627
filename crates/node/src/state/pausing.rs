//! Transitions of sandboxes that are paused and resumed.
//!
//! ```text
//! Running --begin_pause--> Pausing --paused--> Paused --begin_resume--> (resuming) --started--> Running
//!    ^                        |                   ^                          |
//!    +-----abandon_pause------+                   +--------end_resume--------+
//! ```

use std::path::PathBuf;

use base::id::SandboxId;
use model::SandboxState;

use super::State;
use crate::{
    error::{Error, Result},
    node::lifecycle::Phase,
    records::SandboxRecord,
};

/// Whether a sandbox has processes and files on this node, or may have.
pub(super) fn is_here(record: &SandboxRecord) -> bool {
    record.state != SandboxState::Paused
}

impl State {
    /// Where it is in its life, as far as operations are concerned.
    pub(crate) fn phase(&self, id: &SandboxId) -> Phase {
        if self.resuming.contains(id) {
            return Phase::Resuming;
        }
        match self.sandboxes.get(id).map(|record| record.state) {
            None => Phase::Absent,
            Some(SandboxState::Running) => Phase::Running,
            Some(SandboxState::Pausing) => Phase::Pausing,
            Some(SandboxState::Paused) => Phase::Paused,
            Some(SandboxState::Exited(status)) => Phase::Exited(status),
            Some(SandboxState::Lost) => Phase::Lost,
        }
    }

    /// A pause begins. Its program may have ended since that was admitted.
    pub(crate) fn begin_pause(&mut self, id: &SandboxId, now_ms: u64) -> Result<SandboxRecord> {
        self.running(id)?;
        let record = self.sandboxes.get_mut(id).ok_or_else(|| Error::NoSandbox(id.clone()))?;
        record.state = SandboxState::Pausing;
        record.paused_ms = Some(now_ms);
        Ok(record.clone())
    }

    /// It is not paused after all: it runs, or its program has ended meanwhile. The record to write.
    pub(crate) fn abandon_pause(&mut self, id: &SandboxId) -> Option<SandboxRecord> {
        let state = self.ended.remove(id).unwrap_or(SandboxState::Running);
        let record = self.sandboxes.get_mut(id).filter(|record| record.state == SandboxState::Pausing)?;
        record.state = state;
        record.paused_ms = None;
        record.kept = None;
        Some(record.clone())
    }

    /// A snapshot of what it has changed is going to be `layer`, and stays. The record says so from here on.
    pub(crate) fn keep_changes(&mut self, id: &SandboxId, layer: PathBuf) -> Option<SandboxRecord> {
        let record = self.sandboxes.get_mut(id).filter(|record| record.state == SandboxState::Pausing)?;
        record.kept = Some(layer);
        Some(record.clone())
    }

    /// Pins the layers that a sandbox goes on with that was paused here at that moment, topmost first; none if they are not kept.
    pub(crate) fn pin_kept(&mut self, id: &SandboxId, paused_ms: u64) -> Option<Vec<PathBuf>> {
        let record = self.sandboxes.get(id).filter(|record| record.paused_ms == Some(paused_ms))?;
        let kept = record.kept.as_ref()?;
        let layers: Vec<PathBuf> = std::iter::once(kept).chain(&record.layers).cloned().collect();
        self.pin(&layers);
        Some(layers)
    }

    /// The paused sandbox whose snapshot has been kept for longest, if more than `spared` have one.
    pub(crate) fn kept_longest(&self, spared: usize) -> Option<SandboxId> {
        let is_kept = |record: &&SandboxRecord| {
            record.state == SandboxState::Paused && record.kept.is_some() && !self.resuming.contains(&record.id)
        };
        let mut kept: Vec<&SandboxRecord> = self.sandboxes.values().filter(is_kept).collect();
        kept.sort_by_key(|record| record.paused_ms);
        kept.first().filter(|_| kept.len() > spared).map(|record| record.id.clone())
    }

    /// Nothing is kept of a paused sandbox from here on. The record to write, and the layers that nothing else uses.
    pub(crate) fn give_up_kept(&mut self, id: &SandboxId) -> Option<(SandboxRecord, Vec<PathBuf>)> {
        let record = self.sandboxes.get_mut(id).filter(|record| record.state == SandboxState::Paused)?;
        let layers: Vec<PathBuf> = record.kept.take().into_iter().chain(std::mem::take(&mut record.layers)).collect();
        let record = record.clone();
        (!layers.is_empty()).then(|| (record, self.unused(layers)))
    }

    /// It is paused; `record` is what stays of it. Returns the layers that nothing else uses.
    pub(crate) fn paused(&mut self, record: SandboxRecord) -> Vec<PathBuf> {
        let id = record.id.clone();
        let layers = self.take_out(&id);
        self.ended.remove(&id);
        self.sandboxes.insert(id, record);
        // Those that are kept with it are in use.
        self.unused(layers)
    }

    /// A resume begins; the record of the sandbox if it was paused on this node.
    pub(crate) fn begin_resume(&mut self, id: &SandboxId) -> Option<SandboxRecord> {
        self.resuming.insert(id.clone());
        self.sandboxes.get(id).cloned()
    }

    /// It runs, or it is paused as before.
    pub(crate) fn end_resume(&mut self, id: &SandboxId) {
        self.resuming.remove(id);
    }

    /// The sweep must leave a sandbox of this id alone, which is about to be made.
    pub(crate) fn claim_as(&mut self, id: &SandboxId) {
        self.claimed.insert(id.clone());
    }

    /// The store has no head of it any more that says that it is here. The record to write.
    pub(crate) fn let_go(&mut self, id: &SandboxId) -> Option<SandboxRecord> {
        let record = self.sandboxes.get_mut(id).filter(|record| record.held.is_some())?;
        record.held = None;
        Some(record.clone())
    }

    /// All sandboxes that have processes and files here, oldest first.
    pub(crate) fn sandboxes_here(&self) -> Vec<SandboxRecord> {
        let mut all = self.sandboxes();
        all.retain(is_here);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::{empty, sandbox};

    #[test]
    fn nothing_else_is_done_with_a_sandbox_that_is_being_paused() {
        let mut state = empty();
        let id = sandbox(&mut state, "geo", &["/a"]);
        assert_eq!(state.phase(&id), Phase::Running);
        state.begin_pause(&id, 7).unwrap();
        assert_eq!(state.phase(&id), Phase::Pausing);
        assert!(matches!(state.running(&id), Err(Error::NotRunning { state: SandboxState::Pausing, .. })));
        assert!(matches!(state.begin_pause(&id, 8), Err(Error::NotRunning { .. })));
        assert_eq!(state.abandon_pause(&id).unwrap().state, SandboxState::Running);
        assert!(state.running(&id).is_ok());
        assert_eq!(state.phase(&id), Phase::Running);
    }

    #[test]
    fn an_end_during_a_pause_counts_only_if_it_is_not_paused() {
        let mut state = empty();
        let ended = SandboxState::Exited(model::ExitStatus::Signal(9));
        let id = sandbox(&mut state, "geo", &["/a"]);
        state.begin_pause(&id, 7).unwrap();
        assert!(state.set_state(&id, ended).is_none());
        assert_eq!(state.abandon_pause(&id).unwrap().state, ended);

        let id = sandbox(&mut state, "geo", &["/a"]);
        let record = state.begin_pause(&id, 7).unwrap();
        assert!(state.set_state(&id, ended).is_none());
        state.paused(SandboxRecord { state: SandboxState::Paused, layers: Vec::new(), ..record });
        assert!(state.set_state(&id, ended).is_none());
        assert_eq!(state.sandbox(&id).unwrap().state, SandboxState::Paused);
    }

    #[test]
    fn a_paused_sandbox_keeps_nothing_on_the_node() {
        let mut state = empty();
        let id = sandbox(&mut state, "geo", &["/own"]);
        let record = state.begin_pause(&id, 7).unwrap();
        assert!(state.keeps(&id));
        let unused = state.paused(SandboxRecord { state: SandboxState::Paused, layers: Vec::new(), ..record });
        state.release(&id);
        assert_eq!(unused, [PathBuf::from("/own")]);
        assert!(!state.keeps(&id) && state.sandboxes_here().is_empty() && state.sandboxes().len() == 1);
        assert_eq!(state.phase(&id), Phase::Paused);
        assert!(state.begin_resume(&id).is_some());
        assert_eq!(state.phase(&id), Phase::Resuming);
        state.end_resume(&id);
        assert_eq!(state.phase(&id), Phase::Paused);
    }
}
