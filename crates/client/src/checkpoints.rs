//! Checkpoints.

use api::{Checkpoint, CheckpointEvent, CheckpointProgress, CheckpointRequest, CheckpointVerification};
use base::id::{SandboxId, TemplateName};

use crate::{
    Client, Download, Result, Upload,
    events::{self, Step},
};

/// Calls about checkpoints.
///
/// # Errors
///
/// Each fails with the node's own error, or if the node cannot be reached or its answer cannot be read.
impl Client {
    /// Takes a checkpoint of a running sandbox. `progress` gets each stage.
    pub async fn take_checkpoint(
        &self,
        id: &SandboxId,
        request: &CheckpointRequest,
        mut progress: impl FnMut(&CheckpointProgress),
    ) -> Result<Checkpoint> {
        let answer = self.post_stream(&format!("/sandboxes/{id}/checkpoint"), request).await?;
        let taken = events::finish(answer, |event| match event {
            CheckpointEvent::Stage(stage) => {
                progress(&stage);
                Step::Continue
            }
            CheckpointEvent::Done(checkpoint) => Step::Done(*checkpoint),
            CheckpointEvent::Failed(detail) => Step::Failed(detail),
        });
        taken.await
    }

    /// All checkpoints of the store.
    pub async fn checkpoints(&self) -> Result<Vec<Checkpoint>> {
        self.get("/checkpoints").await
    }

    /// One checkpoint.
    pub async fn checkpoint(&self, name: &TemplateName) -> Result<Checkpoint> {
        self.get(&format!("/checkpoints/{name}")).await
    }

    /// Removes a checkpoint.
    pub async fn remove_checkpoint(&self, name: &TemplateName) -> Result<()> {
        self.delete(&format!("/checkpoints/{name}")).await
    }

    /// Reads all of a checkpoint and names what is damaged.
    pub async fn verify_checkpoint(&self, name: &TemplateName) -> Result<CheckpointVerification> {
        self.post(&format!("/checkpoints/{name}/verify"), &()).await
    }

    /// A checkpoint as one file.
    pub async fn export_checkpoint(&self, name: &TemplateName) -> Result<Download> {
        self.stream(&format!("/checkpoints/{name}/export")).await.map(Download::new)
    }

    /// Takes a checkpoint over from a file, under another name if one is given. `replace` lets it take the place of another one.
    pub async fn import_checkpoint(
        &self,
        name: Option<&TemplateName>,
        replace: bool,
        file: Upload,
    ) -> Result<Checkpoint> {
        let name = name.map(|name| format!("&name={name}")).unwrap_or_default();
        self.post_body(&format!("/checkpoints?replace={replace}{name}"), file).await
    }
}
