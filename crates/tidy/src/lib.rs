//! Rules of this repository that no compiler checks. `make tidy` runs them in a second, without root and without building anything else.
//!
//! | module | rule |
//! |---|---|
//! | [`arrows`] | a crate depends only on groups of crates to its left |
//! | [`sizes`] | files, functions, documents and lines of documents stay short |
//! | [`phrases`] | documents and comments avoid the phrases that are hard to read |
//! | [`promises`] | each promise to users names a test that exists |
//! | [`openapi`] | the API stays good for clients of the released one |
//! | [`commits`] | subjects of commits have one form |
//!
//! Sizes and phrases have exceptions from before the rules: `known.txt` lists each with its present size ([`known`]). The list may only shrink:
//!
//! - If an entry is larger than what it stands for, the rule fails. `make tidy-lower` lowers such entries and removes those that are not needed.
//! - If a file has grown past its entry or past the limit, make it smaller. To add an entry, or to raise one, edit `known.txt` by hand and give the
//!   reason in the commit. If text moves to another crate, its number moves along.
//!
//! To give a new crate its place, add it to a group in `arrows.rs`.

pub mod arrows;
pub mod commits;
pub mod known;
pub mod openapi;
pub mod phrases;
pub mod promises;
pub mod scan;
pub mod sizes;
pub mod tree;

use std::fmt;

/// One thing that breaks a rule, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file, relative to the root of the repository, or another name of the place.
    pub path: String,
    /// The line, counted from 1, if the finding has one.
    pub line: Option<usize>,
    /// Which rule.
    pub rule: &'static str,
    /// What is wrong and what to do.
    pub message: String,
}

impl Finding {
    /// A finding about a line.
    pub fn at(path: impl Into<String>, line: usize, rule: &'static str, message: impl Into<String>) -> Self {
        Self { path: path.into(), line: Some(line), rule, message: message.into() }
    }

    /// A finding about a whole file.
    pub fn of(path: impl Into<String>, rule: &'static str, message: impl Into<String>) -> Self {
        Self { path: path.into(), line: None, rule, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
        write!(f, "{}{line}: {}: {}", self.path, self.rule, self.message)
    }
}

/// A size that has a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measure {
    /// Which rule.
    pub rule: &'static str,
    /// What was measured: a path, or a path and a function.
    pub subject: String,
    /// The path in `subject`.
    pub path: String,
    /// Where it begins, counted from 1.
    pub line: Option<usize>,
    /// How large it is.
    pub size: usize,
    /// How large it may be.
    pub limit: usize,
    /// What to do if it is larger.
    pub advice: String,
}
