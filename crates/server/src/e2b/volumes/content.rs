//! The content of volumes: files and directories, with the volume's token instead of a key.
//!
//! Paths are made plain before the volume sees them (`..` ends at the top), and the process of volumes follows links
//! within the volume only. Bodies pass through as they come.

use std::sync::Arc;

use api::{
    e2b,
    volume::{FileInfo, FileKind, TreeEntry},
};
use axum::{
    Json,
    body::Body,
    extract::{FromRequestParts, Path, State},
    http::{HeaderMap, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use base::{id::SnapshotName, limits::VOLUME_LIST_DEPTH_MAX};
use control::{Time, Volume};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};
use volumed::{Attributes, Existing, Place, readable};

use super::{keep::snapshot_name, lines, refused};
use crate::e2b::{
    failed::Failed,
    openapi::CONTENT,
    platform::Platform,
    sandboxes::{self, Shared},
};

/// Headers of a request for a file that the process of volumes heeds.
const ASKED: [header::HeaderName; 2] = [header::RANGE, header::IF_RANGE];
/// Headers of its answer that are the client's business.
const ANSWERED: [header::HeaderName; 5] =
    [header::CONTENT_TYPE, header::CONTENT_LENGTH, header::CONTENT_RANGE, header::ACCEPT_RANGES, header::ETAG];

pub(super) fn routes() -> OpenApiRouter<Arc<Platform>> {
    OpenApiRouter::new()
        .routes(routes!(stat, change, remove))
        .routes(routes!(list, make_directory))
        .routes(routes!(read, write))
}

/// An answer from 400 on. The content API has codes as text.
struct Wrong(Failed);

type Result<T> = std::result::Result<T, Wrong>;

impl<T: Into<Failed>> From<T> for Wrong {
    fn from(error: T) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Wrong {
    fn into_response(self) -> Response {
        let e2b::Error { code, message, .. } = self.0.body();
        let body = Json(e2b::VolumeError { code: code.to_string(), message }).into_response();
        let mut response = self.0.into_response();
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = body.into_body();
        response
    }
}

/// What a request has in its query.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
struct Parameters {
    /// From the volume's top directory. Every request needs it.
    path: Option<String>,
    /// For lists: how many levels; 1 if none is given.
    depth: Option<u32>,
    /// The owner of what is made.
    uid: Option<u32>,
    /// The group of what is made.
    gid: Option<u32>,
    /// The permissions of what is made.
    #[param(maximum = 4095)]
    mode: Option<u32>,
    /// Replace what is there, and make directories above it.
    force: Option<bool>,
    /// Read this snapshot of the volume.
    snapshot: Option<String>,
}

/// A path of a volume, in a request that has the volume's token.
struct Asked {
    volume: Volume,
    path: String,
    snapshot: Option<SnapshotName>,
    parameters: Parameters,
}

impl FromRequestParts<Arc<Platform>> for Asked {
    type Rejection = Wrong;

    async fn from_request_parts(parts: &mut Parts, platform: &Arc<Platform>) -> Result<Self> {
        let wrong = || Failed::new(StatusCode::UNAUTHORIZED, "the access token of the volume is missing or not valid");
        let authorisation = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = authorisation.and_then(|value| value.strip_prefix("Bearer ")).ok_or_else(wrong)?.to_owned();
        let Path(id) = Path::<String>::from_request_parts(parts, platform).await.map_err(|_| wrong())?;
        // An id of another form has no token either.
        let id = id.parse().map_err(|_| wrong())?;
        let volume = platform.control.volumes().authenticate(&id, &token).await?;
        let sandboxes::Query(parameters) = sandboxes::Query::<Parameters>::from_request_parts(parts, platform).await?;
        let path = plain(parameters.path.as_deref().unwrap_or_default())?;
        let snapshot = parameters.snapshot.as_deref().map(snapshot_name).transpose()?;
        Ok(Self { volume, path, snapshot, parameters })
    }
}

impl Asked {
    fn place(&self) -> Place<'_> {
        Place { volume: &self.volume.node_volume, snapshot: self.snapshot.as_ref(), path: &self.path }
    }

    /// For a change: snapshots cannot be changed.
    fn present(&self) -> Result<Place<'_>> {
        match self.snapshot {
            None => Ok(self.place()),
            Some(_) => Err(Failed::invalid("a snapshot cannot be changed: fork it").into()),
        }
    }

    fn attributes(&self) -> Result<Attributes> {
        let Parameters { uid, gid, mode, .. } = self.parameters;
        attributes(uid, gid, mode)
    }

    fn existing(&self) -> Existing {
        if self.parameters.force == Some(true) { Existing::Taken } else { Existing::Refused }
    }

    /// For `map_err`.
    fn failed(&self, action: &'static str) -> impl FnOnce(volumed::Error) -> Wrong {
        move |error| Wrong(refused(&self.volume, action)(error))
    }

    fn entry(&self, info: &FileInfo) -> Json<e2b::VolumeEntry> {
        Json(entry(self.path.clone(), info))
    }
}

/// Describes a file or directory of a volume.
#[utoipa::path(
    get,
    path = "/volumecontent/{id}/path",
    operation_id = "getVolumePath",
    tag = CONTENT,
    params(("id" = String, Path, description = "The volume"), Parameters),
    responses((status = 200, description = "The entry", body = e2b::VolumeEntry)),
)]
async fn stat(State(platform): Shared, asked: Asked) -> Result<Json<e2b::VolumeEntry>> {
    let found = platform.node.volumes().stat(&asked.place()).await.map_err(asked.failed("look at a path"))?;
    Ok(asked.entry(&found))
}

/// Changes owner, group and permissions.
#[utoipa::path(
    patch,
    path = "/volumecontent/{id}/path",
    operation_id = "changeVolumePath",
    tag = CONTENT,
    params(("id" = String, Path, description = "The volume"), Parameters),
    request_body = e2b::VolumeAttributes,
    responses((status = 200, description = "The entry", body = e2b::VolumeEntry)),
)]
async fn change(
    State(platform): Shared,
    asked: Asked,
    body: std::result::Result<sandboxes::Body<e2b::VolumeAttributes>, Failed>,
) -> Result<Json<e2b::VolumeEntry>> {
    let sandboxes::Body(e2b::VolumeAttributes { uid, gid, mode }) = body?;
    let wanted = attributes(uid, gid, mode)?;
    let changed = platform.node.volumes().set_attributes(&asked.present()?, wanted).await;
    Ok(asked.entry(&changed.map_err(asked.failed("change a path"))?))
}

/// Removes a file, or a directory with all that is below it.
#[utoipa::path(
    delete,
    path = "/volumecontent/{id}/path",
    operation_id = "removeVolumePath",
    tag = CONTENT,
    params(("id" = String, Path, description = "The volume"), Parameters),
    responses((status = 204, description = "It is gone")),
)]
async fn remove(State(platform): Shared, asked: Asked) -> Result<StatusCode> {
    let removed = platform.node.volumes().remove_path(&asked.present()?).await;
    removed.map_err(asked.failed("remove a path"))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists a directory.
#[utoipa::path(
    get,
    path = "/volumecontent/{id}/dir",
    operation_id = "listVolumeDirectory",
    tag = CONTENT,
    params(("id" = String, Path, description = "The volume"), Parameters),
    responses((status = 200, description = "The entries", body = Vec<e2b::VolumeEntry>)),
)]
async fn list(State(platform): Shared, asked: Asked) -> Result<Response> {
    let depth = asked.parameters.depth.unwrap_or(1).max(1);
    if depth > VOLUME_LIST_DEPTH_MAX {
        return Err(Failed::invalid(format!("depth must be 1 to {VOLUME_LIST_DEPTH_MAX}")).into());
    }
    let found = platform.node.volumes().tree(&asked.place(), depth).await;
    let found = found.map_err(asked.failed("list a directory"))?;
    let top = asked.path.trim_end_matches('/').to_owned();
    let listed = move |TreeEntry { path, info }: TreeEntry| entry(format!("{top}/{}", readable(&path)), &info);
    Ok(lines::as_list(found, listed))
}

/// Makes a directory.
#[utoipa::path(
    post,
    path = "/volumecontent/{id}/dir",
    operation_id = "makeVolumeDirectory",
    tag = CONTENT,
    params(("id" = String, Path, description = "The volume"), Parameters),
    responses((status = 201, description = "The directory", body = e2b::VolumeEntry)),
)]
async fn make_directory(State(platform): Shared, asked: Asked) -> Result<(StatusCode, Json<e2b::VolumeEntry>)> {
    let (place, wanted) = (asked.present()?, asked.attributes()?);
    let made = platform.node.volumes().make_directory(&place, wanted, asked.existing()).await;
    Ok((StatusCode::CREATED, asked.entry(&made.map_err(asked.failed("make a directory"))?)))
}

/// Reads a file, or one range of it.
#[utoipa::path(
    get,
    path = "/volumecontent/{id}/file",
    operation_id = "readVolumeFile",
    tag = CONTENT,
    params(("id" = String, Path, description = "The volume"), Parameters),
    responses((status = 200, description = "The file", content(("application/octet-stream"))), (status = 206, description = "The range", content(("application/octet-stream"))), (status = 416, description = "The file ends before the range", body = e2b::VolumeError)),
)]
async fn read(State(platform): Shared, asked: Asked, mut headers: HeaderMap) -> Result<Response> {
    let heeded = ASKED.into_iter().filter_map(|name| Some((name.clone(), headers.remove(name)?)));
    let found = platform.node.volumes().read(&asked.place(), heeded.collect()).await;
    let (mut parts, body) = found.map_err(asked.failed("read a file"))?.into_parts();
    let told = ANSWERED.into_iter().filter_map(|name| Some((name.clone(), parts.headers.remove(name)?)));
    Ok((parts.status, told.collect::<HeaderMap>(), Body::new(body)).into_response())
}

/// Writes a file, whole or not at all.
///
/// Without `force`, a file that is there is refused, and so is a missing directory.
#[utoipa::path(
    put,
    path = "/volumecontent/{id}/file",
    operation_id = "writeVolumeFile",
    tag = CONTENT,
    params(("id" = String, Path, description = "The volume"), Parameters),
    request_body(content(("application/octet-stream"))),
    responses((status = 201, description = "The file", body = e2b::VolumeEntry)),
)]
async fn write(State(platform): Shared, asked: Asked, body: Body) -> Result<(StatusCode, Json<e2b::VolumeEntry>)> {
    let (place, wanted) = (asked.present()?, asked.attributes()?);
    let written = platform.node.volumes().write(&place, wanted, asked.existing(), body).await;
    Ok((StatusCode::CREATED, asked.entry(&written.map_err(asked.failed("write a file"))?)))
}

/// Permissions have twelve bits. The largest number is no id to the kernel.
fn attributes(uid: Option<u32>, gid: Option<u32>, mode: Option<u32>) -> Result<Attributes> {
    if mode.is_some_and(|mode| mode > 0o7777) {
        return Err(Failed::invalid("mode must be 0 to 4095: twelve bits").into());
    }
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return Err(Failed::invalid(format!("uid and gid must be less than {}", u32::MAX)).into());
    }
    Ok(Attributes { mode: mode.and_then(|mode| u16::try_from(mode).ok()), uid, gid })
}

/// The same path from the top, without `.`, `..` and doubled slashes.
fn plain(path: &str) -> std::result::Result<String, Failed> {
    if path.is_empty() || path.contains('\0') {
        return Err(Failed::invalid("the query has no path, or one with a zero byte"));
    }
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    Ok(format!("/{}", parts.join("/")))
}

fn entry(path: String, info: &FileInfo) -> e2b::VolumeEntry {
    let time = |ns: i64| Time::from_ms(u64::try_from(ns).unwrap_or(0) / 1_000_000).to_string();
    let name = path.rsplit('/').find(|name| !name.is_empty()).unwrap_or("/").to_owned();
    e2b::VolumeEntry {
        name,
        kind: kind(info.kind),
        path,
        size: info.size,
        mode: u32::from(info.mode),
        uid: info.uid,
        gid: info.gid,
        atime: time(info.accessed_ns),
        mtime: time(info.modified_ns),
        ctime: time(info.born_ns),
        target: info.target.as_deref().map(readable),
    }
}

pub(super) fn kind(kind: FileKind) -> e2b::VolumeEntryType {
    match kind {
        FileKind::File => e2b::VolumeEntryType::File,
        FileKind::Directory => e2b::VolumeEntryType::Directory,
        FileKind::Symlink => e2b::VolumeEntryType::Symlink,
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
            e2b::VolumeEntryType::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_plain_and_stay_inside() {
        for (path, expected) in [
            ("/", "/"),
            ("a//b/./c/", "/a/b/c"),
            ("/a/../../../etc/passwd", "/etc/passwd"),
            ("..", "/"),
            ("/ä b/%2e%2e", "/ä b/%2e%2e"),
        ] {
            assert_eq!(plain(path).ok().as_deref(), Some(expected), "{path}");
        }
        assert!(plain("").is_err() && plain("/a\0").is_err());
    }

    #[test]
    fn attributes_are_those_of_the_kernel() {
        let fine = attributes(Some(0), Some(1000), Some(0o7777)).ok();
        assert_eq!(fine, Some(Attributes { mode: Some(0o7777), uid: Some(0), gid: Some(1000) }));
        assert!(attributes(None, None, Some(0o10000)).is_err());
        assert!(attributes(Some(u32::MAX), None, None).is_err() && attributes(None, Some(u32::MAX), None).is_err());
    }
}
