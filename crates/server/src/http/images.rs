//! Images of the node.

use api::{ImportEvent, ImportRequest, KeptImage, Pruned};
use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use keeper::origin::carried;
use tokio::sync::mpsc;

use super::{
    errors::{Result, failed_late},
    handlers::{Request, Shared, all, answer, finish, json_lines},
};

pub(super) async fn list(State(node): Shared) -> Result<Json<Vec<KeptImage>>> {
    Ok(Json(all(node.kept_images()?)))
}

pub(super) async fn get(State(node): Shared, Path(name): Path<String>) -> Result<Json<KeptImage>> {
    answer(Ok(node.kept_image(&name)?))
}

/// Takes an image in, and tells how far it is, line by line. It goes on when its client hangs up.
pub(super) async fn import(State(node): Shared, Request(request): Request<ImportRequest>) -> Result<Response> {
    let ImportRequest { path, name } = request;
    let (sender, events) = mpsc::unbounded_channel();
    let layers = sender.clone();
    let progress = move |done, all| {
        // Its client may have left.
        let _ = layers.send(ImportEvent::Layers { done, all });
    };
    let import = async move {
        let last = match node.import_image(path, name, progress).await {
            Ok(image) => ImportEvent::Done(Box::new(image.into())),
            Err(error) => ImportEvent::Failed(failed_late(&node, &error)),
        };
        let _ = sender.send(last);
    };
    tokio::spawn(carried(import));
    Ok(json_lines(events))
}

pub(super) async fn remove(State(node): Shared, Path(name): Path<String>) -> Result<Json<()>> {
    finish(async move { node.remove_image(&name).await }).await.map(Json)
}

pub(super) async fn prune(State(node): Shared) -> Result<Json<Pruned>> {
    finish(async move { node.prune_images().await }).await.map(|layers| Json(Pruned { layers }))
}
