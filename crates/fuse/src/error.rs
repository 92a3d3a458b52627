//! Why a volume cannot be mounted or served.

use std::io;

/// See the module.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}")]
pub struct FuseError {
    action: &'static str,
    source: io::Error,
}

/// Says what was being done.
pub(crate) trait Doing<T> {
    fn doing(self, action: &'static str) -> Result<T, FuseError>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, action: &'static str) -> Result<T, FuseError> {
        self.map_err(|source| FuseError { action, source: source.into() })
    }
}
