//! Lists of sandboxes, and what is known of one.

use std::collections::BTreeMap;

use api::e2b;
use axum::{
    Json,
    extract::{Path, State},
    http::HeaderMap,
};
use base::limits::PAGE_MAX;
use control::{ControlError, Filter, Order, Page, States};
use percent_encoding::percent_decode_str;

use super::{Query, Shared, with_next};
use crate::e2b::{
    answers::listed,
    auth::{Asking, Team},
    failed::{Failed, Result},
    platform::sandbox_id,
};

const RUNNING_HEADER: &str = "x-total-running";

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

/// One page, of SDKs.
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

/// Deprecated: the running ones, on one page.
pub(crate) async fn all(
    State(platform): Shared,
    Team(team): Team,
    Query(query): Query<e2b::ListQuery>,
) -> Result<Json<Vec<e2b::ListedSandbox>>> {
    let filter = Filter { metadata: metadata(&query)?, states: States::Running, ..Filter::default() };
    let found = platform.control.sandboxes().list(&team, &filter, Order::Desc, &Page::default()).await?;
    Ok(Json(found.sandboxes.iter().map(listed).collect()))
}

fn filter(query: &e2b::ListQuery) -> Result<Filter> {
    Ok(Filter {
        metadata: metadata(query)?,
        states: states(query.state.as_deref())?,
        template: query.template.clone(),
        started_after: query.started_after.as_deref().map(str::parse).transpose()?,
    })
}

fn states(text: Option<&str>) -> Result<States> {
    let (mut running, mut paused) = (false, false);
    for state in text.unwrap_or_default().split(',').map(str::trim).filter(|state| !state.is_empty()) {
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
fn metadata(query: &e2b::ListQuery) -> Result<BTreeMap<String, String>> {
    let text = query.metadata.as_deref().unwrap_or_default();
    let wrong = || Failed::invalid("metadata: use URL-encoded pairs, a=b&c=d");
    let pairs: Vec<(String, String)> = serde_urlencoded::from_str(text).map_err(|_| wrong())?;
    let decoded = |text: &str| percent_decode_str(text).decode_utf8().map(String::from).map_err(|_| wrong());
    pairs.iter().map(|(key, value)| Ok((decoded(key)?, decoded(value)?))).collect()
}
