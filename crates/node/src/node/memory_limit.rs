//! Deaths at the memory limit, in words.

use base::id::SandboxId;
use sandbox::{MemoryGroup, MemoryUse};

use super::Node;

/// What the kernel has killed in one sandbox, since a moment.
#[derive(Debug)]
pub(super) struct Watch {
    group: Option<MemoryGroup>,
    before: u64,
}

impl Watch {
    /// What it has killed since the watch began; none: nothing.
    pub(super) fn killed(&self) -> Option<MemoryUse> {
        let found = self.group.as_ref()?.read()?;
        let killed = found.killed.saturating_sub(self.before);
        (killed > 0).then_some(MemoryUse { killed, ..found })
    }
}

impl Node {
    /// Begins to watch a sandbox.
    pub(super) fn watch_limit(&self, id: &SandboxId) -> Watch {
        let group = self.host.cgroups.memory_of(id);
        Watch { before: group.as_ref().map_or(0, MemoryGroup::killed), group }
    }

    /// Why a program was killed, if the kernel has killed anything in its sandbox at the memory limit.
    pub(super) fn killed_at_limit(&self, id: &SandboxId) -> Option<String> {
        let found = Watch { group: self.host.cgroups.memory_of(id), before: 0 }.killed()?;
        Some(format!("the kernel killed it at the sandbox's {}", limit(&found)))
    }
}

/// The limit, and how near it came to be.
pub(super) fn limit(found: &MemoryUse) -> String {
    let peak = found.peak_bytes.map(|peak| format!(" (peak {})", mib(peak))).unwrap_or_default();
    format!("memory limit of {}{peak}", mib(found.limit_bytes))
}

fn mib(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib.fract() == 0.0 { format!("{mib} MiB") } else { format!("{mib:.1} MiB") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_said_with_its_peak_where_that_is_known() {
        let found = MemoryUse { limit_bytes: 256 << 20, peak_bytes: Some((255 << 20) + (1 << 19)), killed: 1 };
        assert_eq!(limit(&found), "memory limit of 256 MiB (peak 255.5 MiB)");
        assert_eq!(limit(&MemoryUse { peak_bytes: None, ..found }), "memory limit of 256 MiB");
    }
}
