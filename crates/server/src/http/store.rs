//! Requests about the store, and checkpoints as files.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use api::{Checkpoint, CheckpointVerification, GcReport, GcRequest, KeyRotation, StoreStats, StoreVerification};
use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Path, Query, State},
    http::header,
    response::{IntoResponse, Response},
};
use base::id::TemplateName;
use hyper::body::Frame;
use node::{Node, Parts};
use serde::Deserialize;
use tokio::sync::mpsc;

use super::{
    errors::Result,
    handlers::{Request, answer, finish, parse},
};

type Shared = State<Arc<Node>>;

/// Parts of a file that wait to be taken.
const PARTS: usize = 8;

pub(super) async fn stats(State(node): Shared) -> Result<Json<StoreStats>> {
    answer(node.store_stats().await.map_err(Into::into))
}

/// It may take hours and changes nothing, so a client that hangs up ends it. Its lease ends by itself.
pub(super) async fn verify(State(node): Shared) -> Result<Json<StoreVerification>> {
    answer(node.verify_store().await.map_err(Into::into))
}

pub(super) async fn collect(State(node): Shared, Request(request): Request<GcRequest>) -> Result<Json<GcReport>> {
    answer(finish(async move { node.collect_garbage(request.into()).await }).await)
}

pub(super) async fn rotate_key(State(node): Shared) -> Result<Json<KeyRotation>> {
    answer(finish(async move { node.rotate_master_key().await }).await)
}

pub(super) async fn verify_checkpoint(
    State(node): Shared,
    Path(name): Path<String>,
) -> Result<Json<CheckpointVerification>> {
    let name: TemplateName = parse(&name)?;
    answer(finish(async move { node.verify_checkpoint(&name).await }).await)
}

/// An answer that breaks off has failed: the file has its end only if all of it is there.
pub(super) async fn export(State(node): Shared, Path(name): Path<String>) -> Result<Response> {
    let name: TemplateName = parse(&name)?;
    let parts = finish(async move { node.export_checkpoint(&name).await }).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], Body::new(PartsBody { parts })).into_response())
}

struct PartsBody {
    parts: Parts,
}

impl hyper::body::Body for PartsBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.parts.poll_recv(context).map(|part| part.map(|part| part.map(Frame::data)))
    }
}

/// Query of an import.
#[derive(Deserialize)]
pub(super) struct Import {
    name: Option<String>,
    #[serde(default)]
    replace: bool,
}

/// The body is a file of any length. A client that hangs up before its end ends the import.
pub(super) async fn import(State(node): Shared, Query(query): Query<Import>, body: Body) -> Result<Json<Checkpoint>> {
    let name: Option<TemplateName> = query.name.as_deref().map(parse).transpose()?;
    let (sender, parts) = mpsc::channel(PARTS);
    let imported = finish(async move { node.import_checkpoint(name, query.replace, parts).await });
    let (imported, ()) = tokio::join!(imported, pass_on(body, sender));
    answer(imported)
}

async fn pass_on(mut body: Body, parts: mpsc::Sender<io::Result<Bytes>>) {
    loop {
        let frame = std::future::poll_fn(|context| hyper::body::Body::poll_frame(Pin::new(&mut body), context)).await;
        let part = match frame {
            None => return,
            Some(Ok(frame)) => match frame.into_data() {
                Ok(part) => Ok(part),
                Err(_) => continue,
            },
            Some(Err(error)) => Err(io::Error::other(error)),
        };
        let failed = part.is_err();
        if parts.send(part).await.is_err() || failed {
            return;
        }
    }
}
