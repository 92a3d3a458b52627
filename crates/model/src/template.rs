//! Templates: what to start, when it counts as ready, and what was built of it.

use std::{fmt, path::PathBuf, str::FromStr};

use base::{id::TemplateName, limits};

use crate::image::is_image_reference;

/// A root filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// The node's own root, read-only, with private places masked.
    Host,
    /// A directory, or a tarball (also compressed), on the node; absolute.
    Path(PathBuf),
    /// One that the node has, by its name: `python:3.12-slim`, or with its digest: `python:3.12-slim@sha256:0123...`.
    Named(String),
}

impl FromStr for Image {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "host" => Ok(Self::Host),
            _ if text.starts_with('/') => Ok(Self::Path(PathBuf::from(text))),
            _ if is_image_reference(text) => Ok(Self::Named(text.to_owned())),
            _ => Err(format!(
                "{text:?} is no image: give 'host', the absolute path of a directory or tarball, or a name such as python:3.12-slim"
            )),
        }
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Named(name) => f.write_str(name),
        }
    }
}

/// When a template's program counts as ready.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// How much of a ready command is shown.
const SHOWN_CHARS: usize = 200;

impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listening => f.write_str("it listens on a TCP port"),
            Self::Port(port) => write!(f, "it listens on port {port}"),
            Self::File(path) => write!(f, "{path} exists"),
            Self::Command(argv) => {
                let text = argv.join(" ");
                let shown: String = text.chars().take(SHOWN_CHARS).collect();
                let rest = if shown.len() < text.len() { "..." } else { "" };
                write!(f, "`{shown}{rest}` succeeds")
            }
        }
    }
}

/// What one sandbox may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Processor time, in thousandths of a processor; none: no limit.
    pub cpu_millis: Option<u32>,
    /// Bytes that it may write to its root filesystem, beside what it was forked with; none: the node's default.
    pub disk_bytes: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: limits::MEMORY_BYTES_DEFAULT,
            pids: limits::PIDS_DEFAULT,
            cpu_millis: None,
            disk_bytes: None,
        }
    }
}

/// What a template is built from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateSpec {
    /// Its name on the node.
    pub name: TemplateName,
    /// Its root filesystem.
    pub image: Image,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment, beside the few variables every program gets.
    pub env: Vec<(String, String)>,
    /// Working directory inside the sandbox.
    pub cwd: String,
    /// When it is ready.
    pub ready: Ready,
    /// How long to wait for that, in milliseconds.
    pub ready_timeout_ms: u64,
    /// Of the template's program and of every sandbox of it.
    pub limits: Limits,
    /// Absolute paths of directories on which sandboxes of it can have volumes.
    pub mount_points: Vec<String>,
    /// The user of the program, and of commands and file requests that name none: a name or number, with `:GROUP` or without; none: `user`.
    pub user: Option<String>,
    /// A program that each sandbox begins as a command, if the template has none of its own; empty: none. It is ready as `ready` says.
    pub startup: Vec<String>,
    /// A command that runs in each copy that has memory, before that goes on, as root if the image has that user; empty: none. Not after a resume.
    pub on_fork: Vec<String>,
}

/// Where a template is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateState {
    /// Its program is being started or its zygote built.
    Building,
    /// Its zygote is parked: starts take milliseconds.
    Ready,
    /// Its zygote is gone; the next run builds it again first.
    Lost,
}

/// How long the parts of a build took, in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
        f.write_str(match self {
            Self::PreparingImage => "preparing the image",
            Self::StartingProgram => "starting the program",
            Self::WaitingUntilReady => "waiting until the program is ready",
            Self::BuildingZygote => "building the zygote",
            Self::RemovingSource => "removing the source",
        })
    }
}

/// How far a build is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuildProgress {
    /// The stage that begins.
    pub stage: BuildStage,
    /// Milliseconds since the request.
    pub elapsed_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_host_an_absolute_path_or_a_name() {
        assert_eq!("host".parse(), Ok(Image::Host));
        assert_eq!("/srv/root".parse(), Ok(Image::Path("/srv/root".into())));
        let digest = |digit: &str| format!("python:3.12-slim@sha256:{}", digit.repeat(64));
        for name in ["srv/root", "python:3.12-slim", &digest("0")] {
            assert_eq!(name.parse(), Ok(Image::Named(name.into())));
        }
        for wrong in [
            "",
            "./root",
            "srv//root",
            "srv/../root",
            "srv/root/",
            "a name",
            &"n".repeat(201),
            &digest("A"),
            &digest("00"),
            "import",
            "sha256:0",
        ] {
            assert!(wrong.parse::<Image>().is_err(), "{wrong:?} is an image");
        }
        assert_eq!(Image::Path("/srv/root".into()).to_string(), "/srv/root");
    }
}
