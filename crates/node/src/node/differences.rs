//! How two sandboxes differ: their files and processes.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use base::{id::SandboxId, limits::DIFFERENCES_MAX};
use model::{Differences, FileDifference, ProcessInfo, SandboxState};
use sandbox::{Files, UPPER, differences};

use super::Node;
use crate::{
    error::{Context, Error, Result},
    records::SandboxRecord,
};

/// Ends work on another thread when it is dropped.
pub(super) struct StopAtEnd(pub(super) Arc<AtomicBool>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Node {
    /// What differs between two sandboxes of this node, which are not paused. What a sandbox writes meanwhile may be seen or not.
    pub async fn differences(self: &Arc<Self>, first: &SandboxId, second: &SandboxId) -> Result<Differences> {
        let [one, other] = [self.with_files(first)?, self.with_files(second)?];
        let [removed, added] = only_of_each([self.inspect(first)?.processes, self.inspect(second)?.processes]);
        let layers = [self.stack(&one), self.stack(&other)];
        // Their own changes are no layers, which go when nothing uses them.
        let pinned = self.pin([one.layers, other.layers].concat());
        let stop = StopAtEnd(Arc::default());
        let is_over = Arc::clone(&stop.0);
        let compare = move || {
            let [one, other] = layers;
            differences(&Files::open(one)?, &Files::open(other)?, DIFFERENCES_MAX + 1, &is_over)
        };
        let found = tokio::task::spawn_blocking(compare).await.doing("compare sandboxes");
        pinned.unpin().await;
        let mut files: Vec<FileDifference> = found??.into_iter().map(to_model).collect();
        let is_truncated = files.len() > DIFFERENCES_MAX;
        files.truncate(DIFFERENCES_MAX);
        Ok(Differences { files, is_truncated, removed, added })
    }

    /// The record of a sandbox whose files can be looked at here.
    pub(super) fn with_files(&self, id: &SandboxId) -> Result<SandboxRecord> {
        let record = self.state().sandbox(id)?.clone();
        match record.state {
            SandboxState::Running | SandboxState::Exited(_) | SandboxState::Lost => Ok(record),
            state => Err(Error::NotRunning { id: id.clone(), state }),
        }
    }

    /// The layers that show its files, topmost first.
    pub(super) fn stack(&self, record: &SandboxRecord) -> Vec<PathBuf> {
        let own = self.host.changes.of(&record.id).join(UPPER);
        std::iter::once(own).chain(record.layers.iter().cloned()).collect()
    }
}

pub(super) fn to_model(found: sandbox::Difference) -> FileDifference {
    let sandbox::Difference { path, change, is_directory } = found;
    FileDifference { path, change: file_change(change), is_directory }
}

pub(super) fn file_change(change: sandbox::Change) -> model::FileChange {
    match change {
        sandbox::Change::Added => model::FileChange::Added,
        sandbox::Change::Removed => model::FileChange::Removed,
        sandbox::Change::Changed(aspects) => model::FileChange::Changed(aspects.into_iter().map(aspect).collect()),
    }
}

fn aspect(aspect: sandbox::Aspect) -> model::FileAspect {
    match aspect {
        sandbox::Aspect::Kind => model::FileAspect::Kind,
        sandbox::Aspect::Content => model::FileAspect::Content,
        sandbox::Aspect::Mode => model::FileAspect::Mode,
        sandbox::Aspect::Owner => model::FileAspect::Owner,
        sandbox::Aspect::Attributes => model::FileAspect::Attributes,
    }
}

/// Processes that only one has: a process of a fork has the number and the name of its original.
fn only_of_each(all: [Vec<ProcessInfo>; 2]) -> [Vec<ProcessInfo>; 2] {
    let key = |process: &ProcessInfo| (process.inner_pid, process.name.clone());
    let [first, second] = [&all[0], &all[1]].map(|all| all.iter().map(key).collect::<BTreeSet<_>>());
    let [one, other] = all;
    let without = |all: Vec<ProcessInfo>, known: BTreeSet<(i32, String)>| {
        all.into_iter().filter(|process| !known.contains(&key(process))).collect()
    };
    [without(one, second), without(other, first)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_the_same_by_number_and_name() {
        let process = |inner_pid, name: &str| ProcessInfo {
            pid: 1000 + inner_pid,
            inner_pid,
            name: name.into(),
            threads: 1,
            rss_bytes: 0,
            pss_bytes: 0,
            own_bytes: 0,
        };
        let [one, other] = only_of_each([
            vec![process(1, "init"), process(2, "a"), process(3, "b")],
            vec![process(1, "init"), process(2, "c"), process(3, "b"), process(4, "d")],
        ]);
        let names = |all: Vec<ProcessInfo>| all.into_iter().map(|process| process.name).collect::<Vec<_>>();
        assert_eq!((names(one), names(other)), (vec!["a".to_owned()], vec!["c".to_owned(), "d".to_owned()]));
    }
}
