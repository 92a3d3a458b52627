//! Forks of a sandbox that runs, and snapshots of it.

use std::{sync::Arc, time::Duration};

use api::e2b;
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use base::{
    id::{SandboxId, TeamId},
    limits::SANDBOX_TIMEOUT_S_DEFAULT_V1,
};
use control::{
    Lifetime, NewSandbox, NewSnapshot, Reservation, Reserved, Sandbox, SnapshotFilter, State as Life, TemplateRef,
};
use model::{CheckpointOptions, ForkSpec, Keep};
use node::KeepProgress;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Optional, Path, Query, Shared, finish, found, keep, timeout, with_next};
use crate::e2b::{
    auth::Team,
    failed::{Failed, Result},
    openapi::{NoSandbox, Started},
    platform::{Platform, sandbox_id},
    templates::{page, snapshots},
};

/// Most copies of one request.
const FORKS_MAX: u32 = 100;

/// Forks a sandbox: starts copies of it as it is now.
///
/// A paused sandbox can be forked, too, and stays paused. Each copy has a result of its own.
#[utoipa::path(
    post,
    path = "/sandboxes/{id}/fork",
    operation_id = "forkSandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = Option<e2b::Fork>,
    responses((status = 201, description = "What became of each copy", body = Vec<e2b::ForkResult>), NoSandbox, Started),
)]
pub(crate) async fn fork(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Optional(request): Optional<e2b::Fork>,
) -> Result<(StatusCode, Json<Vec<e2b::ForkResult>>)> {
    let id = sandbox_id(&id)?;
    let lives = timeout(request.timeout, SANDBOX_TIMEOUT_S_DEFAULT_V1)?;
    let keep = keep(request.memory);
    let count = request.count.unwrap_or(1);
    if !(1..=FORKS_MAX).contains(&count) {
        return Err(Failed::invalid(format!("count must be 1 to {FORKS_MAX}")));
    }
    finish(async move {
        // A paused one can be forked, too: it stays paused.
        let source = platform.control.sandboxes().get(&team, &id).await.map_err(|error| found(error, &id))?;
        let results = platform.fork(&team, &source, count, lives, keep).await?;
        Ok((StatusCode::CREATED, Json(results)))
    })
    .await
}

/// Which snapshots are listed.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Snapshots {
    /// Only snapshots of this sandbox.
    #[serde(rename = "sandboxID")]
    sandbox_id: Option<String>,
    /// Only snapshots with this name.
    name: Option<String>,
    /// The `x-next-token` of the page before.
    next_token: Option<String>,
    /// Most snapshots of one page.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u32>,
}

/// Makes a snapshot of a running sandbox, which goes on.
///
/// Sandboxes are created from a snapshot like from a template.
#[utoipa::path(
    post,
    path = "/sandboxes/{id}/snapshots",
    operation_id = "createSnapshot",
    tag = "snapshots",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = Option<e2b::Snapshot>,
    responses((status = 201, description = "The snapshot", body = e2b::SnapshotInfo), NoSandbox, Started),
)]
pub(crate) async fn snapshot(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Optional(request): Optional<e2b::Snapshot>,
) -> Result<(StatusCode, Json<e2b::SnapshotInfo>)> {
    let id = sandbox_id(&id)?;
    let name = request.name.as_deref().map(str::parse::<TemplateRef>).transpose()?;
    let keep = keep(request.memory);
    finish(async move {
        let size = platform.running(&team, &id).await?.spec.size;
        let kept = snapshots::new_name()?;
        let spec = CheckpointOptions { name: Some(kept.clone()), replace: false, keep };
        platform.note_snapshot(&kept)?;
        let taken = platform.node.checkpoint(&id, &spec, &KeepProgress::unheard()).await;
        let noted = match taken {
            Ok(_) => {
                let source = kept.as_str();
                let new = NewSnapshot { origin: &id, name: name.as_ref(), size, source };
                platform.control.templates().add_snapshot(&team, &new).await.map_err(Failed::from)
            }
            Err(error) => Err(error.into()),
        };
        let (resolved, dropped) = match noted {
            Ok(noted) => noted,
            Err(failed) => {
                platform.remove_rowless(&[kept]).await;
                return Err(failed);
            }
        };
        platform.snapshot_has_row(&kept);
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

/// Lists the snapshots of the team, the newest first.
#[utoipa::path(
    get,
    path = "/snapshots",
    operation_id = "listSnapshots",
    tag = "snapshots",
    params(Snapshots),
    responses((status = 200, description = "One page", body = Vec<e2b::SnapshotInfo>, headers(("x-next-token" = String, description = "Where the next page begins; absent on the last page")))),
)]
pub(crate) async fn snapshots(
    State(platform): Shared,
    Team(team): Team,
    Query(query): Query<Snapshots>,
) -> Result<(HeaderMap, Json<Vec<e2b::SnapshotInfo>>)> {
    let page = page(query.next_token.as_deref(), query.limit)?;
    let Some(filter) = query.filter()? else { return Ok((HeaderMap::new(), Json(Vec::new()))) };
    let (found, next) = platform.control.templates().snapshots(&team, &filter, &page).await?;
    let info = |template: control::Template| e2b::SnapshotInfo {
        snapshot_id: template.snapshot_id("default"),
        names: template.full_names("default"),
    };
    Ok((with_next(next), Json(found.into_iter().map(info).collect())))
}

impl Snapshots {
    /// None if no snapshot can match: what is not the id of a sandbox has no snapshots.
    fn filter(&self) -> Result<Option<SnapshotFilter>> {
        let given = |text: &'_ Option<String>| text.clone().filter(|text| !text.is_empty());
        let origin = match given(&self.sandbox_id).map(|id| id.parse()) {
            Some(Err(_)) => return Ok(None),
            Some(Ok(id)) => Some(id),
            None => None,
        };
        Ok(Some(SnapshotFilter { origin, name: given(&self.name).map(|name| name.parse()).transpose()? }))
    }
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
        keep: Keep,
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
        let forked = ForkSpec { count: room.len() as u32, keep, reservation };
        let forked = match self.node.fork(&source.id, &forked).await {
            Ok(forked) => forked,
            Err(error) => {
                for reservation in &room {
                    self.give_back(reservation).await;
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
                    self.give_back(&reservation).await;
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
            Result::Ok(self.control.sandboxes().confirm_copy(reservation, &copy.id, copy.parent.as_ref()).await?)
        };
        match noted.await {
            Ok(known) => e2b::ForkResult { sandbox: Some(self.answer(&known)), error: None },
            Err(error) => {
                let team = reservation.team().clone();
                self.take_back(&team, copy).await;
                self.give_back(reservation).await;
                failed(&error)
            }
        }
    }

    /// Gives up a reservation. Its time ends it if the database does not answer: the other copies count more.
    async fn give_back(&self, reservation: &Reservation) {
        if let Err(error) = self.control.sandboxes().abandon(reservation).await {
            let team = reservation.team();
            tracing::warn!(%team, error = node::chain(&error), "room that no sandbox has stays reserved");
        }
    }
}

fn failed(failed: &Failed) -> e2b::ForkResult {
    e2b::ForkResult { sandbox: None, error: Some(failed.body()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Snapshots {
        serde_urlencoded::from_str(query).unwrap()
    }

    #[test]
    fn a_list_of_snapshots_takes_numbers_and_empty_values() {
        let query = read("sandboxID=&name=&nextToken=&limit=7");
        assert_eq!(query.limit, Some(7));
        let filter = query.filter().unwrap().unwrap();
        assert!(filter.origin.is_none() && filter.name.is_none());
    }

    #[test]
    fn what_is_no_id_has_no_snapshots() {
        assert!(read("sandboxID=..%2Fx").filter().unwrap().is_none());
        assert!(read("sandboxID=s0123456789ab").filter().unwrap().unwrap().origin.is_some());
        assert!(read("name=a%20b").filter().is_err());
    }
}
