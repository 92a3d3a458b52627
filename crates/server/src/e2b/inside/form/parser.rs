//! The parser: bytes in, events out.
//!
//! ```text
//! Preamble --boundary--> AfterBoundary --line end--> Head --empty line--> Content --boundary--> AfterBoundary
//!                             └ "--" --> Closed: what follows is ignored
//! ```

use std::collections::VecDeque;

use base::limits::{FORM_HEAD_BYTES_MAX, FORM_PARTS_MAX};
use bytes::{Buf, Bytes};
use memchr::memmem::{self, Finder};

use super::{Error, head};

/// What happens in a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// A part begins.
    Head(Head),
    /// Bytes of the part.
    Data(Bytes),
    /// The part has ended.
    End,
    /// The form has ended.
    Closed,
}

/// What the headers of a part say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Head {
    /// Name of the field.
    pub(in super::super) name: Option<String>,
    /// Name of the file.
    pub(in super::super) file_name: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Preamble,
    AfterBoundary,
    Head,
    Content,
    Closed,
}

/// The state of a form that is being read.
#[derive(Debug)]
pub(super) struct Parser {
    /// `\r\n--boundary`.
    delimiter: Finder<'static>,
    /// What has not been understood yet: at most the headers of one part, or the beginning of a delimiter.
    kept: Bytes,
    state: State,
    parts: usize,
}

impl Parser {
    pub(super) fn new(boundary: &str) -> Self {
        let delimiter = Finder::new(&[b"\r\n--", boundary.as_bytes()].concat()).into_owned();
        // As if a line ended before the body: the first boundary has none before it.
        Self { delimiter, kept: Bytes::from_static(b"\r\n"), state: State::Preamble, parts: 0 }
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept.len()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Takes bytes of the body. The content of a part is handed on without a copy, unless what was kept belongs to it.
    pub(super) fn feed(&mut self, bytes: Bytes, events: &mut VecDeque<Event>) -> Result<(), Error> {
        let kept = std::mem::take(&mut self.kept);
        let mut rest = if kept.is_empty() { bytes } else { Bytes::from([kept, bytes].concat()) };
        loop {
            let step = match self.state {
                State::Preamble | State::Content => self.until_boundary(&rest, events),
                State::AfterBoundary => self.after_boundary(&rest)?,
                State::Head => self.head(&rest, events)?,
                State::Closed => {
                    events.push_back(Event::Closed);
                    return Ok(());
                }
            };
            match step {
                Step::Used(length) => rest.advance(length),
                Step::NeedsMore(length) => {
                    // A copy: the few bytes must not keep all others.
                    self.kept = Bytes::copy_from_slice(&rest[length..]);
                    return Ok(());
                }
            }
        }
    }

    fn until_boundary(&mut self, rest: &Bytes, events: &mut VecDeque<Event>) -> Step {
        let is_content = self.state == State::Content;
        let found = self.delimiter.find(rest);
        let length = found.unwrap_or_else(|| rest.len() - beginning(rest, self.delimiter.needle()));
        if is_content && length > 0 {
            events.push_back(Event::Data(rest.slice(..length)));
        }
        if found.is_none() {
            return Step::NeedsMore(length);
        }
        if is_content {
            events.push_back(Event::End);
        }
        self.state = State::AfterBoundary;
        Step::Used(length + self.delimiter.needle().len())
    }

    fn after_boundary(&mut self, rest: &[u8]) -> Result<Step, Error> {
        if rest.starts_with(b"--") {
            self.state = State::Closed;
            return Ok(Step::Used(2));
        }
        // Spaces may be there (RFC 2046, 5.1.1).
        let spaces = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        if spaces > FORM_HEAD_BYTES_MAX {
            return Err(Error::HeadTooLong);
        }
        match &rest[spaces..] {
            [b'\r', b'\n', ..] => {
                self.parts += 1;
                if self.parts > FORM_PARTS_MAX {
                    return Err(Error::TooManyParts);
                }
                self.state = State::Head;
                // The line end stays: headers may be missing, and then the empty line is what follows.
                Ok(Step::Used(spaces))
            }
            [] | [b'\r'] => Ok(Step::NeedsMore(0)),
            [b'-'] if spaces == 0 => Ok(Step::NeedsMore(0)),
            _ => Err(Error::Damaged("a boundary has something behind it")),
        }
    }

    fn head(&mut self, rest: &[u8], events: &mut VecDeque<Event>) -> Result<Step, Error> {
        const END: &[u8] = b"\r\n\r\n";
        match memmem::find(rest, END) {
            Some(at) if at <= FORM_HEAD_BYTES_MAX => {
                events.push_back(Event::Head(head::parse(&rest[..at])?));
                self.state = State::Content;
                Ok(Step::Used(at + END.len()))
            }
            // Their end may be cut.
            None if rest.len() < FORM_HEAD_BYTES_MAX + END.len() => Ok(Step::NeedsMore(0)),
            Some(_) | None => Err(Error::HeadTooLong),
        }
    }
}

/// How far the parser came.
enum Step {
    /// So many bytes are understood.
    Used(usize),
    /// So many bytes are understood. The others are kept until there are more.
    NeedsMore(usize),
}

/// How many bytes at the end could be the beginning of `wanted`.
fn beginning(bytes: &[u8], wanted: &[u8]) -> usize {
    let most = bytes.len().min(wanted.len() - 1);
    (1..=most).rev().find(|length| wanted.starts_with(&bytes[bytes.len() - length..])).unwrap_or_default()
}
