//! The tree of forks: what is there, and what that descends from.

use std::{collections::BTreeSet, fs, path::PathBuf};

use base::id::SandboxId;
use model::Relative;

use super::{Node, now_ms};
use crate::{
    config::Config,
    error::chain,
    lineage::{Lineage, Parting},
    records::{self, Durability, GoneRecord},
};

/// What an earlier node has left. `parents` are those of all sandboxes.
pub(super) fn load(config: &Config, parents: &BTreeSet<SandboxId>) -> Lineage {
    let entries = fs::read_dir(config.lineage_dir()).into_iter().flatten().flatten();
    let read = |entry: fs::DirEntry| match records::read::<GoneRecord>(&entry.path()) {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(path = %entry.path().display(), error = chain(&error), "a sandbox that is gone is left out of the tree");
            None
        }
    };
    let mut lineage = Lineage::new(entries.filter_map(read).collect());
    // A node that was killed between two steps of a removal.
    for id in lineage.prune(parents) {
        let _ = fs::remove_file(config.lineage_dir().join(id.as_str()));
    }
    lineage
}

impl Node {
    /// All sandboxes that this node knows, the oldest first, and those that are gone from which they descend.
    pub fn relatives(&self) -> Vec<Relative> {
        let here = self.state().sandboxes();
        let here = here.into_iter().map(|record| Relative {
            id: record.id,
            parent: record.parent,
            template: record.template,
            state: Some(record.state),
            created_ms: record.created_ms,
            gone_ms: None,
        });
        let lineage = self.ledger.lineage();
        let gone = lineage.gone().cloned().map(|gone| Relative {
            id: gone.id,
            parent: gone.parent,
            template: gone.template,
            state: None,
            created_ms: gone.created_ms,
            gone_ms: Some(gone.gone_ms),
        });
        let mut all: Vec<Relative> = here.chain(gone).collect();
        all.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
        all
    }

    /// Removes the record of a sandbox that is to go; gives the layers that nothing uses any more. The tree remembers it if others descend from it.
    pub(super) fn part_with(&self, id: &SandboxId) -> Vec<PathBuf> {
        // Of a parent and a child that go at once, one is seen to go first.
        let mut lineage = self.ledger.lineage();
        let (gone, unused, parents) = {
            let mut state = self.state();
            let gone = state.sandbox(id).ok().map(|record| GoneRecord {
                id: record.id.clone(),
                parent: record.parent.clone(),
                template: record.template.clone(),
                created_ms: record.created_ms,
                gone_ms: now_ms(),
            });
            let unused = state.forget(id);
            (gone, unused, state.parents())
        };
        if let Some(gone) = gone {
            self.write_down(lineage.part_with(gone, &parents));
        }
        unused
    }

    fn write_down(&self, Parting { remembered, forgotten }: Parting) {
        let directory = self.host.config.lineage_dir();
        if let Some(gone) = remembered
            && let Err(error) = records::write(&directory.join(gone.id.as_str()), &gone, Durability::Process)
        {
            tracing::warn!(sandbox = %gone.id, error = chain(&error), "the tree will not show it after a restart");
        }
        for id in forgotten {
            let _ = fs::remove_file(directory.join(id.as_str()));
        }
    }
}
