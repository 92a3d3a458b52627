//! Commands that outlive their clients.

use std::sync::Arc;

use api::{Command, CommandRequest, EXEC_PROTOCOL, SignalRequest};
use axum::{
    Json,
    extract::{Path, Request, State},
    response::Response,
};
use base::id::SandboxId;
use keeper::origin::carried;
use model::Selector;
use node::{Node, exec::serve_attached};

use super::{
    errors::Result,
    frames::{FramesIn, FramesOut, Notices},
    handlers::{self, all, finish, invalid, parse},
    upgrade::{switching, take_upgrade, upgraded},
};

type Shared = State<Arc<Node>>;

pub(super) async fn start(
    State(node): Shared,
    Path(id): Path<String>,
    handlers::Request(request): handlers::Request<CommandRequest>,
) -> Result<Json<Command>> {
    let id: SandboxId = parse(&id)?;
    let start = async move { node.start_command(&id, request.into()).await };
    let (command, _stream) = finish(start).await?;
    Ok(Json(command.into()))
}

pub(super) async fn list(State(node): Shared, Path(id): Path<String>) -> Result<Json<Vec<Command>>> {
    Ok(Json(all(node.commands(&parse(&id)?).await?)))
}

pub(super) async fn attach(
    State(node): Shared,
    Path((id, which)): Path<(String, String)>,
    mut request: Request,
) -> Result<Response> {
    let (id, selector) = (parse(&id)?, selector(&which)?);
    let upgrade = take_upgrade(&mut request, EXEC_PROTOCOL)?;
    let stream = node.attach(&id, &selector).await?;
    let serve = async move {
        if let Some(client) = upgraded(upgrade).await {
            let (from_client, to_client) = tokio::io::split(client);
            serve_attached(stream, FramesIn::new(from_client), FramesOut::new(to_client, Notices::Wanted)).await;
        }
    };
    tokio::spawn(carried(serve));
    Ok(switching(EXEC_PROTOCOL))
}

pub(super) async fn signal(
    State(node): Shared,
    Path((id, which)): Path<(String, String)>,
    handlers::Request(request): handlers::Request<SignalRequest>,
) -> Result<Json<()>> {
    node.signal(&parse(&id)?, &selector(&which)?, request.signal.into()).await?;
    Ok(Json(()))
}

/// A pid, or `tag:` and a tag.
fn selector(text: &str) -> Result<Selector> {
    match (text.strip_prefix("tag:"), text.parse()) {
        (Some(tag), _) => Ok(Selector::Tag(tag.to_owned())),
        (None, Ok(pid)) => Ok(Selector::Pid(pid)),
        (None, Err(_)) => Err(invalid(format!("{text:?} is neither a pid nor tag:TAG"))),
    }
}
