//! Figures: collected, printed as a table, or written as JSON.

use std::{fmt, io::Write, time::Duration};

use base::text;
use serde::Serialize;

/// One case's times.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    /// What was measured.
    pub(super) case: String,
    /// How often.
    pub(super) samples: usize,
    pub(super) mean_us: u64,
    pub(super) median_us: u64,
    pub(super) p99_us: u64,
    /// What the times say beside another row's of this run.
    pub(super) beside: String,
}

/// A statement about this run that is not a row of times.
#[derive(Debug, Serialize)]
pub(super) struct Fact {
    pub(super) what: String,
    pub(super) value: String,
}

/// A figure that users may expect, beside what was measured.
#[derive(Debug, Serialize)]
pub(super) struct Goal {
    pub(super) case: String,
    pub(super) unit: &'static str,
    /// Of a server that does nothing: the client's own share.
    pub(super) stub: Option<f64>,
    pub(super) ours: f64,
    pub(super) target: f64,
    pub(super) met: bool,
}

impl Goal {
    /// Less is better.
    pub(super) fn at_most(
        case: impl Into<String>,
        unit: &'static str,
        stub: Option<f64>,
        ours: f64,
        target: f64,
    ) -> Self {
        Self { case: case.into(), unit, stub, ours, target, met: ours <= target }
    }

    /// More is better.
    pub(super) fn at_least(
        case: impl Into<String>,
        unit: &'static str,
        stub: Option<f64>,
        ours: f64,
        target: f64,
    ) -> Self {
        Self { case: case.into(), unit, stub, ours, target, met: ours >= target }
    }

    fn cells(&self) -> [String; 5] {
        let figure = |value: f64| match value {
            100.0.. => format!("{value:.0} {}", self.unit),
            10.0.. => format!("{value:.1} {}", self.unit),
            _ => format!("{value:.2} {}", self.unit),
        };
        let stub = self.stub.map_or_else(String::new, figure);
        let met = if self.met { "yes" } else { "no" };
        [self.case.clone(), stub, figure(self.ours), figure(self.target), met.to_owned()]
    }
}

/// Everything of one run.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub(super) machine: Vec<Fact>,
    pub(super) rows: Vec<Row>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) goals: Vec<Goal>,
    pub(super) facts: Vec<Fact>,
}

impl Report {
    /// An empty one about this machine, as it is now, and `program`.
    pub(super) fn of(program: &str) -> Self {
        Self { machine: machine(program), ..Self::default() }
    }

    /// Adds what has to be known before any row.
    pub(super) fn about(&mut self, what: &str, value: &str) {
        self.machine.push(Fact { what: what.to_owned(), value: value.to_owned() });
    }

    /// Adds a row; gives its median.
    pub(super) fn add(
        &mut self,
        case: impl Into<String>,
        mut times: Vec<Duration>,
        beside: impl Into<String>,
    ) -> Duration {
        times.sort_unstable();
        let micros = |time: Duration| time.as_micros() as u64;
        let mean = times.iter().sum::<Duration>() / times.len().max(1) as u32;
        let median = at(&times, 50);
        self.rows.push(Row {
            case: case.into(),
            samples: times.len(),
            mean_us: micros(mean),
            median_us: micros(median),
            p99_us: micros(at(&times, 99)),
            beside: beside.into(),
        });
        median
    }

    pub(super) fn goal(&mut self, goal: Goal) {
        self.goals.push(goal);
    }

    pub(super) fn fact(&mut self, what: impl Into<String>, value: impl Into<String>) {
        self.facts.push(Fact { what: what.into(), value: value.into() });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fact in &self.machine {
            writeln!(f, "{}: {}", fact.what, fact.value)?;
        }
        writeln!(f)?;
        let cells = |row: &Row| {
            [
                row.case.clone(),
                row.samples.to_string(),
                text::micros(row.median_us),
                text::micros(row.mean_us),
                text::micros(row.p99_us),
                row.beside.clone(),
            ]
        };
        let rows: Vec<[String; 6]> = self.rows.iter().map(cells).collect();
        for line in text::table(["CASE", "N", "MEDIAN", "MEAN", "P99", ""], &rows) {
            writeln!(f, "{line}")?;
        }
        if !self.goals.is_empty() {
            writeln!(f)?;
            let goals: Vec<[String; 5]> = self.goals.iter().map(Goal::cells).collect();
            for line in text::table(["WHAT", "STUB", "OURS", "TARGET", "MET"], &goals) {
                writeln!(f, "{line}")?;
            }
        }
        self.facts.iter().try_for_each(|fact| write!(f, "\n{}: {}", fact.what, fact.value))
    }
}

fn machine(program: &str) -> Vec<Fact> {
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_ascii_whitespace().next().unwrap_or_default().to_owned();
    vec![
        Fact { what: "processors".into(), value: processors.to_string() },
        Fact { what: "kernel".into(), value: kernel.trim().to_owned() },
        Fact { what: "load before".into(), value: load },
        Fact { what: "program".into(), value: program.to_owned() },
    ]
}

/// Says on standard error what is being done.
pub(super) fn progress(what: &str) {
    // Without standard error the measurement goes on.
    let _ = writeln!(std::io::stderr(), "bench: {} ...", text::harmless(what));
}

/// The value below which `percent` of the sorted times lie (nearest rank).
pub(super) fn at(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(rank).copied().unwrap_or_default()
}

pub(super) fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    at(&sorted, 50)
}

pub(super) fn duration(time: Duration) -> String {
    text::micros(time.as_micros() as u64)
}

/// `a` as a multiple of `b`.
pub(super) fn times(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!((at(&times, 50), at(&times, 99)), (Duration::from_millis(50), Duration::from_millis(99)));
        assert_eq!(at(&times[..1], 99), Duration::from_millis(1));
        assert_eq!(at(&[], 50), Duration::ZERO);
    }
}
