//! Builds of templates from recipes.

use api::{Recipe, RecipeEvent};
use axum::{extract::State, response::Response};
use keeper::origin::carried;
use model::BuildLine;
use node::{BuildOptions, RecipeError};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::{
    errors::{Result, failed_late},
    handlers::{Request, Shared, json_lines},
};

/// Builds, and tells what is done and said, line by line. A client that hangs up cancels.
pub(super) async fn build(State(node): Shared, Request(recipe): Request<Recipe>) -> Result<Response> {
    let (name, recipe) = recipe.into_parts();
    let (sender, events) = mpsc::unbounded_channel();
    let (cancel, cancelled) = watch::channel(false);
    let client = sender.clone();
    // Its task ends with the build, also if that panics: the answer ends with its last sender.
    let mut watch = JoinSet::new();
    watch.spawn(async move {
        client.closed().await;
        cancel.send_replace(true);
    });
    let lines = sender.clone();
    let log = move |line: BuildLine| {
        // Its client may have left.
        let _ = lines.send(RecipeEvent::Line { step: line.step, text: line.text });
    };
    let build = async move {
        let options = BuildOptions { may_reuse: false, credentials: None, log: &log, cancelled };
        let built = Box::pin(node.build_recipe(&name, &recipe, &options)).await;
        drop(watch);
        let last = match built.map(|name| node.template(&name)) {
            Ok(Ok(template)) => RecipeEvent::Done(Box::new(template.into())),
            Ok(Err(error)) => RecipeEvent::Failed(failed_late(&node, &error)),
            Err(RecipeError { step, source }) => {
                let mut detail: api::ErrorDetail = failed_late(&node, &source);
                detail.message = format!("{step}: {}", detail.message);
                RecipeEvent::Failed(detail)
            }
        };
        let _ = sender.send(last);
    };
    tokio::spawn(carried(build));
    Ok(json_lines(events))
}
