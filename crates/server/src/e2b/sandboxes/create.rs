//! Creating a sandbox.

use std::{sync::Arc, time::Duration};

use api::e2b;
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use base::{
    id::TemplateName,
    limits::{SANDBOX_TIMEOUT_S_DEFAULT, SANDBOX_TIMEOUT_S_DEFAULT_V1},
};
use control::{
    IdempotencyKey, Lifetime, NewSandbox, OnTimeout, PauseMode, Reservation, Reserved, Resolved, Sandbox, VolumeMount,
};
use model::{Interpreter, Mount, MountPoints, NetworkPolicy, RunSpec};
use utoipa::IntoParams;

use super::{Body, Shared, finish, network, timeout};
use crate::e2b::{
    auth::Team,
    failed::{Failed, Result},
    openapi::{NoTemplate, Started},
    platform::Platform,
};

/// The header that makes a repeated request find the first one's sandbox.
const KEY_HEADER: &str = "idempotency-key";
/// How long a request waits for another one with the same key.
const KEY_WAIT: Duration = Duration::from_secs(30);

/// The header of idempotency keys. Only its description uses the type.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "the header is read as it comes")]
struct KeyHeader {
    /// A repeated request with the same key gets the sandbox of the first one.
    #[param(rename = "Idempotency-Key", min_length = 1, max_length = 255, pattern = "^[a-z0-9-]+$")]
    key: Option<String>,
}

type Created = (StatusCode, Json<e2b::Sandbox>);

/// Creates a sandbox; SDKs up to 2.50 use this route.
#[utoipa::path(
    post,
    path = "/sandboxes",
    operation_id = "createSandboxV1",
    tag = "sandboxes",
    params(KeyHeader),
    request_body = e2b::NewSandbox,
    responses((status = 201, description = "The sandbox runs", body = e2b::Sandbox), NoTemplate, Started),
)]
pub(crate) async fn v1(
    platform: Shared,
    team: Team,
    headers: HeaderMap,
    Body(request): Body<e2b::NewSandbox>,
) -> Result<Created> {
    create(platform, team, &headers, request.v2, SANDBOX_TIMEOUT_S_DEFAULT_V1).await
}

/// Creates a sandbox.
#[utoipa::path(
    post,
    path = "/v2/sandboxes",
    operation_id = "createSandbox",
    tag = "sandboxes",
    params(KeyHeader),
    request_body = e2b::NewSandboxV2,
    responses((status = 201, description = "The sandbox runs", body = e2b::Sandbox), NoTemplate, Started),
)]
pub(crate) async fn v2(
    platform: Shared,
    team: Team,
    headers: HeaderMap,
    Body(request): Body<e2b::NewSandboxV2>,
) -> Result<Created> {
    create(platform, team, &headers, request, SANDBOX_TIMEOUT_S_DEFAULT).await
}

async fn create(
    State(platform): Shared,
    Team(team): Team,
    headers: &HeaderMap,
    request: e2b::NewSandboxV2,
    default_s: u64,
) -> Result<Created> {
    let key =
        headers.get(KEY_HEADER).map(|value| value.to_str().unwrap_or("?").parse::<IdempotencyKey>()).transpose()?;
    let (resolved, source) = platform.resolve(&team, &request.template_id).await?;
    let allow_internet = request.allow_internet_access.unwrap_or(true);
    let mut network = request.network.as_ref().map(network::Lists::of).unwrap_or_default().policy(allow_internet)?;
    network::fill_in(&platform, &team, &mut network).await?;
    let spec = spec(request, &resolved, default_s)?;
    let mounts = platform.mounts(&team, &spec.volume_mounts).await?;
    finish(async move {
        let sandbox = match platform.control.sandboxes().reserve(&team, &spec, key.as_ref(), KEY_WAIT).await? {
            Reserved::Existing(sandbox) => sandbox,
            Reserved::New(reservation) => start(&platform, reservation, &source, (mounts, network)).await?,
        };
        Ok((StatusCode::CREATED, Json(platform.answer(&sandbox))))
    })
    .await
}

/// Starts what was reserved. A failure leaves neither a sandbox nor a reservation.
async fn start(
    platform: &Arc<Platform>,
    mut reservation: Reservation,
    source: &TemplateName,
    (volumes, network): (Vec<Mount>, NetworkPolicy),
) -> Result<Sandbox> {
    let run = RunSpec {
        count: 1,
        interpreter: Interpreter::InProcess,
        volumes,
        mount_points: MountPoints::Anywhere,
        reservation: Some(reservation.batch().to_owned()),
        network,
    };
    let started = match platform.node.run(source, &run).await {
        Ok(started) => started,
        Err(error) => {
            platform.control.sandboxes().abandon(&reservation).await?;
            return Err(error.into());
        }
    };
    let Some(sandbox) = started.sandboxes.into_iter().next() else {
        platform.control.sandboxes().abandon(&reservation).await?;
        let failure = started.failures.into_iter().next();
        let unknown = || Failed::new(StatusCode::INTERNAL_SERVER_ERROR, "the sandbox did not start");
        return Err(failure.map_or_else(unknown, Failed::from));
    };
    let team = reservation.team().clone();
    let noted = async {
        platform.note_mounts(&mut reservation, &sandbox).await?;
        Ok(platform.control.sandboxes().confirm(&reservation, &sandbox.id).await?)
    };
    let noted: Result<Sandbox> = noted.await;
    if noted.is_err() {
        tracing::warn!(sandbox = %sandbox.id, %team, "a sandbox could not be noted: it is removed");
        platform.take_back(&team, &sandbox).await;
        platform.control.sandboxes().abandon(&reservation).await?;
    }
    noted
}

/// What is asked for, with the server's defaults.
fn spec(request: e2b::NewSandboxV2, resolved: &Resolved, default_s: u64) -> Result<NewSandbox> {
    let unsupported = |what: &str| Err(Failed::invalid(format!("{what} is not supported by this server yet")));
    if request.mcp.is_some_and(|mcp| !mcp.is_null()) {
        return unsupported("mcp");
    }
    if request.iam.is_some_and(|iam| iam.tokens.is_some_and(|tokens| !tokens.is_empty())) {
        return unsupported("iam");
    }
    if request.network.as_ref().is_some_and(|network| network.egress_proxy.is_some()) {
        return unsupported("an egress proxy");
    }
    let mode = if request.auto_pause_memory == Some(false) { PauseMode::Filesystem } else { PauseMode::Full };
    let lifetime = Lifetime {
        timeout: timeout(request.timeout, default_s)?,
        on_timeout: if request.auto_pause == Some(true) { OnTimeout::Pause(mode) } else { OnTimeout::Kill },
        auto_resume: request.auto_resume.is_some_and(|auto| auto.enabled),
    };
    let shown = |network: e2b::Network| e2b::Network { rules: network.rules.map(network::hidden), ..network };
    let network = request.network.map(shown).map(serde_json::to_value).transpose();
    let mounts = request.volume_mounts.unwrap_or_default().into_iter();
    Ok(NewSandbox {
        template: resolved.template.id.clone(),
        build: resolved.build.id.clone(),
        alias: resolved.template.names.first().cloned(),
        metadata: request.metadata.unwrap_or_default(),
        env_vars: request.env_vars.unwrap_or_default(),
        network: network.map_err(|error| Failed::invalid(error.to_string()))?,
        volume_mounts: mounts.map(|mount| VolumeMount { name: mount.name, path: mount.path }).collect(),
        allow_internet: request.allow_internet_access.unwrap_or(true),
        size: resolved.build.size,
        lifetime,
    })
}
