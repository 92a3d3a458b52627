//! The keeper: the process that owns every sandbox process of a node, and the client that talks to it.
//!
//! ```text
//! server: client ==SEQPACKET, messages of protocol==> keeper: daemon
//! ```
//!
//! Server and keeper are the same binary, and a keeper ends with its server. Their messages therefore have no versions. [`fake`] is a keeper
//! without processes, for unit tests.

pub mod client;
mod daemon;
pub mod descriptor;
pub mod fake;
pub mod origin;
pub mod protocol;

pub use client::{Continued, Ended, Failure, KeeperClient, NewZygote, Spawned, SpawnedCommand};
pub use daemon::{KeeperError, run};

/// Keeps this process from the out-of-memory killer, as far as the host allows. Without the server or the keeper, no process can remove the
/// sandbox that takes the memory. Each fork that becomes part of a sandbox gives this protection up.
pub fn protect_from_memory_shortage() {
    if let Err(error) = sys::oom::lower_to(base::limits::OOM_SCORE_NODE) {
        // Containers often lack CAP_SYS_RESOURCE. Programs are still the first to be killed.
        tracing::debug!(%error, "the out-of-memory killer may choose this process");
    }
}
