//! Transitions of the pool.

use std::path::PathBuf;

use base::id::TemplateName;

use super::{Blank, Phase, State};
use crate::records::TemplateRecord;

impl State {
    /// A start begins; the pool waits until all have ended.
    pub(crate) fn start_begins(&mut self) {
        self.starts_in_flight += 1;
    }

    /// A start has ended.
    pub(crate) fn start_ends(&mut self) {
        self.starts_in_flight -= 1;
    }

    /// Whether no start is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.starts_in_flight == 0
    }

    /// A blank sandbox for a template with these layers.
    pub(crate) fn take_blank(&mut self, name: &TemplateName, layers: &[PathBuf]) -> Option<Blank> {
        self.pool.get_mut(name)?.pop_if(|blank| blank.layers == layers)
    }

    /// The template that lacks a blank most, if the pool may be filled now.
    pub(crate) fn wants_blank(&self) -> Option<TemplateRecord> {
        if self.starts_in_flight > 0 {
            return None;
        }
        let ready = self.templates.values().filter(|template| matches!(template.phase, Phase::Ready(_)));
        let records: Vec<_> = ready.filter_map(|template| template.record.as_ref()).collect();
        let share = self.pool_limit / records.len().max(1);
        let have = |record: &TemplateRecord| self.pool.get(&record.spec.name).map_or(0, Vec::len);
        records.into_iter().filter(|record| have(record) < share).min_by_key(|record| have(record)).cloned()
    }

    /// Puts a blank into the pool; gives it back if the template does not want it any more.
    pub(crate) fn put_blank(&mut self, name: &TemplateName, blank: Blank) -> Option<Blank> {
        let wanted = self.template_record(name).is_some_and(|record| record.layers() == blank.layers);
        if !wanted {
            return Some(blank);
        }
        self.pool.entry(name.clone()).or_default().push(blank);
        None
    }

    /// How many blanks are ready.
    pub(crate) fn pool_ready(&self) -> usize {
        self.pool.values().map(Vec::len).sum()
    }

    /// The most blanks it keeps.
    pub(crate) fn pool_limit(&self) -> usize {
        self.pool_limit
    }

    /// Takes every blank out and releases its id.
    pub(crate) fn take_pool(&mut self) -> Vec<Blank> {
        let blanks: Vec<Blank> = std::mem::take(&mut self.pool).into_values().flatten().collect();
        self.claimed.retain(|id| !blanks.iter().any(|blank| blank.id == *id));
        blanks
    }
}
