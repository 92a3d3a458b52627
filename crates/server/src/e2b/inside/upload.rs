//! Uploads: one file as it is, or many in one form.

use std::{collections::BTreeMap, path::PathBuf, pin::pin, sync::Arc};

use api::e2b::Error;
use axum::{
    Json,
    body::{Body, BodyDataStream, Bytes},
    extract::{FromRequest, Request},
    http::{HeaderMap, header},
};
use control::FileOperation;
use futures::{Stream, StreamExt};
use hands::Metadata;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Asked, FileQuery, Shared, authorise_file,
    form::{self, Form},
};
use crate::e2b::{
    failed::{Failed, Result},
    openapi::{ENVD, NoFile},
    place::{Inside, entry},
    sandboxes::{self, Query},
};

/// Headers that begin so carry metadata.
const METADATA_PREFIX: &str = "x-metadata-";

/// A file that was written.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WrittenFile)]
pub(crate) struct Written {
    /// The last part of the path.
    name: String,
    /// Absolute.
    path: String,
    /// Always `file`.
    r#type: &'static str,
    /// What is kept with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<BTreeMap<String, String>>,
}

/// Files that are to become one.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ComposeFiles)]
pub(super) struct Compose {
    /// Paths, in the order of their contents.
    sources: Vec<String>,
    /// The path of the whole.
    destination: String,
    /// The user in the sandbox; `user` if none is given.
    username: Option<String>,
}

/// Files in a form.
#[derive(ToSchema)]
#[expect(dead_code, reason = "the form is read as it comes")]
struct FilesForm {
    /// Any number of files, each with its path as its name.
    #[schema(value_type = Option<Vec<String>>, format = Binary)]
    file: Option<Vec<Vec<u8>>>,
}

/// Who uploads, and what goes with each file.
struct Upload {
    place: Inside,
    user: Option<String>,
    metadata: Option<Metadata>,
}

/// Writes files: one as it is, or many in one form.
///
/// Directories above a file are made, and an existing file is replaced. Headers `X-Metadata-NAME` are kept with each
/// file. The body may be compressed (`Content-Encoding: gzip`).
#[utoipa::path(
    post,
    path = "/files",
    operation_id = "writeFiles",
    tag = ENVD,
    params(FileQuery),
    request_body(
        description = "A file as it is needs `path`. Files of a form have their paths as names",
        content(("application/octet-stream"), (FilesForm = "multipart/form-data"))
    ),
    security(("AccessToken" = []), ("Signature" = [])),
    responses((status = 200, description = "What was written", body = Vec<Written>), NoFile),
)]
pub(super) async fn post((platform, of): Shared, Query(query): Asked, request: Request) -> Result<Json<Vec<Written>>> {
    authorise_file(&platform, &of, request.headers(), (&query, FileOperation::Write))?;
    let upload = Upload {
        place: Inside::new(Arc::clone(&platform.node), &of.0.0),
        user: query.username.clone(),
        metadata: metadata(request.headers())?,
    };
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.starts_with("multipart/form-data") {
        let boundary = form::boundary(kind)?.to_owned();
        let form = Form::new(request.into_body().into_data_stream(), &boundary);
        return upload.form(form, query.path.as_deref()).await.map(Json);
    }
    let path = query.path.as_deref().ok_or_else(|| Failed::invalid("the query has no path"))?;
    let body: Body = request.into_body();
    upload.write(path, body.into_data_stream()).await.map(|written| Json(vec![written]))
}

/// Writes the body of a request to a file, for who may.
pub(crate) async fn write(place: Inside, query: &FileQuery, body: Body) -> Result<Json<Vec<Written>>> {
    let upload = Upload { place, user: query.username.clone(), metadata: None };
    let path = query.path.as_deref().ok_or_else(|| Failed::invalid("the query has no path"))?;
    upload.write(path, body.into_data_stream()).await.map(|written| Json(vec![written]))
}

/// Joins files to one, and removes them.
#[utoipa::path(
    post,
    path = "/files/compose",
    operation_id = "composeFiles",
    tag = ENVD,
    request_body = Compose,
    security(("AccessToken" = [])),
    responses(
        (status = 200, description = "The file", body = Written),
        (status = 413, description = "The body is larger than 2 MiB", body = Error),
        (status = 415, description = "The body is not JSON", body = Error),
        NoFile
    ),
)]
pub(super) async fn compose((platform, of): Shared, request: Request) -> Result<Json<Written>> {
    // Before the body: strangers hear nothing of its form.
    super::authorise(&platform, &of, request.headers())?;
    let sandboxes::Body(request) = sandboxes::Body::<Compose>::from_request(request, &()).await?;
    let (place, user) = (Inside::new(Arc::clone(&platform.node), &of.0.0), request.username.as_deref());
    let mut sources = Vec::new();
    for source in &request.sources {
        sources.push(PathBuf::from(place.resolve(user, source).await?));
    }
    let target = place.resolve(user, &request.destination).await?;
    let composed = place.hand(user).await?.compose(&sources, target.as_ref()).await?;
    Ok(Json(written(composed)))
}

impl Upload {
    async fn form(&self, mut form: Form<BodyDataStream>, path: Option<&str>) -> Result<Vec<Written>> {
        let mut all = Vec::new();
        while let Some(part) = form.next_part().await? {
            if part.name.as_deref() != Some("file") {
                continue;
            }
            if path.is_some() && !all.is_empty() {
                return Err(Failed::invalid("the query has the path of one file, and the form has more"));
            }
            let named = path.map(str::to_owned).or(part.file_name);
            let named = named.ok_or_else(|| Failed::invalid("a file of the form has no name"))?;
            let content =
                futures::stream::unfold(&mut form, async |form| Some((form.chunk().await.transpose()?, form)));
            all.push(self.write(&named, pin!(content)).await?);
        }
        Ok(all)
    }

    async fn write<E: std::fmt::Display>(
        &self,
        path: &str,
        mut content: impl Stream<Item = std::result::Result<Bytes, E>> + Unpin,
    ) -> Result<Written> {
        let user = self.user.as_deref();
        let path = self.place.resolve(user, path).await?;
        let mut writer = self.place.hand(user).await?.write(path.as_ref(), self.metadata.clone()).await?;
        while let Some(chunk) = content.next().await {
            // The writer is dropped, which breaks the upload off.
            let chunk = chunk.map_err(|error| Failed::invalid(format!("the upload broke off: {error}")))?;
            writer.write(&chunk).await?;
        }
        Ok(written(writer.finish().await?))
    }
}

fn written(file: hands::Entry) -> Written {
    let envd::Entry { name, path, metadata, .. } = entry(file);
    let metadata = (!metadata.is_empty()).then(|| metadata.into_iter().collect());
    Written { name, path, r#type: "file", metadata }
}

/// None: the file keeps what it has.
fn metadata(headers: &HeaderMap) -> Result<Option<Metadata>> {
    let mut all = Metadata::new();
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(METADATA_PREFIX) {
            let value = value.to_str().map_err(|_| Failed::invalid(format!("metadata {key}: use printable ASCII")))?;
            all.insert(key.to_owned(), value.to_owned());
        }
    }
    Ok((!all.is_empty()).then_some(all))
}
