//! What a case could leave behind, seen by its own process, and later by the parent.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use anyhow::{Result, bail};
use rustix::process::{WaitOptions, wait};

/// What a case could leave behind.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Traces {
    processes: BTreeSet<String>,
    mounts: usize,
    descriptors: usize,
    cgroups: BTreeSet<String>,
    links: BTreeSet<String>,
}

impl Traces {
    pub(super) fn now() -> Self {
        let count = |path: &str| fs::read_dir(path).map_or(0, Iterator::count);
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_or(0, |text| text.lines().count());
        Self { processes: processes(), mounts, descriptors: count("/proc/self/fd"), cgroups: cgroups(), links: links() }
    }

    /// Nothing more than before, allowing for processes that are just being reaped by others.
    pub(super) fn check(&self) -> Result<()> {
        let mut now = Self::now();
        for _ in 0..200 {
            reap();
            now = Self::now();
            if now.processes.is_subset(&self.processes)
                && now.cgroups.is_subset(&self.cgroups)
                && now.links.is_subset(&self.links)
                && now.mounts <= self.mounts
                && now.descriptors <= self.descriptors
            {
                return Ok(());
            }
            sleep(Duration::from_millis(10));
        }
        let left =
            |now: &BTreeSet<String>, before: &BTreeSet<String>| now.difference(before).cloned().collect::<Vec<_>>();
        bail!(
            "left behind: processes {:?}, cgroups {:?}, links {:?}, mounts {} (before {}), descriptors {} (before {})",
            left(&now.processes, &self.processes),
            left(&now.cgroups, &self.cgroups),
            left(&now.links, &self.links),
            now.mounts,
            self.mounts,
            now.descriptors,
            self.descriptors
        )
    }
}

/// Links of the network namespace of this process.
fn links() -> BTreeSet<String> {
    let table = fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    table.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

/// Reaps every child that has ended.
pub fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// Processes below this one, zombies too, as `pid name`.
fn processes() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut parents = vec![std::process::id().to_string()];
    while let Some(parent) = parents.pop() {
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        for child in children.split_ascii_whitespace() {
            let name = fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
            found.insert(format!("{child} {}", name.trim_end()));
            parents.push(child.to_owned());
        }
    }
    found
}

/// Control groups of this process's engine, in every hierarchy.
fn cgroups() -> BTreeSet<String> {
    groups_named(&|name| is_of(name, std::process::id()))
}

/// Files and control groups on the host that carry the process id of a case. The watchdog of a node removes its own ones
/// within seconds, also after the case was killed.
pub(super) fn left_by(pid: u32) -> Vec<String> {
    let look = || -> BTreeSet<String> {
        let files = ["/opt", "/tmp", "/var/lib", "/var/tmp"].into_iter().flat_map(|folder| entries(Path::new(folder)));
        let files = files.filter(|path| is_of(&name(path), pid)).map(|path| path.display().to_string());
        files.chain(groups_named(&|name| is_of(name, pid))).collect()
    };
    let mut found = look();
    for _ in 0..100 {
        if found.is_empty() {
            break;
        }
        sleep(Duration::from_millis(50));
        found = look();
    }
    found.into_iter().collect()
}

/// Names of tests begin with `pando-`, and have the process id among their parts.
fn is_of(name: &str, pid: u32) -> bool {
    let pid = pid.to_string();
    name.strip_prefix("pando-").is_some_and(|rest| rest.split('-').any(|part| part.trim_start_matches("test") == pid))
}

fn groups_named(wanted: &dyn Fn(&str) -> bool) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        for path in entries(&folder).filter(|path| path.is_dir() && !path.is_symlink()) {
            if wanted(&name(&path)) {
                found.insert(path.display().to_string());
            }
            folders.push(path);
        }
    }
    found
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
