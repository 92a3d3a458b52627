//! Trees of forks.

use api::e2b;
use axum::{Json, extract::State};
use control::Relative;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Query, Shared, found};
use crate::e2b::{auth::Team, failed::Result, openapi::NoSandbox, platform::sandbox_id};

/// Which trees are shown.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Forks {
    /// Only the tree that this sandbox is in.
    #[serde(rename = "sandboxID")]
    sandbox_id: Option<String>,
}

/// Shows who was forked from whom.
///
/// All sandboxes of the team that were forked, or that others were forked from. One that is gone is there as long as a sandbox descends from it.
#[utoipa::path(
    get,
    path = "/forks",
    operation_id = "listForks",
    tag = "sandboxes",
    params(Forks),
    responses((status = 200, description = "Originals first, then by the time of the fork; 10,000 forks at most", body = Vec<e2b::Relative>), NoSandbox),
)]
pub(crate) async fn forks(
    State(platform): Shared,
    Team(team): Team,
    Query(query): Query<Forks>,
) -> Result<Json<Vec<e2b::Relative>>> {
    let of = query.sandbox_id.as_deref().map(sandbox_id).transpose()?;
    let forks = platform.control.sandboxes().forks(&team, of.as_ref()).await;
    let forks = forks.map_err(|error| match &of {
        Some(of) => found(error, of),
        None => error.into(),
    })?;
    Ok(Json(forks.into_iter().map(relative).collect()))
}

fn relative(Relative { id, parent, forked, is_running }: Relative) -> e2b::Relative {
    let state = |is_running| if is_running { e2b::State::Running } else { e2b::State::Paused };
    e2b::Relative {
        sandbox_id: id.to_string(),
        parent_id: parent.map(|parent| parent.to_string()),
        forked_at: forked.map(|forked| forked.to_string()),
        state: is_running.map(state),
    }
}
