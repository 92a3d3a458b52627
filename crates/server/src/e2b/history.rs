//! What sandboxes used in the last hour, in memory.

use std::{
    collections::{HashMap, VecDeque},
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use api::e2b;
use base::{
    id::SandboxId,
    limits::{METRICS_KEPT, METRICS_PAUSE, METRICS_SIDE_BY_SIDE},
};
use control::{Sandbox, State, Time};

use tokio::sync::Semaphore;

use super::platform::Platform;

/// Measurements of each sandbox, the oldest first.
#[derive(Debug)]
pub(crate) struct History {
    kept: Mutex<HashMap<SandboxId, VecDeque<e2b::Metric>>>,
    /// For measurements that run.
    turns: Semaphore,
}

impl Default for History {
    fn default() -> Self {
        Self { kept: Mutex::default(), turns: Semaphore::new(METRICS_SIDE_BY_SIDE) }
    }
}

impl History {
    fn all(&self) -> MutexGuard<'_, HashMap<SandboxId, VecDeque<e2b::Metric>>> {
        // No operation leaves it half changed.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of a span, in seconds since 1970.
    pub(crate) fn of(&self, id: &SandboxId, span: RangeInclusive<i64>) -> Vec<e2b::Metric> {
        let all = self.all();
        let found = all.get(id).into_iter().flatten().filter(|metric| span.contains(&metric.timestamp_unix));
        found.cloned().collect()
    }

    /// The newest one, if it is of this second.
    fn fresh(&self, id: &SandboxId, now_s: i64) -> Option<e2b::Metric> {
        self.all().get(id)?.back().filter(|last| last.timestamp_unix >= now_s).cloned()
    }

    fn add(&self, id: &SandboxId, metric: e2b::Metric) {
        let mut all = self.all();
        let kept = all.entry(id.clone()).or_default();
        kept.push_back(metric);
        while kept.len() > METRICS_KEPT {
            kept.pop_front();
        }
    }

    fn forget_others(&self, known: &[Sandbox]) {
        self.all().retain(|id, _| known.iter().any(|sandbox| sandbox.id == *id));
    }
}

impl Platform {
    /// Seconds since 1970.
    pub(crate) fn now_s(&self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
    }

    /// Measures every sandbox of this server again and again.
    pub(crate) async fn sample(self: &Arc<Self>) {
        loop {
            match self.control.sandboxes().of_this_server().await {
                Ok(known) => {
                    self.history.forget_others(&known);
                    let running = known.into_iter().filter(|sandbox| sandbox.state == State::Running);
                    let running: Vec<Sandbox> = running.collect();
                    for some in running.chunks(METRICS_SIDE_BY_SIDE) {
                        futures::future::join_all(some.iter().map(|sandbox| self.measure(sandbox))).await;
                    }
                }
                Err(error) => tracing::warn!(error = base::error::chain(&error), "sandboxes are not measured"),
            }
            tokio::time::sleep(METRICS_PAUSE).await;
        }
    }

    /// What a sandbox uses now, or used within this second. None if it does not run.
    pub(crate) async fn measure(&self, sandbox: &Sandbox) -> Option<e2b::Metric> {
        if let Some(fresh) = self.history.fresh(&sandbox.id, self.now_s()) {
            return Some(fresh);
        }
        // Each counts files, with a descriptor for each directory: there is a bound for all requests together.
        let _turn = self.history.turns.acquire().await.ok()?;
        if let Some(fresh) = self.history.fresh(&sandbox.id, self.now_s()) {
            return Some(fresh);
        }
        let usage = self.node.usage(&sandbox.id).await.ok()?;
        let timestamp_unix = self.now_s();
        let bytes = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let metric = e2b::Metric {
            timestamp: Time::from_ms(timestamp_unix.unsigned_abs() * 1000).to_string(),
            timestamp_unix,
            cpu_count: i32::try_from(sandbox.spec.size.cpus).unwrap_or(i32::MAX),
            cpu_used_pct: usage.cpu_percent,
            mem_used: bytes(usage.memory_bytes),
            mem_total: bytes(sandbox.spec.size.memory_mb << 20),
            mem_cache: 0,
            disk_used: bytes(usage.disk_used_bytes),
            disk_total: bytes(usage.disk_total_bytes),
        };
        self.history.add(&sandbox.id, metric.clone());
        Some(metric)
    }
}
