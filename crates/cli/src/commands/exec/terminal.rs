//! The user's own terminal.

use anyhow::{Context, Result};
use api::TerminalSize;
use rustix::{
    stdio::{stdin, stdout},
    termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr},
};

/// Its size, or the classic one if there is no terminal.
pub(super) fn size() -> TerminalSize {
    match tcgetwinsize(stdout()).or_else(|_| tcgetwinsize(stdin())) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => TerminalSize { rows: size.ws_row, columns: size.ws_col },
        Ok(_) | Err(_) => TerminalSize { rows: 24, columns: 80 },
    }
}

/// Raw mode, as long as this lives: every key goes to the command.
pub(super) struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    pub(super) fn enter() -> Result<Self> {
        let before = tcgetattr(stdin()).context("cannot read the terminal's mode")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw).context("cannot set the terminal's mode")?;
        Ok(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // It can fail only if the terminal is gone.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}
