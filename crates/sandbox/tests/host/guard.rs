//! What there is on the host, before and after a case.

use std::{collections::BTreeSet, fs, path::Path};

use crate::host::Host;

#[derive(Debug)]
pub(crate) struct Guard {
    descriptors: BTreeSet<String>,
    mounts: BTreeSet<String>,
    groups: BTreeSet<String>,
    directories: BTreeSet<String>,
    children: BTreeSet<String>,
}

impl Guard {
    pub(crate) fn look(host: &Host) -> Self {
        let summary = host.cgroups.summary();
        let legacy = [&summary.memory, &summary.pids, &summary.cpu].map(|home| match home {
            pando_sandbox::ControllerHome::V1(path) => Some(path.clone()),
            _ => None,
        });
        let groups = legacy.into_iter().flatten().chain([summary.group.clone()]);
        let own = std::process::id();
        Self {
            // The descriptor that lists is gone again: its own link cannot be read.
            descriptors: fs::read_dir("/proc/self/fd")
                .unwrap()
                .filter_map(|entry| {
                    let path = entry.unwrap().path();
                    Some(format!("{} {}", path.display(), fs::read_link(&path).ok()?.display()))
                })
                .filter(|text| !text.contains("/proc/") || !text.ends_with("/fd"))
                .collect(),
            mounts: fs::read_to_string("/proc/self/mountinfo").unwrap().lines().map(str::to_owned).collect(),
            groups: groups.flat_map(|path| names(&path)).collect(),
            directories: names(&host.sandboxes()),
            children: fs::read_to_string(format!("/proc/{own}/task/{own}/children"))
                .unwrap()
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
        }
    }

    pub(crate) fn compare(&self, after: &Self) {
        for (what, before, after) in [
            ("descriptors", &self.descriptors, &after.descriptors),
            ("mounts", &self.mounts, &after.mounts),
            ("cgroups", &self.groups, &after.groups),
            ("directories", &self.directories, &after.directories),
            ("children", &self.children, &after.children),
        ] {
            assert_eq!(before, after, "{what} differ");
        }
    }
}

fn names(path: &Path) -> BTreeSet<String> {
    let directories =
        fs::read_dir(path).unwrap().map(Result::unwrap).filter(|entry| entry.file_type().unwrap().is_dir());
    directories.map(|entry| entry.path().display().to_string()).collect()
}
