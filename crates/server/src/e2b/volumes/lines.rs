//! Lists of any length: lines of JSON from a process of volumes become one JSON array, in memory that one line needs.

use std::io;

use axum::{
    body::{Body, BodyDataStream, Bytes},
    http::{HeaderValue, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use base::limits::VOLUME_LINE_BYTES_MAX;
use futures::StreamExt;
use serde::{Serialize, de::DeserializeOwned};

/// The lines that have come so far.
struct Lines<F> {
    body: BodyDataStream,
    rest: Vec<u8>,
    told: usize,
    state: State,
    convert: F,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Begin,
    Middle,
    End,
}

/// The answer. If the lines break off, so does the answer: a part is never taken for the whole.
pub(super) fn as_list<I: DeserializeOwned, O: Serialize>(
    found: volumed::Whole,
    convert: impl Fn(I) -> O + Send + 'static,
) -> Response {
    let body = Body::new(found.into_body()).into_data_stream();
    let lines = Lines { body, rest: Vec::new(), told: 0, state: State::Begin, convert };
    let next = async |mut lines: Lines<_>| Ok::<_, io::Error>(lines.next().await?.map(|part| (part, lines)));
    let content_type = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (content_type, Body::from_stream(futures::stream::try_unfold(lines, next))).into_response()
}

impl<F> Lines<F> {
    /// The next part of the array; none at its end.
    async fn next<I: DeserializeOwned, O: Serialize>(&mut self) -> io::Result<Option<Bytes>>
    where
        F: Fn(I) -> O,
    {
        match self.state {
            State::Begin => {
                self.state = State::Middle;
                Ok(Some(Bytes::from_static(b"[")))
            }
            State::Middle => match self.body.next().await {
                Some(part) => {
                    self.rest.extend_from_slice(&part.map_err(io::Error::other)?);
                    self.whole_lines().map(Some)
                }
                None if self.rest.is_empty() => {
                    self.state = State::End;
                    Ok(Some(Bytes::from_static(b"]")))
                }
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            },
            State::End => Ok(None),
        }
    }

    /// All lines that have come in full.
    fn whole_lines<I: DeserializeOwned, O: Serialize>(&mut self) -> io::Result<Bytes>
    where
        F: Fn(I) -> O,
    {
        let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut text = Vec::new();
        for line in self.rest[..end].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            if self.told > 0 {
                text.push(b',');
            }
            self.told += 1;
            serde_json::to_writer(&mut text, &(self.convert)(serde_json::from_slice(line)?))?;
        }
        self.rest.drain(..end);
        if self.rest.len() > VOLUME_LINE_BYTES_MAX {
            return Err(io::Error::other("a line of a list is too long"));
        }
        Ok(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads parts as they would come, and the array that becomes of them.
    fn read(parts: &'static [&'static str]) -> io::Result<String> {
        let parts = futures::stream::iter(parts).map(|part| Ok::<_, io::Error>(*part));
        let body = Body::from_stream(parts).into_data_stream();
        let convert = |number: u32| number + 1;
        let mut lines = Lines { body, rest: Vec::new(), told: 0, state: State::Begin, convert };
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let mut text = Vec::new();
        while let Some(part) = runtime.block_on(lines.next())? {
            text.extend_from_slice(&part);
        }
        String::from_utf8(text).map_err(io::Error::other)
    }

    #[test]
    fn lines_become_an_array_wherever_they_are_cut() {
        assert_eq!(read(&[]).unwrap(), "[]");
        assert_eq!(read(&["1\n"]).unwrap(), "[2]");
        assert_eq!(read(&["1", "0\n2", "\n", "3\n4\n"]).unwrap(), "[11,3,4,5]");
    }

    #[test]
    fn a_line_that_breaks_off_is_an_error() {
        assert!(read(&["1\n", "2"]).is_err() && read(&["x\n"]).is_err());
    }
}
