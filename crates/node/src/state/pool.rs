//! Transitions of the pool.

use std::path::PathBuf;

use base::id::{TemplateName, ZygoteId};
use model::PoolInfo;

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

    /// A blank sandbox for a template with these layers; one with a copy of `zygote`, if that is asked for and there.
    pub(crate) fn take_blank(
        &mut self,
        name: &TemplateName,
        layers: &[PathBuf],
        zygote: Option<ZygoteId>,
    ) -> Option<Blank> {
        let number = self.number();
        if let Some(template) = self.templates.get_mut(name) {
            template.last_use = number;
        }
        let at = zygote
            .and_then(|_| self.find_blank(name, layers, zygote))
            .or_else(|| self.find_blank(name, layers, None))?;
        Some(self.pool.get_mut(name)?.swap_remove(at))
    }

    /// Whether a copy of `zygote` waits in a blank sandbox with these layers.
    pub(crate) fn has_parked(&self, name: &TemplateName, layers: &[PathBuf], zygote: Option<ZygoteId>) -> bool {
        zygote.is_some() && self.find_blank(name, layers, zygote).is_some()
    }

    /// Where the newest blank sandbox with these layers is, with a copy of `zygote` or without one.
    fn find_blank(&self, name: &TemplateName, layers: &[PathBuf], zygote: Option<ZygoteId>) -> Option<usize> {
        let parked_by = |blank: &Blank| blank.parked.as_ref().map(|parked| parked.zygote);
        self.pool.get(name)?.iter().rposition(|blank| blank.layers == layers && parked_by(blank) == zygote)
    }

    /// The template that lacks a blank most, if the pool may be filled now.
    pub(crate) fn wants_blank(&self) -> Option<TemplateRecord> {
        if self.starts_in_flight > 0 {
            return None;
        }
        let lacking = self.shares().into_iter().filter(|(record, share)| self.blanks_of(record) < *share);
        lacking.min_by_key(|(record, _)| self.blanks_of(record)).map(|(record, _)| record.clone())
    }

    /// Whether so few blanks are left for some template that filling the pool should not wait for a quiet moment.
    pub(crate) fn pool_is_low(&self) -> bool {
        self.shares().into_iter().any(|(record, share)| self.blanks_of(record) < share.div_ceil(4))
    }

    /// Takes a blank out that is beyond the share of its template, or whose copy is.
    pub(crate) fn take_surplus(&mut self) -> Option<Blank> {
        let shares = self.shares();
        let share = |name: &TemplateName| {
            shares.iter().find(|(record, _)| record.spec.name == *name).map_or(0, |(_, share)| *share)
        };
        let surplus = self.pool.iter().find(|(name, blanks)| blanks.len() > share(name)).map(|(name, _)| name.clone());
        match surplus {
            Some(name) => self.pool.get_mut(&name)?.pop(),
            None => self.take_parked_surplus(),
        }
    }

    /// How many blanks each template should have: the room is shared by those used last, of which each gets one at least.
    fn shares(&self) -> Vec<(&TemplateRecord, usize)> {
        let ready = self.templates.values().filter(|template| matches!(template.phase, Phase::Ready(_) | Phase::Idle));
        let mut ready: Vec<_> =
            ready.filter_map(|template| Some((template.last_use, template.record.as_ref()?))).collect();
        ready.sort_unstable_by_key(|(last_use, _)| std::cmp::Reverse(*last_use));
        ready.truncate(self.pool_limit);
        let share = self.pool_limit / ready.len().max(1);
        ready.into_iter().map(|(_, record)| (record, share)).collect()
    }

    fn blanks_of(&self, record: &TemplateRecord) -> usize {
        self.pool.get(&record.spec.name).map_or(0, Vec::len)
    }

    /// Whether a bare sandbox should be made, if the pool may be filled now.
    pub(crate) fn wants_bare(&self) -> bool {
        self.starts_in_flight == 0 && self.bare.len() < self.pool_limit
    }

    /// Puts a bare sandbox into the pool.
    pub(crate) fn put_bare(&mut self, blank: Blank) {
        self.bare.push(blank);
    }

    /// Takes a bare sandbox out of the pool.
    pub(crate) fn take_bare(&mut self) -> Option<Blank> {
        self.bare.pop()
    }

    /// Puts a blank into the pool; gives it back if the template does not want it any more.
    pub(crate) fn put_blank(&mut self, name: &TemplateName, blank: Blank) -> Option<Blank> {
        let same_layers = self.template_record(name).is_some_and(|record| record.layers() == blank.layers);
        let zygote = self.parked_zygote(name);
        let same_zygote = blank.parked.as_ref().is_none_or(|parked| Some(parked.zygote) == zygote);
        if !same_layers || !same_zygote {
            return Some(blank);
        }
        self.pool.entry(name.clone()).or_default().push(blank);
        None
    }

    /// How full it is.
    pub(crate) fn pool_info(&self) -> PoolInfo {
        let ahead = self.pool.values().flatten().filter(|blank| blank.parked.is_some()).count();
        let ready = self.pool.values().map(Vec::len).sum();
        PoolInfo { ready, bare: self.bare.len(), limit: self.pool_limit, ahead, ahead_limit: self.parked_limit }
    }

    /// Takes every blank out and releases its id.
    pub(crate) fn take_pool(&mut self) -> Vec<Blank> {
        let bare = std::mem::take(&mut self.bare);
        let blanks: Vec<Blank> = std::mem::take(&mut self.pool).into_values().flatten().chain(bare).collect();
        self.claimed.retain(|id| !blanks.iter().any(|blank| blank.id == *id));
        blanks
    }
}
