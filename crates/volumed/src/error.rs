//! What can go wrong with the processes. How a request on a volume fails is in `http::errors`.

use std::io;

pub(crate) use base::error::chain;

/// See the module.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Error {
    #[error("cannot {doing}")]
    System { doing: &'static str, source: io::Error },
    #[error("the process of volumes said no: {}", .0.message)]
    Refused(Box<model::Failure>),
    #[error("the process of volumes ended before it answered")]
    NoAnswer,
    #[error("the process of volumes ended at once: {status}; the log says why")]
    DiedAtOnce { status: std::process::ExitStatus },
    #[error("there is no command that starts the process of volumes")]
    NoCommand,
    #[error("the process of volumes is not started any more")]
    Closed,
    #[error("another process of volumes uses {}", .0.display())]
    InUse(std::path::PathBuf),
    #[error("the worker of volumes died {attempts} times in a row")]
    NoWorker { attempts: u32 },
    #[error("cannot speak HTTP to the process of volumes")]
    Http(#[from] hyper::Error),
    #[error("cannot open the store")]
    Store(#[source] crate::BoxError),
}

impl Error {
    /// For `map_err`.
    pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { doing, source: source.into() }
    }
}
