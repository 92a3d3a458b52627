//! How a checkpoint lies in its manifest. Fields are known by their place there, so what came later lies at the end.

use base::id::TemplateName;
use model::{Image, Limits, Ready, TemplateSpec};
use serde::{Deserialize, Serialize};

use super::{BlobRef, Checkpoint, Counts, Program, nouns};

/// A template's spec as it was when checkpoints began.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Spec {
    name: TemplateName,
    #[serde(with = "nouns::image")]
    image: Image,
    command: Vec<String>,
    env: Vec<(String, String)>,
    cwd: String,
    #[serde(with = "nouns::Ready")]
    ready: Ready,
    ready_timeout_ms: u64,
    limits: OldLimits,
}

/// What a sandbox may use, as it was when checkpoints began. The limit of its disk lies behind all else.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct OldLimits {
    memory_bytes: u64,
    pids: u64,
    cpu_millis: Option<u32>,
}

/// As of version 2.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WithoutMountPoints {
    spec: Spec,
    created_ms: u64,
    state: BlobRef,
    memory: BlobRef,
    base: Vec<BlobRef>,
    layers: Vec<BlobRef>,
    counts: Counts,
    hot: Option<BlobRef>,
    contents: Vec<BlobRef>,
}

/// As it is written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Encoded {
    older: WithoutMountPoints,
    mount_points: Vec<String>,
}

impl From<Checkpoint> for Encoded {
    fn from(checkpoint: Checkpoint) -> Self {
        // Volumes, and what is in the tail, lie behind it.
        let Checkpoint { spec, created_ms, program, layers, counts, volumes: _ } = checkpoint;
        let Program { state, memory, base, hot, contents } = program.unwrap_or_else(no_program);
        let TemplateSpec {
            name,
            image,
            command,
            env,
            cwd,
            ready,
            ready_timeout_ms,
            limits,
            mount_points,
            user: _,
            startup: _,
            on_fork: _,
        } = spec;
        let Limits { memory_bytes, pids, cpu_millis, disk_bytes: _ } = limits;
        let limits = OldLimits { memory_bytes, pids, cpu_millis };
        let spec = Spec { name, image, command, env, cwd, ready, ready_timeout_ms, limits };
        let older = WithoutMountPoints { spec, created_ms, state, memory, base, layers, counts, hot, contents };
        Self { older, mount_points }
    }
}

impl From<Encoded> for Checkpoint {
    fn from(Encoded { older, mount_points }: Encoded) -> Self {
        let WithoutMountPoints { spec, created_ms, state, memory, base, layers, counts, hot, contents } = older;
        let Spec { name, image, command, env, cwd, ready, ready_timeout_ms, limits } = spec;
        let OldLimits { memory_bytes, pids, cpu_millis } = limits;
        let limits = Limits { memory_bytes, pids, cpu_millis, disk_bytes: None };
        let (user, startup, on_fork) = (None, Vec::new(), Vec::new());
        let spec = TemplateSpec {
            name,
            image,
            command,
            env,
            cwd,
            ready,
            ready_timeout_ms,
            limits,
            mount_points,
            user,
            startup,
            on_fork,
        };
        let program = Program { state, memory, base, hot, contents };
        let program = Some(program).filter(|program| *program != no_program());
        Self { spec, created_ms, program, layers, counts, volumes: Vec::new() }
    }
}

impl From<WithoutMountPoints> for Checkpoint {
    fn from(older: WithoutMountPoints) -> Self {
        Encoded { older, mount_points: Vec::new() }.into()
    }
}

/// What lies behind all else, from the version on that has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tail {
    disk: Option<u64>,
    user: Option<String>,
    startup: Vec<String>,
}

impl Tail {
    pub(super) fn of(spec: &TemplateSpec) -> Self {
        Self { disk: spec.limits.disk_bytes, user: spec.user.clone(), startup: spec.startup.clone() }
    }

    /// Whether it says more than the limit of the disk, which older versions have.
    pub(super) fn is_needed(spec: &TemplateSpec) -> bool {
        spec.user.is_some() || !spec.startup.is_empty()
    }

    pub(super) fn apply(self, spec: &mut TemplateSpec) {
        let Self { disk, user, startup } = self;
        spec.limits.disk_bytes = disk;
        (spec.user, spec.startup) = (user, startup);
    }
}

/// In the place of a program where there is none. The state of a program is never empty.
fn no_program() -> Program {
    let none = BlobRef::none;
    Program { state: none(), memory: none(), base: Vec::new(), hot: None, contents: Vec::new() }
}
