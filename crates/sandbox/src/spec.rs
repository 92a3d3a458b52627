//! What is wanted: of a sandbox and of a program in it.

use std::path::{Path, PathBuf};

use base::id::SandboxId;
use serde::{Deserialize, Serialize};

/// The user and group id of every sandboxed program, and of commands without another user.
pub const PROGRAM_ID: u32 = 1000;

/// Who a process of a sandbox is, by the ids inside.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct User {
    /// Below [`IDS_PER_SANDBOX`](base::limits::IDS_PER_SANDBOX), like all others.
    pub uid: u32,
    /// Its own group.
    pub gid: u32,
    /// Its other groups.
    pub groups: Vec<u32>,
}

impl User {
    /// Root of the sandbox.
    pub const ROOT: Self = Self { uid: 0, gid: 0, groups: Vec::new() };
    /// The program's user.
    pub const PROGRAM: Self = Self { uid: PROGRAM_ID, gid: PROGRAM_ID, groups: Vec::new() };
}

/// The directory for shared memory: a filesystem of the sandbox's own, in memory. What is in it goes with the program, in no layer.
pub const SHARED_MEMORY: &str = "/dev/shm";

/// What a sandbox may use at most.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory, page cache included, in bytes.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// CPU time in thousandths of one CPU; `None`: no limit.
    pub cpu_millis: Option<u32>,
    /// Bytes of changes, where their filesystem counts them; `None`: no limit.
    pub disk_bytes: Option<u64>,
}

/// Who may be in a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Users {
    /// Any user, root and what root makes.
    All,
    /// [`User::PROGRAM`] alone, who can gain no privilege.
    ProgramOnly,
}

impl Users {
    /// Those of a root filesystem with these layers. The host's own files are no business of root in a sandbox: what its mask does not name is
    /// guarded by modes only.
    pub fn of(layers: &[PathBuf]) -> Self {
        let is_host = |image: &PathBuf| std::fs::canonicalize(image).is_ok_and(|image| image == Path::new("/"));
        if layers.last().is_some_and(is_host) { Self::ProgramOnly } else { Self::All }
    }
}

/// A sandbox to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Names its cgroup and its host name.
    pub id: SandboxId,
    /// Absolute path of its own directory on the host, removed with it.
    pub dir: PathBuf,
    /// Where its changes lie, in `upper` and `work`: its own directory, or another one of its own, which is then removed with it as well.
    pub changes: PathBuf,
    /// The snapshot of changes that its own begin with, as [`Capture`](crate::Capture) has taken it on btrfs; none: it has changed nothing yet.
    pub from: Option<PathBuf>,
    /// Read-only layers of its root filesystem, topmost first; the last is the image's root.
    pub layers: Vec<PathBuf>,
    /// What it may use.
    pub limits: Limits,
    /// Who may be in it.
    pub users: Users,
    /// Its DNS server; none: its image's own business.
    pub dns: Option<std::net::Ipv4Addr>,
}

/// A program to be started in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Who it runs as.
    pub user: User,
    /// Program and arguments. A name without a slash is searched in the `PATH` of `env`, inside the sandbox.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Working directory, absolute, inside the sandbox.
    pub cwd: String,
    /// The first stream is a terminal and becomes the program's controlling terminal.
    pub tty: bool,
    /// Name of a control group of its own, below the sandbox's, which its creator removes when nothing is in it any more; none: the sandbox's.
    pub group: Option<String>,
    /// When its start is given up, in nanoseconds of `CLOCK_MONOTONIC`: it does not start later, and its group is there before that or never.
    pub until_ns: Option<u64>,
}
