//! Images that a node has.

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
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
