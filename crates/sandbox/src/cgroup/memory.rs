//! What a sandbox's memory controller has counted, in v2 or v1.

use std::{fs, path::PathBuf};

use base::id::SandboxId;

use super::{Cgroups, ControllerHome};

/// Where the memory of one sandbox is counted. It stays readable as long as the sandbox is there.
#[derive(Debug, Clone)]
pub struct MemoryGroup {
    directory: PathBuf,
    files: &'static Files,
}

/// How much a sandbox has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Its limit, in bytes.
    pub limit_bytes: u64,
    /// The most that it had at once, in bytes; none where the kernel does not count it (v2 before 5.19).
    pub peak_bytes: Option<u64>,
    /// Processes that the kernel has killed because the limit was reached.
    pub killed: u64,
}

/// What a sandbox uses of its limit now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryShare {
    /// Its limit, in bytes.
    pub limit_bytes: u64,
    /// What is counted, caches included, in bytes.
    pub used_bytes: u64,
    /// Of that, the caches that the kernel would drop first, in bytes.
    pub cache_bytes: u64,
}

/// The files of a hierarchy. That with the kills has lines of a name and a number.
#[derive(Debug)]
struct Files {
    limit: &'static str,
    now: &'static str,
    /// The name of the least used caches, those of commands included, in `memory.stat`.
    cache: &'static str,
    peak: &'static str,
    events: &'static str,
}

const V2: Files = Files {
    limit: "memory.max",
    now: "memory.current",
    cache: "inactive_file",
    peak: "memory.peak",
    events: "memory.events",
};
const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    now: "memory.usage_in_bytes",
    cache: "total_inactive_file",
    peak: "memory.max_usage_in_bytes",
    events: "memory.oom_control",
};

impl Cgroups {
    /// Where the memory of a sandbox is counted; none if it is not.
    pub fn memory_of(&self, id: &SandboxId) -> Option<MemoryGroup> {
        let summary = self.summary();
        let (parent, files) = match &summary.memory {
            ControllerHome::V2 => (&summary.group, &V2),
            ControllerHome::V1(parent) => (parent, &V1),
            ControllerHome::Missing(_) => return None,
        };
        Some(MemoryGroup { directory: parent.join(id.as_str()), files })
    }
}

impl MemoryGroup {
    /// What was counted until now; none if the group is not there (in v1: not yet).
    pub fn read(&self) -> Option<MemoryUse> {
        let read = |file: &str| fs::read_to_string(self.directory.join(file)).ok();
        let number = |file: &str| read(file)?.trim().parse().ok();
        let killed = killed(&read(self.files.events)?);
        Some(MemoryUse { limit_bytes: number(self.files.limit)?, peak_bytes: number(self.files.peak), killed })
    }

    /// What is used now, in bytes; none if the group is not there (in v1: not yet).
    pub fn used_bytes(&self) -> Option<u64> {
        fs::read_to_string(self.directory.join(self.files.now)).ok()?.trim().parse().ok()
    }

    /// The same, with what it consists of.
    pub fn share(&self) -> Option<MemoryShare> {
        let read = |file: &str| fs::read_to_string(self.directory.join(file)).ok();
        let cache = |line: &str| line.strip_prefix(self.files.cache)?.strip_prefix(' ')?.trim().parse().ok();
        let cache_bytes = read("memory.stat")?.lines().find_map(cache).unwrap_or(0);
        let limit_bytes = read(self.files.limit)?.trim().parse().ok()?;
        Some(MemoryShare { limit_bytes, used_bytes: self.used_bytes()?, cache_bytes })
    }

    /// Processes that were killed at the limit until now.
    pub fn killed(&self) -> u64 {
        fs::read_to_string(self.directory.join(self.files.events)).map_or(0, |text| killed(&text))
    }
}

fn killed(events: &str) -> u64 {
    let count = |line: &str| line.strip_prefix("oom_kill ")?.trim().parse().ok();
    events.lines().find_map(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_are_read_from_both_hierarchies() {
        assert_eq!(killed("low 0\nhigh 0\nmax 31\noom 2\noom_kill 3\noom_group_kill 0\n"), 3);
        assert_eq!(killed("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"), 1);
        assert_eq!(killed("oom_kill_disable 0\nunder_oom 0\n"), 0);
    }

    #[test]
    fn a_group_is_read_from_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let group = MemoryGroup { directory: dir.path().to_owned(), files: &V2 };
        assert_eq!((group.read(), group.killed()), (None, 0));
        let files = [
            ("memory.max", "1048576\n"),
            ("memory.peak", "4096\n"),
            ("memory.events", "oom_kill 2\n"),
            ("memory.current", "4000\n"),
            ("memory.stat", "anon 1\ninactive_file_x 7\ninactive_file 3000\n"),
        ];
        for (file, text) in files {
            fs::write(dir.path().join(file), text).unwrap();
        }
        let share = MemoryShare { limit_bytes: 1_048_576, used_bytes: 4_000, cache_bytes: 3_000 };
        assert_eq!(group.share(), Some(share));
        let found = MemoryUse { limit_bytes: 1_048_576, peak_bytes: Some(4_096), killed: 2 };
        assert_eq!((group.read(), group.killed()), (Some(found), 2));
    }
}
