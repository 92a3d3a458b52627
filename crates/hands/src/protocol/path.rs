//! Paths as bytes: a file's name need not be text.

use std::{
    ffi::OsStr,
    fmt,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use base::limits::PATH_BYTES_MAX;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A path without zero bytes, of at most [`PATH_BYTES_MAX`] bytes. Nothing else is taken from a message.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RawPath(PathBuf);

impl RawPath {
    /// None if the path is too long or has a zero byte.
    pub fn new(path: &Path) -> Option<Self> {
        let bytes = path.as_os_str().as_bytes();
        (bytes.len() <= PATH_BYTES_MAX && !bytes.contains(&0)).then(|| Self(path.to_owned()))
    }

    /// As [`Self::new`], for a path from the root.
    pub fn absolute(path: &Path) -> Option<Self> {
        Self::new(path).filter(Self::is_absolute)
    }

    /// The path.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// The path, owned.
    pub fn into_path(self) -> PathBuf {
        self.0
    }

    /// Whether it begins at the root.
    pub fn is_absolute(&self) -> bool {
        self.0.is_absolute()
    }
}

impl AsRef<Path> for RawPath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl fmt::Debug for RawPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for RawPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0.as_os_str().as_bytes())
    }
}

impl<'de> Deserialize<'de> for RawPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes: &[u8] = serde_bytes::deserialize(deserializer)?;
        Self::new(Path::new(OsStr::from_bytes(bytes))).ok_or_else(|| D::Error::custom("not a path"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_kernel_takes_is_a_path() {
        let is_path = |bytes: &[u8]| RawPath::new(Path::new(OsStr::from_bytes(bytes))).is_some();
        assert!(is_path(b"/a/b") && is_path(b"\xff\n") && is_path(&[b'a'; PATH_BYTES_MAX]));
        assert!(!is_path(b"/a\0b") && !is_path(&[b'a'; PATH_BYTES_MAX + 1]));
        assert!(RawPath::absolute(Path::new("a")).is_none() && RawPath::absolute(Path::new("/")).is_some());
    }

    #[test]
    fn a_path_from_a_message_is_checked() {
        let sent = postcard::to_stdvec(&RawPath::new(Path::new("/a")).unwrap()).unwrap();
        assert_eq!(postcard::from_bytes::<RawPath>(&sent).unwrap().as_path(), Path::new("/a"));
        assert!(postcard::from_bytes::<RawPath>(b"\x03/a\0").is_err());
    }
}
