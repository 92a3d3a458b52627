//! What a sandbox uses at one moment.

use std::time::{Duration, Instant};

use base::id::SandboxId;
use model::SandboxUse;
use rustix::fs::statvfs;

use super::Node;
use crate::error::{Context, Result};

/// Between the two looks at CPU time.
const SAMPLE: Duration = Duration::from_millis(100);

impl Node {
    /// What a sandbox uses now. Fails if it does not run.
    pub async fn usage(&self, id: &SandboxId) -> Result<SandboxUse> {
        self.state().running(id)?;
        let group = self.host.cgroups.usage_of(id);
        let (began, before) = (Instant::now(), group.read().cpu_us);
        tokio::time::sleep(SAMPLE).await;
        let now = group.read();
        let spent_us = now.cpu_us.zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
        let directory = self.host.config.sandbox_dir(id);
        let disk = statvfs(&directory).at("look at the filesystem of", &directory)?;
        Ok(SandboxUse {
            cpu_percent: (spent_us as f64 / began.elapsed().as_micros() as f64 * 100.0) as f32,
            memory_bytes: now.memory_bytes.unwrap_or(0),
            disk_used_bytes: (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
            disk_total_bytes: disk.f_blocks * disk.f_frsize,
        })
    }
}
