//! Requests that the SDKs lack: snapshots of volumes, forks, restores, lists of changes.

use api::e2b;
use axum::{Json, extract::State, http::StatusCode, response::Response};
use base::{
    id::{SnapshotName, VolumeName},
    limits::{RETRY_AFTER, VOLUME_SNAPSHOTS_MAX},
};
use control::{Time, Volume};
use serde::Deserialize;
use utoipa::IntoParams;
use volumed::Origin;

use super::{content::kind, lines, refused, told};
use crate::e2b::{
    auth::Team,
    failed::{Failed, Result},
    openapi::{NoVolume, OverQuota, Stored},
    platform::Platform,
    sandboxes::{Body, Optional, Path, Query, Shared, finish},
};

/// Lists the snapshots of a volume.
#[utoipa::path(
    get,
    path = "/volumes/{id}/snapshots",
    operation_id = "listVolumeSnapshots",
    tag = "volumes",
    params(("id" = String, Path, description = "The volume")),
    responses((status = 200, description = "The snapshots", body = Vec<e2b::VolumeSnapshot>), NoVolume),
)]
pub(super) async fn snapshots(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
) -> Result<Json<Vec<e2b::VolumeSnapshot>>> {
    let volume = platform.volume(&team, &id).await?;
    let found = platform.node.volumes().snapshots(&volume.node_volume).await;
    let found = found.map_err(refused(&volume, "list the snapshots"))?;
    Ok(Json(found.into_iter().map(told_snapshot).collect()))
}

/// Keeps the present state of a volume as a snapshot.
#[utoipa::path(
    post,
    path = "/volumes/{id}/snapshots",
    operation_id = "createVolumeSnapshot",
    tag = "volumes",
    params(("id" = String, Path, description = "The volume")),
    request_body = Option<e2b::NewVolumeSnapshot>,
    responses((status = 201, description = "The snapshot", body = e2b::VolumeSnapshot), NoVolume, Stored, OverQuota),
)]
pub(super) async fn snapshot(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Optional(request): Optional<e2b::NewVolumeSnapshot>,
) -> Result<(StatusCode, Json<e2b::VolumeSnapshot>)> {
    let volume = platform.volume(&team, &id).await?;
    let name = request.name.as_deref().map(snapshot_name).transpose()?;
    finish(async move {
        platform.check_snapshots(&volume).await?;
        // The snapshot includes pages that programs have written through mappings.
        platform.node.write_back(&volume.node_volume).await.map_err(|error| told(&volume, error))?;
        let taken = platform.node.volumes().take_snapshot(&volume.node_volume, name, request.note).await;
        let taken = taken.map_err(refused(&volume, "take a snapshot"))?;
        Ok((StatusCode::CREATED, Json(told_snapshot(taken))))
    })
    .await
}

/// Deletes a snapshot of a volume.
#[utoipa::path(
    delete,
    path = "/volumes/{id}/snapshots/{name}",
    operation_id = "deleteVolumeSnapshot",
    tag = "volumes",
    params(("id" = String, Path, description = "The volume"), ("name" = String, Path, description = "The snapshot")),
    responses((status = 204, description = "It is gone"), NoVolume, Stored),
)]
pub(super) async fn remove_snapshot(
    State(platform): Shared,
    Team(team): Team,
    Path((id, name)): Path<(String, String)>,
) -> Result<StatusCode> {
    let volume = platform.volume(&team, &id).await?;
    let name = snapshot_name(&name)?;
    finish(async move {
        let removed = platform.node.volumes().remove_snapshot(&volume.node_volume, &name).await;
        removed.map_err(refused(&volume, "remove the snapshot"))?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Makes a volume with the content of this one, or of one of its snapshots.
#[utoipa::path(
    post,
    path = "/volumes/{id}/fork",
    operation_id = "forkVolume",
    tag = "volumes",
    params(("id" = String, Path, description = "The volume")),
    request_body = e2b::NewVolumeFork,
    responses((status = 201, description = "The new volume", body = e2b::VolumeAndToken), NoVolume, Stored, OverQuota),
)]
pub(super) async fn fork(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Body(request): Body<e2b::NewVolumeFork>,
) -> Result<(StatusCode, Json<e2b::VolumeAndToken>)> {
    let volume = platform.volume(&team, &id).await?;
    let snapshot = request.snapshot.as_deref().map(snapshot_name).transpose()?;
    finish(async move {
        if snapshot.is_none() {
            platform.node.write_back(&volume.node_volume).await.map_err(|error| told(&volume, error))?;
        }
        let of: VolumeName = volume.node_volume.clone();
        let made = platform.make_volume(&team, &request.name, async |platform, name| match snapshot {
            Some(snapshot) => platform.node.volumes().fork(&of, Origin::Snapshot(snapshot), name).await.map(drop),
            None => platform.node.volumes().fork_present(&of, name).await,
        });
        let made = made.await.map_err(|failed| failed.renamed(volume.node_volume.as_str(), &volume.name))?;
        Ok((StatusCode::CREATED, Json(platform.volume_and_token(&made))))
    })
    .await
}

/// Gives the volume the content of a snapshot. The content until then gets a snapshot of its own.
#[utoipa::path(
    post,
    path = "/volumes/{id}/restore",
    operation_id = "restoreVolume",
    tag = "volumes",
    params(("id" = String, Path, description = "The volume")),
    request_body = e2b::VolumeRestore,
    responses((status = 200, description = "The name of the snapshot of the content until then", body = e2b::VolumeRestored), NoVolume, Stored, OverQuota),
)]
pub(super) async fn restore(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Body(request): Body<e2b::VolumeRestore>,
) -> Result<Json<e2b::VolumeRestored>> {
    let volume = platform.volume(&team, &id).await?;
    let snapshot = snapshot_name(&request.snapshot)?;
    finish(async move {
        platform.check_snapshots(&volume).await?;
        platform.node.write_back(&volume.node_volume).await.map_err(|error| told(&volume, error))?;
        let restored = platform.node.volumes().restore(&volume.node_volume, snapshot).await;
        let before = restored.map_err(refused(&volume, "restore the volume"))?;
        Ok(Json(e2b::VolumeRestored { before: before.to_string() }))
    })
    .await
}

impl Platform {
    /// Fails if the volume has as many snapshots as it may have.
    async fn check_snapshots(&self, volume: &Volume) -> Result<()> {
        let found = self.node.volumes().snapshots(&volume.node_volume).await;
        let count = found.map_err(refused(volume, "count the snapshots"))?.len();
        if count < VOLUME_SNAPSHOTS_MAX {
            return Ok(());
        }
        let message = format!("volume '{}' has {count} snapshots, which is the most: remove one", volume.name);
        Err(Failed::new(StatusCode::TOO_MANY_REQUESTS, message).after(RETRY_AFTER))
    }
}

/// Two states of a volume; none is the present one.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct States {
    /// The snapshot before; the present state if none is given.
    from: Option<String>,
    /// The snapshot after; the present state if none is given.
    to: Option<String>,
}

/// Lists what differs between two states of a volume.
#[utoipa::path(
    get,
    path = "/volumes/{id}/changes",
    operation_id = "listVolumeChanges",
    tag = "volumes",
    params(("id" = String, Path, description = "The volume"), States),
    responses((status = 200, description = "The changes", body = Vec<e2b::VolumePathChange>), NoVolume, Stored),
)]
pub(super) async fn changes(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Query(states): Query<States>,
) -> Result<Response> {
    let volume: Volume = platform.volume(&team, &id).await?;
    let [from, to] = [states.from, states.to].map(|name| name.as_deref().map(snapshot_name).transpose());
    let (from, to) = (from?, to?);
    if from.is_none() && to.is_none() {
        return Err(Failed::invalid("the query names no snapshot: give from, to or both"));
    }
    platform.node.write_back(&volume.node_volume).await.map_err(|error| told(&volume, error))?;
    let found = platform.node.volumes().diff(&volume.node_volume, from.as_ref(), to.as_ref()).await;
    let found = found.map_err(refused(&volume, "compare two states"))?;
    Ok(lines::as_list(found, change))
}

fn change(found: api::VolumeChange) -> e2b::VolumePathChange {
    let word = match found.change {
        api::Change::Added => "added",
        api::Change::Removed => "removed",
        api::Change::Renamed => "renamed",
        api::Change::Modified => "modified",
        api::Change::Metadata => "metadata",
    };
    let path = |path: String| format!("/{}", volumed::readable(&path));
    e2b::VolumePathChange {
        path: path(found.path),
        change: word.to_owned(),
        kind: kind(found.kind),
        from: found.from.map(path),
    }
}

fn told_snapshot(found: api::volume::Snapshot) -> e2b::VolumeSnapshot {
    let api::volume::Snapshot { snapshot, created_ms, note } = found;
    e2b::VolumeSnapshot { name: snapshot.to_string(), created_at: Time::from_ms(created_ms).to_string(), note }
}

pub(super) fn snapshot_name(text: &str) -> Result<SnapshotName> {
    text.parse().map_err(|error| Failed::invalid(format!("the snapshot's name is not valid: {error}")))
}
