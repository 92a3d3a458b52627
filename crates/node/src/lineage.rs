//! Who was forked from whom. A sandbox that is gone is remembered as long as there is one that descends from it.

use std::collections::{BTreeMap, BTreeSet};

use base::{id::SandboxId, limits::GONE_SANDBOXES_MAX};

use crate::records::GoneRecord;

/// Sandboxes that are gone.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    gone: BTreeMap<SandboxId, GoneRecord>,
}

/// What of [`Lineage`] a removal changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parting {
    /// To be written down.
    pub(crate) remembered: Option<GoneRecord>,
    /// Not needed any more.
    pub(crate) forgotten: Vec<SandboxId>,
}

impl Lineage {
    pub(crate) fn new(gone: Vec<GoneRecord>) -> Self {
        Self { gone: gone.into_iter().map(|gone| (gone.id.clone(), gone)).collect() }
    }

    pub(crate) fn gone(&self) -> impl Iterator<Item = &GoneRecord> {
        self.gone.values()
    }

    /// A sandbox is gone; `parents` are those of all that are there.
    pub(crate) fn part_with(&mut self, gone: GoneRecord, parents: &BTreeSet<SandboxId>) -> Parting {
        let mut parting = Parting::default();
        if self.is_needed(&gone.id, parents) {
            self.gone.insert(gone.id.clone(), gone.clone());
            parting.remembered = Some(gone);
            while self.gone.len() > GONE_SANDBOXES_MAX {
                let oldest = self.gone.values().min_by_key(|gone| gone.gone_ms).map(|gone| gone.id.clone());
                parting.forgotten.extend(oldest.filter(|id| self.gone.remove(id).is_some()));
            }
            return parting;
        }
        let mut next = gone.parent;
        while let Some(id) = next.filter(|id| !self.is_needed(id, parents)) {
            let Some(ancestor) = self.gone.remove(&id) else { break };
            parting.forgotten.push(id);
            next = ancestor.parent;
        }
        parting
    }

    /// Forgets those that nothing descends from; `parents` are those of all that are there.
    pub(crate) fn prune(&mut self, parents: &BTreeSet<SandboxId>) -> Vec<SandboxId> {
        let mut needed = BTreeSet::new();
        for parent in parents {
            let mut next = Some(parent);
            while let Some(gone) = next.and_then(|id| self.gone.get(id)).filter(|gone| needed.insert(gone.id.clone())) {
                next = gone.parent.as_ref();
            }
        }
        let forgotten: Vec<SandboxId> = self.gone.keys().filter(|id| !needed.contains(*id)).cloned().collect();
        forgotten.iter().for_each(|id| drop(self.gone.remove(id)));
        forgotten
    }

    fn is_needed(&self, id: &SandboxId, parents: &BTreeSet<SandboxId>) -> bool {
        parents.contains(id) || self.gone.values().any(|gone| gone.parent.as_ref() == Some(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> SandboxId {
        format!("s{number:012x}").parse().unwrap()
    }

    fn gone(number: u32, parent: Option<u32>, gone_ms: u64) -> GoneRecord {
        let template = "geo".parse().unwrap();
        GoneRecord { id: id(number), parent: parent.map(id), template, created_ms: 0, gone_ms }
    }

    #[test]
    fn what_has_descendants_is_remembered_until_they_are_gone() {
        let mut lineage = Lineage::default();
        // 1 -> 2 -> 3
        let parting = lineage.part_with(gone(1, None, 5), &[id(1), id(2)].into());
        assert_eq!(parting.remembered, Some(gone(1, None, 5)));
        let parting = lineage.part_with(gone(2, Some(1), 6), &[id(2)].into());
        assert!(parting.remembered.is_some() && parting.forgotten.is_empty());
        let parting = lineage.part_with(gone(3, Some(2), 7), &BTreeSet::new());
        assert_eq!(parting, Parting { remembered: None, forgotten: vec![id(2), id(1)] });
        assert_eq!(lineage.gone().count(), 0);
    }

    #[test]
    fn what_nothing_descends_from_is_pruned() {
        // 1 -> 2 -> 3 -> a sandbox; 4 -> 5
        let all = [(1, None), (2, Some(1)), (3, Some(2)), (4, None), (5, Some(4))];
        let mut lineage = Lineage::new(all.map(|(number, parent)| gone(number, parent, 5)).to_vec());
        assert_eq!(lineage.prune(&[id(3), id(9)].into()), [id(4), id(5)]);
        assert_eq!(lineage.gone().count(), 3);
    }

    #[test]
    fn an_ancestor_with_another_descendant_stays() {
        let mut lineage = Lineage::new(vec![gone(1, None, 5)]);
        let parting = lineage.part_with(gone(2, Some(1), 6), &[id(1)].into());
        assert_eq!(parting, Parting::default());
        assert_eq!(lineage.gone().count(), 1);
    }

    #[test]
    fn the_oldest_are_forgotten_beyond_the_limit() {
        let mut lineage = Lineage::default();
        for number in 0..=GONE_SANDBOXES_MAX as u32 {
            let parting = lineage.part_with(gone(number, None, u64::from(number)), &[id(number)].into());
            let expected = if number as usize == GONE_SANDBOXES_MAX { vec![id(0)] } else { Vec::new() };
            assert_eq!(parting.forgotten, expected);
        }
        assert_eq!(lineage.gone().count(), GONE_SANDBOXES_MAX);
    }
}
