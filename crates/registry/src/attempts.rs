//! Another attempt, after a pause, where that may help.

use std::time::Duration;

use crate::{
    error::{Error, Result},
    limits::{ATTEMPTS_MAX, PAUSE_MAX, PAUSE_MIN},
};

/// Attempts of one request.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    failed: u32,
}

impl Attempts {
    /// What came before counts no more: it got further.
    pub(crate) fn forget(&mut self) {
        self.failed = 0;
    }

    /// Waits for the next attempt. Fails with the error if there is none.
    pub(crate) async fn pause_after(&mut self, error: Error) -> Result<()> {
        self.failed += 1;
        if !error.is_transient() || self.failed >= ATTEMPTS_MAX {
            return Err(error);
        }
        let pause = PAUSE_MIN * 2u32.pow(self.failed - 1);
        // Of many that fail at once, not all come back at once.
        let pause = pause.mul_f64(1.0 + fastrand::f64() / 2.0).max(error.wanted_pause().unwrap_or(Duration::ZERO));
        tracing::debug!(error = base::error::chain(&error), ?pause, "a registry is asked once more");
        tokio::time::sleep(pause.min(PAUSE_MAX)).await;
        Ok(())
    }
}
