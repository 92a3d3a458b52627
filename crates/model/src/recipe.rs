//! Recipes: how a root filesystem is made of another one, step by step, as Dockerfiles and E2B's templates say it.

use std::path::PathBuf;

use base::id::TemplateName;

use crate::{Limits, Ready};

/// What a template is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// What it begins with.
    pub from: Origin,
    /// The user to begin with; none: that of the origin.
    pub user: Option<String>,
    /// The working directory to begin with; none: that of the origin.
    pub cwd: Option<String>,
    /// What is done then, in this order.
    pub steps: Vec<Step>,
    /// A shell command that each sandbox begins with; none: it begins idle.
    pub startup: Option<String>,
    /// A shell command that runs in each copy that has memory: [`crate::TemplateSpec::on_fork`]. None: that of the origin.
    pub on_fork: Option<String>,
    /// When a sandbox is ready whose startup was begun.
    pub ready: Ready,
    /// How long that may take, in milliseconds.
    pub ready_timeout_ms: u64,
    /// Of the steps, and of each sandbox.
    pub limits: Limits,
    /// Whose layers may be used again: those of recipes with the same text here.
    pub scope: String,
    /// No layer of an earlier build is used.
    pub force: bool,
}

/// What a recipe begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The files of a template or checkpoint.
    Template(TemplateName),
    /// An image that the node has, by its name.
    Image(String),
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// It is done though an earlier build has done it, and so are all that follow.
    pub force: bool,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Runs a shell command.
    Run {
        /// The command.
        command: String,
        /// As whom; none: the user of the moment.
        user: Option<String>,
        /// Variables of this command alone.
        env: Vec<(String, String)>,
    },
    /// Copies files out of an archive.
    Copy {
        /// A tar archive on the node, also compressed.
        archive: PathBuf,
        /// What tells its content from others.
        key: String,
        /// What is copied: a path in it, whose parts may be patterns.
        source: String,
        /// Where to. Relative: to the working directory.
        target: String,
        /// Whose it is then: `USER`, `UID` or `UID:GID`; none: the user of the moment.
        owner: Option<String>,
        /// Permission bits; none: those in the archive.
        mode: Option<u32>,
    },
    /// Sets variables for steps and sandboxes.
    Env(Vec<(String, String)>),
    /// Changes the working directory, which is made if it is missing.
    Directory(String),
    /// Changes the user.
    User(String),
}

/// A line about a build, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildLine {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// How much it matters.
    pub level: BuildLevel,
    /// The step, counted from 1; none: it is of none.
    pub step: Option<usize>,
    /// What it says.
    pub text: String,
}

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BuildLevel {
    /// For whom looks closely.
    Debug,
    /// What is done, and what commands say.
    Info,
    /// What may surprise.
    Warn,
    /// Why it failed.
    Error,
}
