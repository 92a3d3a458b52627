//! Transitions of templates.

use std::path::PathBuf;

use base::id::{TemplateName, ZygoteId};
use model::TemplateState;

use super::{Blank, Phase, Readiness, Startable, State, Template, ZygoteRef, pausing};
use crate::{
    error::{Error, Result},
    records::TemplateRecord,
};

/// A zygote that was made of a checkpoint.
pub(crate) struct RestoredZygote {
    pub(crate) pid: i32,
    pub(crate) name: TemplateName,
    pub(crate) manifest: String,
    /// Of its template, topmost first: those of the checkpoint, in the same order, are above those of the image.
    pub(crate) layers: Vec<PathBuf>,
}

impl State {
    /// Admits a build: one at a time per template.
    pub(crate) fn begin_build(&mut self, spec: &model::TemplateSpec) -> Result<()> {
        let lost = || Template::new(None, 0, Phase::Lost);
        let template = self.templates.entry(spec.name.clone()).or_insert_with(lost);
        let previous = match &template.phase {
            Phase::Building { .. } => return Err(Error::TemplateBusy(spec.name.clone())),
            Phase::Ready(zygote) => Some(zygote.clone()),
            Phase::Lost | Phase::Idle => None,
        };
        template.phase = Phase::Building { previous };
        template.overtaken_by = None;
        template.building = Some(spec.clone());
        Ok(())
    }

    /// As [`Self::begin_build`], of a template that was not there, or had lost its zygote, when the caller looked: if it has one by now, someone
    /// else was faster.
    pub(crate) fn begin_again(&mut self, spec: &model::TemplateSpec) -> Result<()> {
        match self.templates.get(&spec.name).map(|template| &template.phase) {
            Some(Phase::Ready(_) | Phase::Idle) => Err(Error::TemplateBusy(spec.name.clone())),
            Some(Phase::Building { .. } | Phase::Lost) | None => self.begin_build(spec),
        }
    }

    /// The zygote that starts of a template use, if one is parked.
    pub(crate) fn parked_zygote(&self, name: &TemplateName) -> Option<ZygoteId> {
        match &self.templates.get(name)?.phase {
            Phase::Ready(zygote) => Some(zygote.number),
            Phase::Building { previous } => previous.as_ref().map(|zygote| zygote.number),
            Phase::Lost | Phase::Idle => None,
        }
    }

    /// If the template was restored from a checkpoint: its zygote.
    pub(crate) fn restored_zygote(&self, name: &TemplateName) -> Option<RestoredZygote> {
        let template = self.templates.get(name)?;
        let record = template.record.as_ref()?;
        let manifest = record.checkpoint.clone()?;
        match &template.phase {
            Phase::Ready(zygote) => {
                Some(RestoredZygote { pid: zygote.engine.pid, name: name.clone(), manifest, layers: record.layers() })
            }
            Phase::Building { .. } | Phase::Lost | Phase::Idle => None,
        }
    }

    /// A build succeeded, without a zygote if the template has no program. Returns what it replaces: the zygote to drop and the blanks to remove.
    pub(crate) fn finish_build(
        &mut self,
        record: TemplateRecord,
        zygote: Option<ZygoteRef>,
    ) -> (Vec<ZygoteRef>, Vec<Blank>) {
        let name = record.spec.name.clone();
        let last_use = self.number();
        let new = Template::new(Some(record), last_use, zygote.map_or(Phase::Idle, Phase::Ready));
        let mut unused = Vec::new();
        if let Some(Template { phase, overtaken_by, .. }) = self.templates.insert(name.clone(), new) {
            match phase {
                Phase::Building { previous } => unused.extend(previous),
                Phase::Ready(zygote) => unused.push(zygote),
                Phase::Lost | Phase::Idle => {}
            }
            if let Some(manifest) = overtaken_by {
                unused.extend(self.supersede(&name, &manifest).0);
            }
        }
        (unused, self.pool.remove(&name).unwrap_or_default())
    }

    /// A checkpoint is `manifest` from now on: what was restored of an earlier one starts nothing any more. Returns what that leaves behind: the
    /// zygote to retire and the blanks to remove.
    pub(crate) fn replaced(&mut self, name: &TemplateName, manifest: &str) -> (Option<ZygoteRef>, Vec<Blank>) {
        self.replacements += 1;
        let (unused, is_lost) = self.supersede(name, manifest);
        let blanks = if is_lost { self.pool.remove(name) } else { None };
        (unused, blanks.unwrap_or_default())
    }

    /// How many checkpoints were replaced on this node so far.
    pub(crate) fn replacements(&self) -> u64 {
        self.replacements
    }

    /// Takes the zygote of a template whose checkpoint is `manifest` by now, unless it is of that. Also: whether its blanks are of no use any more.
    fn supersede(&mut self, name: &TemplateName, manifest: &str) -> (Option<ZygoteRef>, bool) {
        let Some(template) = self.templates.get_mut(name) else { return (None, false) };
        let is_older =
            template.record.as_ref().and_then(|record| record.checkpoint.as_ref()).is_some_and(|of| of != manifest);
        match &mut template.phase {
            Phase::Building { previous } => {
                // What is being restored may be of an earlier one, too: it is looked at when it is there.
                template.overtaken_by = Some(manifest.to_owned());
                template.is_replaced |= is_older;
                let previous = if is_older { previous.take() } else { None };
                let is_lost = previous.is_some();
                (previous, is_lost)
            }
            phase @ (Phase::Ready(_) | Phase::Idle) if is_older => {
                template.is_replaced = true;
                match std::mem::replace(phase, Phase::Lost) {
                    Phase::Ready(zygote) => (Some(zygote), true),
                    Phase::Building { .. } | Phase::Lost | Phase::Idle => (None, true),
                }
            }
            Phase::Ready(_) | Phase::Lost | Phase::Idle => (None, false),
        }
    }

    /// Whether `run NAME` starts something else than the checkpoint of this name that was taken at `created_ms`.
    pub(crate) fn hides_checkpoint(&self, name: &TemplateName, created_ms: u64) -> bool {
        let Some(template) = self.templates.get(name) else { return false };
        let Some(record) = &template.record else { return false };
        match (&record.checkpoint, &template.phase) {
            (None, _) => true,
            // It is restored anew by the next start.
            (Some(_), Phase::Lost) => false,
            // Its manifest may have been amended since it was restored here. One with volumes that was replaced is restored anew by itself.
            (Some(_), Phase::Ready(_) | Phase::Building { .. } | Phase::Idle) => {
                record.created_ms != created_ms && record.volumes.is_empty()
            }
        }
    }

    /// A build failed: the template is what it was before.
    pub(crate) fn abandon_build(&mut self, name: &TemplateName) {
        let Some(template) = self.templates.get_mut(name) else { return };
        template.building = None;
        if let Phase::Building { previous } = &mut template.phase {
            let idle =
                !template.is_replaced && template.record.as_ref().is_some_and(|record| record.spec.command.is_empty());
            let before = if idle { Phase::Idle } else { Phase::Lost };
            template.phase = previous.take().map_or(before, Phase::Ready);
        }
        if template.record.is_none() {
            self.templates.remove(name);
        }
    }

    /// Whether sandboxes can be started from the template now.
    pub(crate) fn readiness(&self, name: &TemplateName) -> Result<Readiness> {
        let template = self.templates.get(name).ok_or_else(|| Error::NoTemplate(name.clone()))?;
        match (&template.phase, &template.record) {
            (Phase::Building { .. }, _) => Ok(Readiness::Building),
            (Phase::Ready(zygote), Some(record)) => {
                Ok(Readiness::Ready(Box::new(Startable { record: record.clone(), zygote: Some(zygote.clone()) })))
            }
            (Phase::Idle, Some(record)) => {
                Ok(Readiness::Ready(Box::new(Startable { record: record.clone(), zygote: None })))
            }
            (Phase::Lost, Some(record)) => {
                Ok(Readiness::Lost { record: Box::new(record.clone()), replaced: template.is_replaced })
            }
            (Phase::Ready(_) | Phase::Lost | Phase::Idle, None) => Err(Error::NoTemplate(name.clone())),
        }
    }

    /// A zygote is gone: the template that used it.
    pub(crate) fn zygote_lost(&mut self, number: ZygoteId) -> Option<TemplateName> {
        for (name, template) in &mut self.templates {
            match &mut template.phase {
                Phase::Ready(zygote) if zygote.number == number => {
                    template.phase = Phase::Lost;
                    return Some(name.clone());
                }
                Phase::Building { previous } if previous.as_ref().is_some_and(|zygote| zygote.number == number) => {
                    *previous = None
                }
                Phase::Building { .. } | Phase::Ready(_) | Phase::Lost | Phase::Idle => {}
            }
        }
        None
    }

    /// The keeper is gone: so is every zygote. Blanks are given up; the sweep removes them.
    pub(crate) fn keeper_lost(&mut self) {
        for template in self.templates.values_mut() {
            match &mut template.phase {
                Phase::Building { previous } => *previous = None,
                phase @ (Phase::Ready(_) | Phase::Lost) => *phase = Phase::Lost,
                Phase::Idle => {}
            }
        }
        self.take_pool();
    }

    /// Removes a template that nothing uses. Returns its zygote and blanks.
    pub(crate) fn remove_template(&mut self, name: &TemplateName) -> Result<(Option<ZygoteRef>, Vec<Blank>)> {
        let sandboxes = self.sandboxes_of(name);
        match self.templates.get(name) {
            None => return Err(Error::NoTemplate(name.clone())),
            Some(Template { phase: Phase::Building { .. }, .. }) => return Err(Error::TemplateBusy(name.clone())),
            Some(_) if sandboxes > 0 => return Err(Error::TemplateInUse { name: name.clone(), sandboxes }),
            Some(Template { phase: Phase::Ready(_) | Phase::Lost | Phase::Idle, .. }) => {}
        }
        let zygote = match self.templates.remove(name) {
            Some(Template { phase: Phase::Ready(zygote), .. }) => Some(zygote),
            Some(_) | None => None,
        };
        Ok((zygote, self.pool.remove(name).unwrap_or_default()))
    }

    /// Of the last successful build of the template.
    pub(crate) fn template_record(&self, name: &TemplateName) -> Option<&TemplateRecord> {
        self.templates.get(name)?.record.as_ref()
    }

    /// Says of it that a build on this node has come to it.
    pub(crate) fn mark_built(&mut self, name: &TemplateName) -> Option<TemplateRecord> {
        let record = self.templates.get_mut(name)?.record.as_mut()?;
        record.is_built = true;
        Some(record.clone())
    }

    /// As the API shows it.
    pub(crate) fn template(&self, name: &TemplateName) -> Result<model::Template> {
        let missing = || Error::NoTemplate(name.clone());
        let template = self.templates.get(name).ok_or_else(missing)?;
        let spec =
            template.building.as_ref().or(template.record.as_ref().map(|record| &record.spec)).ok_or_else(missing)?;
        let (state, facts) = match &template.phase {
            Phase::Building { .. } => (TemplateState::Building, None),
            Phase::Ready(zygote) => (TemplateState::Ready, Some(zygote.facts.clone())),
            Phase::Lost => (TemplateState::Lost, None),
            Phase::Idle => (TemplateState::Ready, None),
        };
        Ok(model::Template {
            name: name.clone(),
            state,
            spec: spec.clone(),
            created_ms: template.record.as_ref().map_or(0, |record| record.created_ms),
            facts,
            sandboxes: self.sandboxes_of(name),
        })
    }

    /// All templates, by name.
    pub(crate) fn templates(&self) -> Vec<model::Template> {
        self.templates.keys().filter_map(|name| self.template(name).ok()).collect()
    }

    fn sandboxes_of(&self, name: &TemplateName) -> usize {
        self.sandboxes.values().filter(|record| record.template == *name && pausing::is_here(record)).count()
    }
}
