//! Forms of files (`multipart/form-data`, RFC 7578), part by part.
//!
//! ```text
//! chunks of the body ──► Parser: bytes in, Head, Data and End out ──► Form: one part at a time
//! ```
//!
//! The parser keeps the headers of one part, at most [`FORM_HEAD_BYTES_MAX`], and of the content at most what could be
//! the beginning of a boundary. A sender that never ends a header gets an error, not memory.

mod head;
mod parser;

use std::{collections::VecDeque, fmt::Display};

use base::limits::{FORM_HEAD_BYTES_MAX, FORM_PARTS_MAX};
use bytes::Bytes;
use futures::{Stream, StreamExt};

pub(super) use head::boundary;
pub(super) use parser::Head;
use parser::{Event, Parser};

/// Why a form is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    /// No boundary that RFC 2046 allows.
    #[error("the content type of the form has no boundary of 1 to 70 characters")]
    NoBoundary,
    /// The headers of a part are too long.
    #[error("the headers of a part of the form have more than {FORM_HEAD_BYTES_MAX} bytes")]
    HeadTooLong,
    /// There are too many parts.
    #[error("the form has more than {FORM_PARTS_MAX} parts: send it in several requests")]
    TooManyParts,
    /// The lines around parts are not those of a form.
    #[error("the form is damaged: {0}")]
    Damaged(&'static str),
    /// The body ended before the form did.
    #[error("the upload broke off: {0}")]
    BrokenOff(String),
}

/// A form that is being received.
pub(super) struct Form<S> {
    body: S,
    parser: Parser,
    events: VecDeque<Event>,
}

impl<S, E> Form<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: Display,
{
    /// Takes a body with the boundary of its content type.
    pub(super) fn new(body: S, boundary: &str) -> Self {
        Self { body, parser: Parser::new(boundary), events: VecDeque::new() }
    }

    /// The next part. The rest of the part before is passed over. None after the last one.
    pub(super) async fn next_part(&mut self) -> Result<Option<Head>, Error> {
        loop {
            match self.event().await? {
                Event::Head(head) => return Ok(Some(head)),
                Event::Closed => return Ok(None),
                Event::Data(_) | Event::End => {}
            }
        }
    }

    /// The next bytes of the part. None at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        match self.event().await? {
            Event::Data(bytes) => Ok(Some(bytes)),
            Event::End | Event::Closed => Ok(None),
            Event::Head(_) => Err(Error::Damaged("a part has no end")),
        }
    }

    async fn event(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if self.parser.is_closed() {
                return Ok(Event::Closed);
            }
            match self.body.next().await {
                Some(Ok(bytes)) => self.parser.feed(bytes, &mut self.events)?,
                Some(Err(error)) => return Err(Error::BrokenOff(error.to_string())),
                None => return Err(Error::BrokenOff("the last boundary is missing".to_owned())),
            }
        }
    }
}

/// A form means the same in whatever pieces it comes, and a piece keeps no more than the headers of one part.
#[cfg(feature = "fuzzing")]
pub(super) fn fuzz(body: &[u8], piece: usize) {
    let read = |piece: usize| -> Result<Vec<Event>, Error> {
        let (mut parser, mut events) = (Parser::new("XX"), VecDeque::new());
        for bytes in body.chunks(piece) {
            parser.feed(Bytes::copy_from_slice(bytes), &mut events)?;
            assert!(parser.kept_bytes() <= FORM_HEAD_BYTES_MAX + "\r\n--XX".len(), "{} bytes", parser.kept_bytes());
            if parser.is_closed() {
                break;
            }
        }
        let mut joined: Vec<Event> = Vec::new();
        for event in events {
            match (joined.last_mut(), event) {
                (Some(Event::Data(before)), Event::Data(bytes)) => *before = [&before[..], &bytes].concat().into(),
                (_, event) => joined.push(event),
            }
        }
        Ok(joined)
    };
    assert_eq!(read(piece), read(body.len().max(1)));
}

#[cfg(test)]
mod tests;
