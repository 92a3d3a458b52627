//! The names of the metrics that a node has.
//!
//! [`ALL`] is the one table of metrics. `docs/metrics.md` repeats it for people, and a test compares the two.

/// Content type of the metrics: the text format of Prometheus.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How the values of a metric behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, until the process that counts is started again.
    Counter,
    /// Grows and falls.
    Gauge,
    /// Counts observations in buckets. The table has no label `le`, which every histogram has.
    Histogram,
}

impl Kind {
    /// As `# TYPE` lines have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// What a value counts or measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Things of the metric's name.
    Count,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

impl Unit {
    /// In words; empty for a plain count.
    pub fn name(self) -> &'static str {
        match self {
            Self::Count => "",
            Self::Bytes => "bytes",
            Self::Seconds => "seconds",
        }
    }
}

/// One metric.
#[derive(Debug)]
pub struct Metric {
    /// As a client reads it; that of a counter ends in `_total`.
    pub name: &'static str,
    /// How its values behave.
    pub kind: Kind,
    /// The names of its labels, in the order in which they are written.
    pub labels: &'static [&'static str],
    /// What a value measures.
    pub unit: Unit,
    /// For people: one line, with a full stop.
    pub help: &'static str,
}

impl Metric {
    /// The name without the `_total` of a counter.
    pub fn family(&self) -> &'static str {
        match self.kind {
            Kind::Counter => self.name.strip_suffix("_total").unwrap_or(self.name),
            Kind::Gauge | Kind::Histogram => self.name,
        }
    }

    /// The help without its full stop.
    pub fn summary(&self) -> &'static str {
        self.help.strip_suffix('.').unwrap_or(self.help)
    }
}

macro_rules! metrics {
    ($($constant:ident = $name:literal $kind:ident [$($label:literal),*] $unit:ident $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $constant: Metric = Metric {
                name: $name,
                kind: Kind::$kind,
                labels: &[$($label),*],
                unit: Unit::$unit,
                help: $help,
            };
        )*

        /// Every metric, in the order of the document.
        pub static ALL: &[&Metric] = &[$(&$constant),*];
    };
}

metrics! {
    STARTS = "pando_starts_total" Counter ["kind", "result"] Count "Starts of sandboxes.";
    START_SECONDS = "pando_start_seconds" Histogram ["kind"] Seconds "From the request to the running program.";
    BUILDS = "pando_template_builds_total" Counter ["result"] Count "Builds of templates.";
    RESTORES = "pando_restores_total" Counter ["result"] Count "Checkpoints made ready on this node.";
    CAPTURES = "pando_captures_total" Counter ["purpose", "result"] Count "Captures of running sandboxes.";
    CAPTURE_PAUSE_SECONDS = "pando_capture_pause_seconds" Histogram ["purpose"] Seconds
        "How long the sandbox stood still.";
    COMMANDS = "pando_commands_total" Counter ["result"] Count "Starts of commands in sandboxes.";
    REFUSALS = "pando_refusals_total" Counter ["reason"] Count "Reasons why a program was not forked.";
    FAILURES = "pando_request_failures_total" Counter ["kind"] Count "Failed requests, those of volumes excepted.";
    KEEPER_RESTARTS = "pando_keeper_restarts_total" Counter [] Count "Keepers that had to be replaced.";
    POOL = "pando_pool_sandboxes" Gauge ["level"] Count "Prepared sandboxes.";
    POOL_LIMIT = "pando_pool_limit" Gauge ["level"] Count "Most prepared sandboxes.";
    TEMPLATES = "pando_templates" Gauge ["state"] Count "Templates.";
    SANDBOXES = "pando_sandboxes" Gauge ["state"] Count "Sandboxes.";
    SANDBOXES_UNREAD = "pando_sandboxes_unread" Gauge [] Count "Sandboxes that this answer had no time to read.";
    SANDBOX_PROCESSES = "pando_sandbox_processes" Gauge ["sandbox", "template"] Count "Processes, pid 1 included.";
    SANDBOX_CPU_SECONDS = "pando_sandbox_cpu_seconds_total" Counter ["sandbox", "template"] Seconds "CPU time.";
    SANDBOX_MEMORY_BYTES = "pando_sandbox_memory_bytes" Gauge ["sandbox", "template"] Bytes "Memory charged to it.";
    SANDBOX_MEMORY_LIMIT_BYTES = "pando_sandbox_memory_limit_bytes" Gauge ["sandbox", "template"] Bytes
        "Most memory.";
    PAGER_IMAGES = "pando_pager_images" Gauge [] Count "Images that the pager serves.";
    PAGER_PROCESSES = "pando_pager_processes" Gauge [] Count "Processes that still lack pages.";
    PAGER_MISSING_PAGES = "pando_pager_missing_pages" Gauge [] Count "Pages that these processes lack.";
    PAGER_FAILURES = "pando_pager_failures" Gauge [] Count "Processes stopped for a missing page, up to 64.";
    PAGER_STARTS = "pando_pager_starts_total" Counter [] Count "Starts of the pager by its guardian.";
    PAGER_FAULTS = "pando_pager_faults_total" Counter [] Count "Page faults read.";
    PAGER_FETCHES = "pando_pager_fetches_total" Counter [] Count "Reads of the store for page faults.";
    PAGER_RETRIES = "pando_pager_retries_total" Counter [] Count "Failed reads of the store, which the pager repeats.";
    STORE_CACHE_BYTES = "pando_store_cache_bytes" Gauge [] Bytes "Bytes in the cache on disk.";
    STORE_CACHE_LIMIT_BYTES = "pando_store_cache_limit_bytes" Gauge [] Bytes "Most bytes in the cache on disk.";
    STORE_CHUNKS = "pando_store_chunks_total" Counter ["source"] Count "Chunks read by the server.";
    STORE_BROKEN = "pando_store_broken_chunks_total" Counter [] Count "Cached or peers' chunks that were damaged.";
    STORE_REQUESTS = "pando_store_requests_total" Counter [] Count "Attempts of requests to the object store.";
    STORE_RETRIES = "pando_store_retries_total" Counter [] Count "Attempts that were repeats.";
    STORE_ERRORS = "pando_store_errors_total" Counter [] Count "Requests that failed in the end.";
    STORE_SENT_BYTES = "pando_store_sent_bytes_total" Counter [] Bytes "Bytes sent to the object store.";
    STORE_RECEIVED_BYTES = "pando_store_received_bytes_total" Counter [] Bytes "Bytes received from the object store.";
    PEERS_KNOWN = "pando_peers_known" Gauge [] Count "Other nodes that share chunks.";
    PEER_REQUESTS = "pando_peer_requests_total" Counter ["result"] Count "Chunks asked of other nodes.";
    PEER_RECEIVED_BYTES = "pando_peer_received_bytes_total" Counter [] Bytes "Bytes received from other nodes.";
    PEER_SERVED = "pando_peer_served_chunks_total" Counter [] Count "Chunks given to other nodes.";
    PEER_SERVED_BYTES = "pando_peer_served_bytes_total" Counter [] Bytes "Bytes given to other nodes.";
    PEER_REFUSED = "pando_peer_refused_total" Counter [] Count "Requests of other nodes that were refused.";
    VOLUME_BYTES = "pando_volume_bytes" Gauge ["realm", "volume"] Bytes "Bytes of data.";
    VOLUME_BYTES_MAX = "pando_volume_bytes_max" Gauge ["realm", "volume"] Bytes "Most bytes of data.";
    VOLUME_INODES = "pando_volume_inodes" Gauge ["realm", "volume"] Count "Files, directories and all else.";
    VOLUME_DIRTY_BYTES = "pando_volume_dirty_bytes" Gauge ["realm", "volume"] Bytes
        "Changes that the store lacks.";
    VOLUME_COMMIT_AGE_SECONDS = "pando_volume_last_commit_age_seconds" Gauge ["realm", "volume"] Seconds
        "Since the store had all.";
    VOLUME_STORE_FAILURES = "pando_volume_store_failures_total" Counter ["realm", "volume"] Count
        "Failed commits since it was opened.";
    VOLUME_READ_ONLY = "pando_volume_read_only" Gauge ["realm", "volume"] Count "1 if this node cannot change it.";
    VOLUME_HOLDERS = "pando_volume_holders" Gauge ["realm", "volume"] Count "Sandboxes and host directories with it.";
    VOLUME_OPERATIONS = "pando_volume_operations_total" Counter ["realm", "volume"] Count
        "File operations that reach it.";
    VOLUME_READ_BYTES = "pando_volume_read_bytes_total" Counter ["realm", "volume"] Bytes "Bytes read of files.";
    VOLUME_WRITTEN_BYTES = "pando_volume_written_bytes_total" Counter ["realm", "volume"] Bytes
        "Bytes written to files.";
    VOLUME_HTTP_REQUESTS = "pando_volume_http_requests_total" Counter ["realm", "volume"] Count "HTTP requests.";
    VOLUME_HTTP_READ_BYTES = "pando_volume_http_read_bytes_total" Counter ["realm", "volume"] Bytes
        "Bytes read by HTTP.";
    VOLUME_HTTP_WRITTEN_BYTES = "pando_volume_http_written_bytes_total" Counter ["realm", "volume"] Bytes
        "Bytes written by HTTP.";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of the document.
    fn table() -> Vec<String> {
        let row = |metric: &&Metric| {
            let (kind, labels, unit) = (metric.kind.name(), metric.labels.join(", "), metric.unit.name());
            let cells = [&format!("`{}`", metric.name), kind, &labels, unit, metric.summary()];
            let cells = cells.map(|cell| if cell.is_empty() { " ".to_owned() } else { format!(" {cell} ") });
            format!("|{}|", cells.join("|"))
        };
        ALL.iter().map(row).collect()
    }

    #[test]
    fn the_document_lists_every_metric() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        let document = std::fs::read_to_string(path).unwrap();
        let found: Vec<&str> = document.lines().filter(|line| line.starts_with("| `pando_")).collect();
        assert_eq!(found, table(), "docs/metrics.md needs these lines:\n{}", table().join("\n"));
        assert_eq!(document.lines().find(|line| line.chars().count() > 120), None);
    }

    #[test]
    fn names_follow_the_conventions_of_prometheus() {
        for (at, metric) in ALL.iter().enumerate() {
            let name = metric.name;
            assert!(ALL[..at].iter().all(|earlier| earlier.name != name), "{name} is there twice");
            assert!(name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'_')), "{name}");
            assert_eq!(name.ends_with("_total"), metric.kind == Kind::Counter, "{name}");
            assert!(name.contains(metric.unit.name()), "{name} does not say its unit");
            assert!(metric.help.ends_with('.') && !metric.summary().is_empty(), "{name}: {}", metric.help);
        }
    }
}
