//! Files and directories.

use base::limits::{MCP_ENTRIES_MAX, MCP_FILE_BYTES_MAX};
use base64::{Engine, prelude::BASE64_STANDARD};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    Error,
    remote::{Remote, accepted, bounded, send},
};

/// How bytes are written as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Encoding {
    /// As they are.
    Text,
    /// For bytes that are no text.
    Base64,
}

fn of_path(path: &str) -> String {
    format!("/files?path={}", utf8_percent_encode(path, NON_ALPHANUMERIC))
}

/// Arguments of `read_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Read {
    /// Id of the sandbox.
    sandbox_id: String,
    /// Path of the file, from / or from /home/user.
    path: String,
    /// The first byte to read. 0 if it is left out.
    offset: Option<u64>,
    /// How many bytes to read, at most 262144, which is also what is read if it is left out.
    #[schemars(range(min = 1, max = 262_144))]
    length: Option<u64>,
}

pub(crate) async fn read(remote: &Remote, arguments: Read) -> Result<Value, Error> {
    let offset = arguments.offset.unwrap_or(0);
    let length = arguments.length.unwrap_or(MCP_FILE_BYTES_MAX).min(MCP_FILE_BYTES_MAX);
    let inside = remote.inside(&arguments.sandbox_id).await?;
    let request = inside.request(Method::GET, &of_path(&arguments.path));
    // One byte more than wanted, to see whether there is one. An empty file has no range at all.
    let request = match offset {
        0 => request,
        _ => request.header("range", format!("bytes={offset}-{}", offset.saturating_add(length))),
    };
    let bytes_max = usize::try_from(length).unwrap_or(usize::MAX);
    let (mut bytes, is_whole) = bounded(accepted(request).await?, bytes_max).await?;
    // A text that is cut within a letter is still a text: the letter is in the next part.
    if let Err(error) = std::str::from_utf8(&bytes)
        && !is_whole
        && error.error_len().is_none()
        && error.valid_up_to() > 0
    {
        bytes.truncate(error.valid_up_to());
    }
    let read = bytes.len() as u64;
    let (encoding, content) = match String::from_utf8(bytes) {
        Ok(text) => (Encoding::Text, text),
        Err(error) => (Encoding::Base64, BASE64_STANDARD.encode(error.as_bytes())),
    };
    let next = (!is_whole).then_some(offset + read);
    Ok(json!({ "encoding": encoding, "content": content, "next_offset": next }))
}

/// Arguments of `write_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Write {
    /// Id of the sandbox.
    sandbox_id: String,
    /// Path of the file, from / or from /home/user. A file that is there is replaced.
    path: String,
    /// What to write.
    content: String,
    /// How `content` is to be read. `text` if it is left out.
    encoding: Option<Encoding>,
}

pub(crate) async fn write(remote: &Remote, arguments: Write) -> Result<Value, Error> {
    let bytes = match arguments.encoding.unwrap_or(Encoding::Text) {
        Encoding::Text => arguments.content.into_bytes(),
        Encoding::Base64 => BASE64_STANDARD
            .decode(&arguments.content)
            .map_err(|error| Error::Arguments(format!("content is not base64: {error}")))?,
    };
    let written = bytes.len();
    let inside = remote.inside(&arguments.sandbox_id).await?;
    let request = inside.request(Method::POST, &of_path(&arguments.path));
    send(request.header("content-type", "application/octet-stream").body(bytes)).await?;
    Ok(json!({ "path": arguments.path, "bytes": written }))
}

/// Arguments of `list_files`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct List {
    /// Id of the sandbox.
    sandbox_id: String,
    /// Path of the directory, from / or from /home/user. /home/user if it is left out.
    path: Option<String>,
    /// How many levels of directories to list. 1 if it is left out.
    #[schemars(range(min = 1, max = 20))]
    depth: Option<u32>,
}

pub(crate) async fn list(remote: &Remote, arguments: List) -> Result<Value, Error> {
    let inside = remote.inside(&arguments.sandbox_id).await?;
    let path = arguments.path.as_deref().unwrap_or("/home/user");
    let body = json!({ "path": path, "depth": arguments.depth.unwrap_or(1) });
    let listed = inside.call("filesystem.Filesystem/ListDir", &body).await?;
    let entries = listed["entries"].as_array().map_or(&[][..], Vec::as_slice);
    let shown: Vec<Value> = entries.iter().take(MCP_ENTRIES_MAX).map(entry).collect();
    Ok(json!({ "entries": shown, "left_out": entries.len().saturating_sub(MCP_ENTRIES_MAX) }))
}

fn entry(entry: &Value) -> Value {
    let kind = entry["type"].as_str().unwrap_or_default().trim_start_matches("FILE_TYPE_").to_ascii_lowercase();
    // The codec writes 64 bits as text, and leaves out a zero.
    let size = entry["size"].as_str().and_then(|size| size.parse::<u64>().ok()).unwrap_or(0);
    let mut shown = json!({ "path": entry["path"], "type": kind, "size": size });
    if let Some(target) = entry.get("symlinkTarget") {
        shown["link_to"] = target.clone();
    }
    shown
}
