//! How long a sandbox lives, and its end.

use std::sync::Arc;

use api::e2b;
use axum::{extract::State, http::StatusCode};
use base::{id::SandboxId, limits::SANDBOX_TIMEOUT_S_DEFAULT_V1};
use control::{ControlError, PauseMode};
use model::{FailureKind, Keep, SandboxState};
use node::KeepProgress;

use super::{Body, Optional, Path, Shared, finish, found, timeout as seconds};
use crate::e2b::{
    auth::Team,
    failed::{Failed, Result},
    openapi::{Conflict, NoSandbox},
    platform::{Platform, sandbox_id},
};

/// Kills a sandbox, also a paused one.
#[utoipa::path(
    delete,
    path = "/sandboxes/{id}",
    operation_id = "killSandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses((status = 204, description = "It is gone"), NoSandbox, Conflict),
)]
pub(crate) async fn kill(State(platform): Shared, Team(team): Team, Path(id): Path<String>) -> Result<StatusCode> {
    let id = sandbox_id(&id)?;
    finish(async move {
        let transition = match platform.control.begin_kill(&team, &id).await {
            Err(ControlError::NotFound { .. }) => return Err(Failed::no_sandbox(id.as_str())),
            begun => begun?,
        };
        if platform.control.check_here(transition.sandbox()).is_err() {
            // The server that has it ends it within seconds.
            platform.control.leave_kill(transition).await?;
            return Ok(StatusCode::NO_CONTENT);
        }
        // If that fails, the scheduler repeats it: the sandbox is gone for its team.
        platform.remove(&id).await?;
        platform.control.killed(transition, "request").await?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Sets how long a sandbox lives from now on; 0 ends it now.
#[utoipa::path(
    post,
    path = "/sandboxes/{id}/timeout",
    operation_id = "setSandboxTimeout",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = e2b::Timeout,
    responses((status = 204, description = "The time is set"), NoSandbox, Conflict),
)]
pub(crate) async fn timeout(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Body(request): Body<e2b::Timeout>,
) -> Result<StatusCode> {
    let (id, timeout) = (sandbox_id(&id)?, seconds(Some(request.timeout), 0)?);
    platform.control.sandboxes().set_timeout(&team, &id, timeout).await.map_err(|error| found(error, &id))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes a sandbox live longer; the keep-alive of old SDKs.
#[utoipa::path(
    post,
    path = "/sandboxes/{id}/refreshes",
    operation_id = "refreshSandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = Option<e2b::Refresh>,
    responses((status = 204, description = "It lives at least as long as asked for"), NoSandbox, Conflict),
)]
pub(crate) async fn refresh(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Optional(request): Optional<e2b::Refresh>,
) -> Result<StatusCode> {
    let (id, timeout) = (sandbox_id(&id)?, seconds(request.duration, SANDBOX_TIMEOUT_S_DEFAULT_V1)?);
    platform.control.sandboxes().extend(&team, &id, timeout).await.map_err(|error| found(error, &id))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Pauses a sandbox.
///
/// If the server cannot pause it, it keeps running, and the answer is 503 with the header `Should-Retry: false`.
#[utoipa::path(
    post,
    path = "/sandboxes/{id}/pause",
    operation_id = "pauseSandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = Option<e2b::Pause>,
    responses((status = 204, description = "It is paused"), NoSandbox, Conflict),
)]
pub(crate) async fn pause(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Optional(request): Optional<e2b::Pause>,
) -> Result<StatusCode> {
    let id = sandbox_id(&id)?;
    let mode = if request.memory == Some(false) { PauseMode::Filesystem } else { PauseMode::Full };
    finish(async move {
        let transition = platform.control.begin_pause(&team, &id).await.map_err(|error| found(error, &id))?;
        match platform.pause(&id, mode).await {
            Ok(()) => platform.control.paused(transition, mode, false).await?,
            Err(error) => {
                platform.control.cancel(transition).await?;
                return Err(error.not_paused());
            }
        }
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

impl Platform {
    /// Removes a sandbox from the node, paused or not. Succeeds if there is none.
    pub(crate) async fn remove(self: &Arc<Self>, id: &SandboxId) -> Result<()> {
        self.watchers.forget(id.as_str());
        match self.node.remove(id).await {
            Err(error) if error.failure().kind != FailureKind::NotFound => Err(error.into()),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Pauses a sandbox on the node.
    pub(crate) async fn pause(self: &Arc<Self>, id: &SandboxId, mode: PauseMode) -> Result<()> {
        let keep = match mode {
            PauseMode::Full => Keep::Memory,
            PauseMode::Filesystem => Keep::Files,
        };
        match self.node.pause(id, keep, &KeepProgress::unheard()).await {
            // It is paused already: a command of the node was faster.
            Ok(_) | Err(node::Error::NotRunning { state: SandboxState::Paused, .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.watchers.forget(id.as_str());
        Ok(())
    }
}
