//! Forks of a sandbox that runs, and snapshots of it.

use std::{sync::Arc, time::Duration};

use api::e2b;
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use base::{
    id::{SandboxId, TeamId, TemplateName},
    limits::SANDBOX_TIMEOUT_S_DEFAULT_V1,
};
use control::{
    Lifetime, NewSandbox, NewSnapshot, Reservation, Reserved, Sandbox, SnapshotFilter, State as Life, TemplateRef,
};
use model::{CheckpointOptions, ForkSpec, Keep};
use node::KeepProgress;
use serde::Deserialize;

use super::{Optional, Query, Shared, finish, found, timeout, with_next};
use crate::e2b::{
    auth::Team,
    failed::{Failed, Result},
    platform::{Platform, sandbox_id},
    templates::PageQuery,
};

/// Most copies of one request.
const FORKS_MAX: u32 = 100;

pub(crate) async fn fork(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Optional(request): Optional<e2b::Fork>,
) -> Result<(StatusCode, Json<Vec<e2b::ForkResult>>)> {
    let id = sandbox_id(&id)?;
    let lives = timeout(request.timeout, SANDBOX_TIMEOUT_S_DEFAULT_V1)?;
    let count = request.count.unwrap_or(1);
    if !(1..=FORKS_MAX).contains(&count) {
        return Err(Failed::invalid(format!("count must be 1 to {FORKS_MAX}")));
    }
    finish(async move {
        // A paused one can be forked, too: it stays paused.
        let source = platform.control.sandboxes().get(&team, &id).await.map_err(|error| found(error, &id))?;
        let results = platform.fork(&team, &source, count, lives).await?;
        Ok((StatusCode::CREATED, Json(results)))
    })
    .await
}

/// What a snapshot is asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Snapshots {
    #[serde(rename = "sandboxID")]
    sandbox_id: Option<String>,
    name: Option<String>,
    // Not a flattened `PageQuery`: a flattened number of a query would be a text.
    next_token: Option<String>,
    limit: Option<u32>,
}

pub(crate) async fn snapshot(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Optional(request): Optional<e2b::Snapshot>,
) -> Result<(StatusCode, Json<e2b::SnapshotInfo>)> {
    let id = sandbox_id(&id)?;
    let name = request.name.as_deref().map(str::parse::<TemplateRef>).transpose()?;
    let keep = if request.memory == Some(false) { Keep::Files } else { Keep::Memory };
    finish(async move {
        let source = platform.running(&team, &id).await?;
        let mut bytes = [0; 8];
        base::id::fill_random(&mut bytes);
        let kept: TemplateName = format!("snapshot-{}", base::id::hex(&bytes))
            .parse()
            .map_err(|_| Failed::invalid("the snapshot has no name"))?;
        let spec = CheckpointOptions { name: Some(kept.clone()), replace: false, keep };
        platform.node.checkpoint(&id, &spec, &KeepProgress::unheard()).await?;
        let new = NewSnapshot { origin: &id, name: name.as_ref(), size: source.spec.size, source: kept.as_str() };
        let noted = platform.control.templates().add_snapshot(&team, &new).await;
        if noted.is_err()
            && let Err(error) = platform.node.remove_checkpoint(&kept).await
        {
            tracing::warn!(checkpoint = %kept, error = node::chain(&error), "a snapshot that no team has stays");
        }
        let (resolved, dropped) = noted?;
        platform.remove_sources(dropped).await;
        let tag = name.as_ref().map_or("default", TemplateRef::tag).to_owned();
        let info = e2b::SnapshotInfo {
            snapshot_id: resolved.template.snapshot_id(&tag),
            names: resolved.template.full_names(&tag),
        };
        Ok((StatusCode::CREATED, Json(info)))
    })
    .await
}

pub(crate) async fn snapshots(
    State(platform): Shared,
    Team(team): Team,
    Query(query): Query<Snapshots>,
) -> Result<(axum::http::HeaderMap, Json<Vec<e2b::SnapshotInfo>>)> {
    let filter = SnapshotFilter {
        origin: query.sandbox_id.as_deref().map(sandbox_id).transpose()?,
        name: query.name.as_deref().map(str::parse).transpose()?,
    };
    let (found, next) = platform
        .control
        .templates()
        .snapshots(&team, &filter, &PageQuery { next_token: query.next_token, limit: query.limit }.page()?)
        .await?;
    let info = |template: control::Template| e2b::SnapshotInfo {
        snapshot_id: template.snapshot_id("default"),
        names: template.full_names("default"),
    };
    Ok((with_next(next), Json(found.into_iter().map(info).collect())))
}

impl Platform {
    /// A sandbox of the team that runs.
    async fn running(&self, team: &TeamId, id: &SandboxId) -> Result<Sandbox> {
        let sandbox = self.control.sandboxes().get(team, id).await.map_err(|error| found(error, id))?;
        self.control.check_here(&sandbox)?;
        match sandbox.state {
            Life::Running => Ok(sandbox),
            Life::Paused(_) => {
                Err(Failed::new(StatusCode::CONFLICT, format!("sandbox {id} is paused: connect to it first")))
            }
        }
    }

    /// Forks copies. Each has a result of its own; a copy that cannot be noted is removed.
    async fn fork(
        self: &Arc<Self>,
        team: &TeamId,
        source: &Sandbox,
        count: u32,
        lives: Duration,
    ) -> Result<Vec<e2b::ForkResult>> {
        let lifetime = Lifetime { timeout: lives, ..source.spec.lifetime };
        let spec = NewSandbox { lifetime, ..source.spec.clone() };
        self.control.check_here(source)?;
        let mut room: Vec<Reservation> = Vec::new();
        let mut results = Vec::new();
        for _ in 0..count {
            let reserved = match room.first() {
                Some(first) => self.control.sandboxes().reserve_beside(first).await,
                None => self.control.sandboxes().reserve(team, &spec, None, Duration::ZERO).await,
            };
            match reserved {
                Ok(Reserved::New(reservation)) => room.push(reservation),
                Ok(Reserved::Existing(_)) => {}
                Err(error) => results.push(failed(&error.into())),
            }
        }
        let Some(first) = room.first() else { return Ok(results) };
        let reservation = Some(first.batch().to_owned());
        let forked = ForkSpec { count: room.len() as u32, keep: Keep::Memory, reservation };
        let forked = match self.node.fork(&source.id, &forked).await {
            Ok(forked) => forked,
            Err(error) => {
                for reservation in &room {
                    self.control.sandboxes().abandon(reservation).await?;
                }
                return Err(error.into());
            }
        };
        let mut failures = forked.failures.into_iter();
        let mut copies = forked.sandboxes.into_iter();
        for mut reservation in room {
            results.push(match copies.next() {
                Some(copy) => self.note_copy(&mut reservation, &copy).await,
                None => {
                    self.control.sandboxes().abandon(&reservation).await?;
                    let unknown = || Failed::new(StatusCode::INTERNAL_SERVER_ERROR, "the copy did not start");
                    failed(&failures.next().map_or_else(unknown, Failed::from))
                }
            });
        }
        Ok(results)
    }

    async fn note_copy(self: &Arc<Self>, reservation: &mut Reservation, copy: &model::Sandbox) -> e2b::ForkResult {
        let noted = async {
            self.note_mounts(reservation, copy).await?;
            Result::Ok(self.control.sandboxes().confirm(reservation, &copy.id).await?)
        };
        match noted.await {
            Ok(known) => e2b::ForkResult { sandbox: Some(self.answer(&known)), error: None },
            Err(error) => {
                let team = reservation.team().clone();
                self.take_back(&team, copy).await;
                if let Err(error) = self.control.sandboxes().abandon(reservation).await {
                    tracing::warn!(%team, error = node::chain(&error), "room that no sandbox has stays reserved");
                }
                failed(&error)
            }
        }
    }
}

fn failed(failed: &Failed) -> e2b::ForkResult {
    e2b::ForkResult { sandbox: None, error: Some(failed.body()) }
}
