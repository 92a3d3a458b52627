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

/// How far a pull is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullProgress {
    /// So many bytes are downloaded, of so many.
    Bytes {
        /// These.
        done: u64,
        /// Of so many.
        all: u64,
    },
    /// So many layers are unpacked, of so many.
    Layers {
        /// These.
        done: usize,
        /// Of so many.
        all: usize,
    },
}

/// Longest name of an image, in bytes.
const NAME_BYTES_MAX: usize = 200;
/// Before the 64 hexadecimal digits of a digest.
const DIGEST: &str = "sha256:";

/// Whether an image can be called that: letters, digits and some signs; no path, no digest, and none of the words that stand in its place.
pub fn is_image_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:".contains(&byte);
    let parts = text.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    let is_free = !["host", "import", "prune", "pull"].contains(&text) && !text.starts_with(DIGEST);
    parts && text.len() <= NAME_BYTES_MAX && text.bytes().all(allowed) && is_free
}

/// Whether it is `NAME`, or `NAME@sha256:DIGEST`.
pub fn is_image_reference(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_digest = |digits: &str| digits.len() == 64 && digits.bytes().all(is_digit);
    match text.split_once('@') {
        Some((name, digest)) => is_image_name(name) && digest.strip_prefix(DIGEST).is_some_and(is_digest),
        None => is_image_name(text),
    }
}
