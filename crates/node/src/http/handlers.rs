//! Requests with an answer of their own.

use std::{convert::Infallible, sync::Arc};

use api::{
    BuildEvent, ForkRequest, ForkResponse, NodeInfo, Removed, RunRequest, RunResponse, Sandbox, SandboxDetail,
    Template, TemplateSpec,
};
use axum::{
    Json,
    body::{Body, Bytes},
    extract::{FromRequest, Path, Query, State},
    http::{Uri, header},
    response::{IntoResponse, Response},
};
use base::{
    id::{SandboxId, TemplateName},
    limits::SANDBOXES_PER_REQUEST_MAX,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::sync::{mpsc, oneshot};

use super::{error_detail, spec};
use crate::{
    error::{Error, Result},
    node::{Node, OfPaused, Progress},
};

type Shared = State<Arc<Node>>;

/// A JSON body whose mistakes are answered like any other error.
pub(super) struct Request<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Request<T> {
    type Rejection = Error;

    async fn from_request(request: axum::extract::Request, state: &S) -> Result<Self> {
        match Json::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(Error::Invalid { message: rejection.body_text(), hint: None }),
        }
    }
}

/// An identifier out of a path.
pub(super) fn parse<T: std::str::FromStr<Err = base::id::InvalidId>>(text: &str) -> Result<T> {
    text.parse().map_err(|error: base::id::InvalidId| Error::Invalid { message: error.to_string(), hint: None })
}

fn check_count(count: u32) -> Result<()> {
    if (1..=SANDBOXES_PER_REQUEST_MAX).contains(&count) {
        return Ok(());
    }
    let message = format!("{count} sandboxes were asked for; one request starts 1 to {SANDBOXES_PER_REQUEST_MAX}");
    Err(Error::Invalid { message, hint: None })
}

pub(super) async fn no_such_path(uri: Uri) -> Error {
    Error::Invalid {
        message: format!("the node has no {uri}"),
        hint: Some("client and node may be of different versions".to_owned()),
    }
}

pub(super) async fn node(State(node): Shared) -> Json<NodeInfo> {
    Json(node.info())
}

pub(super) async fn templates(State(node): Shared) -> Json<Vec<Template>> {
    Json(node.state().templates())
}

pub(super) async fn template(State(node): Shared, Path(name): Path<String>) -> Result<Json<Template>> {
    let name: TemplateName = parse(&name)?;
    Ok(Json(node.state().template(&name)?))
}

pub(super) async fn remove_template(State(node): Shared, Path(name): Path<String>) -> Result<Json<()>> {
    let name: TemplateName = parse(&name)?;
    finish(async move { node.remove_template(&name).await }).await.map(Json)
}

/// Builds, and tells how far it is, line by line. A client that hangs up cancels.
pub(super) async fn build(State(node): Shared, Request(spec): Request<TemplateSpec>) -> Result<Response> {
    spec::check(&spec)?;
    let (sender, events) = mpsc::unbounded_channel();
    let progress = Progress::to(sender.clone());
    tokio::spawn(async move {
        let last = match node.build(spec, &progress).await {
            Ok(template) => BuildEvent::Done(Box::new(template)),
            Err(error) => BuildEvent::Failed(error_detail(&error)),
        };
        let _ = sender.send(last);
    });
    Ok(json_lines(events))
}

/// An answer of one JSON document per line, as they come.
pub(super) fn json_lines<T: Serialize + Send + 'static>(mut events: mpsc::UnboundedReceiver<T>) -> Response {
    let (lines, body) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Some(event) = tokio::select! { event = events.recv() => event, () = lines.closed() => None } {
            let Ok(mut line) = serde_json::to_vec(&event) else { break };
            line.push(b'\n');
            if lines.send(line).await.is_err() {
                break;
            }
        }
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], stream(body)).into_response()
}

pub(super) async fn run(
    State(node): Shared,
    Path(name): Path<String>,
    Request(request): Request<RunRequest>,
) -> Result<Json<RunResponse>> {
    let name: TemplateName = parse(&name)?;
    check_count(request.count)?;
    let undo = Arc::clone(&node);
    finish_or(async move { node.run(&name, &request).await }, |response: RunResponse| async move {
        undo.undo_starts(&response.sandboxes).await
    })
    .await
    .map(Json)
}

pub(super) async fn warm(State(node): Shared, Path(name): Path<String>) -> Result<Json<Template>> {
    let name: TemplateName = parse(&name)?;
    finish(async move { node.warm(&name).await }).await.map(Json)
}

pub(super) async fn fork(
    State(node): Shared,
    Path(id): Path<String>,
    Request(request): Request<ForkRequest>,
) -> Result<Json<ForkResponse>> {
    let id: SandboxId = parse(&id)?;
    check_count(request.count)?;
    let undo = Arc::clone(&node);
    finish_or(async move { node.fork(&id, &request).await }, |response: ForkResponse| async move {
        undo.undo_starts(&response.sandboxes).await
    })
    .await
    .map(Json)
}

pub(super) async fn sandboxes(State(node): Shared) -> Json<Vec<Sandbox>> {
    Json(node.state().sandboxes().iter().map(crate::records::SandboxRecord::to_api).collect())
}

pub(super) async fn sandbox(State(node): Shared, Path(id): Path<String>) -> Result<Json<SandboxDetail>> {
    let id: SandboxId = parse(&id)?;
    // Adding up the memory of large programs takes milliseconds of the kernel's time.
    finish(async move {
        tokio::task::spawn_blocking(move || node.inspect(&id)).await.unwrap_or_else(|error| Err(panicked(error)))
    })
    .await
    .map(Json)
}

pub(super) async fn remove(State(node): Shared, Path(id): Path<String>) -> Result<Json<Removed>> {
    let id: SandboxId = parse(&id)?;
    let removed = Removed { sandboxes: vec![id.clone()] };
    finish(async move { node.remove(&id).await }).await.map(|()| Json(removed))
}

/// Query of the removal of all.
#[derive(Deserialize)]
pub(super) struct RemoveAll {
    #[serde(default)]
    keep_paused: bool,
}

pub(super) async fn remove_all(State(node): Shared, Query(query): Query<RemoveAll>) -> Result<Json<Removed>> {
    let paused = if query.keep_paused { OfPaused::Kept } else { OfPaused::Removed };
    finish(async move { Ok(Removed { sandboxes: node.remove_all(paused).await }) }).await.map(Json)
}

/// Query of the logs.
#[derive(Deserialize)]
pub(super) struct Follow {
    #[serde(default)]
    follow: bool,
}

pub(super) async fn logs(State(node): Shared, Path(id): Path<String>, Query(query): Query<Follow>) -> Result<Response> {
    let id: SandboxId = parse(&id)?;
    let chunks = node.logs(&id, query.follow)?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], stream(chunks)).into_response())
}

/// A body that ends with the channel; the channel closes when the client goes away.
fn stream(chunks: mpsc::Receiver<Vec<u8>>) -> Body {
    Body::new(ChannelBody { chunks })
}

struct ChannelBody {
    chunks: mpsc::Receiver<Vec<u8>>,
}

impl hyper::body::Body for ChannelBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Infallible>>> {
        self.chunks.poll_recv(context).map(|chunk| chunk.map(|chunk| Ok(hyper::body::Frame::data(chunk.into()))))
    }
}

/// Runs an operation to its end even if the client goes away: half an operation is worse than a whole one.
pub(super) async fn finish<T: Send + 'static>(
    operation: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(operation).await.unwrap_or_else(|error| Err(panicked(error)))
}

/// As [`finish`]; what it did is undone if nobody is there to hear of it.
async fn finish_or<T: Clone + Send + 'static, U: Future<Output = ()> + Send>(
    operation: impl Future<Output = Result<T>> + Send + 'static,
    undo: impl FnOnce(T) -> U + Send + 'static,
) -> Result<T> {
    let (sender, answer) = oneshot::channel();
    // Dropped with this function, also where the answer has come and nobody has taken it.
    let (heard, hears) = oneshot::channel();
    tokio::spawn(async move {
        let answer = operation.await;
        let done = answer.as_ref().ok().cloned();
        let _ = sender.send(answer);
        if let (Some(done), Err(_)) = (done, hears.await) {
            undo(done).await;
        }
    });
    let answer = answer.await;
    let _ = heard.send(());
    answer.unwrap_or(Err(Error::Cancelled))
}

fn panicked(error: tokio::task::JoinError) -> Error {
    Error::System { action: "finish the request", source: std::io::Error::other(error) }
}
