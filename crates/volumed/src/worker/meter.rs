//! What was done with each volume.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use base::id::VolumeName;
use volume::Traffic;

/// Of one volume, since the worker began.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Of the times before, when it was open.
    closed: Mutex<Traffic>,
    requests: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Meter {
    pub(crate) fn request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    pub(crate) fn read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn wrote(&self, bytes: usize) {
        self.written_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// It is closed, and this was asked of it.
    pub(crate) fn add(&self, traffic: Traffic) {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        *closed = sum(*closed, traffic);
    }

    /// For the API; `open`: since it was opened.
    pub(crate) fn wire(&self, open: Traffic) -> api::volume::Meter {
        let closed = *self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        let Traffic { operations, read_bytes, written_bytes } = sum(closed, open);
        api::volume::Meter {
            operations,
            read_bytes,
            written_bytes,
            http_requests: self.requests.load(Relaxed),
            http_read_bytes: self.read_bytes.load(Relaxed),
            http_written_bytes: self.written_bytes.load(Relaxed),
        }
    }
}

fn sum(a: Traffic, b: Traffic) -> Traffic {
    Traffic {
        operations: a.operations + b.operations,
        read_bytes: a.read_bytes + b.read_bytes,
        written_bytes: a.written_bytes + b.written_bytes,
    }
}

/// Of all volumes.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    of: Mutex<BTreeMap<VolumeName, Arc<Meter>>>,
}

impl Meters {
    /// That of a volume; a volume that is not known yet gets one.
    pub(crate) fn of(&self, volume: &VolumeName) -> Arc<Meter> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        of.entry(volume.clone()).or_default().clone()
    }

    /// The volume is gone.
    pub(crate) fn forget(&self, volume: &VolumeName) {
        self.of.lock().unwrap_or_else(PoisonError::into_inner).remove(volume);
    }
}
