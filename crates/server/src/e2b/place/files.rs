//! Files and watches.

use std::path::Path;

use axum::http::StatusCode;
use envd::{Code, Entry, EntryKind, Failure, FileEvent, FileEventKind, FileEvents};
use hands::{Error, EventKind, Kind, Problem, Watch, WatchEvent};

const SECOND_NS: i64 = 1_000_000_000;

/// An entry as clients see it. Bytes that are no text are shown as such.
pub(crate) fn entry(entry: hands::Entry) -> Entry {
    let path = entry.path.as_path();
    Entry {
        name: path.file_name().map_or_else(|| text(path), |name| text(name.as_ref())),
        kind: match entry.kind {
            Kind::File => EntryKind::File,
            Kind::Directory => EntryKind::Directory,
            Kind::BrokenLink => EntryKind::Symlink,
            Kind::Other => EntryKind::Other,
        },
        size: entry.size,
        mode: entry.mode,
        permissions: entry.permissions,
        owner: entry.owner,
        group: entry.group,
        modified: (entry.modified_ns.div_euclid(SECOND_NS), entry.modified_ns.rem_euclid(SECOND_NS) as u32),
        symlink_target: entry.link_target.map(|target| text(target.as_path())),
        metadata: entry.metadata.into_iter().collect(),
        path: text(path),
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

pub(super) fn events(watch: Watch) -> FileEvents {
    let next = async |watch: Option<Watch>| {
        let mut watch = watch?;
        match watch.next().await {
            Ok(WatchEvent::Change { name, kind, entry: found }) => {
                let kind = match kind {
                    EventKind::Create => FileEventKind::Create,
                    EventKind::Write => FileEventKind::Write,
                    EventKind::Remove => FileEventKind::Remove,
                    EventKind::Rename => FileEventKind::Rename,
                    EventKind::Chmod => FileEventKind::Chmod,
                };
                let found = found.map(|found| entry(*found));
                Some((Ok(FileEvent { name: text(name.as_path()), kind, entry: found }), Some(watch)))
            }
            Ok(WatchEvent::Lost) => Some((
                Err(Failure::new(Code::DataLoss, "events came faster than they were taken: some are lost")),
                None,
            )),
            Ok(WatchEvent::Unwatched { name }) => {
                let message = format!("{} is not watched: there are too many directories", text(name.as_path()));
                Some((Err(Failure::new(Code::ResourceExhausted, message)), None))
            }
            Err(error) => Some((Err(failure(&error)), None)),
        }
    };
    Box::pin(futures::stream::unfold(Some(watch), next))
}

pub(super) fn failure(error: &Error) -> Failure {
    let code = match error {
        Error::Refused { problem, .. } => match problem {
            Problem::NotFound => Code::NotFound,
            Problem::Exists => Code::AlreadyExists,
            Problem::Denied => Code::PermissionDenied,
            Problem::ReadOnly | Problem::Changed => Code::FailedPrecondition,
            Problem::NoSpace
            | Problem::Quota
            | Problem::TooManyEntries { .. }
            | Problem::ListTooLong { .. }
            | Problem::TooManyWatches { .. } => Code::ResourceExhausted,
            Problem::ExistsAsFile
            | Problem::NotDirectory
            | Problem::IsDirectory
            | Problem::NotRegular
            | Problem::BadPath
            | Problem::BadArchive { .. }
            | Problem::Loop
            | Problem::BadRange { .. }
            | Problem::BadMetadata
            | Problem::NoMetadata
            | Problem::KernelFileTooLarge { .. }
            | Problem::BrokenOff
            | Problem::SameFile => Code::InvalidArgument,
            Problem::Busy => Code::ResourceExhausted,
            Problem::Deadline => Code::DeadlineExceeded,
            Problem::Cancelled => Code::Unavailable,
            Problem::System { .. } => Code::Internal,
        },
        Error::Interrupted { .. } => Code::Unavailable,
        Error::Deadline { .. } => Code::DeadlineExceeded,
        Error::System { .. } => Code::Internal,
    };
    Failure::new(code, base::error::chain(error))
}

/// The status of the same failure over HTTP.
pub(crate) fn entry_failure(error: &Error) -> (StatusCode, String) {
    let Failure { code, message } = failure(error);
    let status = match error.problem() {
        Some(Problem::NoSpace | Problem::Quota) => StatusCode::INSUFFICIENT_STORAGE,
        Some(Problem::BadRange { .. }) => StatusCode::RANGE_NOT_SATISFIABLE,
        Some(_) | None => super::status(code),
    };
    (status, message)
}
