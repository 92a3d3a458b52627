//! One driver task for each sandbox with which something is done: what has to be alone with it is done there, one after the other.
//!
//! ```text
//! asked: admit? --denied--> error        in turn: inbox of the driver -> admit? --denied--> error
//!            \--now--> done at once                                        \--> done, to its end
//! ```
//!
//! A driver ends when its inbox is empty. It runs what it has begun to its end, also if nobody waits for that any more; what it has not begun by
//! then is not begun.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base::id::SandboxId;
use keeper::origin::carried;
use model::SandboxState;
use tokio::sync::{mpsc, oneshot};

use super::{
    Node,
    lifecycle::{Admission, Operation, Phase, admit},
};
use crate::error::{Context, Error, Result};

/// The work of one operation.
type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One operation that waits for its turn.
struct Job {
    operation: Operation,
    work: Work,
    /// Told why it is not done.
    deny: oneshot::Sender<Error>,
}

/// The inboxes of those that live.
#[derive(Default)]
pub(super) struct Drivers {
    inboxes: Mutex<HashMap<SandboxId, mpsc::UnboundedSender<Job>>>,
}

impl Node {
    /// Does something with a sandbox as soon as it is admitted, to its end.
    pub(super) async fn drive<T: Send + 'static>(
        self: &Arc<Self>,
        id: &SandboxId,
        operation: Operation,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        match self.admits(id, operation)? {
            Admission::Now => work.await,
            Admission::InTurn => self.in_turn(id, operation, work).await,
        }
    }

    /// As [`Node::drive`]; fails if the turn does not come within `patience`.
    pub(super) async fn drive_within<T: Send + 'static>(
        self: &Arc<Self>,
        id: &SandboxId,
        operation: Operation,
        patience: Duration,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (begun, begins) = oneshot::channel();
        let driven = self.drive(id, operation, async move {
            let _ = begun.send(());
            work.await
        });
        tokio::pin!(driven);
        tokio::select! {
            biased;
            done = &mut driven => return done,
            // An error means that it is denied: the other branch says how.
            _ = begins => {}
            () = tokio::time::sleep(patience) => return Err(self.too_late(id, patience)),
        }
        driven.await
    }

    fn too_late(&self, id: &SandboxId, patience: Duration) -> Error {
        let (phase, id) = (self.state().phase(id), id.clone());
        match phase {
            Phase::Pausing => Error::NotRunning { id, state: SandboxState::Pausing },
            Phase::Resuming => Error::BeingResumed(id),
            Phase::Absent | Phase::Running | Phase::Paused | Phase::Exited(_) | Phase::Lost => {
                Error::Deadline { action: "have the sandbox alone", deadline_ms: patience.as_millis() as u64 }
            }
        }
    }

    /// Fails if an operation would be denied now.
    pub(super) fn admits(&self, id: &SandboxId, operation: Operation) -> Result<Admission> {
        let phase = self.state().phase(id);
        admit(phase, operation).map_err(|denial| denial.error(id))
    }

    async fn in_turn<T: Send + 'static>(
        self: &Arc<Self>,
        id: &SandboxId,
        operation: Operation,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (done, result) = oneshot::channel();
        let (deny, denied) = oneshot::channel();
        let work = async move {
            // The client may have left.
            let _ = done.send(work.await);
        };
        // The driver's task has no span: the log lines of the work name the request.
        let work = Box::pin(carried(work));
        self.drivers.post(self, id, Job { operation, work, deny });
        match result.await {
            Ok(done) => done,
            // Dropped with the work: it was denied, or it panicked.
            Err(gone) => match denied.await {
                Ok(error) => Err(error),
                Err(_) => Err(std::io::Error::other(gone)).doing("finish what was begun with the sandbox"),
            },
        }
    }
}

impl Drivers {
    fn post(&self, node: &Arc<Node>, id: &SandboxId, job: Job) {
        let mut inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let job = match inboxes.get(id) {
            Some(inbox) => match inbox.send(job) {
                Ok(()) => return,
                Err(mpsc::error::SendError(job)) => job,
            },
            None => job,
        };
        let (inbox, jobs) = mpsc::unbounded_channel();
        // It has a receiver.
        let _ = inbox.send(job);
        inboxes.insert(id.clone(), inbox);
        tokio::spawn(run(Arc::clone(node), id.clone(), jobs));
    }

    /// The next job; none, and no driver any more, if there is none.
    fn next(&self, id: &SandboxId, jobs: &mut mpsc::UnboundedReceiver<Job>) -> Option<Job> {
        // Under the lock: a job that is posted later finds no inbox and begins another driver.
        let mut inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let job = jobs.try_recv().ok();
        if job.is_none() {
            inboxes.remove(id);
        }
        job
    }
}

/// A driver.
async fn run(node: Arc<Node>, id: SandboxId, mut jobs: mpsc::UnboundedReceiver<Job>) {
    while let Some(Job { operation, work, deny }) = node.drivers.next(&id, &mut jobs) {
        // An earlier pause that the store gave no answer to. Whoever waits sees that it is being paused.
        node.settle_pause(&id).await;
        if deny.is_closed() {
            continue;
        }
        match node.admits(&id, operation) {
            Err(error) => {
                let _ = deny.send(error);
            }
            Ok(_) => {
                // A task of its own: a panic ends this operation alone.
                if let Err(error) = tokio::spawn(work).await {
                    tracing::error!(sandbox = %id, ?operation, %error, "an operation broke off");
                }
            }
        }
    }
}
