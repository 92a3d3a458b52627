//! What answers for envd in a sandbox: the Connect services, and files over HTTP.

pub(crate) mod download;
mod form;
pub(crate) mod upload;

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    body::Body,
    extract::{DefaultBodyLimit, State},
    http::{Extensions, HeaderMap, Method, Request, StatusCode, Version, header, request::Parts},
    middleware::{self, map_request},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use base::limits::{GZIP_FILE_BYTES_MAX, HAND_PEER_IDLE_S};
use control::{FileOperation, Sandbox, SignedUrl};
use gateway::{errors::Refusal, proxy, route::SandboxLabel, serve::Endless};
use serde::{Deserialize, Serialize};
use tower::ServiceExt;
use tower_http::{
    CompressionLevel,
    compression::{
        CompressionLayer,
        predicate::{DefaultPredicate, Predicate},
    },
    decompression::RequestDecompressionLayer,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{
    router::{OpenApiRouter, UtoipaMethodRouterExt},
    routes,
};

pub(crate) use super::place::Inside as Place;
use super::{
    failed::{Failed, Result},
    openapi::ENVD,
    patient,
    place::{Inside, status},
    platform::Platform,
    sandboxes::Query,
};

/// The header of the sandbox's access token.
const TOKEN_HEADER: &str = "x-access-token";

/// The sandbox of a request.
#[derive(Clone)]
pub(crate) struct Of(pub(crate) Arc<Sandbox>);

/// What a request about a file has in its query.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct FileQuery {
    /// An absolute path, or one below the user's home directory.
    path: Option<String>,
    /// The user in the sandbox; `user` if none is given.
    username: Option<String>,
    /// Stands for the access token.
    signature: Option<String>,
    /// Until when the signature is valid, in seconds since 1970.
    signature_expiration: Option<u64>,
}

/// The paths of envd with their descriptions. The sandbox is among the extensions of the request, as [`Of`].
pub(super) fn routes() -> OpenApiRouter<Arc<Platform>> {
    let compression = CompressionLayer::new().gzip(true).quality(CompressionLevel::Fastest);
    let compression = compression.compress_when(DefaultPredicate::new().and(is_small));
    let download = routes!(download::get).layer::<_, Infallible>(compression);
    let download = download.layer::<_, Infallible>(middleware::from_fn(download::compressed_if_meant));
    let upload = routes!(upload::post).layer::<_, Infallible>(RequestDecompressionLayer::new().gzip(true));
    OpenApiRouter::new()
        .routes(routes!(envs))
        .routes(routes!(metrics))
        .routes(routes!(output))
        .routes(download)
        .routes(upload)
        .layer(DefaultBodyLimit::disable())
        .routes(routes!(upload::compose))
}

/// What answers on a sandbox's host.
pub(crate) fn router(platform: Arc<Platform>) -> Router {
    let (router, _) = routes().split_for_parts();
    router
        .route("/health", get(async || StatusCode::NO_CONTENT))
        .fallback(any(services))
        .method_not_allowed_fallback(super::no_such_method)
        .layer(map_request(async |request: Request<Body>| patient::body(request, HAND_PEER_IDLE_S)))
        .with_state(platform)
}

/// Whether an answer is so small that it is compressed. An unknown length is not.
fn is_small(_: StatusCode, _: Version, headers: &HeaderMap, _: &Extensions) -> bool {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    length.is_some_and(|length| length <= GZIP_FILE_BYTES_MAX)
}

/// Reads the environment variables that the sandbox was created with.
#[utoipa::path(
    get,
    path = "/envs",
    operation_id = "getSandboxEnvs",
    tag = ENVD,
    security(("AccessToken" = [])),
    responses((status = 200, description = "By name", body = BTreeMap<String, String>)),
)]
async fn envs(
    State(platform): State<Arc<Platform>>,
    Extension(of): Extension<Of>,
    headers: HeaderMap,
) -> Result<Json<BTreeMap<String, String>>> {
    authorise(&platform, &of, &headers)?;
    Ok(Json(of.0.spec.env_vars.clone()))
}

/// Measures the sandbox.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "getEnvdMetrics",
    tag = ENVD,
    security(("AccessToken" = [])),
    responses((status = 200, description = "What it uses now", body = Metrics)),
)]
async fn metrics(
    State(platform): State<Arc<Platform>>,
    Extension(of): Extension<Of>,
    headers: HeaderMap,
) -> Result<Json<Metrics>> {
    authorise(&platform, &of, &headers)?;
    let stopped = || Failed::new(StatusCode::SERVICE_UNAVAILABLE, "the sandbox does not run");
    let now = platform.measure(&of.0).await.ok_or_else(stopped)?;
    Ok(Json(Metrics {
        ts: now.timestamp_unix,
        cpu_count: now.cpu_count,
        cpu_used_pct: now.cpu_used_pct,
        mem_used: now.mem_used,
        mem_total: now.mem_total,
        mem_cache: now.mem_cache,
        disk_used: now.disk_used,
        disk_total: now.disk_total,
    }))
}

/// Reads what the sandbox's program has printed.
#[utoipa::path(
    get,
    path = "/output",
    operation_id = "readOutput",
    tag = ENVD,
    params(("follow" = Option<bool>, Query, description = "Go on until the program ends")),
    security(("AccessToken" = [])),
    responses((status = 200, description = "The output", content(("application/octet-stream")))),
)]
async fn output(
    State(platform): State<Arc<Platform>>,
    Extension(of): Extension<Of>,
    headers: HeaderMap,
    Query(query): Query<crate::http::Follow>,
) -> Result<Response> {
    authorise(&platform, &of, &headers)?;
    let running = running(&platform, &of)?;
    let chunks = platform.node.logs(&of.0.id, query.follow)?;
    let mut response = crate::http::bytes(chunks);
    if query.follow {
        response.extensions_mut().insert(Endless);
    }
    Ok(running.until_end(response))
}

/// A place among the streams of the sandbox. Only with the token: strangers must not take those of its owner.
fn running(platform: &Platform, of: &Of) -> Result<proxy::Place> {
    let label = SandboxLabel::new(of.0.id.as_str()).ok_or_else(|| Failed::no_sandbox(of.0.id.as_str()))?;
    platform.services.take(&label).map_err(|full| Failed::from(&full))
}

async fn services(
    State(platform): State<Arc<Platform>>,
    Extension(of): Extension<Of>,
    mut request: Request<Body>,
) -> Response {
    if let Err(failed) = authorise(&platform, &of, request.headers()) {
        return failed.into_response();
    }
    let running = match running(&platform, &of) {
        Ok(running) => running,
        Err(failed) => return failed.into_response(),
    };
    let place = Inside::new(Arc::clone(&platform.node), &of.0);
    request.extensions_mut().insert(envd::PlaceHandle(Arc::new(place)));
    let response = match platform.envd.clone().oneshot(request).await {
        Ok(response) => response.map(Body::new),
        Err(never) => match never {},
    };
    running.until_end(response)
}

/// What a sandbox uses, in the names of envd, which differ from those of the control plane.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EnvdMetrics)]
struct Metrics {
    /// Seconds since 1970.
    ts: i64,
    /// CPUs.
    cpu_count: i32,
    /// Percent of one CPU.
    cpu_used_pct: f32,
    /// Bytes.
    mem_used: i64,
    /// Bytes.
    mem_total: i64,
    /// Bytes.
    mem_cache: i64,
    /// Bytes.
    disk_used: i64,
    /// Bytes.
    disk_total: i64,
}

fn unauthorised(message: &str) -> Failed {
    Failed::new(StatusCode::UNAUTHORIZED, message)
}

/// As `fuzzing::form`.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_form(bytes: &[u8]) {
    if let Some((piece, body)) = bytes.split_first() {
        form::fuzz(body, usize::from(*piece).max(1));
    }
}

/// As `fuzzing::queries`.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_query(text: &str) {
    let Ok(uri) = axum::http::Uri::builder().path_and_query(format!("/files?{text}")).build() else { return };
    if let Ok(axum::extract::Query(query)) = axum::extract::Query::<FileQuery>::try_from_uri(&uri) {
        let _ = (query.path, query.signature_expiration);
    }
}

/// As `fuzzing::headers`.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_headers(text: &str) {
    download::fuzz(text);
    if let Ok(boundary) = form::boundary(text) {
        assert!((1..=70).contains(&boundary.len()), "{boundary:?}");
    }
}

/// Fails unless the request has the sandbox's token.
fn authorise(platform: &Platform, Of(sandbox): &Of, headers: &HeaderMap) -> Result<()> {
    let wrong = || unauthorised("unauthorized access, please provide a valid access token");
    let presented = headers.get(TOKEN_HEADER).and_then(|token| token.to_str().ok()).ok_or_else(wrong)?;
    platform.control.sandboxes().envd_token(sandbox).verify(presented).map_err(|_| wrong())
}

/// Fails unless the request about a file has the sandbox's token, or its URL is signed by it.
fn authorise_file(
    platform: &Platform,
    of: &Of,
    headers: &HeaderMap,
    (query, operation): (&FileQuery, FileOperation),
) -> Result<()> {
    let Some(signature) = &query.signature else { return authorise(platform, of, headers) };
    let url = SignedUrl {
        path: query.path.as_deref().unwrap_or_default(),
        operation,
        user: query.username.as_deref().unwrap_or_default(),
        expires_s: query.signature_expiration,
    };
    let token = platform.control.sandboxes().envd_token(&of.0);
    token.verify_url(&url, signature, platform.control.now()).map_err(|error| unauthorised(&error.to_string()))
}

/// Whether a request has the sandbox's token, or is about a file and signed by it.
pub(crate) fn is_authorised(platform: &Platform, sandbox: &Sandbox, request: &Parts) -> bool {
    let of = Of(Arc::new(sandbox.clone()));
    let operation = match (request.uri.path(), &request.method) {
        ("/files", &Method::POST) => FileOperation::Write,
        ("/files", _) => FileOperation::Read,
        _ => return authorise(platform, &of, &request.headers).is_ok(),
    };
    let query = axum::extract::Query::<FileQuery>::try_from_uri(&request.uri).unwrap_or_default();
    authorise_file(platform, &of, &request.headers, (&query, operation)).is_ok()
}

type Shared = (State<Arc<Platform>>, Extension<Of>);
type Asked = Query<FileQuery>;

impl From<envd::Failure> for Failed {
    fn from(failure: envd::Failure) -> Self {
        Self::new(status(failure.code), failure.message)
    }
}

impl From<&Refusal> for Failed {
    fn from(refusal: &Refusal) -> Self {
        Self::new(refusal.status(), refusal.message()).after(Duration::from_secs(1))
    }
}

impl From<form::Error> for Failed {
    fn from(error: form::Error) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<hands::Error> for Failed {
    fn from(error: hands::Error) -> Self {
        let (status, message) = super::place::entry_failure(&error);
        Self::new(status, message)
    }
}
