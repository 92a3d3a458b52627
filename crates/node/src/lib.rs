//! One node: templates, sandboxes, the pool and the keeper, composed of the engines. It knows no HTTP.
//!
//! ```text
//! (an adapter) -> node (operations) -> state (one lock, pure transitions) + records (disk)
//!                                        |
//!                                        +-> keeper::KeeperClient ==SEQPACKET==> keeper (own process; crate `keeper`)
//! ```

mod changes;
pub mod config;
pub mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod given;
mod lineage;
mod node;
mod records;
pub mod self_test;
mod state;

pub use config::Config;
pub use error::{CommandError, Context, Error, RecipeError, Result, StepName, chain};
pub use given::{GIVEN_BYTES_MAX, GIVEN_MAX, Given};
pub use images::Naming;
pub use node::{
    Account, BuildLog, BuildOptions, CommandInput, CommandStream, KeepProgress, MergeOrder, Node, OfPaused, Parts,
    Progress, StoredVolume, check_spec, exec, volumes_failed,
};
pub use records::node_id;
pub use registry::Credentials;

/// Where the pager of a node listens.
pub fn pager_socket(state_dir: &std::path::Path) -> std::path::PathBuf {
    state_dir.join("store").join("pager.sock")
}

/// Where the processes that hold a node's commands have their socket.
pub fn holder_folder(state_dir: &std::path::Path) -> std::path::PathBuf {
    state_dir.join("commands")
}

/// Where the processes of a node's volumes have their sockets and logs.
pub fn volumes_folder(state_dir: &std::path::Path) -> std::path::PathBuf {
    state_dir.join("volumes")
}
