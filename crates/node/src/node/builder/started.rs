//! The start command of a template: it runs once, and the template is that sandbox as it is when it is ready, with its
//! memory.

use base::id::{SandboxId, TemplateName};
use model::{BuildLevel, Keep, TemplateSpec};

use super::Building;
use crate::{
    error::{Error, Result},
    node::{KeepProgress, checkpoints::Keeping},
};

impl Building<'_> {
    /// Starts a sandbox of what has been built as clients would, and keeps it as the template. False if it cannot be kept
    /// with what runs in it: then each sandbox starts it again.
    pub(super) async fn keep_started(&mut self, name: &TemplateName) -> Result<bool> {
        self.say(BuildLevel::Info, "starting it, until it is ready");
        let id = Box::pin(self.start()).await?;
        let kept = Box::pin(self.keep_as(&id, name)).await;
        Box::pin(self.node.remove(&id)).await?;
        kept
    }

    async fn keep_as(&self, id: &SandboxId, name: &TemplateName) -> Result<bool> {
        let node = self.node;
        let record = node.state().running(id)?.clone();
        if node.has_files_only(&record, Keep::Memory).await? {
            self.say(BuildLevel::Info, "nothing of it runs any more: each sandbox starts it again");
            return Ok(false);
        }
        self.say(BuildLevel::Info, "storing files and memory");
        let commit = node.commit_as(name, true).await?;
        let spec = TemplateSpec { name: name.clone(), ..self.spec.clone() };
        let keeping = Keeping { record: &record, keep: Keep::Memory, spec, hold: false, commit };
        let written = match node.keep(keeping, &KeepProgress::unheard()).await {
            Err(Error::CannotFork { refusals, .. }) => {
                self.say(BuildLevel::Warn, "it cannot be kept while it runs, so each sandbox starts it again:");
                refusals.into_iter().for_each(|refusal| self.say(BuildLevel::Warn, refusal));
                return Ok(false);
            }
            written => written?,
        };
        node.supersede(&written).await;
        // Here it is ready at once.
        node.warm(name).await?;
        node.mark_built(name)?;
        Ok(true)
    }
}
