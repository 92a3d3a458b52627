//! Requests with an answer of their own.

use std::{convert::Infallible, sync::Arc};

use api::{
    BuildEvent, Differences, ForkRequest, ForkResponse, Merge, MergeRequest, NetworkPolicy, NodeInfo, Refusal,
    Relative, Removed, RunRequest, RunResponse, Sandbox, SandboxDetail, Template, TemplateSpec, Usage,
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
    telemetry,
};
use keeper::origin::carried;
use model::ForkSpec;
use node::{Error, MergeOrder, Node, OfPaused, Progress};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::sync::{mpsc, oneshot};

use super::errors::{Failed, Result, failed_late};

pub(super) type Shared = State<Arc<Node>>;

/// A JSON body whose mistakes are answered like any other error.
pub(super) struct Request<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Request<T> {
    type Rejection = Failed;

    async fn from_request(request: axum::extract::Request, state: &S) -> Result<Self> {
        match Json::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(invalid(rejection.body_text())),
        }
    }
}

/// An identifier out of a path.
pub(super) fn parse<T: std::str::FromStr<Err = base::id::InvalidId>>(text: &str) -> Result<T> {
    text.parse().map_err(|error: base::id::InvalidId| invalid(error.to_string()))
}

fn check_count(count: u32) -> Result<()> {
    if (1..=SANDBOXES_PER_REQUEST_MAX).contains(&count) {
        return Ok(());
    }
    let message = format!("{count} sandboxes were asked for; one request starts 1 to {SANDBOXES_PER_REQUEST_MAX}");
    Err(invalid(message))
}

/// A request that is wrong in itself.
pub(super) fn invalid(message: String) -> Failed {
    Error::Invalid { message, hint: None }.into()
}

pub(super) async fn no_such_path(uri: Uri) -> Failed {
    let hint = Some("client and node may be of different versions".to_owned());
    Error::Invalid { message: format!("the node has no {uri}"), hint }.into()
}

pub(super) async fn node(State(node): Shared) -> Json<NodeInfo> {
    Json(node.info().into())
}

/// Of the node, and of the volumes that are open.
pub(super) async fn metrics(State(node): Shared) -> Response {
    ([(header::CONTENT_TYPE, telemetry::CONTENT_TYPE)], node.metrics().await).into_response()
}

pub(super) async fn templates(State(node): Shared) -> Json<Vec<Template>> {
    Json(all(node.templates()))
}

pub(super) async fn template(State(node): Shared, Path(name): Path<String>) -> Result<Json<Template>> {
    let name: TemplateName = parse(&name)?;
    Ok(Json(node.template(&name)?.into()))
}

pub(super) async fn remove_template(State(node): Shared, Path(name): Path<String>) -> Result<Json<()>> {
    let name: TemplateName = parse(&name)?;
    finish(async move { node.remove_template(&name).await }).await.map(Json)
}

/// Builds, and tells how far it is, line by line. A client that hangs up cancels.
pub(super) async fn build(State(node): Shared, Request(spec): Request<TemplateSpec>) -> Result<Response> {
    let spec = spec.into();
    node::check_spec(&spec)?;
    let (sender, events) = mpsc::unbounded_channel();
    let progress = Progress::to(sender.clone(), |progress: model::BuildProgress| BuildEvent::Stage {
        stage: progress.stage.into(),
        elapsed_ms: progress.elapsed_ms,
    });
    let build = async move {
        let last = match node.build(spec, &progress).await {
            Ok(template) => BuildEvent::Done(Box::new(template.into())),
            Err(error) => BuildEvent::Failed(failed_late(&node, &error)),
        };
        let _ = sender.send(last);
    };
    tokio::spawn(carried(build));
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
    let run = async move { node.run(&name, &request.into()).await };
    let started = finish_or(run, |started: model::Started| async move { undo.undo_starts(&started.sandboxes).await });
    answer(started.await)
}

pub(super) async fn warm(State(node): Shared, Path(name): Path<String>) -> Result<Json<Template>> {
    let name: TemplateName = parse(&name)?;
    answer(finish(async move { node.warm(&name).await }).await)
}

pub(super) async fn fork(
    State(node): Shared,
    Path(id): Path<String>,
    Request(request): Request<ForkRequest>,
) -> Result<Json<ForkResponse>> {
    let id: SandboxId = parse(&id)?;
    check_count(request.count)?;
    let undo = Arc::clone(&node);
    let spec = ForkSpec { count: request.count, keep: request.keep(), reservation: None };
    let fork = async move { node.fork(&id, &spec).await };
    let forks = finish_or(fork, |forks: model::Forks| async move { undo.undo_starts(&forks.sandboxes).await });
    answer(forks.await)
}

pub(super) async fn sandboxes(State(node): Shared) -> Json<Vec<Sandbox>> {
    Json(all(node.sandboxes()))
}

pub(super) async fn sandbox(State(node): Shared, Path(id): Path<String>) -> Result<Json<SandboxDetail>> {
    let id: SandboxId = parse(&id)?;
    // Adding up the memory of large programs takes milliseconds of the kernel's time.
    let inspect = tokio::task::spawn_blocking(move || node.inspect(&id));
    answer(finish(async move { inspect.await.unwrap_or_else(|error| Err(panicked(error))) }).await)
}

pub(super) async fn network(State(node): Shared, Path(id): Path<String>) -> Result<Json<NetworkPolicy>> {
    let id: SandboxId = parse(&id)?;
    answer(Ok(node.network_of(&id)?))
}

pub(super) async fn set_network(
    State(node): Shared,
    Path(id): Path<String>,
    Request(policy): Request<NetworkPolicy>,
) -> Result<Json<()>> {
    let id: SandboxId = parse(&id)?;
    finish(async move { node.set_network(&id, policy.into()).await }).await.map(Json)
}

pub(super) async fn remove(State(node): Shared, Path(id): Path<String>) -> Result<Json<Removed>> {
    let id: SandboxId = parse(&id)?;
    let removed = Removed { sandboxes: vec![id.clone()] };
    finish(async move { node.remove(&id).await }).await.map(|()| Json(removed))
}

pub(super) async fn tree(State(node): Shared) -> Json<Vec<Relative>> {
    Json(node.relatives().into_iter().map(Into::into).collect())
}

pub(super) async fn differences(
    State(node): Shared,
    Path((first, second)): Path<(String, String)>,
) -> Result<Json<Differences>> {
    Ok(Json(node.differences(&parse(&first)?, &parse(&second)?).await?.into()))
}

pub(super) async fn merge(
    State(node): Shared,
    Path(id): Path<String>,
    Request(request): Request<MergeRequest>,
) -> Result<Json<Merge>> {
    let id: SandboxId = parse(&id)?;
    let MergeRequest { from, dry_run: is_dry_run, paths } = request;
    // To its end, also if the client leaves.
    answer(finish(async move { node.merge(&id, MergeOrder { from, is_dry_run, paths }).await }).await)
}

pub(super) async fn refusals(State(node): Shared, Path(id): Path<String>) -> Result<Json<Vec<Refusal>>> {
    let found = node.refusals(&parse(&id)?).await?.into_iter();
    Ok(Json(found.map(|found| Refusal { kind: found.kind, reason: found.reason }).collect()))
}

pub(super) async fn usage(State(node): Shared, Path(id): Path<String>) -> Result<Json<Usage>> {
    let id: SandboxId = parse(&id)?;
    let used = node.usage(&id).await?;
    Ok(Json(Usage {
        cpu_percent: used.cpu_percent,
        memory_bytes: used.memory_bytes,
        memory_limit_bytes: used.memory_limit_bytes,
        disk_used_bytes: used.disk_used_bytes,
        disk_total_bytes: used.disk_total_bytes,
    }))
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
pub(crate) struct Follow {
    #[serde(default)]
    pub(crate) follow: bool,
}

pub(super) async fn logs(State(node): Shared, Path(id): Path<String>, Query(query): Query<Follow>) -> Result<Response> {
    let id: SandboxId = parse(&id)?;
    let chunks = node.logs(&id, query.follow)?;
    Ok(bytes(chunks))
}

/// An answer of bytes, as they come.
pub(crate) fn bytes(chunks: mpsc::Receiver<Vec<u8>>) -> Response {
    ([(header::CONTENT_TYPE, "application/octet-stream")], stream(chunks)).into_response()
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

/// What the node has done, as an answer.
pub(super) fn answer<T: Into<U>, U>(done: Result<T>) -> Result<Json<U>> {
    done.map(|done| Json(done.into()))
}

/// A list, as an answer.
pub(super) fn all<T: Into<U>, U>(nouns: Vec<T>) -> Vec<U> {
    nouns.into_iter().map(Into::into).collect()
}

/// Runs an operation to its end even if the client goes away: half an operation is worse than a whole one.
pub(super) async fn finish<T: Send + 'static>(
    operation: impl Future<Output = node::Result<T>> + Send + 'static,
) -> Result<T> {
    Ok(tokio::spawn(carried(operation)).await.unwrap_or_else(|error| Err(panicked(error)))?)
}

/// As [`finish`]; what it did is undone if nobody is there to hear of it.
async fn finish_or<T: Clone + Send + 'static, U: Future<Output = ()> + Send>(
    operation: impl Future<Output = node::Result<T>> + Send + 'static,
    undo: impl FnOnce(T) -> U + Send + 'static,
) -> Result<T> {
    let (sender, answer) = oneshot::channel();
    // Dropped with this function, also where the answer has come and nobody has taken it.
    let (heard, hears) = oneshot::channel();
    let run = async move {
        let answer = operation.await;
        let done = answer.as_ref().ok().cloned();
        let _ = sender.send(answer);
        if let (Some(done), Err(_)) = (done, hears.await) {
            undo(done).await;
        }
    };
    tokio::spawn(carried(run));
    let answer = answer.await;
    let _ = heard.send(());
    Ok(answer.unwrap_or(Err(Error::Cancelled))?)
}

fn panicked(error: tokio::task::JoinError) -> Error {
    Error::System { action: "finish the request", source: std::io::Error::other(error) }
}
