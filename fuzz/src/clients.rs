//! What clients of `pando serve` send: names, tokens, bodies, and requests of the Connect protocol.

use std::sync::{Arc, OnceLock};

use api::e2b;
use async_trait::async_trait;
use bytes::Bytes;
use control::{IdempotencyKey, PageToken, Slug, TemplateRef, Time};
use envd::{
    Code, Command, Entry, Failure, FileEvents, Followed, Home, Input, Outcome, Place, PlaceHandle, Selector, Signal,
    Size, Start, WatchSpec, Watchers,
};
use http::{HeaderMap, HeaderValue, Request, header};
use http_body_util::{BodyExt, Full};
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;

/// Names and tokens in paths, queries and headers. Each has one form.
pub(crate) fn names(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(name) = text.parse::<TemplateRef>() {
        assert_eq!(name.to_string().parse::<TemplateRef>().ok(), Some(name));
    }
    if let Ok(token) = text.parse::<PageToken>() {
        assert_eq!(token.to_string().parse::<PageToken>().ok(), Some(token));
    }
    if let Ok(time) = text.parse::<Time>() {
        assert_eq!(time.to_string().parse::<Time>().ok(), Some(time));
    }
    drop(text.parse::<IdempotencyKey>());
    drop(text.parse::<Slug>());
    drop(serde_urlencoded::from_str::<e2b::ListQuery>(text));
}

/// Bodies of the control plane.
pub(crate) fn bodies(data: &[u8]) {
    drop(serde_json::from_slice::<e2b::NewSandbox>(data));
    drop(serde_json::from_slice::<e2b::NewSandboxV2>(data));
    drop(serde_json::from_slice::<e2b::ConnectV2>(data));
    drop(serde_json::from_slice::<e2b::Fork>(data));
    drop(serde_json::from_slice::<e2b::Snapshot>(data));
    drop(serde_json::from_slice::<e2b::NetworkUpdate>(data));
    drop(serde_json::from_slice::<e2b::AssignTags>(data));
}

/// A path of a file, and the header that names its user.
pub(crate) fn paths(data: &[u8]) {
    if let Ok(value) = HeaderValue::from_bytes(data) {
        drop(envd::user_of(&HeaderMap::from_iter([(header::AUTHORIZATION, value)])));
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(path) = envd::resolve(text, &home()) {
        assert!(path.starts_with('/') && !path.split('/').any(|part| part == ".."), "{path} leads out");
        assert_eq!(envd::resolve(&path, &home()), Ok(path), "a resolved path stays");
    }
}

/// Queries of lists and of files.
pub(crate) fn queries(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    server::fuzzing::queries(text);
}

/// What headers and lists say of files and of places in a sandbox.
pub(crate) fn headers(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    server::fuzzing::headers(text);
    node::fuzzing::mount_points(text);
}

const METHODS: [&str; 14] = [
    "process.Process/List",
    "process.Process/Start",
    "process.Process/Connect",
    "process.Process/Update",
    "process.Process/SendInput",
    "process.Process/SendSignal",
    "process.Process/StreamInput",
    "filesystem.Filesystem/Stat",
    "filesystem.Filesystem/MakeDir",
    "filesystem.Filesystem/Move",
    "filesystem.Filesystem/ListDir",
    "filesystem.Filesystem/WatchDir",
    "filesystem.Filesystem/CreateWatcher",
    "filesystem.Filesystem/GetWatcherEvents",
];
const KINDS: [&str; 4] =
    ["application/json", "application/connect+json", "application/proto", "application/connect+proto"];

/// A request of the Connect protocol: its first byte chooses method and codec, the rest are frames.
pub(crate) fn connect(data: &[u8]) {
    static SERVICE: OnceLock<(Runtime, envd::Service)> = OnceLock::new();
    let (runtime, service) = SERVICE.get_or_init(|| {
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime needs no descriptors");
        (runtime, envd::service(Arc::<Watchers>::default()))
    });
    let Some((choice, body)) = data.split_first() else { return };
    let (method, kind) = (METHODS[usize::from(*choice) % METHODS.len()], KINDS[usize::from(*choice >> 6)]);
    let request = Request::post(format!("http://sandbox/{method}"))
        .header(header::CONTENT_TYPE, kind)
        .header("connect-protocol-version", "1")
        .extension(PlaceHandle(Arc::new(Nothing)))
        .body(Full::new(Bytes::copy_from_slice(body)))
        .expect("all parts are valid");
    runtime.block_on(async {
        let Ok(response) = service.clone().oneshot(request).await;
        drop(response.into_body().collect().await);
    });
}

fn home() -> Home {
    Home { home: "/home/user".to_owned(), cwd: "/home/user".to_owned() }
}

/// A sandbox in which there is nothing.
struct Nothing;

fn nothing<T>() -> Outcome<T> {
    Err(Failure::new(Code::NotFound, "there is nothing"))
}

#[async_trait]
impl Place for Nothing {
    fn id(&self) -> &str {
        "s0123456789ab"
    }
    async fn home(&self, _: Option<&str>) -> Outcome<Home> {
        Ok(home())
    }
    async fn start(&self, _: Start) -> Outcome<Followed> {
        nothing()
    }
    async fn commands(&self) -> Outcome<Vec<Command>> {
        Ok(Vec::new())
    }
    async fn follow(&self, _: Selector) -> Outcome<Followed> {
        nothing()
    }
    async fn input(&self, _: Selector, _: Input) -> Outcome<()> {
        nothing()
    }
    async fn close_input(&self, _: Selector) -> Outcome<()> {
        nothing()
    }
    async fn resize(&self, _: Selector, _: Size) -> Outcome<()> {
        nothing()
    }
    async fn signal(&self, _: Selector, _: Signal) -> Outcome<()> {
        nothing()
    }
    async fn stat(&self, _: Option<&str>, _: &str) -> Outcome<Entry> {
        nothing()
    }
    async fn list(&self, _: Option<&str>, _: &str, _: u32) -> Outcome<Vec<Entry>> {
        Ok(Vec::new())
    }
    async fn make_dir(&self, _: Option<&str>, _: &str) -> Outcome<Entry> {
        nothing()
    }
    async fn rename(&self, _: Option<&str>, _: &str, _: &str) -> Outcome<Entry> {
        nothing()
    }
    async fn remove(&self, _: Option<&str>, _: &str) -> Outcome<()> {
        nothing()
    }
    async fn watch(&self, _: Option<&str>, _: WatchSpec) -> Outcome<FileEvents> {
        nothing()
    }
}
