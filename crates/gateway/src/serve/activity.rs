//! Whether a connection has requests, and since when it has none.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
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
    running: usize,
    /// When the last one ended, or the connection began.
    since: Instant,
    has_begun: bool,
}

impl Activity {
    pub(super) fn new(since: Instant) -> Self {
        Self { state: Mutex::new(State { running: 0, since, has_begun: false }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has begun. It ends with the token.
    pub(super) fn begin(self: &Arc<Self>) -> Running {
        let mut state = self.state();
        state.running += 1;
        state.has_begun = true;
        Running(Arc::clone(self))
    }

    /// When to close the connection if no request comes. `None` while requests run.
    fn deadline(&self, bounds: &Bounds, phase: Phase) -> Option<Instant> {
        let state = self.state();
        let allowed = if state.has_begun { bounds.idle } else { bounds.first_request };
        let allowed = if phase == Phase::Full { allowed.min(bounds.idle_full) } else { allowed };
        (state.running == 0).then(|| state.since + allowed)
    }

    /// Resolves when the connection has been without a request for too long.
    pub(super) async fn idle(&self, bounds: &Bounds, phase: &mut watch::Receiver<Phase>) {
        loop {
            let now = *phase.borrow_and_update();
            let until = match self.deadline(bounds, now) {
                Some(deadline) if deadline <= Instant::now() => return,
                Some(deadline) => deadline,
                // Looked at again, instead of a wake-up for each request.
                None => Instant::now() + bounds.idle_full.min(bounds.idle),
            };
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                // The server is gone, and cuts its connections.
                changed = phase.changed() => if changed.is_err() { return },
            }
        }
    }
}

/// A request that runs.
#[derive(Debug)]
pub(super) struct Running(Arc<Activity>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.running -= 1;
        state.since = Instant::now();
    }
}

/// A body that keeps its request running until it ends.
pub(super) struct Counted {
    body: Body,
    _running: Running,
}

impl Counted {
    pub(super) fn new(body: Body, running: Running) -> Self {
        Self { body, _running: running }
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
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
