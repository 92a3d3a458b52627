//! What the node counts as it works. `scrape` reads the rest when a client asks for the metrics.

use std::{array, borrow::Cow, time::Duration};

use base::telemetry::{self, Metric};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

/// Upper bounds of the buckets of durations, in seconds.
const SECONDS: [f64; 15] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0];

type Text = Cow<'static, str>;
type Labels<const N: usize> = [(&'static str, Text); N];

/// A counter for each combination of labels.
struct Counted<const N: usize> {
    metric: &'static Metric,
    family: Family<Labels<N>, Counter>,
}

impl<const N: usize> Counted<N> {
    fn new(metric: &'static Metric, registry: &mut Registry) -> Self {
        let family = Family::default();
        registry.register(metric.family(), metric.summary(), family.clone());
        Self { metric, family }
    }

    fn count(&self, values: [Text; N]) {
        self.family.get_or_create(&labels(self.metric, values)).inc();
    }
}

/// A histogram of durations for each combination of labels.
struct Timed<const N: usize> {
    metric: &'static Metric,
    family: Family<Labels<N>, Histogram>,
}

impl<const N: usize> Timed<N> {
    fn new(metric: &'static Metric, registry: &mut Registry) -> Self {
        let family = Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> Histogram);
        registry.register(metric.family(), metric.summary(), family.clone());
        Self { metric, family }
    }

    fn observe(&self, values: [Text; N], took: Duration) {
        self.family.get_or_create(&labels(self.metric, values)).observe(took.as_secs_f64());
    }
}

fn labels<const N: usize>(metric: &'static Metric, mut values: [Text; N]) -> Labels<N> {
    array::from_fn(|at| (metric.labels[at], std::mem::take(&mut values[at])))
}

/// What a start found prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartKind {
    /// A parked copy, which it released.
    Ahead,
    /// A blank of the pool, which it forked into.
    Blank,
    /// Nothing: the sandbox had to be made.
    Made,
    /// It is a copy of a running sandbox.
    Fork,
    /// It is a paused sandbox that goes on.
    Resume,
}

impl StartKind {
    fn name(self) -> &'static str {
        match self {
            Self::Ahead => "ahead",
            Self::Blank => "blank",
            Self::Made => "made",
            Self::Fork => "fork",
            Self::Resume => "resume",
        }
    }
}

/// Why a running sandbox was captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CaptureFor {
    Fork,
    Checkpoint,
    Pause,
}

impl CaptureFor {
    fn name(self) -> &'static str {
        match self {
            Self::Fork => "fork",
            Self::Checkpoint => "checkpoint",
            Self::Pause => "pause",
        }
    }
}

fn result_of<T, E>(result: &Result<T, E>) -> &'static str {
    if result.is_ok() { "ok" } else { "failed" }
}

/// See the module.
pub(super) struct Metrics {
    registry: Registry,
    starts: Counted<2>,
    start_seconds: Timed<1>,
    builds: Counted<1>,
    restores: Counted<1>,
    captures: Counted<2>,
    capture_pause_seconds: Timed<1>,
    commands: Counted<1>,
    refusals: Counted<1>,
    failures: Counted<1>,
    /// One scrape at a time: each asks the pager and reads every sandbox.
    pub(super) scraping: tokio::sync::Mutex<()>,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::default();
        Self {
            starts: Counted::new(&telemetry::STARTS, &mut registry),
            start_seconds: Timed::new(&telemetry::START_SECONDS, &mut registry),
            builds: Counted::new(&telemetry::BUILDS, &mut registry),
            restores: Counted::new(&telemetry::RESTORES, &mut registry),
            captures: Counted::new(&telemetry::CAPTURES, &mut registry),
            capture_pause_seconds: Timed::new(&telemetry::CAPTURE_PAUSE_SECONDS, &mut registry),
            commands: Counted::new(&telemetry::COMMANDS, &mut registry),
            refusals: Counted::new(&telemetry::REFUSALS, &mut registry),
            failures: Counted::new(&telemetry::FAILURES, &mut registry),
            scraping: tokio::sync::Mutex::default(),
            registry,
        }
    }

    /// What was counted so far.
    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// A start has ended after `took`.
    pub(super) fn started<T, E>(&self, kind: StartKind, took: Duration, started: &Result<T, E>) {
        self.starts.count([kind.name().into(), result_of(started).into()]);
        if started.is_ok() {
            self.start_seconds.observe([kind.name().into()], took);
        }
    }

    /// A build of a template has ended.
    pub(super) fn built<T, E>(&self, built: &Result<T, E>) {
        self.builds.count([result_of(built).into()]);
    }

    /// A restore of a checkpoint has ended.
    pub(super) fn restored<T, E>(&self, restored: &Result<T, E>) {
        self.restores.count([result_of(restored).into()]);
    }

    /// A capture has ended; if it succeeded, with how long the sandbox stood still, in microseconds.
    pub(super) fn captured<E>(&self, purpose: CaptureFor, pause_us: Result<u64, E>) {
        self.captures.count([purpose.name().into(), result_of(&pause_us).into()]);
        match (purpose, pause_us) {
            (CaptureFor::Fork | CaptureFor::Checkpoint, Ok(us)) => {
                self.capture_pause_seconds.observe([purpose.name().into()], Duration::from_micros(us));
            }
            (CaptureFor::Pause, Ok(_)) | (_, Err(_)) => {}
        }
    }

    /// A command was started, or not.
    pub(super) fn command<T, E>(&self, started: &Result<T, E>) {
        self.commands.count([result_of(started).into()]);
    }

    /// The engine has refused to fork or restore a program.
    pub(super) fn refused(&self, refusals: &[keeper::protocol::Refusal]) {
        refusals.iter().for_each(|refusal| self.refusals.count([refusal.kind.clone().into()]));
    }

    /// A request has failed with this code.
    pub(super) fn failed(&self, code: String) {
        self.failures.count([code.into()]);
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::prometheus_text::encode;

    use super::*;

    #[test]
    fn counts_are_rendered_under_the_names_of_the_table() {
        let metrics = Metrics::new();
        let (ok, failed) = (Ok::<(), ()>(()), Err::<(), ()>(()));
        metrics.started(StartKind::Blank, Duration::from_micros(900), &ok);
        metrics.started(StartKind::Blank, Duration::from_secs(1), &failed);
        metrics.captured(CaptureFor::Fork, Ok::<_, ()>(40_000));
        metrics.captured(CaptureFor::Pause, Ok::<_, ()>(40_000));
        metrics.refused(&[keeper::protocol::Refusal { kind: "io_uring".to_owned(), reason: String::new() }]);
        metrics.failed("not_found".to_owned());
        let mut text = String::new();
        encode(&mut text, metrics.registry()).unwrap();
        for line in [
            "# HELP pando_starts_total Starts of sandboxes.",
            "# TYPE pando_starts_total counter",
            "pando_starts_total{kind=\"blank\",result=\"ok\"} 1",
            "pando_starts_total{kind=\"blank\",result=\"failed\"} 1",
            "# TYPE pando_start_seconds histogram",
            "pando_start_seconds_count{kind=\"blank\"} 1",
            "pando_start_seconds_bucket{kind=\"blank\",le=\"0.0005\"} 0",
            "pando_start_seconds_bucket{kind=\"blank\",le=\"0.001\"} 1",
            "pando_captures_total{purpose=\"pause\",result=\"ok\"} 1",
            "pando_capture_pause_seconds_count{purpose=\"fork\"} 1",
            "pando_refusals_total{reason=\"io_uring\"} 1",
            "pando_request_failures_total{kind=\"not_found\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("pando_capture_pause_seconds_count{purpose=\"pause\"}"), "{text}");
    }
}
