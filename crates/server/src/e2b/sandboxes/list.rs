//! Lists of sandboxes, and what is known of one.

use std::collections::BTreeMap;

use api::e2b;
use axum::{Json, extract::State, http::HeaderMap};
use base::limits::PAGE_MAX;
use control::{ControlError, Filter, Order, Page, States};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Path, Query, Shared, with_next};
use crate::e2b::{
    answers::listed,
    auth::{Asking, Team},
    failed::{Failed, Result},
    openapi::NoSandbox,
    platform::sandbox_id,
};

const RUNNING_HEADER: &str = "x-total-running";

/// Which running sandboxes are listed.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct RunningQuery {
    /// URL-encoded pairs that all must be there: `a=b&c=d`.
    metadata: Option<String>,
}

/// Describes a sandbox.
///
/// A key that may only read does not get the access token.
#[utoipa::path(
    get,
    path = "/sandboxes/{id}",
    operation_id = "getSandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses((status = 200, description = "The sandbox", body = e2b::SandboxDetail), NoSandbox),
)]
pub(crate) async fn one(
    State(platform): Shared,
    Asking(caller): Asking,
    Path(id): Path<String>,
) -> Result<Json<e2b::SandboxDetail>> {
    let id = sandbox_id(&id)?;
    match platform.control.sandboxes().get(&caller.team, &id).await {
        Ok(sandbox) => {
            let mut detail = platform.detail(&sandbox);
            // The token runs commands: a key that may only read does not get it.
            detail.envd_access_token = detail.envd_access_token.filter(|_| caller.may_write().is_ok());
            Ok(Json(detail))
        }
        Err(ControlError::NotFound { .. }) => Err(Failed::no_sandbox(id.as_str())),
        Err(error) => Err(error.into()),
    }
}

/// Lists the sandboxes of the team, running and paused.
#[utoipa::path(
    get,
    path = "/v2/sandboxes",
    operation_id = "listSandboxes",
    tag = "sandboxes",
    params(e2b::ListQuery),
    responses((status = 200, description = "One page", body = Vec<e2b::ListedSandbox>, headers(("x-next-token" = String, description = "Where the next page begins; absent on the last page"), ("x-total-running" = u64, description = "Running sandboxes of the team")))),
)]
pub(crate) async fn page(
    State(platform): Shared,
    Team(team): Team,
    Query(query): Query<e2b::ListQuery>,
) -> Result<(HeaderMap, Json<Vec<e2b::ListedSandbox>>)> {
    let order = match query.order.unwrap_or_default() {
        e2b::Order::Asc => Order::Asc,
        e2b::Order::Desc => Order::Desc,
    };
    let after = query.next_token.as_deref().filter(|token| !token.is_empty()).map(str::parse).transpose()?;
    let page = Page { limit: query.limit.map_or(PAGE_MAX, |limit| limit as usize), after };
    let found = platform.control.sandboxes().list(&team, &filter(&query)?, order, &page).await?;
    let mut headers = with_next(found.next);
    headers.insert(RUNNING_HEADER, found.total_running.into());
    Ok((headers, Json(found.sandboxes.iter().map(listed).collect())))
}

/// Lists the running sandboxes of the team on one page; `GET /v2/sandboxes` has pages.
#[utoipa::path(
    get,
    path = "/sandboxes",
    operation_id = "listRunningSandboxes",
    tag = "sandboxes",
    params(RunningQuery),
    responses((status = 200, description = "The 100 newest", body = Vec<e2b::ListedSandbox>)),
)]
#[deprecated]
pub(crate) async fn all(
    State(platform): Shared,
    Team(team): Team,
    Query(query): Query<RunningQuery>,
) -> Result<Json<Vec<e2b::ListedSandbox>>> {
    let filter =
        Filter { metadata: metadata(query.metadata.as_deref())?, states: States::Running, ..Filter::default() };
    let found = platform.control.sandboxes().list(&team, &filter, Order::Desc, &Page::default()).await?;
    Ok(Json(found.sandboxes.iter().map(listed).collect()))
}

fn filter(query: &e2b::ListQuery) -> Result<Filter> {
    Ok(Filter {
        metadata: metadata(query.metadata.as_deref())?,
        states: states(query.state.as_deref())?,
        template: query.template.clone(),
        started_after: query.started_after.as_deref().map(str::parse).transpose()?,
    })
}

fn states(text: Option<&str>) -> Result<States> {
    let (mut running, mut paused) = (false, false);
    for state in text.into_iter().flat_map(|text| text.split(',')).map(str::trim) {
        match state {
            "running" => running = true,
            "paused" => paused = true,
            other => return Err(Failed::invalid(format!("state {other:?}: use running, paused, or both"))),
        }
    }
    Ok(match (running, paused) {
        (true, false) => States::Running,
        (false, true) => States::Paused,
        (true, true) | (false, false) => States::Any,
    })
}

/// Pairs as in a form, inside the query. The SDKs encode each key and value once more before that.
fn metadata(text: Option<&str>) -> Result<BTreeMap<String, String>> {
    let text = text.unwrap_or_default();
    let wrong = || Failed::invalid("metadata: use URL-encoded pairs, a=b&c=d");
    let pairs: Vec<(String, String)> = serde_urlencoded::from_str(text).map_err(|_| wrong())?;
    let decoded = |text: &str| percent_decode_str(text).decode_utf8().map(String::from).map_err(|_| wrong());
    pairs.iter().map(|(key, value)| Ok((decoded(key)?, decoded(value)?))).collect()
}

/// As `fuzzing::queries`.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(text: &str) {
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    if let Ok(query) = serde_urlencoded::from_str::<e2b::ListQuery>(text) {
        let _ = filter(&query);
    }
    let _ = metadata(Some(text));
    let _ = states(Some(text));
    let Some((key, value)) = text.split_once('=') else { return };
    let encoded = [key, value].map(|text| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string());
    let pairs = serde_urlencoded::to_string([(&encoded[0], &encoded[1])]).unwrap_or_default();
    let expected = BTreeMap::from([(key.to_owned(), value.to_owned())]);
    assert_eq!(metadata(Some(&pairs)).ok(), Some(expected), "{pairs}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_named_or_left_out() {
        for (text, expected) in [
            (None, States::Any),
            (Some("running"), States::Running),
            (Some("paused"), States::Paused),
            (Some("paused, running"), States::Any),
        ] {
            assert_eq!(states(text).ok(), Some(expected), "{text:?}");
        }
        for wrong in ["", ",", "running,", "Running"] {
            assert!(states(Some(wrong)).is_err(), "{wrong:?}");
        }
    }
}
