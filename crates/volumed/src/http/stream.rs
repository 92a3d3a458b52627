//! Bodies of any length, between a client that may be slow and a thread that blocks.

use std::{
    io::{self, Read, Write},
    sync::Arc,
};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use base::id::VolumeName;
use bytes::{Buf, Bytes};
use http_body_util::{
    BodyExt,
    channel::{Channel, Sender},
};
use tokio::{runtime::Handle, sync::mpsc};

use crate::{
    error::chain,
    failure::Result,
    limits::{PIECE_BYTES, PIECES_WAITING},
    worker::{table::Table, work::Kind as Work},
};

/// Where an answer is written. Fails with `BrokenPipe` when the client has gone.
pub(super) struct Outlet {
    sender: Sender<Bytes, io::Error>,
    runtime: Handle,
    gathered: Vec<u8>,
}

/// An answer that `work` in `volume` writes. One that breaks off has failed.
pub(super) fn answer(
    table: &Arc<Table>,
    volume: &VolumeName,
    content_type: &'static str,
    work: impl FnOnce(&mut Outlet) -> Result<()> + Send + 'static,
) -> Response {
    let (sender, body) = Channel::new(PIECES_WAITING);
    let mut outlet = Outlet { sender, runtime: Handle::current(), gathered: Vec::new() };
    let (table, volume) = (table.clone(), volume.clone());
    let work = move || {
        let done = work(&mut outlet);
        let flushed = outlet.flush();
        if let Err(error) = &done {
            outlet.sender.abort(io::Error::other(chain(error)));
        }
        done.and(Ok(flushed.is_err()))
    };
    tokio::spawn(async move {
        match table.work.run(Work::Read, &volume, work).await {
            Ok(false) => {}
            Ok(true) => tracing::debug!("a client went away before its answer was whole"),
            Err(error) => tracing::warn!(error = chain(&error), "an answer broke off"),
        }
    });
    ([(axum::http::header::CONTENT_TYPE, content_type)], Body::new(body)).into_response()
}

impl Outlet {
    /// Sends these bytes, behind what was written before.
    pub(super) fn send(&mut self, bytes: Bytes) -> io::Result<()> {
        let sent = self.runtime.block_on(self.sender.send_data(bytes));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for Outlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.gathered.extend_from_slice(bytes);
        if self.gathered.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.gathered) {
            nothing if nothing.is_empty() => Ok(()),
            gathered => self.send(gathered.into()),
        }
    }
}

/// What a client sends. A client that goes away is an error, not the end.
pub(super) struct Inlet {
    parts: mpsc::Receiver<io::Result<Bytes>>,
    part: Bytes,
    at_end: bool,
}

/// What `body` brings, while the future is polled.
pub(super) fn inlet(body: Body) -> (Inlet, impl Future<Output = ()>) {
    let (sender, parts) = mpsc::channel(PIECES_WAITING);
    (Inlet { parts, part: Bytes::new(), at_end: false }, pass_on(body, sender))
}

async fn pass_on(mut body: Body, parts: mpsc::Sender<io::Result<Bytes>>) {
    // Whoever reads may have had enough while the client rests.
    while let Some(frame) = tokio::select! { frame = body.frame() => frame, () = parts.closed() => return } {
        let part = match frame.map(|frame| frame.into_data()) {
            Ok(Ok(part)) if !part.is_empty() => Ok(part),
            // Trailers.
            Ok(_) => continue,
            Err(error) => Err(io::Error::other(error)),
        };
        let failed = part.is_err();
        if parts.send(part).await.is_err() || failed {
            return;
        }
    }
    // Without this the end looks as if the client had gone.
    let _ = parts.send(Ok(Bytes::new())).await;
}

impl Read for Inlet {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.part.is_empty() && !self.at_end {
            let gone = || Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the client went away"));
            self.part = self.parts.blocking_recv().unwrap_or_else(gone)?;
            self.at_end = self.part.is_empty();
        }
        let length = self.part.len().min(buffer.len());
        self.part.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}
