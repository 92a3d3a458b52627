//! Commands and files inside a sandbox, by the services that E2B's clients know.

use std::sync::Arc;

use axum::{
    Extension,
    body::Body,
    extract::{Path, Query, State},
    http::{Method, Request, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use base::id::SandboxId;
use node::Node;
use tower::ServiceExt;

use super::{errors::Result, handlers::parse};
use crate::e2b::{
    Failed,
    inside::{FileQuery, Place, download, upload},
};

/// The services themselves.
pub(super) fn services() -> envd::Service {
    envd::service(Arc::default())
}

/// Answers what the server answers on the port of envd, for root on this machine.
pub(super) async fn serve(
    State(node): State<Arc<Node>>,
    Extension(services): Extension<envd::Service>,
    Path((id, path)): Path<(String, String)>,
    mut request: Request<Body>,
) -> Result<Response> {
    let id: SandboxId = parse(&id)?;
    let place = Place::of_node(node, id);
    if path == "files" {
        return Ok(files(place, request).await.into_response());
    }
    *request.uri_mut() = Uri::try_from(format!("/{path}")).unwrap_or_default();
    request.extensions_mut().insert(envd::PlaceHandle(Arc::new(place)));
    match services.oneshot(request).await {
        Ok(response) => Ok(response.map(Body::new).into_response()),
        Err(never) => match never {},
    }
}

async fn files(place: Place, request: Request<Body>) -> crate::e2b::Result<Response> {
    let query = Query::<FileQuery>::try_from_uri(request.uri());
    let Query(query) = query.map_err(|error| Failed::invalid(error.body_text()))?;
    match *request.method() {
        Method::POST => Ok(upload::write(place, &query, request.into_body()).await?.into_response()),
        Method::GET | Method::HEAD => download::read(&place, &query, request.headers()).await,
        _ => Err(Failed::new(StatusCode::METHOD_NOT_ALLOWED, "files are read with GET and written with POST")),
    }
}
