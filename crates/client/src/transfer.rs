//! Bodies that go or come piece by piece.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{
    Response,
    body::{Body, Frame, Incoming},
};
use tokio::sync::mpsc;

use crate::{Error, Result};

/// An answer that is read piece by piece. Dropping it hangs up.
#[derive(Debug)]
pub struct Download(Incoming);

impl Download {
    pub(crate) fn new(answer: Response<Incoming>) -> Self {
        Self(answer.into_body())
    }

    /// The next piece. `None` is the end.
    ///
    /// # Errors
    ///
    /// The connection ended before the answer did.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        match self.0.frame().await {
            None => Ok(None),
            Some(frame) => Ok(Some(frame.map_err(Error::BrokenOff)?.into_data().unwrap_or_default())),
        }
    }
}

/// A body that is sent as its pieces come. It ends with its senders. A piece that is an error breaks the request off.
#[derive(Debug)]
pub struct Upload(mpsc::Receiver<io::Result<Bytes>>);

impl Upload {
    /// A body of the pieces that come through `pieces`.
    pub fn new(pieces: mpsc::Receiver<io::Result<Bytes>>) -> Self {
        Self(pieces)
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
