//! Builds of templates from recipes, as Dockerfiles say them.

use std::path::PathBuf;

use base::id::TemplateName;
use serde::{Deserialize, Serialize};

use crate::{ErrorDetail, Limits, Ready, Template};

/// `POST /v1/builds`: what a template is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recipe {
    /// The name of the template, and of its checkpoint.
    pub name: TemplateName,
    /// What it begins with.
    pub from: Origin,
    /// What is done then, in this order.
    pub steps: Vec<RecipeStep>,
    /// A shell command that each sandbox begins with; none: that of the origin, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup: Option<String>,
    /// A shell command that runs in each copy that has memory: [`crate::TemplateSpec::on_fork`]. None: that of the origin, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_fork: Option<String>,
    /// When a sandbox is ready whose startup was begun.
    pub ready: Ready,
    /// How long that may take, in milliseconds.
    pub ready_timeout_ms: u64,
    /// Of the steps, and of each sandbox.
    #[serde(default)]
    pub limits: Limits,
    /// No layer of an earlier build is used.
    #[serde(default)]
    pub force: bool,
}

/// What a recipe begins with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The files of a template or checkpoint.
    Template(TemplateName),
    /// An image that the node has, by its name.
    Image(String),
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecipeStep {
    /// Runs a shell command as the user of the moment.
    Run {
        /// The command.
        command: String,
        /// Variables of this command alone.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
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
        /// Whose it is then: `USER`, `UID` or `UID:GID`; none: root.
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

/// One line of the answer to a recipe. The last one is `Done` or `Failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecipeEvent {
    /// What is done, and what commands say.
    Line {
        /// The step, counted from 1; none: it is of none.
        step: Option<usize>,
        /// What it says.
        text: String,
    },
    /// The template is ready.
    Done(Box<Template>),
    /// It is not.
    Failed(ErrorDetail),
}

impl Recipe {
    /// The noun, and the name.
    pub fn into_parts(self) -> (TemplateName, model::Recipe) {
        let Self { name, from, steps, startup, on_fork, ready, ready_timeout_ms, limits, force } = self;
        let recipe = model::Recipe {
            from: match from {
                Origin::Template(name) => model::Origin::Template(name),
                Origin::Image(name) => model::Origin::Image(name),
            },
            user: None,
            cwd: None,
            steps: steps.into_iter().map(|step| model::Step { action: step.into(), force: false }).collect(),
            startup,
            on_fork,
            ready: ready.into(),
            ready_timeout_ms,
            limits: limits.into(),
            // Of no team.
            scope: String::new(),
            force,
        };
        (name, recipe)
    }
}

impl From<RecipeStep> for model::Action {
    fn from(step: RecipeStep) -> Self {
        match step {
            RecipeStep::Run { command, env } => Self::Run { command, user: None, env },
            RecipeStep::Copy { archive, key, source, target, owner, mode } => {
                let owner = owner.or_else(|| Some("root".to_owned()));
                Self::Copy { archive, key, source, target, owner, mode }
            }
            RecipeStep::Env(variables) => Self::Env(variables),
            RecipeStep::Directory(path) => Self::Directory(path),
            RecipeStep::User(user) => Self::User(user),
        }
    }
}
