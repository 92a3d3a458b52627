//! Bounds the page cache that a long transfer leaves behind.

use std::{num::NonZero, os::fd::AsFd};

use base::limits::HAND_CACHED_BYTES_MAX;
use rustix::fs::{Advice, fadvise};

/// How often the cache is looked at, in bytes.
const STEP_BYTES: u64 = 8 << 20;

/// The position of a transfer in a file.
#[derive(Debug, Default)]
pub(super) struct Behind {
    position: u64,
    looked_at: u64,
}

impl Behind {
    /// A transfer that begins at `position`.
    pub(super) fn at(position: u64) -> Self {
        Self { position, looked_at: position }
    }

    /// Some bytes more are done. Far behind, changed pages are written and clean ones dropped.
    ///
    /// The kernel starts writing the changed pages of the range and drops only clean ones (mm/fadvise.c, `POSIX_FADV_DONTNEED`). The range is
    /// as long as eight steps, so each page is looked at eight times. The call waits for no disk.
    pub(super) fn advance(&mut self, file: impl AsFd, bytes: u64) {
        self.position += bytes;
        if self.position - self.looked_at < STEP_BYTES {
            return;
        }
        self.looked_at = self.position;
        let end = self.position.saturating_sub(HAND_CACHED_BYTES_MAX);
        let start = end.saturating_sub(8 * STEP_BYTES);
        if let Some(length) = NonZero::new(end - start) {
            // Advice: filesystems without a cache refuse it.
            let _ = fadvise(file, start, Some(length), Advice::DontNeed);
        }
    }
}
