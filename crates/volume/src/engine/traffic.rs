//! What was asked of a volume, by all adapters together.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Engine;

/// Counted since the volume was opened. What the kernel answers from its own caches is not in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Questions and changes.
    pub operations: u64,
    /// Bytes of files that were read.
    pub read_bytes: u64,
    /// Bytes of files that were written.
    pub written_bytes: u64,
}

/// The same as it grows.
#[derive(Debug, Default)]
pub(super) struct Counters {
    operations: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Counters {
    pub(super) fn operation(&self) {
        self.operations.fetch_add(1, Relaxed);
    }

    pub(super) fn read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn wrote(&self, bytes: usize) {
        self.written_bytes.fetch_add(bytes as u64, Relaxed);
    }
}

impl Engine {
    /// What was asked so far.
    pub fn traffic(&self) -> Traffic {
        let Counters { operations, read_bytes, written_bytes } = &self.counters;
        Traffic {
            operations: operations.load(Relaxed),
            read_bytes: read_bytes.load(Relaxed),
            written_bytes: written_bytes.load(Relaxed),
        }
    }
}
