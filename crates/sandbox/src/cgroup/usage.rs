//! What a sandbox uses now: processes, CPU time and memory, in v2 or v1.

use std::{
    fs,
    path::{Path, PathBuf},
};

use base::id::SandboxId;

use super::{Cgroups, ControllerHome, group::processes_below};

/// Where one sandbox is counted. It stays readable as long as the sandbox is there.
#[derive(Debug, Clone)]
pub struct UsageGroup {
    /// In v2, which has the processes on every host.
    group: PathBuf,
    /// In v1, if CPU time is counted there.
    legacy_cpu: Option<PathBuf>,
    memory: Option<Memory>,
}

/// The directory that counts memory, and its files.
#[derive(Debug, Clone)]
struct Memory {
    directory: PathBuf,
    now: &'static str,
    limit: &'static str,
}

impl Memory {
    fn v2(directory: PathBuf) -> Self {
        Self { directory, now: "memory.current", limit: "memory.max" }
    }

    fn v1(directory: PathBuf) -> Self {
        Self { directory, now: "memory.usage_in_bytes", limit: "memory.limit_in_bytes" }
    }
}

/// What a sandbox uses now. The host does not count what is missing, or not yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processes, those of commands too.
    pub processes: Option<u64>,
    /// CPU time since the sandbox was made, in microseconds.
    pub cpu_us: Option<u64>,
    /// Memory that is charged to it, in bytes.
    pub memory_bytes: Option<u64>,
    /// Its limit of memory, in bytes.
    pub memory_limit_bytes: Option<u64>,
}

impl Cgroups {
    /// Where a sandbox is counted.
    pub fn usage_of(&self, id: &SandboxId) -> UsageGroup {
        let summary = self.summary();
        let group = summary.group.join(id.as_str());
        let memory = match &summary.memory {
            ControllerHome::V2 => Some(Memory::v2(group.clone())),
            ControllerHome::V1(parent) => Some(Memory::v1(parent.join(id.as_str()))),
            ControllerHome::Missing(_) => None,
        };
        UsageGroup { group, legacy_cpu: summary.cpu.v1().map(|parent| parent.join(id.as_str())), memory }
    }
}

impl UsageGroup {
    /// What it uses now; nothing of a sandbox that is gone.
    pub fn read(&self) -> Usage {
        Usage {
            processes: self.processes(),
            cpu_us: self.cpu_us(),
            memory_bytes: self.memory.as_ref().and_then(|memory| number(&memory.directory, memory.now)),
            // `max` is no number.
            memory_limit_bytes: self.memory.as_ref().and_then(|memory| number(&memory.directory, memory.limit)),
        }
    }

    fn processes(&self) -> Option<u64> {
        // A group without a directory would look as if it had no processes.
        let found = self.group.is_dir().then(|| processes_below(&self.group).ok())?;
        found.map(|processes| processes.len() as u64)
    }

    /// v2 counts CPU time also without the controller. Kernels before 4.15 do not: there the v1 group counts from the moment at which the
    /// processes joined it.
    fn cpu_us(&self) -> Option<u64> {
        let of_v2 = fs::read_to_string(self.group.join("cpu.stat")).ok();
        let of_v2 = of_v2.and_then(|text| usage_us(&text));
        of_v2.or_else(|| Some(number(self.legacy_cpu.as_ref()?, "cpuacct.usage")? / 1000))
    }
}

fn number(directory: &Path, file: &str) -> Option<u64> {
    fs::read_to_string(directory.join(file)).ok()?.trim().parse().ok()
}

fn usage_us(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (file, text) in files {
            fs::create_dir_all(directory.path().join(file).parent().unwrap()).unwrap();
            fs::write(directory.path().join(file), text).unwrap();
        }
        directory
    }

    #[test]
    fn a_v2_group_is_read_with_its_commands() {
        let v2 = directory(&[
            ("cgroup.procs", "10\n11\n"),
            ("command/cgroup.procs", "12\n"),
            ("cpu.stat", "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\n"),
            ("memory.current", "4096\n"),
            ("memory.max", "max\n"),
        ]);
        let group = v2.path().to_owned();
        let usage = UsageGroup { memory: Some(Memory::v2(group.clone())), group, legacy_cpu: None }.read();
        let memory_bytes = Some(4096);
        assert_eq!(usage, Usage { processes: Some(3), cpu_us: Some(1500), memory_bytes, memory_limit_bytes: None });
    }

    #[test]
    fn a_v1_group_counts_what_v2_does_not() {
        let v2 = directory(&[("cgroup.procs", "10\n")]);
        let cpu = directory(&[("cpuacct.usage", "2500000\n")]);
        let memory = directory(&[("memory.usage_in_bytes", "8192\n"), ("memory.limit_in_bytes", "1048576\n")]);
        let usage = UsageGroup {
            group: v2.path().to_owned(),
            legacy_cpu: Some(cpu.path().to_owned()),
            memory: Some(Memory::v1(memory.path().to_owned())),
        };
        let expected = Usage {
            processes: Some(1),
            cpu_us: Some(2500),
            memory_bytes: Some(8192),
            memory_limit_bytes: Some(1_048_576),
        };
        assert_eq!(usage.read(), expected);
    }

    #[test]
    fn what_is_not_counted_is_missing() {
        let v2 = directory(&[("cgroup.procs", "")]);
        let usage = UsageGroup { group: v2.path().to_owned(), legacy_cpu: None, memory: None };
        assert_eq!(usage.read(), Usage { processes: Some(0), ..Usage::default() });
        let gone = UsageGroup { group: v2.path().join("gone"), legacy_cpu: None, memory: None };
        assert_eq!(gone.read(), Usage::default());
    }
}
