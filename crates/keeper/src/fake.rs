//! A keeper without processes: tests of code that talks to a keeper play the keeper themselves.
//!
//! ```text
//! test: FakeKeeper ==SEQPACKET, the messages of protocol==> KeeperClient <── the code that is tested
//! ```

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use tokio::sync::mpsc;

use crate::{
    KeeperClient,
    protocol::{Call, Event, Failed, Files, FromKeeper, Request, Sent, wire},
};

/// The keeper's end of the socket.
#[derive(Debug)]
pub struct FakeKeeper {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

/// A request that the fake has to answer.
#[derive(Debug)]
pub struct Asked<C: Call> {
    /// The request.
    pub request: C,
    /// The files that came with it.
    pub files: C::Files,
    seq: u64,
}

impl FakeKeeper {
    /// A fake, a client that talks to it, and what the client hears unasked. Needs a tokio runtime.
    pub fn start() -> io::Result<(Self, Arc<KeeperClient>, mpsc::UnboundedReceiver<Event>)> {
        let (ours, theirs) = sys::seqpacket::pair()?;
        let (client, events) = KeeperClient::start(ours)?;
        Ok((Self { socket: theirs, buffer: vec![0; wire::BUFFER_BYTES] }, client, events))
    }

    /// Waits for the next request, which must be of type `C`. Blocks the thread.
    pub fn expect<C: Call + TryFrom<Request, Error = Request>>(&mut self) -> io::Result<Asked<C>> {
        let received = wire::receive(&self.socket, &mut self.buffer)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let wire::Received { seq, body, descriptors } = received;
        let request = C::try_from(body.map(|Sent { request, .. }| request).map_err(io::Error::other)?);
        let request = request.map_err(|other| io::Error::other(format!("another request came: {other:?}")))?;
        let files = C::Files::take(descriptors).ok_or_else(|| io::Error::other("the number of files is wrong"))?;
        Ok(Asked { request, files, seq })
    }

    /// Answers a request.
    pub fn answer<C: Call>(&self, asked: Asked<C>, outcome: Result<C::Reply, Failed>) -> io::Result<()> {
        self.answer_with(asked, outcome, None)
    }

    /// Answers a request with a file that goes along.
    pub fn answer_with<C: Call>(
        &self,
        asked: Asked<C>,
        outcome: Result<C::Reply, Failed>,
        file: Option<&OwnedFd>,
    ) -> io::Result<()> {
        let message = match outcome {
            Ok(reply) => FromKeeper::Done(serde_json::to_value(reply)?),
            Err(failed) => FromKeeper::Failed(failed),
        };
        self.send(asked.seq, &message, file)
    }

    /// Says of a request that its capture is done. The answer follows.
    pub fn captured<C: Call>(&self, asked: &Asked<C>) -> io::Result<()> {
        self.send(asked.seq, &FromKeeper::Captured, None)
    }

    /// Reports something unasked.
    pub fn report(&self, event: Event) -> io::Result<()> {
        self.send(0, &FromKeeper::Event(event), None)
    }

    fn send(&self, seq: u64, message: &FromKeeper, file: Option<&OwnedFd>) -> io::Result<()> {
        let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
        wire::send(&self.socket, seq, message, &files)
    }
}
