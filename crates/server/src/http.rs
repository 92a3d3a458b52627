//! The HTTP adapter: parse, call the node, convert, map the error.

mod around;
mod builds;
mod checkpoints;
mod commands;
mod errors;
mod frames;
mod handlers;
mod images;
mod inside;
mod store;
mod upgrade;
mod volumes;

use std::sync::Arc;

use axum::{
    Extension, Router,
    extract::DefaultBodyLimit,
    middleware,
    routing::{any, get, post},
};
use base::limits::{COMMAND_REQUEST_BYTES_MAX, REQUEST_BYTES_MAX};
use node::Node;

pub(crate) use handlers::{Follow, bytes};

/// Every path of the API.
pub(crate) fn router(node: Arc<Node>) -> Router {
    let with_command = DefaultBodyLimit::max(COMMAND_REQUEST_BYTES_MAX);
    let routes = Router::new()
        .route("/node", get(handlers::node))
        .route("/templates", get(handlers::templates).post(handlers::build).layer(with_command))
        .route("/builds", post(builds::build).layer(with_command))
        .route("/templates/{name}", get(handlers::template).delete(handlers::remove_template))
        .route("/templates/{name}/run", post(handlers::run))
        .route("/templates/{name}/warm", post(handlers::warm))
        .route("/images", get(images::list))
        .route("/images/import", post(images::import))
        .route("/images/pull", post(images::pull))
        .route("/images/prune", post(images::prune))
        .route("/images/{*name}", get(images::get).delete(images::remove))
        .route("/tree", get(handlers::tree))
        .route("/sandboxes", get(handlers::sandboxes).delete(handlers::remove_all))
        .route("/sandboxes/{id}", get(handlers::sandbox).delete(handlers::remove))
        .route("/sandboxes/{id}/logs", get(handlers::logs))
        .route("/sandboxes/{id}/usage", get(handlers::usage))
        .route("/sandboxes/{id}/refusals", get(handlers::refusals))
        .route("/sandboxes/{id}/diff/{other}", get(handlers::differences))
        .route("/sandboxes/{id}/merge", post(handlers::merge))
        .route("/sandboxes/{id}/network", get(handlers::network).put(handlers::set_network))
        .route("/sandboxes/{id}/inside/{*path}", any(inside::serve).layer(DefaultBodyLimit::disable()))
        .route("/sandboxes/{id}/fork", post(handlers::fork))
        .route("/sandboxes/{id}/checkpoint", post(checkpoints::take))
        .route("/sandboxes/{id}/pause", post(checkpoints::pause))
        .route("/sandboxes/{id}/resume", post(checkpoints::resume))
        .route("/paused", get(checkpoints::paused))
        .route("/checkpoints", get(checkpoints::list).post(store::import))
        .route("/checkpoints/{name}", get(checkpoints::get).delete(checkpoints::remove))
        .route("/checkpoints/{name}/verify", post(store::verify_checkpoint))
        .route("/checkpoints/{name}/export", get(store::export))
        .route("/store/stats", get(store::stats))
        .route("/store/verify", post(store::verify))
        .route("/store/gc", post(store::collect))
        .route("/store/rotate-key", post(store::rotate_key))
        .route("/sandboxes/{id}/exec", post(upgrade::exec).layer(with_command))
        .route("/sandboxes/{id}/commands", get(commands::list).post(commands::start).layer(with_command))
        .route("/sandboxes/{id}/commands/{which}/attach", post(commands::attach))
        .route("/sandboxes/{id}/commands/{which}/signal", post(commands::signal))
        .route("/sandboxes/{id}/dial/{port}", get(upgrade::dial));
    // Not nested: what is passed on keeps its path.
    let volumes = format!("{}/volumes", api::VERSION_PREFIX);
    Router::new()
        .nest(api::VERSION_PREFIX, routes)
        .route(&volumes, any(volumes::pass_on))
        .route(&format!("{volumes}/{{name}}"), any(volumes::pass_on).delete(volumes::remove))
        .route(&format!("{volumes}/{{name}}/mount"), post(volumes::mount))
        .route(&format!("{volumes}/{{name}}/unmount"), post(volumes::unmount))
        .route(&format!("{volumes}/{{name}}/snapshots"), any(volumes::pass_on).post(volumes::write_back_and_pass_on))
        .route(&format!("{volumes}/{{name}}/fork"), any(volumes::write_back_and_pass_on))
        .route(&format!("{volumes}/{{name}}/restore"), any(volumes::write_back_and_pass_on))
        .route(&format!("{volumes}/{{name}}/diff"), any(volumes::write_back_and_pass_on))
        .route(&format!("{volumes}/{{name}}/export"), any(volumes::write_back_and_pass_on))
        .route(&format!("{volumes}/{{name}}/{{*rest}}"), any(volumes::pass_on))
        .route(&format!("{}/metrics", api::VERSION_PREFIX), get(handlers::metrics))
        .fallback(handlers::no_such_path)
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .layer(Extension(inside::services()))
        .layer(middleware::from_fn_with_state(Arc::clone(&node), around::around))
        .with_state(node)
}
