//! Work on files, beside the requests.

use std::{io, path::Path};

use tokio::task::spawn_blocking;

use crate::error::{Context, Result};

pub(crate) async fn in_background<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(io::Error::other(error)).at("work on files of", Path::new("the image store")))
}
