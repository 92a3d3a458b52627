//! Controlling terminals.

use serde::{Deserialize, Serialize};
use sys::terminal::{ATTRIBUTES_BYTES, SIZE_BYTES};

use super::Stream;

/// The controlling terminal of a session, which its leader has taken. It is the terminal of a command: its other side is outside.
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

impl Terminal {
    /// Whether the kernel can take it.
    pub(crate) fn is_sound(&self) -> bool {
        self.attributes.len() == ATTRIBUTES_BYTES && self.foreground >= 0
    }
}
