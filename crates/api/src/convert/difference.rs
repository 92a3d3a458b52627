//! See [`super`].

use crate::{Differences, FileAspect, FileChange, FileDifference, Merge, MergeConflict};

impl From<model::Differences> for Differences {
    fn from(model::Differences { files, is_truncated, removed, added }: model::Differences) -> Self {
        let processes = |all: Vec<model::ProcessInfo>| all.into_iter().map(Into::into).collect();
        Self {
            files: files.into_iter().map(Into::into).collect(),
            truncated: is_truncated,
            removed_processes: processes(removed),
            added_processes: processes(added),
        }
    }
}

impl From<model::Merge> for Merge {
    fn from(model::Merge { files, conflicts }: model::Merge) -> Self {
        Self {
            files: files.into_iter().map(Into::into).collect(),
            conflicts: conflicts.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<model::MergeConflict> for MergeConflict {
    fn from(model::MergeConflict { path, is_directory, ours, theirs }: model::MergeConflict) -> Self {
        Self {
            path: format!("/{}", path.display()),
            directory: is_directory,
            ours: ours.map(|change| split(change).0),
            theirs: split(theirs).0,
        }
    }
}

fn split(change: model::FileChange) -> (FileChange, Vec<model::FileAspect>) {
    match change {
        model::FileChange::Added => (FileChange::Added, Vec::new()),
        model::FileChange::Removed => (FileChange::Removed, Vec::new()),
        model::FileChange::Changed(aspects) => (FileChange::Changed, aspects),
    }
}

impl From<model::FileDifference> for FileDifference {
    fn from(model::FileDifference { path, change, is_directory }: model::FileDifference) -> Self {
        let (change, aspects) = split(change);
        let aspects = aspects.into_iter().map(Into::into).collect();
        Self { path: format!("/{}", path.display()), change, aspects, directory: is_directory }
    }
}

impl From<model::FileAspect> for FileAspect {
    fn from(from: model::FileAspect) -> Self {
        match from {
            model::FileAspect::Kind => Self::Kind,
            model::FileAspect::Content => Self::Content,
            model::FileAspect::Mode => Self::Mode,
            model::FileAspect::Owner => Self::Owner,
            model::FileAspect::Attributes => Self::Attributes,
        }
    }
}
