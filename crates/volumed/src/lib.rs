//! The volumes of one node: two processes that outlive its server, and the client that the server has of them.
//!
//! ```text
//!   Client ──HTTP, attach──► worker ── volumes, FUSE threads, the file API: all that can fail
//!                              ▲ │
//!             descriptors,     │ ▼ what is mounted, by whom
//!             a new worker   guardian ── holds the device and the tree of every mount, and nothing else
//! ```
//!
//! - `guardian`: restarts the worker and hands it what the last one held. The worker does the same for the guardian.
//! - `worker`: the table of open volumes, who holds them, and their ends. `http`: what is asked of them.
//! - [`Client`]: for the server. `held`: what both processes have. `message`: what they and the client say to each other.
//!
//! Programs that work in a volume see no error when either process is killed: a device that somebody holds keeps its requests, and the
//! next worker answers them. Only if both die at once do mounts end. What was written before is in the volume's log in any case.

pub mod client;
mod error;
mod failure;
mod guardian;
mod held;
mod http;
pub mod limits;
mod message;
mod percent;
mod process;
mod removal;
mod worker;

use std::{ffi::OsString, io, path::PathBuf, time::Duration};

use base::id::{SnapshotName, VolumeName};
use store::{
    Store,
    heads::{HeadName, Heads},
};
use tokio::runtime::Handle;

pub use client::{Archive, Attributes, Client, Existing, Origin, Place, Settled, Whole};
pub use error::Error;
pub use fuse::FILESYSTEM;
pub use message::{Access, Attach};

/// The head of a snapshot, for who keeps what it names.
pub fn snapshot_head(volume: &VolumeName, snapshot: &SnapshotName) -> Result<HeadName, BoxError> {
    let origin = volume::Origin::Snapshot { volume: volume.to_string(), snapshot: snapshot.to_string() };
    Ok(volume::head_name(&origin)?)
}

/// A name or path as the file API writes it, as text. Bytes that are no UTF-8 become U+FFFD.
pub fn readable(name: &str) -> String {
    String::from_utf8_lossy(&percent::decode(name)).into_owned()
}

/// Any cause.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What both processes are told at their start.
#[derive(Debug, Clone)]
pub struct Config {
    /// Theirs alone: sockets, logs of volumes. One guardian per folder.
    pub folder: PathBuf,
    /// What this program was called with, its name and the role left out: with it, each starts the other again.
    pub arguments: Vec<OsString>,
    /// How volumes are treated.
    pub options: Options,
}

/// How volumes are treated.
#[derive(Debug, Clone)]
pub struct Options {
    /// Between two commits of a volume: what the loss of the node costs.
    pub commit_pause: Duration,
    /// How long a volume stays open that nobody uses.
    pub idle_close: Duration,
    /// How long the processes stay when no volume is open and nobody asks.
    pub idle_exit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let [commit_pause, idle_close, idle_exit] = [2, 10, 60].map(Duration::from_secs);
        Self { commit_pause, idle_close, idle_exit }
    }
}

/// Which of the processes this one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The first guardian of a node.
    Guardian,
    /// The worker; its standard input is the guardian's socket.
    Worker,
    /// A guardian that a worker starts when its own has died; its standard input is the worker's socket.
    Heir,
}

impl Role {
    /// The argument that says so, behind [`Config::arguments`].
    pub fn argument(self) -> &'static str {
        match self {
            Self::Guardian => "guardian",
            Self::Worker => "worker",
            Self::Heir => "heir",
        }
    }
}

impl std::str::FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::Guardian, Self::Worker, Self::Heir].into_iter().find(|role| role.argument() == text);
        known.ok_or_else(|| format!("{text:?} is no role of a process of volumes"))
    }
}

/// Opens the store, in the worker.
pub trait OpenStore: Send {
    /// Heads and objects of the node's realm. It is called once, on a thread that may block.
    fn open(&self, runtime: &Handle) -> Result<(Heads, Store), BoxError>;
}

/// The whole life of a process that has one thread so far. Takes its standard input over, except as the first guardian.
pub fn run(role: Role, config: Config, store: &dyn OpenStore) -> Result<(), Error> {
    match role {
        Role::Guardian => guardian::run(&config, None),
        Role::Heir => guardian::run(&config, Some(standard_input()?)),
        Role::Worker => worker::run(config, store, standard_input()?),
    }
}

/// The socket that is this process's standard input; children must not inherit it, or its end would never be seen.
fn standard_input() -> Result<std::os::fd::OwnedFd, Error> {
    use std::os::fd::AsFd;
    let take = || {
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
        Ok::<_, io::Error>(socket)
    };
    take().map_err(Error::system("take the socket"))
}
