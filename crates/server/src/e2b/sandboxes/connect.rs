//! Connecting to a sandbox: what runs lives longer, what is paused goes on.

use std::{sync::Arc, time::Duration};

use api::e2b;
use axum::{Json, extract::State, http::StatusCode};
use base::{
    id::{SandboxId, TeamId},
    limits::{SANDBOX_TIMEOUT_S_DEFAULT, SANDBOX_TIMEOUT_S_DEFAULT_V1},
};
use control::{ControlError, Sandbox};
use model::{Keep, ResumeOptions, SandboxState, Takeover};

use super::{Body, Optional, Path, Shared, finish, keep, timeout};
use crate::e2b::{
    auth::Team,
    failed::{Failed, Result},
    openapi::{NoSandbox, Started},
    platform::{Platform, sandbox_id},
};

type Connected = (StatusCode, Json<e2b::Sandbox>);

/// Connects to a sandbox; SDKs up to 2.50 use this route.
#[utoipa::path(
    post,
    path = "/sandboxes/{id}/connect",
    operation_id = "connectSandboxV1",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = e2b::Connect,
    responses((status = 200, description = "It runs already, and lives longer now", body = e2b::Sandbox), (status = 201, description = "It was paused, and runs again", body = e2b::Sandbox), NoSandbox, Started),
)]
pub(crate) async fn v1(
    platform: Shared,
    team: Team,
    Path(id): Path<String>,
    Body(request): Body<e2b::Connect>,
) -> Result<Connected> {
    connect(platform, team, &id, timeout(Some(request.timeout), 0)?, request.memory).await
}

/// Connects to a sandbox.
///
/// A running sandbox lives at least as long as asked for. A paused one is resumed.
#[utoipa::path(
    post,
    path = "/v2/sandboxes/{id}/connect",
    operation_id = "connectSandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = Option<e2b::ConnectV2>,
    responses((status = 200, description = "It runs already, and lives longer now", body = e2b::Sandbox), (status = 201, description = "It was paused, and runs again", body = e2b::Sandbox), NoSandbox, Started),
)]
pub(crate) async fn v2(
    platform: Shared,
    team: Team,
    Path(id): Path<String>,
    Optional(request): Optional<e2b::ConnectV2>,
) -> Result<Connected> {
    let lives = timeout(request.timeout, SANDBOX_TIMEOUT_S_DEFAULT)?;
    connect(platform, team, &id, lives, request.memory).await
}

/// Resumes a paused sandbox; connecting to it does the same.
#[utoipa::path(
    post,
    path = "/sandboxes/{id}/resume",
    operation_id = "resumeSandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = Option<e2b::Resumed>,
    responses((status = 201, description = "It runs again", body = e2b::Sandbox), NoSandbox, Started),
)]
#[deprecated]
pub(crate) async fn resume(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Optional(request): Optional<e2b::Resumed>,
) -> Result<Connected> {
    let (id, timeout) = (sandbox_id(&id)?, timeout(request.timeout, SANDBOX_TIMEOUT_S_DEFAULT_V1)?);
    finish(async move {
        let sandbox = platform.wake(&team, &id, timeout, keep(request.memory)).await?;
        Ok((StatusCode::CREATED, Json(platform.answer(&sandbox))))
    })
    .await
}

async fn connect(
    State(platform): Shared,
    Team(team): Team,
    id: &str,
    timeout: Duration,
    memory: Option<bool>,
) -> Result<Connected> {
    let id = sandbox_id(id)?;
    finish(async move {
        let extended = platform.control.sandboxes().extend(&team, &id, timeout).await;
        let (status, sandbox) = match extended {
            Ok(sandbox) => {
                platform.control.check_here(&sandbox)?;
                (StatusCode::OK, sandbox)
            }
            Err(ControlError::Paused { .. }) => {
                (StatusCode::CREATED, platform.wake(&team, &id, timeout, keep(memory)).await?)
            }
            Err(ControlError::NotFound { .. }) => return Err(Failed::no_sandbox(id.as_str())),
            Err(error) => return Err(error.into()),
        };
        Ok((status, Json(platform.answer(&sandbox))))
    })
    .await
}

impl Platform {
    /// Has a paused sandbox go on.
    pub(crate) async fn wake(
        self: &Arc<Self>,
        team: &TeamId,
        id: &SandboxId,
        timeout: Duration,
        keep: Keep,
    ) -> Result<Sandbox> {
        let transition = self.control.begin_resume(team, id).await?;
        match self.node.resume(id, ResumeOptions { takeover: Takeover::Refused, keep }).await {
            // It runs already: a command of the node was faster.
            Ok(_) | Err(node::Error::NotPaused { state: SandboxState::Running, .. }) => {
                let noted = self.control.resumed(transition, timeout).await;
                noted.map_err(|error| {
                    self.note_resume_later(id.clone());
                    error.into()
                })
            }
            Err(error) => {
                self.control.cancel(transition).await?;
                Err(error.into())
            }
        }
    }
}
