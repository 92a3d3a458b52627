//! What the runner prints.

use super::Case;

/// How a case ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// A case that has ended.
pub(super) struct Ended<'a> {
    pub(super) case: &'a Case,
    pub(super) outcome: Outcome,
    pub(super) printed: String,
    pub(super) seconds: f64,
}

/// All that have ended.
pub(super) struct Report {
    /// A case that takes longer fails unless it says why.
    seconds_max: u32,
    seconds: Vec<(f64, String)>,
    passed: usize,
    skipped: usize,
    failures: Vec<String>,
}

impl Report {
    pub(super) fn new(seconds_max: u32) -> Self {
        Self { seconds_max, seconds: Vec::new(), passed: 0, skipped: 0, failures: Vec::new() }
    }

    /// Counts a case and prints its line.
    pub(super) fn add(&mut self, mut ended: Ended<'_>) {
        let Ended { case, seconds, .. } = ended;
        let too_slow = seconds > f64::from(self.seconds_max) && case.slow.is_none();
        if too_slow && ended.outcome == Outcome::Passed {
            ended.outcome = Outcome::Failed;
            ended.printed += &format!("\nit took longer than {} s and states no reason (Case::slow)", self.seconds_max);
        }
        let word = match ended.outcome {
            Outcome::Passed => "ok",
            Outcome::Failed => "FAILED",
            Outcome::Skipped => "skipped",
        };
        let mut text = format!("{} ... {word} ({seconds:.1} s)", case.name);
        for line in ended.printed.lines().filter(|line| !line.is_empty()) {
            text += &format!("\n    {line}");
        }
        println!("{text}");
        self.seconds.push((seconds, case.name.clone()));
        match ended.outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Skipped => self.skipped += 1,
            Outcome::Failed => self.failures.push(text),
        }
    }

    /// Prints the slowest cases, the failures once more, and the numbers. Gives the exit status.
    pub(super) fn finish(mut self) -> i32 {
        self.seconds.sort_by(|one, other| other.0.total_cmp(&one.0));
        println!("\nslowest:");
        for (seconds, name) in self.seconds.iter().take(10) {
            println!("{seconds:7.1} s  {name}");
        }
        // Once more at the end: a log that was cut keeps its last lines.
        if !self.failures.is_empty() {
            println!("\nfailed:");
            self.failures.iter().for_each(|failure| println!("{failure}"));
        }
        println!("\n{} passed, {} failed, {} skipped", self.passed, self.failures.len(), self.skipped);
        i32::from(!self.failures.is_empty() || self.passed + self.skipped == 0)
    }
}
