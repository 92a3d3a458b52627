//! Bringing what one sandbox has changed since a common moment into another, which runs: a three-way merge of files.
//!
//! ```text
//! base ──differences──> ours      ┐
//! base ──differences──> theirs    ├─> plan: steps, conflicts ─> copies in a directory of ours ─> renamed into place
//! ours ──differences──> theirs    ┘
//! ```
//!
//! An entry is taken whole, from one side or the other; lines of files are not merged. Nothing is changed while there is a conflict, nor if a copy
//! fails: only when all are made are they renamed, one by one. A failure in between leaves each entry as one of both sides has it, and the same
//! merge does the rest.
//!
//! All work is done from outside, in the sandbox's own mount, and stays below its root: directories are reached by openat2(2) with
//! `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV`. Programs of the sandbox may change everything meanwhile, the copies, too, and a link of
//! theirs would lead into the files of the host. So no call follows one: they work on descriptors, or on a name in a directory that is open.

mod install;
mod plan;

use std::{io, path::PathBuf, sync::atomic::AtomicBool};

use procfs::{Mounts, ProcessIdentity};

pub use self::plan::{Conflict, Step};
use self::{
    install::{Ours, STAGING},
    plan::{Changes, plan},
};
use crate::{
    compare::{Files, differences},
    error::{Context, Error},
};

/// What is merged.
#[derive(Debug)]
pub struct Merge {
    /// As both have begun.
    pub base: Files,
    /// The files of the sandbox that gets the changes.
    pub ours: Files,
    /// The files of the one that has them.
    pub theirs: Files,
    /// Pid 1 of the sandbox that gets the changes.
    pub init: ProcessIdentity,
    /// Only what is at these paths, from the root without a slash before it, or below them; empty: everything.
    pub paths: Vec<PathBuf>,
    /// Most entries in which two of the three may differ.
    pub most: usize,
}

/// Finds out what is to be done, and does it unless `only_plan`, or there are conflicts.
///
/// [`Error::TooManyDifferences`] if there are more than may be. Ends early, with an error, once `stop` is set.
pub fn merge(merge: &Merge, only_plan: bool, stop: &AtomicBool) -> Result<(Vec<Step>, Vec<Conflict>), Error> {
    let Merge { base, ours, theirs, init, paths, most } = merge;
    let find = |one: &Files, other: &Files| {
        let found = differences(one, other, most + 1, stop)?;
        if found.len() > *most { Err(Error::TooManyDifferences { most: *most }) } else { Ok(found) }
    };
    let (of_ours, of_theirs) = (find(base, ours)?, find(base, theirs)?);
    let mut between = find(ours, theirs)?;
    between.retain(|found| {
        let is_wanted = paths.is_empty() || paths.iter().any(|path| found.path.starts_with(path));
        is_wanted && !found.path.starts_with(STAGING)
    });
    let root = Ours::open(*init)?;
    let mounts = Mounts::read(init.pid).map_err(io::Error::other).doing("read the mounts of a sandbox")?;
    let mounts: Vec<PathBuf> = mounts.iter().map(|mount| mount.at()).collect();
    let (steps, conflicts) = plan(&Changes::of(&of_ours), &Changes::of(&of_theirs), between, &mounts);
    if !only_plan && conflicts.is_empty() && !steps.is_empty() {
        root.take(theirs, &steps, stop)?;
    }
    Ok((steps, conflicts))
}
