//! What the board has of an image.

use std::{os::fd::RawFd, sync::atomic::Ordering};

use super::{PAGE_WORDS, from_descriptor, get_bytes, put_bytes, record::Record, to_descriptor};
use crate::limits::{NAME_BYTES_MAX, ORDER_MAX};

/// Words of one record.
pub(super) const WORDS: usize = PAGE_WORDS + ORDER_MAX;

const DESCRIPTOR: usize = 1;
const RANGES: usize = 2;
const IMAGE_BYTES: usize = 3;
const ROOT_PID: usize = 4;
const ORDER_COUNT: usize = 5;
const NAME_LEN: usize = 6;
const FORGOTTEN: usize = 7;
const SERIAL: usize = 8;
const COMPLETE: usize = 9;
const PARKED: usize = 10;
const HURRIED: usize = 11;
const NAME: usize = 16;
const ORDER: usize = PAGE_WORDS;

/// An image that is served: its name, where its description is, and what was faulted on first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageImageRecord {
    pub(crate) index: usize,
    record: Record<WORDS>,
}

/// What a client says of an image.
#[derive(Debug, Clone)]
pub(crate) struct Description {
    pub(crate) name: String,
    /// A memfd: ranges as pairs of addresses, then the opaque bytes.
    pub(crate) descriptor: RawFd,
    pub(crate) ranges: u64,
    pub(crate) image_bytes: u64,
    pub(crate) pid: i32,
    /// The process stands still.
    pub(crate) parked: bool,
}

impl PageImageRecord {
    pub(super) fn new(index: usize, record: Record<WORDS>) -> Self {
        Self { index, record }
    }

    /// Whether there is an image here. Only the guardian makes and removes images.
    pub(crate) fn is_used(self) -> bool {
        self.record.state().load(Ordering::Acquire) == 1
    }

    /// Writes an image here, and shows it.
    pub(crate) fn enter(self, image: &Description, serial: u64) {
        self.record.set(SERIAL, serial);
        let name = image.name.as_bytes();
        put_bytes(&self.record.words()[NAME..NAME + NAME_BYTES_MAX / 8], name);
        self.record.set(NAME_LEN, name.len() as u64);
        self.record.set(DESCRIPTOR, from_descriptor(image.descriptor));
        self.record.set(RANGES, image.ranges);
        self.record.set(IMAGE_BYTES, image.image_bytes);
        self.record.set(ROOT_PID, image.pid as u64);
        self.record.set(PARKED, u64::from(image.parked));
        self.record.state().store(1, Ordering::Release);
    }

    /// Gives the place back. Its descriptor is the caller's then.
    pub(crate) fn remove(self) {
        self.record.state().store(0, Ordering::Release);
        self.record.clear();
    }

    pub(crate) fn description(self) -> Option<Description> {
        Some(Description {
            name: self.name(),
            descriptor: self.descriptor()?,
            ranges: self.record.get(RANGES),
            image_bytes: self.record.get(IMAGE_BYTES),
            pid: self.record.get(ROOT_PID) as i32,
            parked: self.is_parked(),
        })
    }

    pub(crate) fn name(self) -> String {
        let bytes =
            get_bytes(&self.record.words()[NAME..NAME + NAME_BYTES_MAX / 8], self.record.get(NAME_LEN) as usize);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(crate) fn descriptor(self) -> Option<RawFd> {
        if self.is_used() { to_descriptor(self.record.get(DESCRIPTOR)) } else { None }
    }

    /// The client has no more interest in it: it goes with its last process.
    pub(crate) fn forget(self) {
        self.record.set(FORGOTTEN, 1);
    }

    /// The process that was handed over stands still.
    pub(crate) fn is_parked(self) -> bool {
        self.record.get(PARKED) == 1
    }

    /// All its processes are to be filled.
    pub(crate) fn hurry(self) {
        self.record.set(HURRIED, 1);
    }

    pub(crate) fn is_hurried(self) -> bool {
        self.record.get(HURRIED) == 1
    }

    /// Its process is entered as well.
    pub(crate) fn complete(self) {
        self.record.set(COMPLETE, 1);
    }

    pub(crate) fn is_complete(self) -> bool {
        self.record.get(COMPLETE) == 1
    }

    /// Tells images apart that had the same place one after the other.
    pub(crate) fn serial(self) -> u64 {
        self.record.get(SERIAL)
    }

    pub(crate) fn is_forgotten(self) -> bool {
        self.record.get(FORGOTTEN) == 1
    }

    /// Adds the address of a page to the order of first faults, as long as there is room. One thread at a time.
    pub(crate) fn add_fault(self, address: u64) {
        let count = self.record.get(ORDER_COUNT) as usize;
        if count < ORDER_MAX {
            self.record.set(ORDER + count, address);
            self.record.set(ORDER_COUNT, count as u64 + 1);
        }
    }

    /// The pages that were faulted on, in that order.
    pub(crate) fn order(self) -> Vec<u64> {
        let count = (self.record.get(ORDER_COUNT) as usize).min(ORDER_MAX);
        (0..count).map(|index| self.record.get(ORDER + index)).collect()
    }
}
