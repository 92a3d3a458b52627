//! Whether a connection has requests, since when it has none, and which answers its client does not take.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use axum::body::Body;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use tokio::{sync::watch, time::Instant};

use super::{Bounds, Phase};

/// The requests of one connection.
#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// By their numbers. One that is being answered has its answer.
    running: HashMap<u64, Weak<Answer>>,
    next: u64,
    /// When the last one ended, or the connection began.
    since: Instant,
}

impl Activity {
    pub(super) fn new(since: Instant) -> Self {
        Self { state: Mutex::new(State { running: HashMap::new(), next: 0, since }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has begun. It ends with the token.
    pub(super) fn begin(self: &Arc<Self>) -> Running {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.running.insert(number, Weak::new());
        Running { activity: Arc::clone(self), number }
    }

    /// When to close the connection if no request comes. `None` while requests run.
    fn deadline(&self, bounds: &Bounds, phase: Phase) -> Option<Instant> {
        let state = self.state();
        let allowed = if state.next > 0 { bounds.idle } else { bounds.first_request };
        let allowed = if phase == Phase::Full { allowed.min(bounds.idle_full) } else { allowed };
        state.running.is_empty().then(|| state.since + allowed)
    }

    /// Resolves when the connection has been without a request for too long. Ends answers that the client does not
    /// take meanwhile.
    pub(super) async fn idle(&self, bounds: &Bounds, phase: &mut watch::Receiver<Phase>) {
        loop {
            let now = *phase.borrow_and_update();
            self.end_stalled(bounds.stall);
            // Looked at again, instead of a wake-up for each request.
            let again = Instant::now() + bounds.idle_full.min(bounds.idle).min(bounds.stall);
            let until = match self.deadline(bounds, now) {
                Some(deadline) if deadline <= Instant::now() => return,
                Some(deadline) => deadline.min(again),
                None => again,
            };
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                // The server is gone, and cuts its connections.
                changed = phase.changed() => if changed.is_err() { return },
            }
        }
    }

    /// An HTTP/2 client may close the window of one stream and let the others go on. An answer that the client does not
    /// take ends, and frees the connection to the program. The client's connection goes on.
    fn end_stalled(&self, stall: Duration) {
        let answers: Vec<_> = self.state().running.values().filter_map(Weak::upgrade).collect();
        answers.iter().for_each(|answer| answer.end_if_stalled(stall));
    }

    /// Ends answers that have no end of their own: the server stops, and clients come back to the next one.
    pub(super) fn end_streams(&self) {
        let answers: Vec<_> = self.state().running.values().filter_map(Weak::upgrade).collect();
        for answer in answers {
            answer.end_if(|_| answer.is_endless);
        }
    }
}

/// A request that runs.
#[derive(Debug)]
pub(super) struct Running {
    activity: Arc<Activity>,
    number: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.activity.state();
        state.running.remove(&self.number);
        state.since = Instant::now();
    }
}

/// What an answer consists of.
#[derive(Debug)]
struct Answer {
    parts: Mutex<Parts>,
    is_endless: bool,
}

#[derive(Debug)]
struct Parts {
    /// None when it ended before its end.
    content: Option<(Body, Running)>,
    /// Who waits for more of it.
    waits: Option<Waker>,
    /// Since when it is the client's turn. None while the handler has nothing to say.
    untaken: Option<Instant>,
}

impl Answer {
    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_if_stalled(&self, stall: Duration) {
        if self.end_if(|parts| parts.untaken.is_some_and(|since| since.elapsed() >= stall)) {
            tracing::debug!("an answer ends that its client does not take");
        }
    }

    /// Whether it ends by this.
    fn end_if(&self, is_due: impl FnOnce(&Parts) -> bool) -> bool {
        let mut parts = self.parts();
        if parts.content.is_none() || !is_due(&parts) {
            return false;
        }
        let (content, waits) = (parts.content.take(), parts.waits.take());
        drop(parts);
        // Outside of the lock: it ends connections.
        drop(content);
        waits.into_iter().for_each(Waker::wake);
        true
    }
}

/// A body that keeps its request running until it ends.
pub(super) struct Counted(Arc<Answer>);

impl Counted {
    pub(super) fn new(body: Body, running: Running, is_endless: bool) -> Self {
        let (activity, number) = (Arc::clone(&running.activity), running.number);
        let parts = Parts { content: Some((body, running)), waits: None, untaken: Some(Instant::now()) };
        let answer = Arc::new(Answer { parts: Mutex::new(parts), is_endless });
        activity.state().running.insert(number, Arc::downgrade(&answer));
        Self(answer)
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut parts = self.0.parts();
        let Some((body, _)) = &mut parts.content else {
            return Poll::Ready(Some(Err(axum::Error::new("the answer was ended"))));
        };
        let polled = Pin::new(body).poll_frame(cx);
        parts.untaken = polled.is_ready().then(Instant::now);
        parts.waits = polled.is_pending().then(|| cx.waker().clone());
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.0.parts().content.as_ref().is_some_and(|(body, _)| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0.parts().content.as_ref().map_or(SizeHint::default(), |(body, _)| body.size_hint())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const FIRST: Duration = Duration::from_millis(20);
    const IDLE: Duration = Duration::from_millis(100);

    #[tokio::test]
    async fn a_connection_is_idle_only_without_requests() {
        let bounds = Bounds { first_request: FIRST, idle: IDLE, ..Bounds::default() };
        let sender = watch::Sender::new(Phase::Running);
        let mut phase = sender.subscribe();
        let begun = Instant::now();
        let activity = Arc::new(Activity::new(begun));
        activity.idle(&bounds, &mut phase).await;
        assert!(begun.elapsed() >= FIRST);
        let running = activity.begin();
        assert!(tokio::time::timeout(3 * IDLE, activity.idle(&bounds, &mut phase)).await.is_err());
        drop(running);
        let ended = Instant::now();
        activity.idle(&bounds, &mut phase).await;
        assert!(ended.elapsed() >= IDLE);
    }
}
