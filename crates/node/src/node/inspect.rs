//! What a sandbox is made of right now, read from `/proc`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use base::id::SandboxId;
use model::{MachineIds, ProcessInfo, SandboxDetail, SandboxState};
use procfs::Fields;
use rustix::io::Errno;
use sandbox::Machine;

use super::{Node, now_ms};
use crate::error::{Context, Result};

impl Node {
    /// The control group of a sandbox.
    pub(super) fn group(&self, id: &SandboxId) -> PathBuf {
        self.host.cgroups.summary().group.join(id.as_str())
    }

    /// Everything about one sandbox.
    pub fn inspect(&self, id: &SandboxId) -> Result<SandboxDetail> {
        let record = self.state().sandbox(id)?.clone();
        let group = self.group(id);
        let processes: Vec<_> = pids(&group).unwrap_or_default().into_iter().filter_map(process).collect();
        let sum = |bytes: fn(&ProcessInfo) -> u64| processes.iter().map(bytes).sum();
        // A paused one has no root, only what a resume makes one of.
        let layers = if record.state == SandboxState::Paused { &[][..] } else { &record.layers };
        Ok(SandboxDetail {
            sandbox: record.to_model(),
            uptime_ms: now_ms().saturating_sub(record.created_ms),
            rss_bytes: sum(|process| process.rss_bytes),
            pss_bytes: sum(|process| process.pss_bytes),
            own_bytes: sum(|process| process.own_bytes),
            processes,
            memory: self.host.cgroups.memory_of(id).and_then(|group| group.read()).map(to_model),
            cgroup: group.display().to_string(),
            layers: layers.iter().map(|layer| layer.display().to_string()).collect(),
            directory: self.home(id).display().to_string(),
            machine: (record.state != SandboxState::Paused).then(|| self.machine_ids(id)),
            on_fork: record.spec.map(|spec| spec.on_fork).unwrap_or_default(),
        })
    }
}

impl Node {
    fn machine_ids(&self, id: &SandboxId) -> MachineIds {
        let Machine { machine_id, boot_id, generation } = Machine::read(&self.host.changes.of(id));
        let [machine_id, boot_id, generation] =
            [machine_id, boot_id, generation].map(|line| line.trim_end().to_owned());
        MachineIds { machine_id, boot_id, generation }
    }
}

fn to_model(sandbox::MemoryUse { limit_bytes, peak_bytes, killed }: sandbox::MemoryUse) -> model::MemoryUse {
    model::MemoryUse { limit_bytes, peak_bytes, killed }
}

/// The processes of a sandbox's control group and of the groups of its commands; one that is gone has none.
pub(super) fn pids(group: &Path) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for command in fs::read_dir(group).into_iter().flatten().flatten() {
        if command.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(members(&command.path())?);
        }
    }
    // Last: what a command has left behind joins it.
    found.extend(members(group)?);
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The processes of one control group alone; one that is gone has none.
pub(super) fn members(group: &Path) -> Result<Vec<i32>> {
    let path = group.join("cgroup.procs");
    let members = match fs::read_to_string(&path) {
        Ok(members) => members,
        // The latter of one that goes while it is read.
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::NODEV)) => String::new(),
        Err(error) => return Err(error).at("read", &path),
    };
    Ok(members.lines().filter_map(|pid| pid.parse().ok()).collect())
}

/// One process; none if it has ended meanwhile.
pub(super) fn process(pid: i32) -> Option<ProcessInfo> {
    let status = Fields::read(format!("/proc/{pid}/status")).ok()?;
    let memory = Fields::read(format!("/proc/{pid}/smaps_rollup")).ok();
    let bytes = |name: &str| memory.as_ref().and_then(|memory| memory.bytes(name).ok()).unwrap_or(0);
    Some(ProcessInfo {
        pid,
        inner_pid: status.get("NSpid")?.split_ascii_whitespace().last()?.parse().ok()?,
        name: status.get("Name")?.to_owned(),
        threads: status.get("Threads")?.parse().ok()?,
        rss_bytes: bytes("Rss"),
        pss_bytes: bytes("Pss"),
        own_bytes: bytes("Private_Clean") + bytes("Private_Dirty"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_can_be_described() {
        let own = process(std::process::id() as i32).unwrap();
        assert!(
            own.threads >= 1 && own.rss_bytes >= own.pss_bytes && own.pss_bytes >= own.own_bytes && own.own_bytes > 0
        );
        assert!(process(i32::MAX).is_none());
    }
}
