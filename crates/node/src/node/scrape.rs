//! The answer to a scrape: what was counted, and what is read now.
//!
//! Every source has a deadline. One that does not answer in time is left out, and the rest is answered.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use base::telemetry::{self, Kind, Metric};
use model::{SandboxState, TemplateState};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet, prometheus_text},
    metrics::MetricType,
    registry::Registry,
};
use sandbox::{Usage, UsageGroup};

use super::Node;
use crate::{error::chain, records::SandboxRecord};

/// How long reading the sandboxes may take.
const SANDBOXES_MAX: Duration = Duration::from_secs(1);

/// How long each other source may take.
const SOURCE_MAX: Duration = Duration::from_secs(2);

/// A value with its labels.
type Sample = (Vec<(&'static str, String)>, f64);

/// What was read.
#[derive(Debug, Default)]
struct Scrape {
    /// By name.
    families: BTreeMap<&'static str, (&'static Metric, Vec<Sample>)>,
}

impl Scrape {
    fn put<const N: usize>(&mut self, metric: &'static Metric, labels: [&str; N], value: f64) {
        let labels = metric.labels.iter().copied().zip(labels.map(str::to_owned)).collect();
        let (_, samples) = self.families.entry(metric.name).or_insert_with(|| (metric, Vec::new()));
        samples.push((labels, value));
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (metric, samples) in self.families.values() {
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                // Histograms are counted, not read.
                Kind::Histogram => continue,
            };
            let mut family = encoder.encode_descriptor(metric.family(), metric.help, None, kind)?;
            for (labels, value) in samples {
                let mut sample = family.encode_family(labels)?;
                if metric.kind == Kind::Counter {
                    sample.encode_counter::<NoLabelSet, _, u64>(value, None)?;
                } else {
                    sample.encode_gauge(value)?;
                }
            }
        }
        Ok(())
    }
}

/// A sandbox that is read.
struct Read {
    id: String,
    template: String,
    usage: Usage,
}

impl Node {
    /// All metrics of the node and its volumes, in the text format of Prometheus.
    pub async fn metrics(&self) -> String {
        let _only = self.ledger.metrics.scraping.lock().await;
        let mut scrape = Scrape::default();
        self.put_state(&mut scrape);
        self.put_store(&mut scrape);
        let (sandboxes, pager, cache, volumes) =
            tokio::join!(self.read_sandboxes(), self.pager_status(), self.cache_bytes(), self.volumes_metrics());
        put_sandboxes(&mut scrape, sandboxes);
        if let Some(status) = pager {
            put_pager(&mut scrape, &status);
        }
        if let Some(bytes) = cache {
            scrape.put(&telemetry::STORE_CACHE_BYTES, [], bytes as f64);
        }
        let mut read = Registry::default();
        read.register_collector(Box::new(scrape));
        let mut text = String::new();
        for registry in [self.ledger.metrics.registry(), &read] {
            // Writing to a string cannot fail.
            let _ = prometheus_text::encode(&mut text, registry);
        }
        text + &volumes
    }

    /// A request has failed with this code.
    pub fn count_failure(&self, code: String) {
        self.ledger.metrics.failed(code);
    }

    fn put_state(&self, scrape: &mut Scrape) {
        let (pool, templates, sandboxes) = {
            let state = self.state();
            (state.pool_info(), state.templates(), state.sandboxes())
        };
        for (level, count) in [("ready", pool.ready), ("bare", pool.bare), ("ahead", pool.ahead)] {
            scrape.put(&telemetry::POOL, [level], count as f64);
        }
        for (level, limit) in [("ready", pool.limit), ("ahead", pool.ahead_limit)] {
            scrape.put(&telemetry::POOL_LIMIT, [level], limit as f64);
        }
        let mut states = BTreeMap::from(["building", "ready", "lost"].map(|state| (state, 0)));
        for template in &templates {
            *states.entry(template_state(template.state)).or_default() += 1;
        }
        states.iter().for_each(|(state, count)| scrape.put(&telemetry::TEMPLATES, [state], f64::from(*count)));
        let mut states = BTreeMap::from(["running", "pausing", "paused", "exited", "lost"].map(|state| (state, 0)));
        for sandbox in &sandboxes {
            *states.entry(sandbox_state(sandbox.state)).or_default() += 1;
        }
        states.iter().for_each(|(state, count)| scrape.put(&telemetry::SANDBOXES, [state], f64::from(*count)));
        scrape.put(&telemetry::KEEPER_RESTARTS, [], self.keepers.restarts() as f64);
    }

    fn put_store(&self, scrape: &mut Scrape) {
        let store = &self.durable.store;
        let (reads, requests, peers) = (store.counters(), store.objects().counters(), self.peer_stats());
        for (source, count) in [("cache", reads.cached), ("peer", reads.from_peers), ("store", reads.fetched)] {
            scrape.put(&telemetry::STORE_CHUNKS, [source], count as f64);
        }
        for (result, count) in [("hit", peers.hits), ("miss", peers.misses), ("failed", peers.failures)] {
            scrape.put(&telemetry::PEER_REQUESTS, [result], count as f64);
        }
        for (metric, value) in [
            (&telemetry::STORE_CACHE_LIMIT_BYTES, self.host.config.durable.cache_bytes),
            (&telemetry::STORE_BROKEN, reads.broken),
            (&telemetry::STORE_REQUESTS, requests.requests),
            (&telemetry::STORE_RETRIES, requests.retries),
            (&telemetry::STORE_ERRORS, requests.errors),
            (&telemetry::STORE_SENT_BYTES, requests.bytes_out),
            (&telemetry::STORE_RECEIVED_BYTES, requests.bytes_in),
            (&telemetry::PEERS_KNOWN, peers.known),
            (&telemetry::PEER_RECEIVED_BYTES, reads.peer_bytes),
            (&telemetry::PEER_SERVED, peers.served),
            (&telemetry::PEER_SERVED_BYTES, peers.served_bytes),
            (&telemetry::PEER_REFUSED, peers.refused),
        ] {
            scrape.put(metric, [], value as f64);
        }
    }

    /// What the sandboxes use that have processes, and how many there was no time for.
    async fn read_sandboxes(&self) -> (Vec<Read>, usize) {
        let sandboxes: Vec<(String, String, UsageGroup)> = {
            let state = self.state();
            let present = state.sandboxes().into_iter().filter(|record| record.state != SandboxState::Paused);
            let described = |record: SandboxRecord| {
                (record.id.to_string(), record.template.to_string(), self.host.cgroups.usage_of(&record.id))
            };
            present.map(described).collect()
        };
        let all = sandboxes.len();
        let read = tokio::task::spawn_blocking(move || {
            let deadline = Instant::now() + SANDBOXES_MAX;
            let in_time = sandboxes.into_iter().take_while(|_| Instant::now() < deadline);
            in_time.map(|(id, template, group)| Read { id, template, usage: group.read() }).collect::<Vec<_>>()
        });
        // A file of a control group may take long to read, too.
        let read = tokio::time::timeout(SOURCE_MAX, read).await.ok().and_then(Result::ok).unwrap_or_default();
        let unread = all - read.len();
        (read, unread)
    }

    async fn pager_status(&self) -> Option<pager::Status> {
        tokio::time::timeout(SOURCE_MAX, self.pager.status()).await.ok()?
    }

    async fn cache_bytes(&self) -> Option<u64> {
        let cache = self.durable.store.cache()?;
        tokio::time::timeout(SOURCE_MAX, cache.count()).await.ok()?.ok()
    }

    /// Those of the volumes; none if their processes do not run.
    async fn volumes_metrics(&self) -> String {
        match tokio::time::timeout(SOURCE_MAX, self.volumes().metrics()).await {
            Ok(Ok(metrics)) => metrics.unwrap_or_default(),
            Ok(Err(error)) => {
                tracing::warn!(error = chain(&error), "the metrics of the volumes are left out");
                String::new()
            }
            Err(_) => {
                tracing::warn!("the metrics of the volumes are left out: their process does not answer");
                String::new()
            }
        }
    }
}

fn put_sandboxes(scrape: &mut Scrape, (read, unread): (Vec<Read>, usize)) {
    scrape.put(&telemetry::SANDBOXES_UNREAD, [], unread as f64);
    for Read { id, template, usage: Usage { processes, cpu_us, memory_bytes, memory_limit_bytes } } in &read {
        for (metric, value) in [
            (&telemetry::SANDBOX_PROCESSES, processes.map(|count| count as f64)),
            (&telemetry::SANDBOX_CPU_SECONDS, cpu_us.map(|us| us as f64 / 1e6)),
            (&telemetry::SANDBOX_MEMORY_BYTES, memory_bytes.map(|bytes| bytes as f64)),
            (&telemetry::SANDBOX_MEMORY_LIMIT_BYTES, memory_limit_bytes.map(|bytes| bytes as f64)),
        ] {
            value.into_iter().for_each(|value| scrape.put(metric, [id, template], value));
        }
    }
}

fn put_pager(scrape: &mut Scrape, status: &pager::Status) {
    let sum = |of: fn(&pager::PageImageStatus) -> u64| status.images.iter().map(of).sum::<u64>();
    for (metric, value) in [
        (&telemetry::PAGER_IMAGES, status.images.len() as u64),
        (&telemetry::PAGER_PROCESSES, sum(|image| image.processes)),
        (&telemetry::PAGER_MISSING_PAGES, sum(|image| image.missing_pages)),
        (&telemetry::PAGER_FAILURES, status.failures.len() as u64),
        (&telemetry::PAGER_STARTS, status.counters.pager_starts),
        (&telemetry::PAGER_FAULTS, status.counters.faults),
        (&telemetry::PAGER_FETCHES, status.counters.fetches),
        (&telemetry::PAGER_RETRIES, status.counters.retries),
    ] {
        scrape.put(metric, [], value as f64);
    }
}

fn template_state(state: TemplateState) -> &'static str {
    match state {
        TemplateState::Building => "building",
        TemplateState::Ready => "ready",
        TemplateState::Lost => "lost",
    }
}

fn sandbox_state(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Running => "running",
        SandboxState::Pausing => "pausing",
        SandboxState::Paused => "paused",
        SandboxState::Exited(_) => "exited",
        SandboxState::Lost => "lost",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(scrape: Scrape) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(scrape));
        let mut text = String::new();
        prometheus_text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn a_sandbox_lacks_what_the_host_does_not_count() {
        let usage = Usage { processes: Some(3), cpu_us: Some(1_500_000), memory_bytes: None, memory_limit_bytes: None };
        let read = Read { id: "ab12".to_owned(), template: "geo".to_owned(), usage };
        let mut scrape = Scrape::default();
        put_sandboxes(&mut scrape, (vec![read], 0));
        let labels = "{sandbox=\"ab12\",template=\"geo\"}";
        let expected = format!(
            "# HELP pando_sandbox_cpu_seconds_total CPU time.\n# TYPE pando_sandbox_cpu_seconds_total counter\n\
             pando_sandbox_cpu_seconds_total{labels} 1.5\n\
             # HELP pando_sandbox_processes Processes, pid 1 included.\n# TYPE pando_sandbox_processes gauge\n\
             pando_sandbox_processes{labels} 3.0\n\
             # HELP pando_sandboxes_unread Sandboxes that this answer had no time to read.\n\
             # TYPE pando_sandboxes_unread gauge\npando_sandboxes_unread 0.0\n"
        );
        assert_eq!(text(scrape), expected);
    }

    #[test]
    fn the_pager_is_summed_over_its_images() {
        let image =
            |processes, missing_pages| pager::PageImageStatus { processes, missing_pages, ..Default::default() };
        let status = pager::Status { images: vec![image(1, 10), image(2, 5)], ..Default::default() };
        let mut scrape = Scrape::default();
        put_pager(&mut scrape, &status);
        let text = text(scrape);
        for line in ["pando_pager_images 2.0", "pando_pager_processes 3.0", "pando_pager_missing_pages 15.0"] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
