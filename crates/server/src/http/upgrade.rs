//! Requests whose connection becomes something else: a command's streams, or a TCP connection into a sandbox.

use std::{sync::Arc, time::Duration};

use api::{DIAL_PROTOCOL, EXEC_PROTOCOL, ExecRequest};
use axum::{
    body::Body,
    extract::{FromRequest, Path, Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use base::id::SandboxId;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use keeper::origin::carried;
use node::Node;

use super::{
    errors::Result,
    frames::{FramesIn, FramesOut, Notices},
    handlers::{self, finish, invalid, parse},
};

/// How long the client may take to switch protocols after the answer.
const UPGRADE_MAX: Duration = Duration::from_secs(10);

pub(super) async fn exec(
    State(node): State<Arc<Node>>,
    Path(id): Path<String>,
    mut request: Request,
) -> Result<Response> {
    let id: SandboxId = parse(&id)?;
    let upgrade = take_upgrade(&mut request, EXEC_PROTOCOL)?;
    let handlers::Request(command) = handlers::Request::<ExecRequest>::from_request(request, &node).await?;
    let notices = if command.notices { Notices::Wanted } else { Notices::Unknown };
    let exec = finish(async move { node.exec(&id, command.into()).await }).await?;
    let serve = async move {
        if let Some(client) = upgraded(upgrade).await {
            let (from_client, to_client) = tokio::io::split(client);
            exec.serve(FramesIn::new(from_client), FramesOut::new(to_client, notices)).await;
        }
    };
    tokio::spawn(carried(serve));
    Ok(switching(EXEC_PROTOCOL))
}

pub(super) async fn dial(
    State(node): State<Arc<Node>>,
    Path((id, port)): Path<(String, u16)>,
    mut request: Request,
) -> Result<Response> {
    let id: SandboxId = parse(&id)?;
    let upgrade = take_upgrade(&mut request, DIAL_PROTOCOL)?;
    let mut program = node.dial(&id, port).await?;
    tokio::spawn(async move {
        if let Some(mut client) = upgraded(upgrade).await {
            // An end of either side is an end, not a failure.
            let _ = tokio::io::copy_bidirectional(&mut client, &mut program).await;
        }
    });
    Ok(switching(DIAL_PROTOCOL))
}

pub(super) fn take_upgrade(request: &mut Request, protocol: &str) -> Result<OnUpgrade> {
    let wanted = request.headers().get(header::UPGRADE).is_some_and(|value| value.as_bytes() == protocol.as_bytes());
    match request.extensions_mut().remove::<OnUpgrade>().filter(|_| wanted) {
        Some(upgrade) => Ok(upgrade),
        None => Err(invalid(format!("this request needs `connection: upgrade` and `upgrade: {protocol}`"))),
    }
}

pub(super) async fn upgraded(upgrade: OnUpgrade) -> Option<TokioIo<Upgraded>> {
    match tokio::time::timeout(UPGRADE_MAX, upgrade).await {
        Ok(Ok(upgraded)) => Some(TokioIo::new(upgraded)),
        Ok(Err(error)) => {
            tracing::debug!(%error, "the client did not switch protocols");
            None
        }
        Err(_) => None,
    }
}

pub(super) fn switching(protocol: &'static str) -> Response {
    let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, protocol)];
    (StatusCode::SWITCHING_PROTOCOLS, headers, Body::empty()).into_response()
}
