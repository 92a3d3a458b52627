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

/// Take in an image from its registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullRequest {
    /// `[REGISTRY/]REPOSITORY[:TAG][@sha256:DIGEST]`: what it is called from then on, too.
    pub name: String,
    /// For the registry; none: as anybody. The node keeps them as long as the pull takes.
    #[serde(default)]
    pub credentials: Option<RegistryCredentials>,
}

/// Who asks a registry.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegistryCredentials {
    /// A user, and a password or a token.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// What a token service has given to another client, in exchange for tokens.
    IdentityToken(String),
}

impl std::fmt::Debug for RegistryCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RegistryCredentials")
    }
}

/// How a pull goes on: one JSON document per line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PullEvent {
    /// So many bytes are downloaded.
    Bytes {
        /// These.
        done: u64,
        /// Of so many.
        all: u64,
    },
    /// So many layers are unpacked.
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

impl From<model::PullProgress> for PullEvent {
    fn from(progress: model::PullProgress) -> Self {
        match progress {
            model::PullProgress::Bytes { done, all } => Self::Bytes { done, all },
            model::PullProgress::Layers { done, all } => Self::Layers { done, all },
        }
    }
}

/// What a prune has removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pruned {
    /// Layers that no image has any more.
    pub layers: usize,
    /// Interrupted downloads that no pull goes on with.
    #[serde(default)]
    pub downloads: usize,
}

impl From<model::KeptImage> for KeptImage {
    fn from(from: model::KeptImage) -> Self {
        let model::KeptImage { name, digest, created_ms, bytes, layers, env, user, working_dir, .. } = from;
        let model::KeptImage { entrypoint, command, ports, .. } = from;
        Self { name, digest, created_ms, bytes, layers, env, user, working_dir, entrypoint, command, ports }
    }
}
