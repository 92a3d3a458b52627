//! Runs test cases that need the host: one process per case, several processes at a time.
//!
//! ```text
//!   host [PATTERN...]       the parent: starts a process for each case whose name contains one of the patterns
//!     └─ host --case NAME   one case, in a mount namespace of its own, under a guard against leaks
//! ```
//!
//! A process per case is needed because the engine forks, and a process that forks must have one thread. It also means that a case that hangs
//! or crashes harms no other case.
//!
//! `PANDO_TEST_JOBS` is the number of cases at a time (4), `PANDO_TEST_SECONDS` the number of seconds that a case may take (120).
//! Cases that measure time or change settings of the whole host run alone, after the others.

mod child;
mod guard;
mod parent;
mod report;

use std::fmt;

use anyhow::Result;

pub use guard::reap;

/// A named case.
pub struct Case {
    name: String,
    body: Box<dyn Fn() -> Result<()> + Send + Sync>,
    prepare: fn(),
    alone: Option<&'static str>,
    slow: Option<&'static str>,
}

impl Case {
    /// A case.
    pub fn new(name: impl Into<String>, body: impl Fn() -> Result<()> + Send + Sync + 'static) -> Self {
        Self { name: name.into(), body: Box::new(body), prepare: || {}, alone: None, slow: None }
    }

    /// Runs the case while no other case runs, for the reason `why`.
    #[must_use]
    pub fn alone(self, why: &'static str) -> Self {
        Self { alone: Some(why), ..self }
    }

    /// Lets the case take longer than `PANDO_TEST_SECONDS`, for the reason `why`.
    #[must_use]
    pub fn slow(self, why: &'static str) -> Self {
        Self { slow: Some(why), ..self }
    }

    /// Calls `prepare` before the guard looks for the first time: for libraries that open descriptors which stay open.
    #[must_use]
    pub fn after(self, prepare: fn()) -> Self {
        Self { prepare, ..self }
    }
}

/// The error of a case that cannot run on this host.
#[derive(Debug)]
struct Skipped(String);

impl fmt::Display for Skipped {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "skipped: {}", self.0)
    }
}

impl std::error::Error for Skipped {}

/// Ends a case that cannot run on this host. `why` names what the host lacks.
///
/// # Errors
///
/// Always: the case returns this error to the runner, which counts the case as skipped and prints the reason.
pub fn skip(why: impl Into<String>) -> Result<()> {
    Err(Skipped(why.into()).into())
}

/// Runs the cases that the command line selects. Ends the process with status 0 if no case failed and at least one passed or was skipped.
pub fn run(cases: &[Case]) -> ! {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let code = match &arguments[..] {
        [flag, name] if flag == child::FLAG => child::run(cases, name),
        [flag] if flag == "--list" => {
            cases.iter().for_each(|case| println!("{}", case.name));
            0
        }
        [flag, ..] if flag.starts_with('-') => {
            println!("{flag} is unknown; usage: host [--list | PART OF A CASE'S NAME...]");
            2
        }
        patterns => parent::run(cases, patterns),
    };
    std::process::exit(code)
}
