//! Templates, and sandboxes started from them.

use api::{BuildEvent, BuildStage, Recipe, RecipeEvent, RunRequest, RunResponse, Template, TemplateSpec};
use base::id::TemplateName;
use tokio::signal::unix::Signal;

use crate::{
    Client, Result,
    events::{self, Step},
};

/// Calls about templates.
///
/// # Errors
///
/// Each fails with the node's own error, or if the node cannot be reached or its answer cannot be read.
impl Client {
    /// All templates of the node.
    pub async fn templates(&self) -> Result<Vec<Template>> {
        self.get("/templates").await
    }

    /// One template.
    pub async fn template(&self, name: &TemplateName) -> Result<Template> {
        self.get(&format!("/templates/{name}")).await
    }

    /// Builds a template.
    pub async fn build(&self, spec: &TemplateSpec) -> Result<Template> {
        events::finish(self.post_stream("/templates", spec).await?, build_step(|_, _| ())).await
    }

    /// As [`Self::build`], until an interrupt. `progress` gets each stage, with the milliseconds since the request.
    pub async fn build_until(
        &self,
        interrupts: &mut Signal,
        spec: &TemplateSpec,
        progress: impl FnMut(BuildStage, u64),
    ) -> Result<Option<Template>> {
        let read = |answer| events::finish(answer, build_step(progress));
        self.until(interrupts, "/templates", spec, read).await
    }

    /// Builds a template from a recipe, until an interrupt. `line` gets what is done and said, with the step.
    pub async fn build_recipe_until(
        &self,
        interrupts: &mut Signal,
        recipe: &Recipe,
        mut line: impl FnMut(Option<usize>, &str),
    ) -> Result<Option<Template>> {
        let step = move |event| match event {
            RecipeEvent::Line { step, text } => {
                line(step, &text);
                Step::Continue
            }
            RecipeEvent::Done(template) => Step::Done(*template),
            RecipeEvent::Failed(detail) => Step::Failed(detail),
        };
        self.until(interrupts, "/builds", recipe, |answer| events::finish(answer, step)).await
    }

    /// Builds the zygote of a template again, if it is gone.
    pub async fn warm(&self, name: &TemplateName) -> Result<Template> {
        self.post(&format!("/templates/{name}/warm"), &()).await
    }

    /// Removes a template.
    pub async fn remove_template(&self, name: &TemplateName) -> Result<()> {
        self.delete(&format!("/templates/{name}")).await
    }

    /// Starts sandboxes from a template or a checkpoint.
    pub async fn run(&self, name: &TemplateName, request: &RunRequest) -> Result<RunResponse> {
        self.post(&format!("/templates/{name}/run"), request).await
    }

    /// As [`Self::run`], until an interrupt.
    pub async fn run_until(
        &self,
        interrupts: &mut Signal,
        name: &TemplateName,
        request: &RunRequest,
    ) -> Result<Option<RunResponse>> {
        self.post_until(interrupts, &format!("/templates/{name}/run"), request).await
    }
}

fn build_step(mut progress: impl FnMut(BuildStage, u64)) -> impl FnMut(BuildEvent) -> Step<Template> {
    move |event| match event {
        BuildEvent::Stage { stage, elapsed_ms } => {
            progress(stage, elapsed_ms);
            Step::Continue
        }
        BuildEvent::Done(template) => Step::Done(*template),
        BuildEvent::Failed(detail) => Step::Failed(detail),
    }
}
