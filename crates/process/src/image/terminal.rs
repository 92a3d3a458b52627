//! Terminals.

use serde::{Deserialize, Serialize};
use sys::terminal::{ATTRIBUTES_BYTES, SIZE_BYTES};

use super::Stream;

/// The controlling terminal of a session, which its leader has taken: that of a command, or one that the program has made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terminal {
    pub(crate) stream: Stream,
    /// The process group in the foreground; 0: none.
    pub(crate) foreground: i32,
    /// `struct termios2`
    pub(crate) attributes: Vec<u8>,
    /// `struct winsize`
    pub(crate) size: [u8; SIZE_BYTES],
}

/// A terminal that a process of the program has made: a copy is given both of its sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnTerminal {
    /// The side that programs run on; the next number is that of its master.
    pub(crate) stream: Stream,
    /// The N of `/dev/pts/N`.
    pub(crate) number: u32,
    /// Bits of access.
    pub(crate) mode: u32,
    /// `struct termios2`
    pub(crate) attributes: Vec<u8>,
    /// `struct winsize`
    pub(crate) size: [u8; SIZE_BYTES],
}

impl OwnTerminal {
    /// Whether the kernel can take it.
    pub(crate) fn is_sound(&self) -> bool {
        self.attributes.len() == ATTRIBUTES_BYTES && self.mode <= 0o777
    }
}

impl Terminal {
    /// Whether the kernel can take it.
    pub(crate) fn is_sound(&self) -> bool {
        self.attributes.len() == ATTRIBUTES_BYTES && self.foreground >= 0
    }
}
