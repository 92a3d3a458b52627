//! Requests about volumes. Their processes answer all of them but those that concern the host's directories.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use api::{MountRequest, UnmountRequest, VolumeMount};
use axum::{
    Json,
    body::Body,
    extract::{Path, Query, Request as Whole, State},
    http::{HeaderMap, header},
    response::Response,
};
use base::id::VolumeName;
use node::Node;

use super::{
    errors::Result,
    handlers::{Request, answer, finish, parse},
};

type Shared = State<Arc<Node>>;

/// Passes a request on, and the answer back, as they come. A client that hangs up is felt at the other end.
pub(super) async fn pass_on(State(node): Shared, mut request: Whole) -> Result<Response> {
    of_this_connection(request.headers_mut());
    let mut answer = node
        .volumes()
        .forward(request)
        .await
        .map_err(node::volumes_failed("ask the process of volumes"))?
        .map(Body::new);
    of_this_connection(answer.headers_mut());
    Ok(answer)
}

/// As [`pass_on`], unless a sandbox that is paused here is to have the volume again.
pub(super) async fn remove(State(node): Shared, Path(name): Path<String>, request: Whole) -> Result<Response> {
    let name: VolumeName = parse(&name)?;
    node.check_removable(&name)?;
    pass_on(State(node), request).await
}

/// As [`pass_on`], of what concerns all that is in a volume now: what programs here have written through mappings, too.
pub(super) async fn write_back_and_pass_on(
    State(node): Shared,
    Path(names): Path<HashMap<String, String>>,
    Query(parameters): Query<HashMap<String, String>>,
    request: Whole,
) -> Result<Response> {
    let named: BTreeSet<_> = [names.get("name"), parameters.get("with")].into_iter().flatten().collect();
    // A name that is none is refused where the request is answered.
    for name in named.into_iter().filter_map(|name| name.parse().ok()) {
        node.write_back(&name).await?;
    }
    pass_on(State(node), request).await
}

/// What one connection says is not for the next (RFC 9110, 7.6.1); lengths and encodings of bodies are set anew.
fn of_this_connection(headers: &mut HeaderMap) {
    for name in [header::CONNECTION, header::UPGRADE, header::TRANSFER_ENCODING, header::TE, header::EXPECT] {
        headers.remove(name);
    }
}

pub(super) async fn mount(
    State(node): Shared,
    Path(name): Path<String>,
    Request(request): Request<MountRequest>,
) -> Result<Json<VolumeMount>> {
    let name: VolumeName = parse(&name)?;
    let MountRequest { path, read_only, snapshot } = request;
    let mount = model::Mount { volume: name, path, read_only, snapshot };
    answer(finish(async move { node.mount_on_host(mount).await }).await)
}

pub(super) async fn unmount(
    State(node): Shared,
    Path(name): Path<String>,
    Request(request): Request<UnmountRequest>,
) -> Result<Json<()>> {
    let name: VolumeName = parse(&name)?;
    finish(async move { node.unmount_on_host(&name, &request.path).await }).await.map(Json)
}
