//! Requests about checkpoints and paused sandboxes.

use std::sync::Arc;

use api::{
    Checkpoint, CheckpointEvent, CheckpointRequest, PauseEvent, PauseRequest, PausedSandbox, ResumeRequest, Sandbox,
};
use axum::{
    Json,
    body::Bytes,
    extract::{Path, State},
    response::Response,
};
use base::id::{SandboxId, TemplateName};
use keeper::origin::carried;
use node::{KeepProgress, Node};
use tokio::sync::mpsc;

use super::{
    errors::{Result, failed_late},
    handlers::{Request, all, answer, finish, invalid, json_lines, parse},
};

type Shared = State<Arc<Node>>;

/// Takes one, and tells how far it is, line by line. It is taken also if the client hangs up.
pub(super) async fn take(
    State(node): Shared,
    Path(id): Path<String>,
    Request(request): Request<CheckpointRequest>,
) -> Result<Response> {
    let id: SandboxId = parse(&id)?;
    let (sender, events) = mpsc::unbounded_channel();
    let progress = KeepProgress::to(sender.clone(), |progress| CheckpointEvent::Stage(progress.into()));
    let kept = async move {
        let last = match node.checkpoint(&id, &request.into(), &progress).await {
            Ok(checkpoint) => CheckpointEvent::Done(Box::new(checkpoint.into())),
            Err(error) => CheckpointEvent::Failed(failed_late(&node, &error)),
        };
        let _ = sender.send(last);
    };
    tokio::spawn(carried(kept));
    Ok(json_lines(events))
}

/// Pauses, and tells how far it is, line by line. It is completed also if the client hangs up.
///
/// A request without a body has the defaults: clients of before send none, or `null`.
pub(super) async fn pause(State(node): Shared, Path(id): Path<String>, body: Bytes) -> Result<Response> {
    let request: Option<PauseRequest> = match body.is_empty() {
        true => None,
        false => serde_json::from_slice(&body).map_err(|error| invalid(format!("cannot read the request: {error}")))?,
    };
    let keep = request.unwrap_or_default().into();
    let id: SandboxId = parse(&id)?;
    // What is wrong with the request is told by its status.
    node.check_pausable(&id)?;
    let (sender, events) = mpsc::unbounded_channel();
    let progress = KeepProgress::to(sender.clone(), |progress| PauseEvent::Stage(progress.into()));
    let kept = async move {
        let last = match node.pause(&id, keep, &progress).await {
            Ok(paused) => PauseEvent::Done(Box::new(paused.into())),
            Err(error) => PauseEvent::Failed(failed_late(&node, &error)),
        };
        let _ = sender.send(last);
    };
    tokio::spawn(carried(kept));
    Ok(json_lines(events))
}

pub(super) async fn paused(State(node): Shared) -> Result<Json<Vec<PausedSandbox>>> {
    finish(async move { node.paused_in_store().await }).await.map(|paused| Json(all(paused)))
}

/// It is completed also if the client hangs up.
pub(super) async fn resume(
    State(node): Shared,
    Path(id): Path<String>,
    Request(request): Request<ResumeRequest>,
) -> Result<Json<Sandbox>> {
    let id: SandboxId = parse(&id)?;
    answer(finish(async move { node.resume(&id, request.into()).await }).await)
}

pub(super) async fn list(State(node): Shared) -> Result<Json<Vec<Checkpoint>>> {
    finish(async move { node.checkpoints().await }).await.map(|found| Json(all(found)))
}

pub(super) async fn get(State(node): Shared, Path(name): Path<String>) -> Result<Json<Checkpoint>> {
    let name: TemplateName = parse(&name)?;
    answer(finish(async move { node.find_checkpoint(&name).await }).await)
}

pub(super) async fn remove(State(node): Shared, Path(name): Path<String>) -> Result<Json<()>> {
    let name: TemplateName = parse(&name)?;
    finish(async move { node.remove_checkpoint(&name).await }).await.map(Json)
}
