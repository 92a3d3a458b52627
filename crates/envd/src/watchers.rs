//! Watches without a stream: events are kept until the client asks for them.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base::{
    budget::Budget,
    limits::{WATCH_BYTES_MAX, WATCH_BYTES_NODE_MAX, WATCH_BYTES_SANDBOX_MAX},
};
use futures::StreamExt;
use tokio::{sync::Notify, task::AbortHandle};

use crate::{Code, Failure, FileEvent, FileEvents, Outcome};

/// Most watches of one sandbox.
const WATCHERS_MAX: usize = 64;
/// Most events that wait for a client.
const EVENTS_MAX: usize = 10_000;
/// A client that has not asked for so long has gone.
const IDLE_MAX: Duration = Duration::from_secs(3600);

/// All watches, by sandbox.
pub struct Watchers {
    sandboxes: Mutex<HashMap<String, OfSandbox>>,
    budget: Arc<Budget>,
}

impl Default for Watchers {
    fn default() -> Self {
        Self { sandboxes: Mutex::default(), budget: Budget::new(WATCH_BYTES_NODE_MAX) }
    }
}

/// The watches of one sandbox, by their ids.
struct OfSandbox {
    watchers: HashMap<String, Watcher>,
    budget: Arc<Budget>,
}

struct Watcher {
    kept: Arc<Mutex<Kept>>,
    /// Told that the client asked.
    asked: Arc<Notify>,
    task: AbortHandle,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What waits for the client.
struct Kept {
    budget: Arc<Budget>,
    events: VecDeque<FileEvent>,
    /// Why no more will come.
    broken: Option<Failure>,
}

impl Kept {
    /// Takes an event; false if no more are wanted.
    fn take_in(&mut self, event: Outcome<FileEvent>) -> bool {
        match event {
            Ok(event) if self.events.len() < EVENTS_MAX && self.budget.take(event.bytes()) => {
                self.events.push_back(event);
            }
            Ok(_) => {
                let message = format!("{} events waited: later ones were lost", self.events.len());
                self.broken = Some(Failure::new(Code::DataLoss, message));
            }
            Err(failure) => self.broken = Some(failure),
        }
        self.broken.is_none()
    }
}

impl Watchers {
    /// Keeps the events of a watch; returns its id.
    pub(crate) fn add(self: &Arc<Self>, sandbox: &str, events: FileEvents) -> Outcome<String> {
        let mut bytes = [0; 8];
        base::id::fill_random(&mut bytes);
        let id = base::id::hex(&bytes);
        let mut sandboxes = self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let OfSandbox { watchers, budget } = sandboxes.entry(sandbox.to_owned()).or_insert_with(|| OfSandbox {
            watchers: HashMap::new(),
            budget: self.budget.part(WATCH_BYTES_SANDBOX_MAX),
        });
        let kept = Kept { budget: budget.part(WATCH_BYTES_MAX), events: VecDeque::new(), broken: None };
        let (kept, asked) = (Arc::new(Mutex::new(kept)), Arc::new(Notify::new()));
        if watchers.len() >= WATCHERS_MAX {
            let message = format!("the sandbox has {WATCHERS_MAX} watches already: remove one");
            return Err(Failure::new(Code::ResourceExhausted, message));
        }
        let (all, of, name) = (Arc::clone(self), sandbox.to_owned(), id.clone());
        let keep = keep(events, Arc::clone(&kept), Arc::clone(&asked));
        let task = tokio::spawn(async move {
            keep.await;
            drop(all.remove(&of, &name));
        });
        watchers.insert(id.clone(), Watcher { kept, asked, task: task.abort_handle() });
        Ok(id)
    }

    /// The events since the client asked last.
    pub(crate) async fn take(&self, sandbox: &str, id: &str) -> Outcome<Vec<FileEvent>> {
        let kept = {
            let sandboxes = self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
            let watcher = sandboxes.get(sandbox).and_then(|of| of.watchers.get(id)).ok_or_else(|| absent(id))?;
            watcher.asked.notify_one();
            Arc::clone(&watcher.kept)
        };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        match (&kept.broken, kept.events.is_empty()) {
            (Some(failure), true) => Err(failure.clone()),
            (None | Some(_), _) => {
                let events: Vec<_> = kept.events.drain(..).collect();
                kept.budget.give(events.iter().map(FileEvent::bytes).sum());
                Ok(events)
            }
        }
    }

    /// Ends a watch.
    pub(crate) fn remove(&self, sandbox: &str, id: &str) -> Outcome<()> {
        let mut sandboxes = self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let of = sandboxes.get_mut(sandbox).ok_or_else(|| absent(id))?;
        of.watchers.remove(id).ok_or_else(|| absent(id))?;
        if of.watchers.is_empty() {
            sandboxes.remove(sandbox);
        }
        Ok(())
    }

    /// Ends all watches of a sandbox.
    pub fn forget(&self, sandbox: &str) {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner).remove(sandbox);
    }
}

/// Keeps events until none will come, and the last ones until the client has not asked for long.
async fn keep(mut events: FileEvents, kept: Arc<Mutex<Kept>>, asked: Arc<Notify>) {
    let mut open = true;
    loop {
        tokio::select! {
            event = events.next(), if open => {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                let ended = || Err(Failure::new(Code::Unavailable, "the sandbox is no longer watched"));
                open = kept.take_in(event.unwrap_or_else(ended));
            }
            heard = tokio::time::timeout(IDLE_MAX, asked.notified()) => {
                if heard.is_err() {
                    return;
                }
            }
        }
    }
}

fn absent(id: &str) -> Failure {
    Failure::new(Code::NotFound, format!("watcher {id} not found"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileEventKind;

    fn event(name: &str) -> FileEvent {
        FileEvent { name: name.into(), kind: FileEventKind::Write, entry: None }
    }

    #[tokio::test]
    async fn events_wait_until_they_are_asked_for() {
        let watchers = Arc::new(Watchers::default());
        let events = futures::stream::iter([Ok(event("a")), Ok(event("b"))]).chain(futures::stream::pending());
        let id = watchers.add("s", Box::pin(events)).unwrap();
        let mut got = Vec::new();
        while got.len() < 2 {
            got.extend(watchers.take("s", &id).await.unwrap());
            tokio::task::yield_now().await;
        }
        assert_eq!(got, [event("a"), event("b")]);
        assert_eq!(watchers.take("other", &id).await.unwrap_err().code, Code::NotFound);
        watchers.remove("s", &id).unwrap();
        assert_eq!(watchers.take("s", &id).await.unwrap_err().code, Code::NotFound);
    }

    #[tokio::test]
    async fn lost_events_are_told_after_those_that_came() {
        let watchers = Arc::new(Watchers::default());
        let events = futures::stream::iter((0..=EVENTS_MAX).map(|_| Ok(event("a"))));
        let id = watchers.add("s", Box::pin(events)).unwrap();
        let mut got = 0;
        let lost = loop {
            match watchers.take("s", &id).await {
                Ok(events) => got += events.len(),
                Err(failure) => break failure,
            }
            tokio::task::yield_now().await;
        };
        assert!(
            got >= EVENTS_MAX - 1 && lost.code == Code::DataLoss || lost.code == Code::Unavailable,
            "{got} {lost:?}"
        );
    }

    #[tokio::test]
    async fn events_with_long_names_are_bounded_by_their_bytes() {
        let long = event(&"n".repeat(4_000));
        let budget = Budget::new(1 << 30).part(WATCH_BYTES_MAX);
        let mut kept = Kept { budget: Arc::clone(&budget), events: VecDeque::new(), broken: None };
        while kept.take_in(Ok(long.clone())) {}
        assert_eq!(kept.events.len(), WATCH_BYTES_MAX / long.bytes());
        assert!(kept.broken.as_ref().is_some_and(|failure| failure.code == Code::DataLoss));
    }

    #[tokio::test]
    async fn a_sandbox_has_so_many_watches_and_no_more() {
        let watchers = Arc::new(Watchers::default());
        let pending = || Box::pin(futures::stream::pending()) as FileEvents;
        for _ in 0..WATCHERS_MAX {
            watchers.add("s", pending()).unwrap();
        }
        assert_eq!(watchers.add("s", pending()).unwrap_err().code, Code::ResourceExhausted);
        watchers.forget("s");
        watchers.add("s", pending()).unwrap();
    }
}
