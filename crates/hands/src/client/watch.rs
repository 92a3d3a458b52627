//! What happens in a directory, as it happens.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use base::{
    budget::Budget,
    limits::{HAND_EVENTS_MAX, WATCH_BYTES_MAX},
};
use tokio::sync::Notify;

use super::{Result, calls::Call};
use crate::protocol::{FromHand, Letter, WatchEvent};

/// What a watch reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WatchOptions {
    /// Also what happens in directories below, and in those that appear there.
    pub recursive: bool,
    /// Each event describes its file, if the file is there.
    pub entries: bool,
}

/// Events that wait for the client.
#[derive(Debug)]
pub(super) struct Queue {
    events: Mutex<VecDeque<WatchEvent>>,
    filled: Notify,
    budget: Arc<Budget>,
}

impl Queue {
    /// A queue whose events share what the sandbox's watches may keep.
    pub(super) fn new(of_sandbox: &Arc<Budget>) -> Self {
        let budget = of_sandbox.part(WATCH_BYTES_MAX);
        Self { events: Mutex::default(), filled: Notify::new(), budget }
    }

    /// Adds events. Those that are too many are lost, and that is said.
    pub(super) fn put(&self, events: Vec<WatchEvent>) {
        let mut waiting = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            if waiting.len() < HAND_EVENTS_MAX && self.budget.take(event.bytes()) {
                waiting.push_back(event);
            } else if waiting.back() != Some(&WatchEvent::Lost) {
                waiting.push_back(WatchEvent::Lost);
            }
        }
        self.filled.notify_one();
    }

    fn take(&self) -> Option<WatchEvent> {
        let event = self.events.lock().unwrap_or_else(PoisonError::into_inner).pop_front()?;
        // That events are lost is free.
        if event != WatchEvent::Lost {
            self.budget.give(event.bytes());
        }
        Some(event)
    }
}

/// A directory that is watched, until this is dropped.
#[derive(Debug)]
pub struct Watch {
    call: Call,
    queue: Arc<Queue>,
}

impl Watch {
    pub(super) async fn begin((mut call, letter, queue): (Call, Letter, Arc<Queue>)) -> Result<Self> {
        call.begin_prepared(&letter).await?;
        let answer = call.answer().await?;
        match answer {
            FromHand::Done => call.goes_on(),
            other => return Err(call.unexpected(&other)),
        }
        Ok(Self { call, queue })
    }

    /// The next event. An error means that the watch has ended: the hand is gone.
    pub async fn next(&mut self) -> Result<WatchEvent> {
        loop {
            let filled = self.queue.filled.notified();
            if let Some(event) = self.queue.take() {
                return Ok(event);
            }
            tokio::select! {
                () = filled => {}
                ended = self.call.ended() => return Err(ended),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{EventKind, RawPath};

    #[test]
    fn events_that_are_too_many_are_said_to_be_lost() {
        let queue = Queue::new(&Budget::new(1 << 30));
        let name = RawPath::new(std::path::Path::new("a")).unwrap();
        let event = WatchEvent::Change { name, kind: EventKind::Write, entry: None };
        for _ in 0..3 {
            queue.put(vec![event.clone(); HAND_EVENTS_MAX]);
        }
        let taken: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
        assert_eq!((taken.len(), taken.last()), (HAND_EVENTS_MAX + 1, Some(&WatchEvent::Lost)));
    }

    #[test]
    fn events_with_long_names_are_bounded_by_their_bytes() {
        let of_sandbox = Budget::new(WATCH_BYTES_MAX + 100_000);
        let queues = [Queue::new(&of_sandbox), Queue::new(&of_sandbox)];
        let name = RawPath::new(std::path::Path::new(&"n".repeat(4_000))).unwrap();
        let event = WatchEvent::Change { name, kind: EventKind::Write, entry: None };
        queues.iter().for_each(|queue| queue.put(vec![event.clone(); 2_000]));
        let taken: Vec<_> = std::iter::from_fn(|| queues[0].take()).collect();
        assert_eq!((taken.len(), taken.last()), (WATCH_BYTES_MAX / event.bytes() + 1, Some(&WatchEvent::Lost)));
        // The other one had what was left of the sandbox's.
        assert_eq!(std::iter::from_fn(|| queues[1].take()).count(), (of_sandbox_left(&event)) + 1);
        assert_eq!(of_sandbox.used(), 0);
    }

    fn of_sandbox_left(event: &WatchEvent) -> usize {
        let first = WATCH_BYTES_MAX / event.bytes() * event.bytes();
        (WATCH_BYTES_MAX + 100_000 - first) / event.bytes()
    }
}
