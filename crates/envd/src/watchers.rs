//! Watches without a stream: events are kept until the client asks for them.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
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
#[derive(Default)]
pub struct Watchers {
    sandboxes: Mutex<HashMap<String, HashMap<String, Watcher>>>,
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
#[derive(Default)]
struct Kept {
    events: VecDeque<FileEvent>,
    /// Why no more will come.
    broken: Option<Failure>,
}

impl Kept {
    /// Takes an event; false if no more are wanted.
    fn take_in(&mut self, event: Outcome<FileEvent>) -> bool {
        match event {
            Ok(_) if self.events.len() >= EVENTS_MAX => {
                let message = format!("more than {EVENTS_MAX} events waited: later ones were lost");
                self.broken = Some(Failure::new(Code::DataLoss, message));
            }
            Ok(event) => self.events.push_back(event),
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
        let (kept, asked) = (Arc::new(Mutex::default()), Arc::new(Notify::new()));
        let mut sandboxes = self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let watchers = sandboxes.entry(sandbox.to_owned()).or_default();
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
            let watcher = sandboxes.get(sandbox).and_then(|watchers| watchers.get(id)).ok_or_else(|| absent(id))?;
            watcher.asked.notify_one();
            Arc::clone(&watcher.kept)
        };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        match (&kept.broken, kept.events.is_empty()) {
            (Some(failure), true) => Err(failure.clone()),
            (None | Some(_), _) => Ok(kept.events.drain(..).collect()),
        }
    }

    /// Ends a watch.
    pub(crate) fn remove(&self, sandbox: &str, id: &str) -> Outcome<()> {
        let mut sandboxes = self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let watchers = sandboxes.get_mut(sandbox).ok_or_else(|| absent(id))?;
        watchers.remove(id).ok_or_else(|| absent(id))?;
        if watchers.is_empty() {
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
