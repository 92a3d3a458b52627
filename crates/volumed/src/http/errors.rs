//! The one table from failures to HTTP.

use api::{ErrorBody, ErrorCode, ErrorDetail};
use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use rustix::io::Errno;
use store::chunks::ChunkError;
use volume::{VolumeError, archive::ArchiveError};

use crate::{
    error::chain,
    failure::{Failure, named},
};

type Place = (StatusCode, ErrorCode);

const INVALID: Place = (StatusCode::BAD_REQUEST, ErrorCode::InvalidRequest);
const NOT_FOUND: Place = (StatusCode::NOT_FOUND, ErrorCode::NotFound);
const CONFLICT: Place = (StatusCode::CONFLICT, ErrorCode::Conflict);
const READ_ONLY: Place = (StatusCode::CONFLICT, ErrorCode::ReadOnly);
const AWAY: Place = (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::StoreUnavailable);
const DAMAGED: Place = (StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::Damaged);
const NO_SPACE: Place = (StatusCode::INSUFFICIENT_STORAGE, ErrorCode::NoSpace);
const HOST: Place = (StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Host);

/// Status and code of each failure. Exhaustive on purpose: a new one has to be placed here.
fn place(failure: &Failure) -> Place {
    match failure {
        Failure::Invalid { .. } | Failure::BrokenOff(_) => INVALID,
        Failure::Volume(error) => place_of_volume(error),
        Failure::File { source, .. } => place_of_errno(*source),
        Failure::Archive(ArchiveError::Volume { source, .. }) => place_of_errno(*source),
        Failure::Archive(ArchiveError::Write(_) | ArchiveError::Read(_) | ArchiveError::Refused { .. }) => INVALID,
        Failure::Held { .. }
        | Failure::InUse { .. }
        | Failure::Unwanted { .. }
        | Failure::TooManyHolders { .. }
        | Failure::Closing { .. } => CONFLICT,
        Failure::Range { .. } => (StatusCode::RANGE_NOT_SATISFIABLE, ErrorCode::InvalidRequest),
        Failure::Mount { .. } => HOST,
        Failure::Interrupted => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Interrupted),
    }
}

fn place_of_volume(error: &VolumeError) -> Place {
    match error {
        VolumeError::Name { .. } | VolumeError::Note { .. } => INVALID,
        VolumeError::NotFound { .. } | VolumeError::NotKept { .. } => NOT_FOUND,
        VolumeError::Exists { .. } => CONFLICT,
        VolumeError::Fenced { .. }
        | VolumeError::Elsewhere { .. }
        | VolumeError::ReadOnly { .. }
        | VolumeError::NotOurs { .. }
        | VolumeError::Replaced { .. } => READ_ONLY,
        VolumeError::Heads { .. } => AWAY,
        VolumeError::Store { source, .. } if is_damage(source.as_ref()) => DAMAGED,
        VolumeError::Store { .. } => AWAY,
        VolumeError::Damaged { .. } | VolumeError::NotAVolume { .. } | VolumeError::Replay { .. } => DAMAGED,
        VolumeError::Wal(_) => HOST,
    }
}

fn is_damage(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.any(|cause| matches!(cause.downcast_ref(), Some(ChunkError::Damaged { .. } | ChunkError::Impossible { .. })))
}

/// What the engine answers, as far as a client can do something about it.
fn place_of_errno(errno: Errno) -> Place {
    match errno {
        Errno::NOENT | Errno::STALE => NOT_FOUND,
        Errno::EXIST | Errno::ISDIR | Errno::NOTDIR | Errno::NOTEMPTY | Errno::MLINK => CONFLICT,
        Errno::INVAL | Errno::NAMETOOLONG | Errno::LOOP | Errno::PERM => INVALID,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => NO_SPACE,
        Errno::ROFS => READ_ONLY,
        _ => HOST,
    }
}

/// What the user should do next.
fn hint(failure: &Failure) -> Option<String> {
    let text = match failure {
        Failure::Volume(VolumeError::NotFound { .. }) => {
            "`pando volume ls` and `pando volume log NAME` show what there is; `pando volume create` makes a volume"
        }
        Failure::Volume(VolumeError::Exists { .. }) => "give another name, or remove that one: `pando volume rm`",
        Failure::Volume(VolumeError::NotKept { .. }) => {
            "the checkpoint was removed or replaced: `pando checkpoint inspect NAME` shows what it has now"
        }
        Failure::Volume(VolumeError::Fenced { .. } | VolumeError::NotOurs { .. }) => {
            "work goes on on the node that has it now; here it is opened again when nobody uses it any more"
        }
        Failure::Volume(VolumeError::Heads { .. } | VolumeError::Store { .. }) => {
            "check the object store and the database that the node was started with; nothing that was written is lost"
        }
        Failure::Held { .. } | Failure::InUse { .. } => "end what uses it first: `pando ls`, `pando volume unmount`",
        Failure::Closing { .. } => "a program still works in a mount of it that was taken away; end it",
        Failure::Interrupted => "ask again",
        Failure::File { source: Errno::NOSPC | Errno::DQUOT, .. } => "remove something, or fork it with a larger size",
        Failure::File { source: Errno::NOTEMPTY, .. } => "say recursive=true to remove it with all that is in it",
        Failure::File { source: Errno::ROFS, .. } | Failure::Volume(VolumeError::ReadOnly { .. }) => {
            "`pando volume inspect` says why nothing can be changed"
        }
        Failure::File { .. }
        | Failure::Volume(_)
        | Failure::Archive(_)
        | Failure::Invalid { .. }
        | Failure::BrokenOff(_)
        | Failure::Range { .. }
        | Failure::Unwanted { .. }
        | Failure::TooManyHolders { .. }
        | Failure::Mount { .. } => return None,
    };
    Some(text.to_owned())
}

/// Its number for HTTP.
pub(crate) fn status(failure: &Failure) -> StatusCode {
    place(failure).0
}

/// The failure on the wire, its chain of causes in one line.
pub(crate) fn detail(failure: &Failure) -> ErrorDetail {
    let details = match failure {
        Failure::Held { holders, .. } | Failure::InUse { holders } => named(holders),
        _ => Vec::new(),
    };
    ErrorDetail { code: place(failure).1, message: chain(failure), hint: hint(failure), details }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        if status(&self).is_server_error() {
            tracing::warn!(error = chain(&self), "a request failed");
        }
        (status(&self), Json(ErrorBody { error: detail(&self) })).into_response()
    }
}
