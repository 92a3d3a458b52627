//! Archives of whole volumes, for threads that block.

use std::io::{self, Read};

use api::VERSION_PREFIX;
use base::id::VolumeName;
use bytes::{Buf, Bytes};
use http_body_util::{BodyExt, Empty, channel::Channel};
use hyper::{Method, Request, body::Incoming};
use tokio::runtime::Handle;

use super::{Begun, Client, not_json};
use crate::{
    Error,
    limits::{PIECE_BYTES, PIECES_WAITING},
};

/// An archive as it comes. One that breaks off is an error, not the end.
#[derive(Debug)]
pub struct Archive {
    body: Incoming,
    runtime: Handle,
    part: Bytes,
}

impl Client {
    /// A tar archive of all that is in a volume. Blocks.
    pub fn export(&self, volume: &VolumeName, runtime: &Handle) -> Result<Archive, Error> {
        let request = Request::get(format!("{VERSION_PREFIX}/volumes/{volume}/export")).body(Empty::new());
        let request = request.map_err(not_json("ask the process of volumes"))?;
        let Begun(answer) = runtime.block_on(self.begin_with(request))?;
        Ok(Archive { body: answer.into_body(), runtime: runtime.clone(), part: Bytes::new() })
    }

    /// Unpacks a tar archive into a volume. If reading it fails, so does this, with another error. Blocks.
    pub fn import(&self, volume: &VolumeName, archive: &mut dyn Read, runtime: &Handle) -> Result<(), Error> {
        let (mut sender, body) = Channel::<Bytes, io::Error>::new(PIECES_WAITING);
        let request = Request::builder().method(Method::POST).uri(format!("{VERSION_PREFIX}/volumes/{volume}/import"));
        let request = request.body(body).map_err(not_json("ask the process of volumes"))?;
        let client = self.clone();
        let answering = runtime.spawn(async move { client.begin_with(request).await?.end::<()>().await });
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match archive.read(&mut piece) {
                Ok(0) => break drop(sender),
                // Else it has an answer already.
                Ok(length) if runtime.block_on(sender.send_data(Bytes::copy_from_slice(&piece[..length]))).is_ok() => {}
                Ok(_) => break,
                Err(error) => break sender.abort(error),
            }
        }
        runtime.block_on(answering).map_err(not_json("hear the process of volumes"))?
    }
}

impl Read for Archive {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            match self.runtime.block_on(self.body.frame()) {
                // Trailers have no data.
                Some(frame) => self.part = frame.map_err(io::Error::other)?.into_data().unwrap_or_default(),
                None => return Ok(0),
            }
        }
        let length = self.part.len().min(into.len());
        self.part.copy_to_slice(&mut into[..length]);
        Ok(length)
    }
}
