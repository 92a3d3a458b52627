//! Making, listing, copying and ending sandboxes.

use std::collections::BTreeMap;

use reqwest::Method;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Error,
    remote::{Remote, segment},
};

/// The page of a list.
const LISTED_MAX: usize = 100;

/// Arguments of `create_sandbox`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Create {
    /// Name of a template, or name or id of a snapshot. `base` if it is left out.
    template: Option<String>,
    /// Seconds until the sandbox ends by itself. 300 if it is left out.
    #[schemars(range(min = 1, max = 2_592_000))]
    timeout_seconds: Option<u32>,
    /// Environment variables of all its commands.
    envs: Option<BTreeMap<String, String>>,
    /// Labels, which list_sandboxes shows.
    metadata: Option<BTreeMap<String, String>>,
}

pub(crate) async fn create(remote: &Remote, arguments: Create) -> Result<Value, Error> {
    let mut body = json!({ "templateID": arguments.template.as_deref().unwrap_or("base") });
    if let Some(timeout) = arguments.timeout_seconds {
        body["timeout"] = timeout.into();
    }
    if let Some(envs) = arguments.envs {
        body["envVars"] = json!(envs);
    }
    if let Some(metadata) = arguments.metadata {
        body["metadata"] = json!(metadata);
    }
    let made = remote.ask(Method::POST, "/v2/sandboxes", Some(&body)).await?;
    Ok(json!({ "sandbox_id": made["sandboxID"] }))
}

/// Arguments of `list_sandboxes`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct List {}

pub(crate) async fn list(remote: &Remote, _: List) -> Result<Value, Error> {
    let page = remote.ask(Method::GET, &format!("/v2/sandboxes?limit={LISTED_MAX}"), None).await?;
    let rows = page.as_array().ok_or(Error::Form("a list is missing"))?;
    let sandboxes: Vec<Value> = rows.iter().map(row).collect();
    Ok(json!({ "sandboxes": sandboxes, "there_may_be_more": rows.len() == LISTED_MAX }))
}

fn row(sandbox: &Value) -> Value {
    json!({
        "sandbox_id": sandbox["sandboxID"],
        "state": sandbox["state"],
        "template": sandbox.get("alias").unwrap_or(&sandbox["templateID"]),
        "started_at": sandbox["startedAt"],
        "ends_at": sandbox["endAt"],
        "metadata": sandbox["metadata"],
    })
}

/// Arguments of `fork_sandbox`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fork {
    /// Id of the sandbox.
    sandbox_id: String,
    /// How many copies. 1 if it is left out.
    #[schemars(range(min = 1, max = 100))]
    count: Option<u32>,
    /// Seconds until each copy ends by itself. 300 if it is left out.
    #[schemars(range(min = 1, max = 2_592_000))]
    timeout_seconds: Option<u32>,
}

/// E2B's default for forks is 15 s, in which an agent does nothing.
const FORK_SECONDS: u32 = 300;

pub(crate) async fn fork(remote: &Remote, arguments: Fork) -> Result<Value, Error> {
    let path = format!("/sandboxes/{}/fork", segment(&arguments.sandbox_id)?);
    let timeout = arguments.timeout_seconds.unwrap_or(FORK_SECONDS);
    let body = json!({ "count": arguments.count.unwrap_or(1), "timeout": timeout });
    let results = remote.ask(Method::POST, &path, Some(&body)).await?;
    let results = results.as_array().ok_or(Error::Form("a list is missing"))?;
    let made: Vec<&Value> = results.iter().map(|one| &one["sandbox"]["sandboxID"]).filter(|id| !id.is_null()).collect();
    let failed: Vec<&Value> = results.iter().map(|one| &one["error"]["message"]).filter(|why| !why.is_null()).collect();
    if made.is_empty() {
        let why = failed.first().and_then(|why| why.as_str()).unwrap_or("no copy was made");
        return Err(Error::Refused { status: 500, message: why.to_owned() });
    }
    Ok(json!({ "sandbox_ids": made, "errors": failed }))
}

/// Arguments of `snapshot_sandbox`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Snapshot {
    /// Id of the sandbox.
    sandbox_id: String,
    /// A name by which create_sandbox finds it. A snapshot that has the name loses it.
    name: Option<String>,
}

pub(crate) async fn snapshot(remote: &Remote, arguments: Snapshot) -> Result<Value, Error> {
    let path = format!("/sandboxes/{}/snapshots", segment(&arguments.sandbox_id)?);
    let body = arguments.name.map_or_else(|| json!({}), |name| json!({ "name": name }));
    let made = remote.ask(Method::POST, &path, Some(&body)).await?;
    Ok(json!({ "snapshot_id": made["snapshotID"], "names": made["names"] }))
}

/// Arguments of `kill_sandbox`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kill {
    /// Id of the sandbox.
    sandbox_id: String,
}

pub(crate) async fn kill(remote: &Remote, arguments: Kill) -> Result<Value, Error> {
    let path = format!("/sandboxes/{}", segment(&arguments.sandbox_id)?);
    remote.ask(Method::DELETE, &path, None).await?;
    Ok(json!({ "killed": arguments.sandbox_id }))
}
