//! The exec stream: frames of one kind byte, a little-endian u32 length and the payload, both ways.
//!
//! ```text
//! client -> node   Stdin, StdinEnd, Resize
//! node -> client   Stdout, Stderr, Notice, then one Exit, after which the node closes
//! ```

use crate::{ExitStatus, TerminalSize};

/// Largest payload, in bytes: bounds what a peer can make the other hold.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 10;

const HEADER_BYTES: usize = 5;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Bytes for the command's standard input.
    Stdin(Vec<u8>),
    /// No more standard input.
    StdinEnd,
    /// The client's terminal changed its size.
    Resize(TerminalSize),
    /// Bytes of standard output, or of the terminal.
    Stdout(Vec<u8>),
    /// Bytes of standard error.
    Stderr(Vec<u8>),
    /// How the command ended.
    Exit(ExitStatus),
    /// A line for people about the command, such as why it was ended; for clients that want it.
    Notice(String),
}

/// Why bytes are not frames.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Of another protocol, or newer.
    #[error("frame of unknown kind {0}")]
    Kind(u8),
    /// Longer than [`PAYLOAD_BYTES_MAX`].
    #[error("frame of {0} bytes is too long")]
    TooLong(usize),
    /// A payload that does not fit its kind.
    #[error("frame of kind {0} has a malformed payload")]
    Payload(u8),
}

impl Frame {
    /// Appends the encoded frame to `out`. Payloads above [`PAYLOAD_BYTES_MAX`] are a bug of the caller; the peer refuses them.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Stdin(bytes) => put(out, 0, bytes),
            Self::Stdout(bytes) => put(out, 1, bytes),
            Self::Stderr(bytes) => put(out, 2, bytes),
            Self::Notice(text) => put(out, 6, text.as_bytes()),
            Self::StdinEnd => put(out, 3, &[]),
            Self::Resize(size) => {
                let ([a, b], [c, d]) = (size.rows.to_le_bytes(), size.columns.to_le_bytes());
                put(out, 4, &[a, b, c, d]);
            }
            Self::Exit(status) => {
                let (kind, value) = match status {
                    ExitStatus::Code(code) => (0u8, *code),
                    ExitStatus::Signal(signal) => (1, *signal),
                    ExitStatus::Unknown => (2, 0),
                };
                let [a, b, c, d] = value.to_le_bytes();
                put(out, 5, &[kind, a, b, c, d]);
            }
        }
    }

    fn parse(kind: u8, payload: &[u8]) -> Result<Self, FrameError> {
        match (kind, payload) {
            (0, bytes) => Ok(Self::Stdin(bytes.to_vec())),
            (1, bytes) => Ok(Self::Stdout(bytes.to_vec())),
            (2, bytes) => Ok(Self::Stderr(bytes.to_vec())),
            (3, []) => Ok(Self::StdinEnd),
            (4, &[a, b, c, d]) => {
                Ok(Self::Resize(TerminalSize { rows: u16::from_le_bytes([a, b]), columns: u16::from_le_bytes([c, d]) }))
            }
            (5, &[0, a, b, c, d]) => Ok(Self::Exit(ExitStatus::Code(i32::from_le_bytes([a, b, c, d])))),
            (5, &[1, a, b, c, d]) => Ok(Self::Exit(ExitStatus::Signal(i32::from_le_bytes([a, b, c, d])))),
            (5, &[2, 0, 0, 0, 0]) => Ok(Self::Exit(ExitStatus::Unknown)),
            (6, text) => match str::from_utf8(text) {
                Ok(text) => Ok(Self::Notice(text.to_owned())),
                Err(_) => Err(FrameError::Payload(kind)),
            },
            (3..=5, _) => Err(FrameError::Payload(kind)),
            _ => Err(FrameError::Kind(kind)),
        }
    }
}

fn put(out: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    debug_assert!(payload.len() <= PAYLOAD_BYTES_MAX);
    out.push(kind);
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(payload);
}

/// Cuts a byte stream into frames: bytes in, frames out, no I/O.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
}

impl Decoder {
    /// Takes bytes as they come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame. An error is final: the stream cannot be resynchronised.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((&[kind, a, b, c, d], rest)) = self.buffer.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > PAYLOAD_BYTES_MAX {
            return Err(FrameError::TooLong(length));
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let frame = Frame::parse(kind, payload)?;
        self.buffer.drain(..HEADER_BYTES + length);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Frame> {
        vec![
            Frame::Stdin(b"in".to_vec()),
            Frame::StdinEnd,
            Frame::Resize(TerminalSize { rows: 24, columns: 80 }),
            Frame::Stdout(vec![]),
            Frame::Stderr(vec![7; PAYLOAD_BYTES_MAX]),
            Frame::Exit(ExitStatus::Code(-1)),
            Frame::Exit(ExitStatus::Signal(9)),
            Frame::Exit(ExitStatus::Unknown),
            Frame::Notice("its time was up: ü".to_owned()),
        ]
    }

    #[test]
    fn frames_survive_any_cutting_of_the_stream() {
        let mut bytes = Vec::new();
        all().iter().for_each(|frame| frame.encode(&mut bytes));
        for size in [1, 2, 3, 7, 4096, bytes.len()] {
            let (mut decoder, mut got) = (Decoder::default(), Vec::new());
            for chunk in bytes.chunks(size) {
                decoder.push(chunk);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    got.push(frame);
                }
            }
            assert_eq!(got, all(), "cut into {size}");
        }
    }

    #[test]
    fn foreign_and_oversized_frames_are_refused_before_their_payload_arrives() {
        let refused = |bytes: &[u8]| {
            let mut decoder = Decoder::default();
            decoder.push(bytes);
            decoder.next_frame().unwrap_err()
        };
        assert_eq!(refused(&[9, 0, 0, 0, 0]), FrameError::Kind(9));
        assert_eq!(refused(&[0, 0, 0, 0, 1]), FrameError::TooLong(1 << 24));
        assert_eq!(refused(&[4, 1, 0, 0, 0, 5]), FrameError::Payload(4));
        assert_eq!(refused(&[6, 1, 0, 0, 0, 0xff]), FrameError::Payload(6));
    }
}
