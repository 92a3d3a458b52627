//! Templates: what to start, when it counts as ready, and what was built of it.

use std::{fmt, path::PathBuf, str::FromStr};

use base::id::TemplateName;
use serde::{Deserialize, Serialize};

/// A root filesystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Image {
    /// The node's own root, read-only, with private places masked.
    Host,
    /// A directory, or a tarball (also gzipped), on the node; absolute.
    Path(PathBuf),
    /// One that the node has, by its name.
    Named(String),
}

impl FromStr for Image {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.parse::<model::Image>().map(Self::from)
    }
}

impl TryFrom<String> for Image {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Image> for String {
    fn from(image: Image) -> Self {
        image.to_string()
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        model::Image::from(self.clone()).fmt(f)
    }
}

/// When a template's program counts as ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ready {
    /// Once it listens on any TCP port.
    Listening,
    /// Once it listens on this TCP port.
    Port(u16),
    /// Once this file is there, seen from inside the sandbox.
    File(String),
    /// Once this command, run inside the sandbox, exits with 0.
    Command(Vec<String>),
}

impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        model::Ready::from(self.clone()).fmt(f)
    }
}

/// What one sandbox may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Processor time, in thousandths of a processor; none: no limit.
    pub cpu_millis: Option<u32>,
    /// Bytes that it may write to its root filesystem, beside what it was forked with; none: the node's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        model::Limits::default().into()
    }
}

/// What a template is built from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateSpec {
    /// Its name on the node.
    pub name: TemplateName,
    /// Its root filesystem.
    pub image: Image,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment, beside the few variables every program gets.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// Working directory inside the sandbox.
    pub cwd: String,
    /// When it is ready.
    pub ready: Ready,
    /// How long to wait for that, in milliseconds.
    pub ready_timeout_ms: u64,
    /// Of the template's program and of every sandbox of it.
    #[serde(default)]
    pub limits: Limits,
    /// Absolute paths of directories on which sandboxes of it can have volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount_points: Vec<String>,
    /// The user of the program, and of commands and file requests that name none: a name or number, with `:GROUP` or without; none: `user`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// A program that each sandbox begins as a command, if the template has none of its own; it is ready as `ready` says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub startup: Vec<String>,
    /// A command that runs in each copy that has memory (of a template with a program, of a checkpoint, a fork), before that goes on, as root if the
    /// image has that user. If it fails, or takes longer than 10 s, so does the start. Not after a resume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_fork: Vec<String>,
}

/// Where a template is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TemplateState {
    /// Its program is being started or its zygote built.
    Building,
    /// Its zygote is parked: starts take milliseconds.
    Ready,
    /// Its zygote is gone; the next run builds it again first.
    Lost,
}

/// How long the parts of a build took, in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildTimings {
    /// From spawning the program until it was ready.
    pub ready_us: u64,
    /// How long the program stood still.
    pub pause_us: u64,
    /// Reading what the still shows, the pause included.
    pub capture_us: u64,
    /// Building the zygote.
    pub build_us: u64,
    /// The whole build.
    pub total_us: u64,
}

/// What is known about a built template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateFacts {
    /// Process id of the zygote on the node.
    pub zygote_pid: i32,
    /// Threads of the program.
    pub threads: usize,
    /// Memory mappings.
    pub mappings: usize,
    /// Open descriptors.
    pub descriptors: usize,
    /// Memory copied into the zygote, in bytes.
    pub memory_bytes: u64,
    /// Of that, in huge pages.
    pub huge_bytes: u64,
    /// How long building took.
    pub timings: BuildTimings,
}

/// One template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// Its name.
    pub name: TemplateName,
    /// Where it is in its life.
    pub state: TemplateState,
    /// What it is built from.
    pub spec: TemplateSpec,
    /// When it was first built, in milliseconds since 1970.
    pub created_ms: u64,
    /// Of its present zygote.
    pub facts: Option<TemplateFacts>,
    /// Sandboxes that were started from it and not removed, whether their programs run or have ended.
    pub sandboxes: usize,
}

/// What a build is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildStage {
    /// Unpacking or checking the image.
    PreparingImage,
    /// Making the sandbox and starting the program in it.
    StartingProgram,
    /// Waiting until the program is ready.
    WaitingUntilReady,
    /// Taking the still and building the zygote.
    BuildingZygote,
    /// Removing the program it was built from.
    RemovingSource,
}

impl fmt::Display for BuildStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        model::BuildStage::from(*self).fmt(f)
    }
}

/// One line of the answer to a build request. The last one is `Done` or `Failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildEvent {
    /// A stage begins.
    Stage {
        /// Which.
        stage: BuildStage,
        /// Milliseconds since the request.
        elapsed_ms: u64,
    },
    /// The template is ready.
    Done(Box<Template>),
    /// It is not.
    Failed(crate::ErrorDetail),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_a_string_on_the_wire() {
        assert_eq!(serde_json::to_string(&Image::Host).unwrap(), "\"host\"");
        assert_eq!(serde_json::from_str::<Image>("\"/srv/root\"").unwrap(), Image::Path("/srv/root".into()));
        assert_eq!(serde_json::from_str::<Image>("\"python:3.12\"").unwrap(), Image::Named("python:3.12".into()));
        for wrong in ["", "a//b", "../a", "a b", "a/"] {
            assert!(serde_json::from_str::<Image>(&format!("{wrong:?}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_spec_survives_json() {
        let spec = TemplateSpec {
            name: "geo".parse().unwrap(),
            image: Image::Host,
            command: vec!["python3".into(), "geo.py".into()],
            env: vec![("A".into(), "B".into())],
            cwd: "/".into(),
            ready: Ready::Command(vec!["true".into()]),
            ready_timeout_ms: 5,
            limits: Limits::default(),
            mount_points: vec!["/workspace".into()],
            user: None,
            startup: Vec::new(),
            on_fork: Vec::new(),
        };
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<TemplateSpec>(&json).unwrap(), spec);
    }
}
