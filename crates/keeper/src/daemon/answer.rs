//! Answers to requests: each request is answered once, with a reply of its type.

use std::{fmt, marker::PhantomData, os::fd::OwnedFd};

use serde::Serialize;

use crate::protocol::{BuiltOrRefused, Failed, FromKeeper};

/// The right to answer one request, with a reply of type `R`.
#[must_use = "a request without an answer waits until its deadline"]
pub(super) struct Ticket<R> {
    seq: u64,
    reply: PhantomData<fn(R)>,
}

impl<R> Ticket<R> {
    /// For the request with the number `seq`.
    pub(super) fn new(seq: u64) -> Self {
        Self { seq, reply: PhantomData }
    }

    /// The request failed.
    pub(super) fn fail(self, failed: Failed) -> Answer {
        Answer { seq: self.seq, message: FromKeeper::Failed(failed), files: Vec::new() }
    }
}

impl<R: Serialize> Ticket<R> {
    /// The request succeeded.
    pub(super) fn done(self, reply: R) -> Answer {
        let message = match serde_json::to_value(reply) {
            Ok(reply) => FromKeeper::Done(reply),
            Err(error) => FromKeeper::Failed(Failed::of(&error)),
        };
        Answer { seq: self.seq, message, files: Vec::new() }
    }

    /// The request succeeded, and files go along.
    pub(super) fn done_with(self, reply: R, files: Vec<OwnedFd>) -> Answer {
        Answer { files, ..self.done(reply) }
    }

    /// The request has this outcome.
    pub(super) fn answer(self, outcome: Result<R, Failed>) -> Answer {
        match outcome {
            Ok(reply) => self.done(reply),
            Err(failed) => self.fail(failed),
        }
    }
}

impl Ticket<BuiltOrRefused> {
    /// The capture is done; the answer follows.
    pub(super) fn captured(&self) -> Answer {
        Answer { seq: self.seq, message: FromKeeper::Captured, files: Vec::new() }
    }
}

impl<R> fmt::Debug for Ticket<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({})", self.seq)
    }
}

/// One message for the server that belongs to a request.
#[derive(Debug)]
#[must_use]
pub(super) struct Answer {
    /// The number of the request.
    pub(super) seq: u64,
    /// What to say.
    pub(super) message: FromKeeper,
    /// What goes along.
    pub(super) files: Vec<OwnedFd>,
}
