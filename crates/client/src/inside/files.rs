//! Files: read, written and listed with the rights of a user of the sandbox.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, header};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Inside, failed};
use crate::{Error, Result, server::encoded, transfer::Download, transfer::Upload};

const BYTES: &str = "application/octet-stream";

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its whole path.
    pub path: String,
    /// What it is.
    pub kind: EntryKind,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its permissions.
    pub mode: u32,
    /// It is a symbolic link; all else is of what it leads to.
    pub is_link: bool,
}

/// What is at a path. A symbolic link counts as what it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// Anything else.
    Other,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sent {
    path: String,
    #[serde(default)]
    r#type: String,
    /// The protocol has numbers of 64 bits as text.
    #[serde(default)]
    size: Value,
    #[serde(default)]
    mode: u32,
    #[serde(default)]
    symlink_target: Option<String>,
}

impl From<Sent> for Entry {
    fn from(Sent { path, r#type, size, mode, symlink_target }: Sent) -> Self {
        let kind = match r#type.as_str() {
            "FILE_TYPE_FILE" => EntryKind::File,
            "FILE_TYPE_DIRECTORY" => EntryKind::Directory,
            _ => EntryKind::Other,
        };
        let bytes = size.as_u64().or_else(|| size.as_str().and_then(|size| size.parse().ok()));
        Self { path, kind, bytes: bytes.unwrap_or_default(), mode, is_link: symlink_target.is_some() }
    }
}

#[derive(Deserialize)]
struct One {
    entry: Sent,
}

#[derive(Deserialize)]
struct Many {
    #[serde(default)]
    entries: Vec<Sent>,
}

fn of_file(user: Option<&str>, path: &str) -> String {
    let user = user.map(|user| format!("&username={}", encoded(user))).unwrap_or_default();
    format!("/files?path={}{user}", encoded(path))
}

/// Each fails if the path is not there or the user may not do it, or if the sandbox does not run.
impl Inside {
    /// What is at a path. None: nothing.
    ///
    /// # Errors
    ///
    /// See above.
    pub async fn stat(&self, user: Option<&str>, path: &str) -> Result<Option<Entry>> {
        match self.call::<One>(user, "/filesystem.Filesystem/Stat", &json!({ "path": path })).await {
            Ok(found) => Ok(Some(found.entry.into())),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What is in a directory, so many levels deep.
    ///
    /// # Errors
    ///
    /// See above.
    pub async fn list(&self, user: Option<&str>, path: &str, depth: u32) -> Result<Vec<Entry>> {
        let message = json!({ "path": path, "depth": depth });
        let found: Many = self.call(user, "/filesystem.Filesystem/ListDir", &message).await?;
        Ok(found.entries.into_iter().map(Entry::from).collect())
    }

    /// Makes a directory and those above it.
    ///
    /// # Errors
    ///
    /// See above. One that is there already is no error.
    pub async fn make_directory(&self, user: Option<&str>, path: &str) -> Result<()> {
        match self.call::<Value>(user, "/filesystem.Filesystem/MakeDir", &json!({ "path": path })).await {
            Ok(_) => Ok(()),
            Err(Error::Node(_))
                if matches!(self.stat(user, path).await, Ok(Some(Entry { kind: EntryKind::Directory, .. }))) =>
            {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Reads a file. Gives its length, too.
    ///
    /// # Errors
    ///
    /// See above.
    pub async fn read(&self, user: Option<&str>, path: &str) -> Result<(u64, Download)> {
        let request = self.request(Method::GET, &of_file(user, path), BYTES, Full::new(Bytes::new()))?;
        let answer = self.stream(request).await?;
        let length = answer.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        Ok((length.unwrap_or_default(), Download::new(answer)))
    }

    /// Writes a file as its pieces come, and makes the directories above it.
    ///
    /// # Errors
    ///
    /// See above.
    pub async fn write(&self, user: Option<&str>, path: &str, content: Upload) -> Result<()> {
        let answer = self.line.send(self.request(Method::POST, &of_file(user, path), BYTES, content)?).await?;
        if !answer.status().is_success() {
            return Err(failed(answer).await);
        }
        answer.into_body().collect().await.map(drop).map_err(Error::BrokenOff)
    }

    /// What the sandbox's program has printed. With `follow` it ends with the program.
    ///
    /// # Errors
    ///
    /// See above.
    pub async fn output(&self, follow: bool) -> Result<Download> {
        let path = format!("/output?follow={follow}");
        let request = self.request(Method::GET, &path, BYTES, Full::new(Bytes::new()))?;
        self.stream(request).await.map(Download::new)
    }
}
