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

/// The files of a hierarchy. That with the kills has lines of a name and a number.
#[derive(Debug)]
struct Files {
    limit: &'static str,
    peak: &'static str,
    events: &'static str,
}

const V2: Files = Files { limit: "memory.max", peak: "memory.peak", events: "memory.events" };
const V1: Files =
    Files { limit: "memory.limit_in_bytes", peak: "memory.max_usage_in_bytes", events: "memory.oom_control" };

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
        for (file, text) in [("memory.max", "1048576\n"), ("memory.peak", "4096\n"), ("memory.events", "oom_kill 2\n")]
        {
            fs::write(dir.path().join(file), text).unwrap();
        }
        let found = MemoryUse { limit_bytes: 1_048_576, peak_bytes: Some(4_096), killed: 2 };
        assert_eq!((group.read(), group.killed()), (Some(found), 2));
    }
}
