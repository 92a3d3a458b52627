//! Images of a node.

use api::{ImportEvent, ImportRequest, KeptImage, Pruned, PullEvent, PullRequest};
use tokio::signal::unix::Signal;

use crate::{
    Client, Result,
    events::{self, Step},
};

impl Client {
    /// All of them, by name.
    pub async fn images(&self) -> Result<Vec<KeptImage>> {
        self.get("/images").await
    }

    /// One of them.
    pub async fn image(&self, name: &str) -> Result<KeptImage> {
        self.get(&format!("/images/{name}")).await
    }

    /// Takes one in, and tells how many layers are there, of how many. None: an interrupt came first; the node goes on.
    pub async fn import_image_until(
        &self,
        interrupts: &mut Signal,
        request: &ImportRequest,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Option<KeptImage>> {
        let step = move |event| match event {
            ImportEvent::Layers { done, all } => {
                progress(done, all);
                Step::Continue
            }
            ImportEvent::Done(image) => Step::Done(*image),
            ImportEvent::Failed(detail) => Step::Failed(detail),
        };
        self.until(interrupts, "/images/import", request, |answer| events::finish(answer, step)).await
    }

    /// Pulls one, and tells how far that is, in words. None: an interrupt came first; the next pull goes on with what is downloaded.
    pub async fn pull_image_until(
        &self,
        interrupts: &mut Signal,
        request: &PullRequest,
        mut progress: impl FnMut(&PullEvent),
    ) -> Result<Option<KeptImage>> {
        let step = move |event| match event {
            PullEvent::Bytes { .. } | PullEvent::Layers { .. } => {
                progress(&event);
                Step::Continue
            }
            PullEvent::Done(image) => Step::Done(*image),
            PullEvent::Failed(detail) => Step::Failed(detail),
        };
        self.until(interrupts, "/images/pull", request, |answer| events::finish(answer, step)).await
    }

    /// Forgets one.
    pub async fn remove_image(&self, name: &str) -> Result<()> {
        self.delete(&format!("/images/{name}")).await
    }

    /// Removes layers that no image has.
    pub async fn prune_images(&self) -> Result<Pruned> {
        self.post("/images/prune", &()).await
    }
}
