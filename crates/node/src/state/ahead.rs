//! Transitions of copies that are forked ahead, and of what is learned before that.
//!
//! ```text
//! template:  built --(SAMPLES sandboxes were looked at)--> taught: its blanks get parked copies
//! ```

use base::id::{SandboxId, TemplateName};
use process::ZygoteFacts;
use sandbox::ProcessIdentity;

use super::{Blank, Phase, State, ZygoteRef};

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
        let Some(record) = self.sandboxes.get(id).filter(|record| record.parent.is_none()) else { return false };
        let Some(template) = self.templates.get_mut(&record.template) else { return false };
        let Phase::Ready(ZygoteRef { engine, .. }) = &template.phase else { return false };
        if template.learning.begun == SAMPLES {
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
    pub(crate) fn take_unparked(&mut self) -> Option<(TemplateName, Blank, u64)> {
        if self.starts_in_flight > 0 || self.pool_info().ahead >= self.parked_limit {
            return None;
        }
        let templates = &self.templates;
        self.pool.iter_mut().find_map(|(name, blanks)| {
            let template = templates.get(name)?;
            let (Phase::Ready(zygote), SAMPLES..) = (&template.phase, template.learning.ended) else { return None };
            let at = blanks.iter().position(|blank| blank.parked.is_none())?;
            Some((name.clone(), blanks.swap_remove(at), zygote.number))
        })
    }
}
