//! Images of the node.

use api::{ImportEvent, ImportRequest, KeptImage, Pruned, PullEvent, PullRequest, RegistryCredentials};
use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use keeper::origin::carried;
use node::Credentials;
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

/// Pulls an image, and tells how far it is, line by line. If the client hangs up, the download ends, and the next pull goes on with it.
pub(super) async fn pull(State(node): Shared, Request(request): Request<PullRequest>) -> Result<Response> {
    let PullRequest { name, credentials } = request;
    let credentials = credentials.map(credentials_of);
    let (sender, events) = mpsc::unbounded_channel();
    let steps = sender.clone();
    let progress = move |progress: model::PullProgress| {
        // Its client may have left.
        let _ = steps.send(progress.into());
    };
    let pull = async move {
        let pulled = tokio::select! {
            pulled = node.pull_image(&name, credentials.as_ref(), node::Naming::AsAsked, progress) => pulled,
            () = sender.closed() => return,
        };
        let last = match pulled {
            Ok(image) => PullEvent::Done(Box::new(image.into())),
            Err(error) => PullEvent::Failed(failed_late(&node, &error)),
        };
        let _ = sender.send(last);
    };
    tokio::spawn(carried(pull));
    Ok(json_lines(events))
}

fn credentials_of(given: RegistryCredentials) -> Credentials {
    match given {
        RegistryCredentials::Password { user, password } => Credentials::password(user, password),
        RegistryCredentials::IdentityToken(token) => Credentials::identity_token(token),
    }
}

pub(super) async fn remove(State(node): Shared, Path(name): Path<String>) -> Result<Json<()>> {
    finish(async move { node.remove_image(&name).await }).await.map(Json)
}

pub(super) async fn prune(State(node): Shared) -> Result<Json<Pruned>> {
    finish(async move { node.prune_images().await }).await.map(|(layers, downloads)| Json(Pruned { layers, downloads }))
}
