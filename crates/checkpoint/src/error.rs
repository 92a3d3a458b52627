//! How reading and writing checkpoints fails.

use std::io;

use base::id::TemplateName;

/// What could not be done. The cause is in `source`, never in the text.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Error {
    #[error("cannot {action}")]
    Store { action: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("cannot {action}")]
    System { action: &'static str, source: io::Error },
    #[error("there is a checkpoint {0} already")]
    Exists(TemplateName),
    #[error("the file is no whole checkpoint")]
    DamagedFile { source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the client went away")]
    Cancelled,
    #[error("the sandbox engine failed")]
    Sandbox(#[from] sandbox::Error),
}

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds what was being done to an error of the store, or of what was to be stored.
pub(crate) trait Storing<T> {
    fn storing(self, action: &'static str) -> Result<T>;
}

impl<T, E: Into<Box<dyn std::error::Error + Send + Sync>>> Storing<T> for std::result::Result<T, E> {
    fn storing(self, action: &'static str) -> Result<T> {
        self.map_err(|source| Error::Store { action, source: source.into() })
    }
}

/// Adds what was being done to an error of the system.
pub(crate) trait Context<T> {
    fn doing(self, action: &'static str) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn doing(self, action: &'static str) -> Result<T> {
        self.map_err(|source| Error::System { action, source: source.into() })
    }
}
