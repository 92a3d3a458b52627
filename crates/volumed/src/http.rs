//! What is asked of volumes by HTTP: parse, have it done, convert, map the error. Paths and bodies are those of [`api::volume`].

mod answer;
mod changes;
mod errors;
mod files;
mod metrics;
mod query;
mod reading;
mod rest;
mod states;
mod stream;
mod tree;
mod volumes;
mod writing;

use std::sync::Arc;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    http::Uri,
    middleware::{Next, from_fn, from_fn_with_state},
    response::Response,
    routing::{delete, get, post},
};
use base::limits::REQUEST_BYTES_MAX;

pub(crate) use self::errors::{detail, status};
use crate::{
    failure::{Failure, Result},
    worker::table::Table,
};

type Shared = State<Arc<Table>>;

/// Every path.
pub(crate) fn router(table: Arc<Table>) -> Router {
    let files = get(files::get).put(files::put).delete(files::remove).post(changes::change);
    let routes = Router::new()
        .route("/volumes", get(volumes::list).post(volumes::create))
        .route("/volumes/usage", get(metrics::usage))
        .route("/volumes/{name}", get(volumes::inspect).delete(volumes::remove))
        .route("/volumes/{name}/snapshots", get(volumes::log).post(volumes::snapshot))
        .route("/volumes/{name}/snapshots/{snapshot}", delete(volumes::remove_snapshot))
        .route("/volumes/{name}/restore", post(volumes::restore))
        .route("/volumes/{name}/fork", post(volumes::fork))
        .route("/volumes/{name}/diff", get(states::diff))
        .route("/volumes/{name}/verify", post(states::verify))
        .route("/volumes/{name}/export", get(states::export))
        .route("/metrics", get(metrics::text))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .route("/volumes/{name}/import", post(states::import))
        .route("/volumes/{name}/files", files.clone())
        .route("/volumes/{name}/files/", files.clone())
        .route("/volumes/{name}/files/{*path}", files);
    Router::new()
        .nest(api::VERSION_PREFIX, routes)
        .fallback(no_such_path)
        .layer(from_fn_with_state(table.clone(), notice))
        .layer(from_fn(rest::take_rest))
        .with_state(table)
}

/// Somebody needs this process.
async fn notice(State(table): Shared, request: Request, next: Next) -> Response {
    table.touch();
    next.run(request).await
}

async fn no_such_path(uri: Uri) -> Failure {
    Failure::invalid(format!("volumes have no {uri}"))
}

/// Does something to its end, although the client may go away.
async fn finish<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    tokio::spawn(work).await.map_err(|_| Failure::Interrupted)?
}
