//! Transitions of copies that are forked ahead, and of what is learned before that.
//!
//! ```text
//! template:  built --(SAMPLES sandboxes were looked at)--> taught: its blanks get parked copies
//! ```

use base::{
    id::{SandboxId, TemplateName, ZygoteId},
    limits::PARKED_SHARED_BYTES_MAX,
};
use process::ZygoteFacts;
use sandbox::ProcessIdentity;

use super::{Blank, Phase, State, ZygoteRef};
use crate::records::SandboxRecord;

/// How many sandboxes of a zygote are looked at: enough that one that did nothing yet does not decide alone.
const SAMPLES: usize = 3;

/// How far the learning is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Learning {
    begun: usize,
    ended: usize,
}

/// A sandbox that is to be looked at.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) template: TemplateName,
    pub(crate) zygote: ZygoteFacts,
    pub(crate) copy: ProcessIdentity,
}

impl State {
    /// Whether a sandbox that has just started is to be looked at.
    pub(crate) fn begin_sample(&mut self, id: &SandboxId) -> bool {
        let is_first = |record: &&SandboxRecord| record.parent.is_none() && record.program().is_some();
        let Some(record) = self.sandboxes.get(id).filter(is_first) else { return false };
        let Some(template) = self.templates.get_mut(&record.template) else { return false };
        let Phase::Ready(ZygoteRef { engine, .. }) = &template.phase else { return false };
        // A copy that waits has opened its files, and what is open on a volume is not there before that is mounted.
        let has_volumes = template.record.as_ref().is_some_and(|record| !record.volumes.is_empty());
        if template.learning.begun == SAMPLES || has_volumes || engine.copied_bytes > PARKED_SHARED_BYTES_MAX {
            return false;
        }
        template.learning.begun += 1;
        let sample = Sample { template: record.template.clone(), zygote: engine.clone(), copy: record.main };
        self.samples.insert(id.clone(), sample);
        true
    }

    /// The sandbox, if it was not looked at yet.
    pub(crate) fn take_sample(&mut self, id: &SandboxId) -> Option<Sample> {
        self.samples.remove(id)
    }

    /// A sandbox was looked at.
    pub(crate) fn end_sample(&mut self, name: &TemplateName) {
        if let Some(template) = self.templates.get_mut(name) {
            template.learning.ended += 1;
        }
    }

    /// A blank that should get a copy, and the zygote to fork it from, if that may be done now.
    pub(crate) fn take_unparked(&mut self) -> Option<(TemplateName, Blank, ZygoteId)> {
        if self.starts_in_flight > 0 {
            return None;
        }
        let lacking = |(name, _, share): &(TemplateName, ZygoteId, usize)| {
            let blanks = self.pool.get(name).map_or(&[][..], Vec::as_slice);
            parked(blanks) < *share && parked(blanks) < blanks.len()
        };
        let (name, zygote, _) = self.ahead_shares().into_iter().find(lacking)?;
        let blanks = self.pool.get_mut(&name)?;
        let at = blanks.iter().position(|blank| blank.parked.is_none())?;
        Some((name, blanks.swap_remove(at), zygote))
    }

    /// What is known of a template's zygote, if that is still this one.
    pub(crate) fn engine_of(&self, name: &TemplateName, zygote: ZygoteId) -> Option<ZygoteFacts> {
        match &self.templates.get(name)?.phase {
            Phase::Ready(ZygoteRef { number, engine, .. }) if *number == zygote => Some(engine.clone()),
            Phase::Ready(_) | Phase::Building { .. } | Phase::Lost | Phase::Idle => None,
        }
    }

    /// Takes a blank out whose copy is beyond the share of its template.
    pub(super) fn take_parked_surplus(&mut self) -> Option<Blank> {
        let shares = self.ahead_shares();
        let share =
            |name: &TemplateName| shares.iter().find(|(other, ..)| other == name).map_or(0, |(.., share)| *share);
        let blanks =
            self.pool.iter_mut().find(|(name, blanks)| parked(blanks) > share(name)).map(|(_, blanks)| blanks)?;
        let at = blanks.iter().position(|blank| blank.parked.is_some())?;
        Some(blanks.swap_remove(at))
    }

    /// Templates that get copies, with their zygotes, and how many each should have: the limit is shared by those used last.
    fn ahead_shares(&self) -> Vec<(TemplateName, ZygoteId, usize)> {
        let mut taught: Vec<_> =
            self.templates.iter().filter(|(_, template)| template.learning.ended >= SAMPLES).collect();
        taught.sort_unstable_by_key(|(_, template)| std::cmp::Reverse(template.last_use));
        let zygotes = taught.into_iter().filter_map(|(name, template)| match &template.phase {
            Phase::Ready(zygote) => Some((name.clone(), zygote.number)),
            Phase::Building { .. } | Phase::Lost | Phase::Idle => None,
        });
        let zygotes: Vec<_> = zygotes.take(self.parked_limit).collect();
        let share = self.parked_limit / zygotes.len().max(1);
        zygotes.into_iter().map(|(name, zygote)| (name, zygote, share)).collect()
    }
}

fn parked(blanks: &[Blank]) -> usize {
    blanks.iter().filter(|blank| blank.parked.is_some()).count()
}
