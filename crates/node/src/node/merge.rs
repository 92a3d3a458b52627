//! Bringing what one sandbox has changed in its files since a common fork into another one.

use std::{
    ffi::OsStr,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use base::{
    id::SandboxId,
    limits::{DIFFERENCES_MAX, FORK_POINTS_MAX},
};
use model::{FileChange, Merge, MergeConflict};
use sandbox::{Conflict, Files, merge};

use super::{
    Node,
    differences::{StopAtEnd, file_change, to_model},
    lifecycle::Operation,
    now_ms,
    start::Source,
};
use crate::{
    error::{Context, Error, Result},
    records::{ForkPoint, SandboxRecord},
};

/// What to merge.
#[derive(Debug, Clone)]
pub struct MergeOrder {
    /// The sandbox that has the changes.
    pub from: SandboxId,
    /// Only find out what would be done.
    pub is_dry_run: bool,
    /// Only what is at these absolute paths or below them; empty: everything.
    pub paths: Vec<String>,
}

impl Node {
    /// Changes in sandbox `into` what the other one has changed since the last sandbox that both descend from was forked. With conflicts nothing is
    /// changed: an error, or, of a dry run, part of the answer.
    ///
    /// Both run, or their programs have ended. What they write meanwhile may be seen or not.
    pub async fn merge(self: &Arc<Self>, into: &SandboxId, order: MergeOrder) -> Result<Merge> {
        let node = Arc::clone(self);
        let of = into.clone();
        self.drive(into, Operation::Merge, async move { node.merge_alone(&of, order).await }).await
    }

    async fn merge_alone(self: &Arc<Self>, into: &SandboxId, order: MergeOrder) -> Result<Merge> {
        let MergeOrder { from, is_dry_run, paths } = order;
        let paths = paths.iter().map(|path| below_root(path)).collect::<Result<_>>()?;
        let [ours, theirs] = [self.with_files(into)?, self.with_files(&from)?];
        let base = common_base(&ours, &theirs)?.layers.clone();
        let layers = [self.stack(&ours), self.stack(&theirs)];
        // One of them may be removed meanwhile.
        let pinned = self.pin(ours.needs().chain(theirs.needs()).cloned().collect());
        let stop = StopAtEnd(Arc::default());
        let (is_over, init) = (Arc::clone(&stop.0), ours.init);
        let work = move || -> Result<_> {
            let [ours, theirs] = layers;
            let (base, ours, theirs) = (Files::open(base)?, Files::open(ours)?, Files::open(theirs)?);
            let both = sandbox::Merge { base, ours, theirs, init, paths, most: DIFFERENCES_MAX };
            Ok(merge(&both, is_dry_run, &is_over)?)
        };
        let merged = tokio::task::spawn_blocking(work).await.doing("merge sandboxes");
        pinned.unpin().await;
        let (steps, conflicts) = merged.flatten().map_err(explained)?;
        let conflicts: Vec<MergeConflict> = conflicts.into_iter().map(conflict).collect();
        if !is_dry_run && !conflicts.is_empty() {
            let conflicts = conflicts.iter().map(told).collect();
            return Err(Error::MergeConflict { into: into.clone(), from, conflicts });
        }
        let files = steps.into_iter().map(|step| to_model(step.into_difference())).collect();
        Ok(Merge { files, conflicts })
    }

    /// The forks by which copies of this descend from others.
    pub(super) fn fork_points(&self, source: &Source) -> Vec<ForkPoint> {
        let Some(parent) = &source.parent else { return Vec::new() };
        let own = ForkPoint { of: parent.clone(), at_ms: now_ms(), layers: source.layers.clone() };
        let state = self.state();
        let earlier = state.sandbox(parent).ok().map(|parent| parent.fork_points.clone()).unwrap_or_default();
        std::iter::once(own).chain(earlier).take(FORK_POINTS_MAX).collect()
    }
}

fn below_root(path: &str) -> Result<PathBuf> {
    let wrong = || Error::Invalid { message: format!("{path:?} is no absolute path without `..`"), hint: None };
    let below = Path::new(path).strip_prefix("/").map_err(|_| wrong())?;
    if below.components().any(|part| !matches!(part, Component::Normal(_))) || path.contains('\0') {
        return Err(wrong());
    }
    Ok(below.components().map(Component::as_os_str).collect::<PathBuf>())
}

/// The moment after which two sandboxes have gone different ways.
fn common_base<'a>(ours: &'a SandboxRecord, theirs: &'a SandboxRecord) -> Result<&'a ForkPoint> {
    fn line(record: &SandboxRecord) -> Vec<(&SandboxId, Option<&ForkPoint>)> {
        let above = record.fork_points.iter().map(|point| (&point.of, Some(point)));
        std::iter::once((&record.id, None)).chain(above).collect()
    }
    if ours.id == theirs.id {
        return Err(Error::Invalid { message: format!("{} and {} are one sandbox", ours.id, theirs.id), hint: None });
    }
    let (one, other) = (line(ours), line(theirs));
    let meet = |(id, point): &(&SandboxId, Option<&'a ForkPoint>)| {
        let (_, of_other) = other.iter().find(|(found, _)| found == id)?;
        // They have left it one after the other: what it changed in between belongs to the later one.
        [*point, *of_other].into_iter().flatten().min_by_key(|point| point.at_ms)
    };
    one.iter().find_map(meet).ok_or_else(|| Error::Invalid {
        message: format!("this node knows no fork that sandboxes {} and {} have in common", ours.id, theirs.id),
        hint: Some(
            "`pando tree` shows who was forked from whom; `pando diff` compares any two, `pando cp` copies files"
                .into(),
        ),
    })
}

fn explained(error: Error) -> Error {
    let Error::Sandbox(sandbox::Error::TooManyDifferences { most }) = error else { return error };
    Error::Invalid {
        message: format!("the files of the sandboxes and of their common origin differ in more than {most} entries"),
        hint: Some("archives of the directories bring so many files over: `pando cp`".into()),
    }
}

fn conflict(found: Conflict) -> MergeConflict {
    let Conflict { path, is_directory, ours, theirs } = found;
    MergeConflict { path, is_directory, ours: ours.map(file_change), theirs: file_change(theirs) }
}

fn told(conflict: &MergeConflict) -> String {
    let word = |change: &FileChange| match change {
        FileChange::Added => "added",
        FileChange::Removed => "removed",
        FileChange::Changed(_) => "changed",
    };
    let slash = if conflict.is_directory { OsStr::new("/") } else { OsStr::new("") };
    let path = format!("/{}{}", conflict.path.display(), slash.display());
    let theirs = word(&conflict.theirs);
    match &conflict.ours {
        Some(ours) => format!("{path}: {ours} here, {theirs} there", ours = word(ours)),
        None => format!("{path}: {theirs} there, and something is mounted here"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::tests::sandbox;

    fn id(number: u8) -> SandboxId {
        format!("s00000000000{number}").parse().unwrap()
    }

    fn record(number: u8, forks: &[(u8, u64)]) -> SandboxRecord {
        let point = |(of, at_ms): &(u8, u64)| ForkPoint { of: id(*of), at_ms: *at_ms, layers: Vec::new() };
        SandboxRecord { id: id(number), fork_points: forks.iter().map(point).collect(), ..sandbox() }
    }

    #[test]
    fn the_base_is_where_the_lines_part() {
        let base = |one: &SandboxRecord, other: &SandboxRecord| common_base(one, other).ok().map(|point| point.at_ms);
        let (parent, alone) = (record(1, &[]), record(9, &[]));
        let (first, second) = (record(2, &[(1, 10)]), record(3, &[(1, 20)]));
        let grandchild = record(4, &[(2, 30), (1, 10)]);
        assert_eq!(base(&first, &second), Some(10));
        assert_eq!(base(&second, &first), Some(10));
        assert_eq!(base(&parent, &second), Some(20));
        assert_eq!(base(&grandchild, &first), Some(30));
        assert_eq!(base(&grandchild, &second), Some(10));
        assert_eq!(base(&grandchild, &parent), Some(10));
        assert_eq!(base(&alone, &second), None);
        assert_eq!(base(&parent, &parent), None);
    }

    #[test]
    fn paths_are_absolute() {
        assert_eq!(below_root("/home/user/").unwrap(), Path::new("home/user"));
        assert_eq!(below_root("/").unwrap(), Path::new(""));
        for wrong in ["home", "/a/../b", "", "/a\0"] {
            assert!(below_root(wrong).is_err(), "{wrong:?}");
        }
    }
}
