//! Volumes: what the SDKs' class `Volume` asks for, the content of volumes, and mounts in sandboxes.
//!
//! ```text
//! create: row ─► volume on the node        a failure removes the row; a server that dies in between sweeps it when it starts
//! delete: volume on the node ─► its snapshots ─► row          a volume that is in use is refused, and stays as it is
//! ```

mod content;
mod keep;
mod lines;
mod mounts;
mod sweep;

use std::sync::Arc;

use api::e2b;
use axum::{Json, extract::State, http::StatusCode};
use base::{
    id::{TeamId, VolumeId, VolumeName},
    limits::{VOLUME_MB_MAX, VOLUME_MB_MIN},
};
use control::{Sandbox, Volume};
use model::{FailureKind, VolumeSpec};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    auth::{Asking, Team},
    failed::{Failed, Result},
    openapi::{NoVolume, OverQuota, Stored},
    platform::Platform,
    sandboxes::{Body, Path, Shared, finish},
};

/// Every path about volumes, with its description.
pub(super) fn routes() -> OpenApiRouter<Arc<Platform>> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(one, remove))
        .routes(routes!(keep::snapshots, keep::snapshot))
        .routes(routes!(keep::remove_snapshot))
        .routes(routes!(keep::fork))
        .routes(routes!(keep::restore))
        .routes(routes!(keep::changes))
        .merge(content::routes())
}

/// Lists the volumes of the team.
#[utoipa::path(
    get,
    path = "/volumes",
    operation_id = "listVolumes",
    tag = "volumes",
    responses((status = 200, description = "The volumes", body = Vec<e2b::Volume>)),
)]
async fn list(State(platform): Shared, Team(team): Team) -> Result<Json<Vec<e2b::Volume>>> {
    let found = platform.control.volumes().list(&team).await?;
    let listed = |volume: Volume| e2b::Volume {
        volume_id: volume.id.to_string(),
        name: volume.name,
        created_at: Some(volume.created.to_string()),
    };
    Ok(Json(found.into_iter().map(listed).collect()))
}

/// Creates a volume.
#[utoipa::path(
    post,
    path = "/volumes",
    operation_id = "createVolume",
    tag = "volumes",
    request_body = e2b::NewVolume,
    responses((status = 201, description = "The volume, and the token for its content", body = e2b::VolumeAndToken), Stored, OverQuota),
)]
async fn create(
    State(platform): Shared,
    Team(team): Team,
    Body(request): Body<e2b::NewVolume>,
) -> Result<(StatusCode, Json<e2b::VolumeAndToken>)> {
    let bytes_max = request.size_mb.map(bytes).transpose()?;
    finish(async move {
        let made = platform.make_volume(&team, &request.name, async |platform, name| {
            let spec = VolumeSpec {
                name,
                bytes_max,
                inodes_max: None,
                durability: model::VolumeDurability::Local,
                uid: None,
                gid: None,
                mode: None,
            };
            platform.node.volumes().create(spec).await
        });
        Ok((StatusCode::CREATED, Json(platform.volume_and_token(&made.await?))))
    })
    .await
}

fn bytes(size_mb: u64) -> Result<u64> {
    match size_mb {
        VOLUME_MB_MIN..=VOLUME_MB_MAX => Ok(size_mb << 20),
        _ => Err(Failed::invalid(format!("sizeMB must be {VOLUME_MB_MIN} to {VOLUME_MB_MAX}"))),
    }
}

/// Describes a volume, with the token for its content.
///
/// The token lets its holder write, so a key that may only read is refused.
#[utoipa::path(
    get,
    path = "/volumes/{id}",
    operation_id = "getVolume",
    tag = "volumes",
    params(("id" = String, Path, description = "The volume")),
    responses((status = 200, description = "The volume", body = e2b::VolumeAndToken), (status = 403, description = "The API key may only read", body = e2b::Error), NoVolume),
)]
async fn one(
    State(platform): Shared,
    Asking(caller): Asking,
    Path(id): Path<String>,
) -> Result<Json<e2b::VolumeAndToken>> {
    let found = platform.volume(&caller.team, &id).await?;
    caller.may_write()?;
    Ok(Json(platform.volume_and_token(&found)))
}

/// Deletes a volume with its snapshots. A volume that a sandbox uses stays.
#[utoipa::path(
    delete,
    path = "/volumes/{id}",
    operation_id = "deleteVolume",
    tag = "volumes",
    params(("id" = String, Path, description = "The volume")),
    responses((status = 204, description = "It is gone"), NoVolume, Stored),
)]
async fn remove(State(platform): Shared, Team(team): Team, Path(id): Path<String>) -> Result<StatusCode> {
    let found = platform.volume(&team, &id).await?;
    finish(async move {
        platform.remove_volume(&found).await?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// An error about a volume, for its team: the node's name for it means nothing to a client.
fn told(volume: &Volume, error: node::Error) -> Failed {
    Failed::from(error).renamed(volume.node_volume.as_str(), &volume.name)
}

/// For `map_err`.
fn refused(volume: &Volume, action: &'static str) -> impl FnOnce(volumed::Error) -> Failed {
    move |error| told(volume, node::volumes_failed(action)(error))
}

fn is_absent(error: &volumed::Error) -> bool {
    matches!(error, volumed::Error::Refused(failure) if failure.kind == FailureKind::NotFound)
}

impl Platform {
    /// The volume of a team. A text that is no id is not found, either.
    async fn volume(&self, team: &TeamId, id: &str) -> Result<Volume> {
        let shown: String = id.chars().take(80).collect();
        let missing = || Failed::new(StatusCode::NOT_FOUND, format!("Volume \"{shown}\" was not found"));
        let id: VolumeId = id.parse().map_err(|_| missing())?;
        match self.control.volumes().get(team, &id).await {
            Err(control::ControlError::NotFound { .. }) => Err(missing()),
            found => Ok(found?),
        }
    }

    fn volume_and_token(&self, volume: &Volume) -> e2b::VolumeAndToken {
        e2b::VolumeAndToken {
            volume_id: volume.id.to_string(),
            name: volume.name.clone(),
            token: self.control.volumes().token(volume).as_str().to_owned(),
            domain: Some(self.domain.to_string()),
        }
    }

    /// Notes a volume. `make` then makes it on the node, under the name that it gets. A failure leaves nothing.
    async fn make_volume(
        self: &Arc<Self>,
        team: &TeamId,
        name: &str,
        make: impl AsyncFnOnce(&Arc<Self>, VolumeName) -> std::result::Result<(), volumed::Error>,
    ) -> Result<Volume> {
        let volume = self.control.volumes().create(team, name).await?;
        let Err(error) = make(self, volume.node_volume.clone()).await else { return Ok(volume) };
        let failed = refused(&volume, "make the volume")(error);
        // The volume may exist: perhaps only the answer was lost. If the removal fails, each start warns of it.
        match self.node.volumes().remove(&volume.node_volume).await {
            Err(error) if !is_absent(&error) => {
                tracing::warn!(volume = %volume.node_volume, error = node::chain(&error), "it may be left on the node");
            }
            Ok(()) | Err(_) => {}
        }
        self.control.volumes().delete(team, &volume.id).await?;
        Err(failed)
    }

    /// Removes a volume with its snapshots. One that is mounted, or that a paused sandbox needs, is refused.
    async fn remove_volume(self: &Arc<Self>, volume: &Volume) -> Result<()> {
        let (name, client) = (&volume.node_volume, self.node.volumes());
        if self.shares() {
            self.check_unused(volume).await?;
        }
        self.node.check_removable(name).map_err(|error| told(volume, error))?;
        match client.remove(name).await {
            Err(error) if !is_absent(&error) => return Err(refused(volume, "remove the volume")(error)),
            Ok(()) | Err(_) => {}
        }
        self.remove_snapshots(name).await.map_err(|error| told(volume, error))?;
        Ok(self.control.volumes().delete(&volume.team, &volume.id).await?)
    }

    /// Fails if a sandbox of any server has the volume. This node knows only its own.
    async fn check_unused(&self, volume: &Volume) -> Result<()> {
        let sandboxes = self.control.sandboxes().all().await?;
        let uses = |sandbox: &&Sandbox| {
            sandbox.team == volume.team && sandbox.spec.volume_mounts.iter().any(|mount| mount.name == volume.name)
        };
        match sandboxes.iter().find(uses) {
            None => Ok(()),
            Some(user) => {
                let message = format!("volume '{}' is used by sandbox {}", volume.name, user.id);
                Err(Failed::new(StatusCode::CONFLICT, message))
            }
        }
    }

    /// Removes the snapshots of a removed volume.
    async fn remove_snapshots(&self, name: &VolumeName) -> std::result::Result<(), node::Error> {
        let stored = self.node.volumes_named(name.as_str()).await?.remove(name).unwrap_or_default();
        for snapshot in &stored.snapshots {
            match self.node.volumes().remove_snapshot(name, snapshot).await {
                Err(error) if !is_absent(&error) => return Err(node::volumes_failed("remove a snapshot")(error)),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}
