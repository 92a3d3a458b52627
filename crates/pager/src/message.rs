//! What clients and guardian say to each other: one JSON document per SEQPACKET message, descriptors beside it.

use serde::{Deserialize, Serialize};

/// From a client, one at a time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    /// With the userfaultfd, a pidfd, and a memfd of the ranges (pairs of addresses, little-endian) and the image's bytes -> `Done`
    Serve {
        /// What the image is called from here on.
        name: String,
        /// The process.
        pid: i32,
        /// How many ranges.
        ranges: u64,
        /// How many bytes.
        image_bytes: u64,
        /// It stands still.
        parked: bool,
    },
    /// -> `Body` (a [`Status`] in JSON)
    Status,
    /// -> `Body` (addresses, little-endian)
    WorkingSet { name: String },
    /// -> `Done`
    Hurry { name: String },
    /// -> `Done`
    Forget { name: String },
    /// -> `Done`, and the guardian ends; `Refused` while processes lack pages
    Shutdown,
}

/// The guardian's answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// It is done.
    Done,
    /// With a memfd that has so many bytes.
    Body { bytes: u64 },
    /// It is not done, and why.
    Refused { reason: String },
}

/// What the pager does and did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The images that are served.
    pub images: Vec<PageImageStatus>,
    /// Processes that were stopped because a page could not be had, oldest first; the last 64.
    pub failures: Vec<Failure>,
    /// Pid of the pager.
    pub pager_pid: i32,
    /// Pid of the guardian that answers.
    pub guardian_pid: i32,
    /// Pid of the spare guardian.
    pub spare_pid: i32,
    /// Counted since the guardian was started first.
    pub counters: Counters,
    /// Answers to faults, by time from reading the fault: number `n` counts those that took from 2^(n-1) to 2^n nanoseconds.
    pub latency: Vec<u64>,
}

/// Sums over all images.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// The pager was started so many times.
    pub pager_starts: u64,
    /// The spare took the guardian's place so many times.
    pub takeovers: u64,
    /// Faults read.
    pub faults: u64,
    /// Faults that were answered without waiting for the store.
    pub local: u64,
    /// Clusters fetched for faults.
    pub fetches: u64,
    /// Pages that were answered with zeros.
    pub zero_pages: u64,
    /// Pages copied in for faults, and their neighbours.
    pub fault_pages: u64,
    /// Pages copied in in the background.
    pub fill_pages: u64,
    /// Fetches that failed, and were or will be tried again.
    pub retries: u64,
    /// Processes that need no pages any more.
    pub finished: u64,
}

/// One image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageImageStatus {
    /// As the client called it.
    pub name: String,
    /// Pid of the process that was handed over.
    pub pid: i32,
    /// Processes that still lack pages.
    pub processes: u64,
    /// The pages that they lack, together; none is counted of a process that has just been handed over.
    pub missing_pages: u64,
    /// Pages of the image that were faulted on so far.
    pub working_set_pages: u64,
}

/// A process that was stopped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Its image.
    pub image: String,
    /// Its pid; `None`: it could not be found, and sleeps in its fault.
    pub pid: Option<i32>,
    /// What could not be had, and why.
    pub reason: String,
}
