//! What a merge does, entry by entry, out of three lists of differences.

use std::{
    collections::BTreeMap,
    ops::Bound,
    path::{Path, PathBuf},
};

use crate::compare::{Aspect, Change, Difference};

/// One change that a merge makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Takes the entry from the other sandbox, with all below it.
    Put(Difference),
    /// Gives a directory that both have the attributes that it has there.
    Attributes(Difference),
    /// Removes the entry, with all below it.
    Remove(Difference),
}

impl Step {
    /// What differed before.
    pub fn difference(&self) -> &Difference {
        let (Self::Put(difference) | Self::Attributes(difference) | Self::Remove(difference)) = self;
        difference
    }

    /// As [`Self::difference`].
    pub fn into_difference(self) -> Difference {
        let (Self::Put(difference) | Self::Attributes(difference) | Self::Remove(difference)) = self;
        difference
    }
}

/// An entry that both have changed, in different ways, or that cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// From the root, without a slash before it.
    pub path: PathBuf,
    /// Whether it is a directory, where it is.
    pub is_directory: bool,
    /// What ours has done to it; none: something is mounted there.
    pub ours: Option<Change>,
    /// What theirs has done to it.
    pub theirs: Change,
}

/// What one side has changed since the base.
pub(super) struct Changes<'a>(BTreeMap<&'a Path, &'a Change>);

impl<'a> Changes<'a> {
    pub(super) fn of(found: &'a [Difference]) -> Self {
        Self(found.iter().map(|found| (found.path.as_path(), &found.change)).collect())
    }

    /// The change that an entry is part of: its own, or one that has made, removed or replaced a directory above it.
    fn at(&self, path: &Path) -> Option<&'a Change> {
        let mut all = path.ancestors().filter_map(|above| self.0.get(above).map(|change| (above, *change)));
        all.find(|(above, change)| *above == path || replaces(change)).map(|(_, change)| change)
    }

    /// Whether an entry was removed by itself.
    fn removal(&self, path: &Path) -> Option<Change> {
        self.0.get(path).filter(|change| ***change == Change::Removed).map(|change| (*change).clone())
    }

    /// As [`Self::at`]; a change below, unless something was only removed there, is one of the directory's content.
    fn at_or_below(&self, path: &Path) -> Option<Change> {
        let later = self.0.range::<Path, _>((Bound::Excluded(path), Bound::Unbounded));
        let mut below = later.take_while(|(next, _)| next.starts_with(path));
        let content = || Change::Changed(vec![Aspect::Content]);
        self.at(path).cloned().or_else(|| below.any(|(_, change)| **change != Change::Removed).then(content))
    }
}

/// Whether all below the entry is part of the change.
fn replaces(change: &Change) -> bool {
    match change {
        Change::Added | Change::Removed => true,
        Change::Changed(aspects) => aspects.contains(&Aspect::Kind),
    }
}

/// `between`: how theirs differs from ours. `mounts`: where something is mounted in ours.
pub(super) fn plan(
    ours: &Changes<'_>,
    theirs: &Changes<'_>,
    between: Vec<Difference>,
    mounts: &[PathBuf],
) -> (Vec<Step>, Vec<Conflict>) {
    let (mut steps, mut conflicts) = (Vec::new(), Vec::new());
    for difference in between {
        let path = &difference.path;
        let (of_ours, of_theirs) = match &difference.change {
            // A directory that one side has made anew says nothing of what it has never had.
            Change::Added => (ours.removal(path), theirs.at_or_below(path)),
            Change::Removed => (ours.at_or_below(path), theirs.removal(path)),
            // What replaces a directory meets all below it; a change of its attributes only such a change.
            change if replaces(change) => (ours.at_or_below(path), theirs.at_or_below(path)),
            Change::Changed(_) => (ours.at(path).cloned(), theirs.at(path).cloned()),
        };
        let is_directory = difference.is_directory;
        match (of_ours, of_theirs) {
            // Only ours has changed it, or one of them has meanwhile.
            (_, None) => {}
            (Some(change), Some(theirs)) => {
                conflicts.push(Conflict { path: path.clone(), is_directory, ours: Some(change), theirs });
            }
            (None, Some(theirs)) if is_mounted_over(path, mounts) => {
                conflicts.push(Conflict { path: path.clone(), is_directory, ours: None, theirs });
            }
            (None, Some(_)) => steps.push(match &difference.change {
                Change::Removed => Step::Remove(difference),
                Change::Changed(aspects) if is_directory && !aspects.contains(&Aspect::Kind) => {
                    Step::Attributes(difference)
                }
                Change::Added | Change::Changed(_) => Step::Put(difference),
            }),
        }
    }
    (steps, conflicts)
}

/// Whether something is mounted at a path, above it or below it, but for the root filesystem.
fn is_mounted_over(path: &Path, mounts: &[PathBuf]) -> bool {
    let mounts = mounts.iter().filter_map(|mount| mount.strip_prefix("/").ok());
    mounts.filter(|mount| !mount.as_os_str().is_empty()).any(|mount| path.starts_with(mount) || mount.starts_with(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `+ path`, `- path`, `M path` (content), `K path` (kind), `m path` (mode); with a slash at its end a directory.
    fn all(lines: &[&str]) -> Vec<Difference> {
        let one = |line: &&str| {
            let (sign, path) = line.split_once(' ').unwrap();
            let change = match sign {
                "+" => Change::Added,
                "-" => Change::Removed,
                "M" => Change::Changed(vec![Aspect::Content]),
                "K" => Change::Changed(vec![Aspect::Kind]),
                _ => Change::Changed(vec![Aspect::Mode]),
            };
            Difference { path: path.trim_end_matches('/').into(), change, is_directory: path.ends_with('/') }
        };
        lines.iter().map(one).collect()
    }

    fn planned(ours: &[&str], theirs: &[&str], between: &[&str]) -> (Vec<String>, Vec<String>) {
        let mounts = ["/", "/proc", "/data/volume"].map(PathBuf::from);
        let (ours, theirs) = (all(ours), all(theirs));
        let (steps, conflicts) = plan(&Changes::of(&ours), &Changes::of(&theirs), all(between), &mounts);
        let show = |step: &Step| {
            let word = match step {
                Step::Put(_) => "put",
                Step::Attributes(_) => "attributes",
                Step::Remove(_) => "remove",
            };
            format!("{word} {}", step.difference().path.display())
        };
        (steps.iter().map(show).collect(), conflicts.iter().map(|one| one.path.display().to_string()).collect())
    }

    fn steps(ours: &[&str], theirs: &[&str], between: &[&str]) -> Vec<String> {
        let (steps, conflicts) = planned(ours, theirs, between);
        assert!(conflicts.is_empty(), "{conflicts:?}");
        steps
    }

    fn conflicts(ours: &[&str], theirs: &[&str], between: &[&str]) -> Vec<String> {
        let (steps, conflicts) = planned(ours, theirs, between);
        assert!(steps.is_empty(), "{steps:?}");
        conflicts
    }

    #[test]
    fn what_one_side_has_changed_is_taken_from_it() {
        let found = steps(
            &["+ mine", "M a", "- old"],
            &["+ new/", "M b", "- gone/", "m dir/", "K link"],
            &["- mine", "M a", "+ old", "+ new/", "M b", "- gone/", "m dir/", "K link"],
        );
        assert_eq!(found, ["put new", "put b", "remove gone", "attributes dir", "put link"]);
    }

    #[test]
    fn the_same_change_of_both_is_none() {
        assert_eq!(steps(&["M a", "- b", "+ c"], &["M a", "- b", "+ c"], &[]), [""; 0]);
    }

    #[test]
    fn different_changes_of_one_entry_are_a_conflict() {
        assert_eq!(conflicts(&["M a"], &["M a"], &["M a"]), ["a"]);
        assert_eq!(conflicts(&["+ a"], &["+ a"], &["K a"]), ["a"]);
        assert_eq!(conflicts(&["- a"], &["M a"], &["+ a"]), ["a"]);
        assert_eq!(conflicts(&["M a"], &["- a"], &["- a"]), ["a"]);
    }

    #[test]
    fn a_directory_that_one_has_removed_and_the_other_has_used_is_a_conflict() {
        assert_eq!(conflicts(&["- d/"], &["M d/x"], &["+ d/"]), ["d"]);
        assert_eq!(conflicts(&["+ d/x"], &["- d/"], &["- d/"]), ["d"]);
        assert_eq!(conflicts(&["M d/x"], &["K d"], &["K d"]), ["d"]);
        assert_eq!(conflicts(&["K d"], &["M d/x"], &["K d/"]), ["d"]);
        // What both would have removed is no conflict.
        assert_eq!(steps(&["- d/"], &["- d/x"], &["+ d/"]), [""; 0]);
        // Names that only begin in the same way are others.
        assert_eq!(steps(&["- d/"], &["M dd", "M d.x"], &["+ d/", "M d.x", "M dd"]), ["put d.x", "put dd"]);
    }

    #[test]
    fn directories_that_both_have_added_are_merged() {
        // Each side has made all of it: what only they have is put, what only we have stays, what differs is a conflict.
        let (steps, conflicts) = planned(&["+ d/"], &["+ d/"], &["- d/mine", "M d/other", "+ d/theirs"]);
        assert_eq!((steps, conflicts), (vec!["put d/theirs".to_owned()], vec!["d/other".to_owned()]));
    }

    #[test]
    fn attributes_of_a_directory_meet_no_changes_below_it() {
        assert_eq!(steps(&["M d/x"], &["m d/"], &["m d/", "M d/x"]), ["attributes d"]);
        assert_eq!(conflicts(&["m d/"], &["m d/"], &["m d/"]), ["d"]);
    }

    #[test]
    fn nothing_is_put_where_something_is_mounted() {
        for path in ["data/volume", "data/volume/x", "proc/x"] {
            assert_eq!(conflicts(&[], &[&format!("+ {path}")], &[&format!("+ {path}")]), [path]);
        }
        assert_eq!(conflicts(&[], &["- data/"], &["- data/"]), ["data"]);
        assert_eq!(steps(&[], &["+ data/x"], &["+ data/x"]), ["put data/x"]);
    }
}
