//! Streams of events.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::{Channel, Client};
use crate::{
    error::{Error, Refusal},
    limits::REPLACED_MAX,
    message::{Link, Received, Reply, Request},
    record::{End, Status},
};

/// Pause between two looks for a holder that is being replaced.
const REPLACED_LOOK: Duration = Duration::from_millis(5);

/// Something of a command. Outputs are numbered: 0 is standard output or the terminal, 1 is standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Bytes of an output.
    Output {
        /// Which.
        output: usize,
        /// At most 32 KiB, of a terminal at most 16 KiB. A character may be cut.
        bytes: Vec<u8>,
    },
    /// So many bytes of an output were overwritten before this reader came to them.
    Missed {
        /// Which.
        output: usize,
        /// How many.
        bytes: u64,
    },
    /// The command has ended; nothing follows. None: nothing holds it any more, so its status is unknown.
    Ended(Option<End>),
}

/// The events of one command. Dropped, the command does not wait for this reader any more.
#[derive(Debug)]
pub struct Events {
    client: Client,
    link: Option<Link>,
    key: String,
    /// Behind the last byte that arrived of each output.
    positions: Vec<u64>,
    waiting: VecDeque<Event>,
    ended: bool,
}

impl Events {
    pub(super) fn new(client: Client, link: Link, key: String, outputs: usize) -> Self {
        let waiting = VecDeque::new();
        Self { client, link: Some(link), key, positions: vec![0; outputs], waiting, ended: false }
    }

    /// The key of the command.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The next event; none after the end. May be cancelled: no event is lost.
    pub async fn next(&mut self) -> Option<Event> {
        while !self.ended {
            if let Some(event) = self.waiting.pop_front() {
                self.ended = matches!(event, Event::Ended(_));
                return Some(event);
            }
            match &self.link {
                Some(link) => match link.receive::<Reply>().await {
                    Ok(Some(received)) => self.take(received),
                    // What the holder had sent before its death is received first.
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
                    Ok(None) | Err(_) => self.link = None,
                },
                None => match self.again().await {
                    Some(link) => self.link = Some(link),
                    None => self.waiting.push_back(Event::Ended(None)),
                },
            }
        }
        None
    }

    fn take(&mut self, Received { head, body, files: _ }: Received<Reply>) {
        let event = match head {
            Reply::Output { output } => {
                self.advance(output, body.len() as u64);
                Event::Output { output, bytes: body }
            }
            Reply::Missed { output, bytes } => {
                self.advance(output, bytes);
                Event::Missed { output, bytes }
            }
            Reply::Ended(end) => Event::Ended(Some(end)),
            // Nothing else follows an attachment.
            _ => return,
        };
        self.waiting.push_back(event);
    }

    fn advance(&mut self, output: usize, bytes: u64) {
        if let Some(position) = self.positions.get_mut(output) {
            *position += bytes;
        }
    }

    /// Attaches again where it was. None: the command is not held any more.
    async fn again(&self) -> Option<Link> {
        let deadline = Instant::now() + REPLACED_MAX;
        loop {
            let request = Request::Attach { key: self.key.clone(), from: self.positions.clone() };
            let attached = match self.client.channel().await {
                Ok(channel) => channel.ask(&request, &[], &[]).await.map(|()| channel),
                Err(error) => Err(error),
            };
            match attached {
                Ok(Channel { link }) => return Some(link),
                Err(Error::Refused { refusal: Refusal::NotFound, .. }) => return None,
                // Nothing listens: both processes died at once.
                Err(Error::System { .. }) | Err(_) if Instant::now() > deadline => return None,
                Err(Error::System { source, .. }) if source.kind() == std::io::ErrorKind::ConnectionRefused => {
                    return None;
                }
                Err(_) => tokio::time::sleep(REPLACED_LOOK).await,
            }
        }
    }

    /// Reads all events: outputs, what was missed, and how the command ended.
    #[doc(hidden)]
    pub async fn collect(mut self) -> (Vec<Vec<u8>>, u64, Status) {
        let mut outputs = vec![Vec::new(); self.positions.len()];
        let (mut missed, mut status) = (0, Status::Unknown);
        while let Some(event) = self.next().await {
            match event {
                Event::Output { output, bytes } => outputs[output].extend(bytes),
                Event::Missed { bytes, .. } => missed += bytes,
                Event::Ended(end) => status = end.map_or(Status::Unknown, |end| end.status),
            }
        }
        (outputs, missed, status)
    }
}

/// Names of ended commands that no node has settled.
#[derive(Debug)]
pub struct Unsettled {
    link: Link,
}

impl Unsettled {
    pub(super) fn new(link: Link) -> Self {
        Self { link }
    }

    /// Key and sandbox of the next one; none if the holder is gone.
    pub async fn next(&mut self) -> Option<(String, String)> {
        loop {
            match self.link.receive::<Reply>().await {
                Ok(Some(Received { head: Reply::Unsettled { key, sandbox }, .. })) => return Some((key, sandbox)),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }
}
