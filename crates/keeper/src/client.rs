//! The server's side of the keeper: requests with deadlines, replies in any order, ends of processes.
//!
//! One reader task per keeper hands out replies and events. When the socket ends, every waiting request fails at once
//! and every process that was waited for counts as unobserved; nothing ever hangs on a dead keeper.

use std::{
    collections::HashMap,
    io::ErrorKind,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, oneshot},
};

use crate::{
    descriptor::watched,
    protocol::{
        message::{Event, FailureKind, FromKeeper, Reply, Request, Status},
        wire,
    },
};

/// Why a request was not done.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Failure {
    #[error("cannot {action}: the keeper died")]
    KeeperLost { action: &'static str },
    #[error("cannot {action}: no answer within {deadline_ms} ms")]
    Deadline { action: &'static str, deadline_ms: u64 },
    #[error("cannot write to the keeper")]
    Send(#[source] std::io::Error),
    #[error("cannot {action}: {message}")]
    Refused { action: &'static str, kind: FailureKind, message: String },
}

/// A reply, with what belongs to it.
#[derive(Debug)]
pub struct Answer {
    /// Never [`Reply::Failed`], nor [`Reply::Captured`].
    pub reply: Reply,
    /// Resolves when the process of this reply ends; fails when the keeper dies first.
    pub ended: Option<oneshot::Receiver<Status>>,
    /// What came along.
    pub descriptor: Option<OwnedFd>,
}

/// One running keeper.
#[derive(Debug)]
pub struct KeeperClient {
    socket: AsyncFd<OwnedFd>,
    shared: Mutex<Shared>,
}

/// A request that was not answered yet.
#[derive(Debug)]
struct Waiting {
    answer: oneshot::Sender<Answer>,
    /// For [`Reply::Captured`], which comes before the answer.
    captured: Option<oneshot::Sender<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    next_seq: u64,
    waiting: HashMap<u64, Waiting>,
    processes: HashMap<i32, oneshot::Sender<Status>>,
    gone: bool,
}

impl KeeperClient {
    /// Takes the server's end of the socket. Events come out of `events`, which ends when the keeper does.
    pub fn start(socket: OwnedFd) -> std::io::Result<(Arc<Self>, mpsc::UnboundedReceiver<Event>)> {
        let socket = watched(socket)?;
        let client = Arc::new(Self { socket, shared: Mutex::default() });
        let (sender, events) = mpsc::unbounded_channel();
        tokio::spawn(Arc::clone(&client).read(sender));
        Ok((client, events))
    }

    /// Asks the keeper. A reply of failure becomes an error.
    pub async fn call(
        &self,
        action: &'static str,
        request: Request,
        descriptors: &[&OwnedFd],
        deadline: Duration,
    ) -> Result<Answer, Failure> {
        self.call_in_two(action, request, descriptors, deadline, None).await
    }

    /// As [`Self::call`]; `captured` resolves when [`Reply::Captured`] comes, and fails if that never comes.
    pub async fn call_in_two(
        &self,
        action: &'static str,
        request: Request,
        descriptors: &[&OwnedFd],
        deadline: Duration,
        captured: Option<oneshot::Sender<()>>,
    ) -> Result<Answer, Failure> {
        let (sender, receiver) = oneshot::channel();
        let seq = {
            let mut shared = self.lock();
            if shared.gone {
                return Err(Failure::KeeperLost { action });
            }
            shared.next_seq += 1;
            let seq = shared.next_seq;
            shared.waiting.insert(seq, Waiting { answer: sender, captured });
            seq
        };
        // Also when this future is dropped: a reply that nobody waits for is thrown away.
        let _forget = Forget { client: self, seq };
        let exchange = async {
            match self.send(seq, &request, descriptors).await {
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    return Err(Failure::KeeperLost { action });
                }
                sent => sent.map_err(Failure::Send)?,
            }
            receiver.await.map_err(|_| Failure::KeeperLost { action })
        };
        let answer = tokio::time::timeout(deadline, exchange).await;
        let answer = answer.map_err(|_| Failure::Deadline { action, deadline_ms: deadline.as_millis() as u64 })??;
        match answer.reply {
            Reply::Failed { kind, message } => Err(Failure::Refused { action, kind, message }),
            _ => Ok(answer),
        }
    }

    async fn send(&self, seq: u64, request: &Request, descriptors: &[&OwnedFd]) -> std::io::Result<()> {
        let letter = wire::Letter::new(seq, request)?;
        let descriptors: Vec<_> = descriptors.iter().map(|fd| fd.as_fd()).collect();
        self.socket.async_io(Interest::WRITABLE, |socket| letter.send(socket, &descriptors)).await
    }

    async fn read(self: Arc<Self>, events: mpsc::UnboundedSender<Event>) {
        let mut buffer = vec![0; wire::BUFFER_BYTES];
        loop {
            let received = self.socket.async_io(Interest::READABLE, |socket| wire::receive(socket, &mut buffer)).await;
            let wire::Received { seq, body, descriptors } = match received {
                Ok(None) => break,
                Ok(Some(received)) => received,
                Err(error) => {
                    tracing::warn!(%error, "the keeper's socket failed");
                    break;
                }
            };
            match body {
                Ok(FromKeeper::Reply(reply)) => self.on_reply(seq, reply, descriptors.into_iter().next()),
                Ok(FromKeeper::Event(event)) => self.on_event(event, &events),
                Err(problem) => {
                    tracing::error!(seq, problem, "a message of the keeper is not understood");
                    let failed = Reply::step_failed(format!("the keeper's answer is not understood: {problem}"));
                    self.on_reply(seq, failed, None);
                }
            }
        }
        let mut shared = self.lock();
        shared.gone = true;
        shared.waiting.clear();
        shared.processes.clear();
    }

    fn on_reply(&self, seq: u64, reply: Reply, descriptor: Option<OwnedFd>) {
        let mut shared = self.lock();
        if matches!(reply, Reply::Captured) {
            if let Some(captured) = shared.waiting.get_mut(&seq).and_then(|waiting| waiting.captured.take()) {
                // Who asked may not care any more.
                let _ = captured.send(());
            }
            return;
        }
        let Some(waiting) = shared.waiting.remove(&seq) else { return };
        // Before anyone sees the reply: the end of the process may be the very next message.
        let ended = match &reply {
            Reply::Spawned { pid } | Reply::Started { main: pid } | Reply::Parked { main: pid } => {
                Some(shared.expect_end(pid.pid))
            }
            Reply::Created { .. }
            | Reply::Adopted { .. }
            | Reply::Done
            | Reply::Captured
            | Reply::Built { .. }
            | Reply::Refused { .. }
            | Reply::Failed { .. } => None,
        };
        let _ = waiting.answer.send(Answer { reply, ended, descriptor });
    }

    /// Resolves when the process ends, which the keeper reports because it adopted it.
    pub fn ended(&self, pid: i32) -> oneshot::Receiver<Status> {
        self.lock().expect_end(pid)
    }

    fn on_event(&self, event: Event, events: &mpsc::UnboundedSender<Event>) {
        match event {
            Event::Exited { pid, status, .. } => {
                let waiting = self.lock().processes.remove(&pid);
                if let Some(waiting) = waiting {
                    let _ = waiting.send(status);
                }
            }
            Event::ZygoteLost { .. } => drop(events.send(event)),
        }
    }

    /// Whether it has died, which its supervisor may not know yet.
    pub fn is_gone(&self) -> bool {
        self.lock().gone
    }

    /// Says goodbye: the keeper sees the end of the socket and exits.
    pub fn close(&self) {
        // It fails only if the keeper has gone before.
        let _ = rustix::net::shutdown(self.socket.get_ref(), rustix::net::Shutdown::Both);
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Nothing in here panics half way through a change.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn expect_end(&mut self, pid: i32) -> oneshot::Receiver<Status> {
        let (sender, receiver) = oneshot::channel();
        self.processes.insert(pid, sender);
        receiver
    }
}

struct Forget<'a> {
    client: &'a KeeperClient,
    seq: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.client.lock().waiting.remove(&self.seq);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper() -> (Arc<KeeperClient>, mpsc::UnboundedReceiver<Event>, OwnedFd) {
        let (ours, theirs) = sys::seqpacket::pair().unwrap();
        let (client, events) = KeeperClient::start(ours).unwrap();
        (client, events, theirs)
    }

    fn drop_zygote(client: &Arc<KeeperClient>, deadline: Duration) -> tokio::task::JoinHandle<Result<Answer, Failure>> {
        let client = Arc::clone(client);
        tokio::spawn(async move { client.call("drop it", Request::DropZygote { zygote: 1 }, &[], deadline).await })
    }

    fn answer(theirs: &OwnedFd, seq: u64, message: &FromKeeper) {
        wire::send(theirs, seq, message, &[]).unwrap();
    }

    #[tokio::test]
    async fn a_request_on_a_dead_keeper_fails_and_never_hangs() {
        let (client, _events, theirs) = keeper();
        let waiting = drop_zygote(&client, Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(theirs);
        assert!(matches!(waiting.await.unwrap(), Err(Failure::KeeperLost { .. })));
        let later = drop_zygote(&client, Duration::from_secs(60)).await.unwrap();
        assert!(matches!(later, Err(Failure::KeeperLost { .. })));
    }

    #[tokio::test]
    async fn an_answer_that_is_not_understood_fails_its_own_request_only() {
        let (client, _events, theirs) = keeper();
        let waiting = [(); 2].map(|()| drop_zygote(&client, Duration::from_secs(60)));
        tokio::time::sleep(Duration::from_millis(20)).await;
        // The second request's, with nothing behind its header.
        sys::seqpacket::send(&theirs, &[2, 0, 0, 0, 0, 0, 0, 0, 0], &[]).unwrap();
        sys::seqpacket::send(&theirs, &[7; 200_000], &[]).unwrap();
        answer(&theirs, 1, &FromKeeper::Reply(Reply::Done));
        let [first, second] = waiting;
        assert!(matches!(first.await.unwrap().unwrap().reply, Reply::Done));
        assert!(matches!(second.await.unwrap(), Err(Failure::Refused { kind: FailureKind::Step, .. })));
        assert!(!client.is_gone());
    }

    #[tokio::test]
    async fn a_silent_keeper_meets_the_deadline() {
        let (client, _events, _theirs) = keeper();
        let late = drop_zygote(&client, Duration::from_millis(20)).await.unwrap();
        assert!(matches!(late, Err(Failure::Deadline { deadline_ms: 20, .. })));
        assert!(client.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn an_end_right_behind_the_reply_is_not_missed() {
        let (client, _events, theirs) = keeper();
        let waiting = drop_zygote(&client, Duration::from_secs(60));
        let mut buffer = [0; 1024];
        tokio::task::yield_now().await;
        let (length, _) = tokio::task::spawn_blocking(move || {
            let received = sys::seqpacket::recv(&theirs, &mut buffer).unwrap();
            let pid = sandbox::ProcessIdentity { pid: 77, start_ticks: 1 };
            answer(&theirs, 1, &FromKeeper::Reply(Reply::Spawned { pid }));
            let id = "s0123456789ab".parse().unwrap();
            answer(&theirs, 0, &FromKeeper::Event(Event::Exited { id, pid: 77, main: false, status: Status::Code(4) }));
            (received.0, theirs)
        })
        .await
        .unwrap();
        assert!(length > 0);
        let answer = waiting.await.unwrap().unwrap();
        assert_eq!(answer.ended.unwrap().await.unwrap(), Status::Code(4));
    }
}
