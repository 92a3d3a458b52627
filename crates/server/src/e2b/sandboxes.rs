//! Sandboxes: creating, connecting, ending.

use std::sync::Arc;

use api::e2b;
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use base::id::{SandboxId, TemplateName};
use model::{Interpreter, RunSpec};

use super::{
    errors::{Failed, Result},
    platform::{Known, Platform},
};

type Shared = State<Arc<Platform>>;

/// E2B's clients expect one; there is no meaning in it any more.
const CLIENT_ID: &str = "pando";

pub(crate) async fn create_v1(
    platform: Shared,
    Json(request): Json<e2b::NewSandbox>,
) -> Result<(StatusCode, Json<e2b::Sandbox>)> {
    create(platform, request.v2).await
}

pub(crate) async fn create_v2(
    platform: Shared,
    Json(request): Json<e2b::NewSandboxV2>,
) -> Result<(StatusCode, Json<e2b::Sandbox>)> {
    create(platform, request).await
}

async fn create(State(platform): Shared, request: e2b::NewSandboxV2) -> Result<(StatusCode, Json<e2b::Sandbox>)> {
    let template: TemplateName = request.template_id.parse().map_err(|_| not_found(&request.template_id))?;
    let run = RunSpec { count: 1, interpreter: Interpreter::InProcess, volumes: Vec::new() };
    let started = platform.node.run(&template, &run).await?;
    let Some(sandbox) = started.sandboxes.into_iter().next() else {
        let why = started.failures.into_iter().next().map_or_else(String::new, |failure| failure.message);
        return Err(Failed::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the sandbox did not start: {why}")));
    };
    let env = request.env_vars.unwrap_or_default().into_iter().collect();
    let known = Known { template: request.template_id, env };
    let answer = e2b::Sandbox {
        template_id: known.template.clone(),
        sandbox_id: sandbox.id.to_string(),
        client_id: CLIENT_ID.to_owned(),
        alias: None,
        envd_version: envd::VERSION.to_owned(),
        envd_access_token: None,
        traffic_access_token: None,
        domain: None,
    };
    platform.known().insert(sandbox.id, Arc::new(known));
    Ok((StatusCode::CREATED, Json(answer)))
}

pub(crate) async fn get(State(_): Shared, Path(id): Path<String>) -> Result<Json<e2b::SandboxDetail>> {
    Err(not_found(&id))
}

pub(crate) async fn kill(State(platform): Shared, Path(id): Path<String>) -> Result<StatusCode> {
    let missing = || Failed::new(StatusCode::NOT_FOUND, format!("sandbox {id} not found"));
    let sandbox: SandboxId = id.parse().map_err(|_| missing())?;
    platform.known().remove(&sandbox);
    platform.node.remove(&sandbox).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn not_found(template: &str) -> Failed {
    Failed::new(StatusCode::NOT_FOUND, format!("template '{template}' not found"))
}
