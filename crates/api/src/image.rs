//! Images that a node has.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptImage {
    /// As users call it.
    pub name: String,
    /// Of its configuration, which tells it from others.
    pub digest: String,
    /// When it came here, in milliseconds since 1970.
    pub created_ms: u64,
    /// Bytes of its layers, unpacked.
    pub bytes: u64,
    /// How many layers it has.
    pub layers: usize,
    /// Environment of its programs.
    pub env: Vec<(String, String)>,
    /// Whose rights they have; empty: root's.
    pub user: String,
    /// Their working directory.
    pub working_dir: String,
    /// Its program, and the arguments that belong to it.
    pub entrypoint: Vec<String>,
    /// Arguments of that, or the program.
    pub command: Vec<String>,
    /// TCP ports that it listens on.
    pub ports: Vec<u16>,
}

/// Take in an image from an archive on the node: of `docker save`, an oci-layout, or the tarball of a root filesystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportRequest {
    /// Where it is, absolute.
    pub path: PathBuf,
    /// What it is called from then on; none: as it calls itself.
    #[serde(default)]
    pub name: Option<String>,
}

/// How an import goes on: one JSON document per line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportEvent {
    /// So many layers are there.
    Layers {
        /// These.
        done: usize,
        /// Of so many.
        all: usize,
    },
    /// The image is there.
    Done(Box<KeptImage>),
    /// It is not.
    Failed(crate::ErrorDetail),
}

/// What a prune has removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pruned {
    /// Layers that no image has any more.
    pub layers: usize,
}

impl From<model::KeptImage> for KeptImage {
    fn from(from: model::KeptImage) -> Self {
        let model::KeptImage { name, digest, created_ms, bytes, layers, env, user, working_dir, .. } = from;
        let model::KeptImage { entrypoint, command, ports, .. } = from;
        Self { name, digest, created_ms, bytes, layers, env, user, working_dir, entrypoint, command, ports }
    }
}
