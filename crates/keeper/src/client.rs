//! The server's side of the keeper: requests with deadlines, replies in any order, ends of processes.
//!
//! One task per keeper reads replies and events and hands them out. When the socket ends, every waiting request fails at once, and so does
//! every wait for the end of a process. Nothing ever hangs on a dead keeper.

mod reply;

use std::{
    collections::HashMap,
    io::{self, ErrorKind},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

pub use reply::{Continued, Ended, NewZygote, Reply, Spawned, SpawnedCommand};
use serde_json::Value;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, oneshot},
};

use self::reply::Ends;
use crate::{
    descriptor::watched,
    origin,
    protocol::{Call, Event, Failed, FailureKind, Files, FromKeeper, Sent, wire},
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
    Send(#[source] io::Error),
    #[error("cannot {action}: {message}")]
    Failed { action: &'static str, kind: FailureKind, message: String },
}

/// Takes the outcome of a request, with the files that came along.
type Deliver = Box<dyn FnOnce(Result<Value, Failed>, Vec<OwnedFd>, &mut Ends) + Send>;

/// A request without an answer so far.
struct Waiting {
    deliver: Deliver,
    /// For [`FromKeeper::Captured`].
    captured: Option<oneshot::Sender<()>>,
}

#[derive(Default)]
struct Shared {
    next_seq: u64,
    waiting: HashMap<u64, Waiting>,
    ends: Ends,
    gone: bool,
}

/// One running keeper.
pub struct KeeperClient {
    socket: AsyncFd<OwnedFd>,
    shared: Mutex<Shared>,
}

impl std::fmt::Debug for KeeperClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeeperClient").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl KeeperClient {
    /// Takes the server's end of the socket. Events come out of the receiver, which ends when the keeper does.
    pub fn start(socket: OwnedFd) -> io::Result<(Arc<Self>, mpsc::UnboundedReceiver<Event>)> {
        let client = Arc::new(Self { socket: watched(socket)?, shared: Mutex::default() });
        let (sender, events) = mpsc::unbounded_channel();
        tokio::spawn(Arc::clone(&client).read(sender));
        Ok((client, events))
    }

    /// Sends a request with its files and waits for the reply.
    pub async fn call<C: Call<Reply: Reply>>(
        &self,
        call: C,
        files: <C::Files as Files>::Lent<'_>,
    ) -> Result<<C::Reply as Reply>::Output, Failure> {
        self.exchange(call, files, None, C::DEADLINE).await
    }

    /// As [`Self::call`]. `captured` resolves when the capture is done, before the reply. It fails if the capture fails.
    pub async fn call_capture<C: Call<Reply: Reply>>(
        &self,
        call: C,
        files: <C::Files as Files>::Lent<'_>,
        captured: Option<oneshot::Sender<()>>,
    ) -> Result<<C::Reply as Reply>::Output, Failure> {
        self.exchange(call, files, captured, C::DEADLINE).await
    }

    async fn exchange<C: Call<Reply: Reply>>(
        &self,
        call: C,
        files: <C::Files as Files>::Lent<'_>,
        captured: Option<oneshot::Sender<()>>,
        deadline: Duration,
    ) -> Result<<C::Reply as Reply>::Output, Failure> {
        let action = C::ACTION;
        let (sender, receiver) = oneshot::channel();
        let deliver = deliver::<C::Reply>(sender);
        let seq = self.expect(Waiting { deliver, captured }).ok_or(Failure::KeeperLost { action })?;
        // A dropped future forgets its request: a reply that comes later is thrown away.
        let _forget = Forget { client: self, seq };
        let letter =
            wire::Letter::new(seq, &Sent { origin: origin::current(), request: call.into() }).map_err(Failure::Send)?;
        let exchange = async {
            match self.send(&letter, files.as_ref()).await {
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    return Err(Failure::KeeperLost { action });
                }
                sent => sent.map_err(Failure::Send)?,
            }
            receiver.await.map_err(|_| Failure::KeeperLost { action })
        };
        let outcome = tokio::time::timeout(deadline, exchange).await;
        let outcome = outcome.map_err(|_| Failure::Deadline { action, deadline_ms: deadline.as_millis() as u64 })??;
        outcome.map_err(|Failed { kind, message }| Failure::Failed { action, kind, message })
    }

    /// Numbers a request. None if the keeper is gone.
    fn expect(&self, waiting: Waiting) -> Option<u64> {
        let mut shared = self.lock();
        if shared.gone {
            return None;
        }
        shared.next_seq += 1;
        let seq = shared.next_seq;
        shared.waiting.insert(seq, waiting);
        Some(seq)
    }

    async fn send(&self, letter: &wire::Letter, files: &[&OwnedFd]) -> io::Result<()> {
        let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        self.socket.async_io(Interest::WRITABLE, |socket| letter.send(socket, &files)).await
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
                Ok(FromKeeper::Captured) => self.on_captured(seq),
                Ok(FromKeeper::Done(reply)) => self.on_outcome(seq, Ok(reply), descriptors),
                Ok(FromKeeper::Failed(failed)) => self.on_outcome(seq, Err(failed), Vec::new()),
                Ok(FromKeeper::Event(event)) => self.on_event(event, &events),
                Err(problem) => {
                    tracing::error!(seq, problem, "a message of the keeper is not understood");
                    self.on_outcome(seq, Err(not_understood(problem)), Vec::new());
                }
            }
        }
        let mut shared = self.lock();
        shared.gone = true;
        shared.waiting.clear();
        shared.ends.by_pid.clear();
    }

    fn on_captured(&self, seq: u64) {
        let captured = self.lock().waiting.get_mut(&seq).and_then(|waiting| waiting.captured.take());
        if let Some(captured) = captured {
            // The caller may no longer care.
            let _ = captured.send(());
        }
    }

    fn on_outcome(&self, seq: u64, outcome: Result<Value, Failed>, files: Vec<OwnedFd>) {
        let mut shared = self.lock();
        let Some(waiting) = shared.waiting.remove(&seq) else { return };
        (waiting.deliver)(outcome, files, &mut shared.ends);
    }

    /// Resolves when the process ends. For a process that the keeper is about to adopt.
    pub fn ended(&self, pid: i32) -> Ended {
        self.lock().ends.expect(pid)
    }

    fn on_event(&self, event: Event, events: &mpsc::UnboundedSender<Event>) {
        match event {
            Event::Exited { pid, status, .. } => {
                let waiting = self.lock().ends.by_pid.remove(&pid);
                if let Some(waiting) = waiting {
                    let _ = waiting.send(status);
                }
            }
            Event::ZygoteLost { .. } => drop(events.send(event)),
        }
    }

    /// Whether the keeper has died. Its supervisor may not know it yet.
    pub fn is_gone(&self) -> bool {
        self.lock().gone
    }

    /// Shuts the socket down: the keeper sees its end and exits.
    pub fn close(&self) {
        // It fails only if the keeper has gone before.
        let _ = rustix::net::shutdown(self.socket.get_ref(), rustix::net::Shutdown::Both);
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Nothing panics in the middle of a change.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the reply as the type of its request. It runs before the next message is read: the end of the process may be the next message.
fn deliver<R>(sender: oneshot::Sender<Result<R::Output, Failed>>) -> Deliver
where
    R: Reply + serde::de::DeserializeOwned,
{
    Box::new(move |outcome, files, ends| {
        let reply = outcome.and_then(|reply| R::deserialize(reply).map_err(not_understood));
        // The caller may no longer wait.
        let _ = sender.send(reply.map(|reply| reply.join(files, ends)));
    })
}

fn not_understood(problem: impl std::fmt::Display) -> Failed {
    Failed::step(format!("the keeper's answer is not understood: {problem}"))
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
    use base::id::{StartId, ZygoteId};
    use process::ZygoteFacts;
    use sandbox::ProcessIdentity;

    use super::*;
    use crate::{
        fake::{Asked, FakeKeeper},
        protocol::{
            Adopted, Base, Built, Capture, DropZygote, Forked, Interpreter, Purpose, Source, StartCopy, Status,
        },
    };

    const LONG: Duration = Duration::from_secs(60);

    fn drop_zygote(client: &Arc<KeeperClient>, deadline: Duration) -> tokio::task::JoinHandle<Result<(), Failure>> {
        let client = Arc::clone(client);
        let call = DropZygote { zygote: ZygoteId(1) };
        tokio::spawn(async move { client.exchange(call, [], None, deadline).await })
    }

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    /// Plays the keeper while the client's tasks run.
    async fn play<T: Send + 'static>(
        keeper: FakeKeeper,
        part: impl FnOnce(&mut FakeKeeper) -> T + Send + 'static,
    ) -> T {
        let mut keeper = keeper;
        tokio::task::spawn_blocking(move || part(&mut keeper)).await.unwrap()
    }

    #[tokio::test]
    async fn a_request_on_a_dead_keeper_fails_and_never_hangs() {
        let (keeper, client, _events) = FakeKeeper::start().unwrap();
        let waiting = drop_zygote(&client, LONG);
        play(keeper, |keeper| keeper.expect::<DropZygote>().map(|_| ()).unwrap()).await;
        assert!(matches!(waiting.await.unwrap(), Err(Failure::KeeperLost { .. })));
        let later = drop_zygote(&client, LONG).await.unwrap();
        assert!(matches!(later, Err(Failure::KeeperLost { .. })));
        assert!(client.is_gone());
    }

    #[tokio::test]
    async fn an_answer_that_is_not_understood_fails_its_own_request_only() {
        let (ours, theirs) = sys::seqpacket::pair().unwrap();
        let (client, _events) = KeeperClient::start(ours).unwrap();
        let waiting = [(); 3].map(|()| drop_zygote(&client, LONG));
        tokio::time::sleep(Duration::from_millis(20)).await;
        // The second request's, with nothing behind its header.
        sys::seqpacket::send(&theirs, &[2, 0, 0, 0, 0, 0, 0, 0, 0], &[]).unwrap();
        sys::seqpacket::send(&theirs, &[7; 200_000], &[]).unwrap();
        // The third request's, with the reply of another one.
        let done = |reply| FromKeeper::Done(serde_json::to_value(reply).unwrap());
        wire::send(&theirs, 3, &done(Some(Adopted::Gone)), &[]).unwrap();
        wire::send(&theirs, 1, &done(None), &[]).unwrap();
        let [first, second, third] = waiting;
        assert!(first.await.unwrap().is_ok());
        for waiting in [second, third] {
            let failure = waiting.await.unwrap().unwrap_err();
            assert!(matches!(failure, Failure::Failed { kind: FailureKind::Step, .. }), "{failure:?}");
        }
        assert!(!client.is_gone());
    }

    #[tokio::test]
    async fn a_silent_keeper_meets_the_deadline() {
        let (_keeper, client, _events) = FakeKeeper::start().unwrap();
        let late = drop_zygote(&client, Duration::from_millis(20)).await.unwrap();
        assert!(matches!(late, Err(Failure::Deadline { deadline_ms: 20, .. })));
        assert!(client.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn an_end_right_behind_the_reply_is_not_missed() {
        let (keeper, client, _events) = FakeKeeper::start().unwrap();
        let sandbox: base::id::SandboxId = "s0123456789ab".parse().unwrap();
        let (zygote, start, interpreter) = (ZygoteId(1), StartId(2), Interpreter::InProcess);
        let call = StartCopy { zygote, sandbox: sandbox.clone(), start, interpreter };
        let asking = Arc::clone(&client);
        let waiting = tokio::spawn(async move { asking.call(call, vec![&null(), &null(), &null()]).await });
        let _keeper = play(keeper, |keeper| {
            let asked: Asked<StartCopy> = keeper.expect().unwrap();
            let process = ProcessIdentity { pid: 77, start_ticks: 1 };
            keeper.answer(asked, Ok(Forked::alone(process, 0))).unwrap();
            keeper.report(Event::Exited { sandbox, pid: 77, main: true, status: Status::Code(4) }).unwrap();
        })
        .await;
        let started = waiting.await.unwrap().unwrap();
        assert_eq!((started.process.pid, started.ended.await.unwrap()), (77, Status::Code(4)));
    }

    fn capture() -> Capture {
        let source = Source {
            sandbox: "s0123456789ab".parse().unwrap(),
            main: ProcessIdentity { pid: 1, start_ticks: 1 },
            commands: Vec::new(),
            without_program: false,
            streams: Vec::new(),
            earlier_arena: None,
            mount_points: Vec::new(),
            volumes: Vec::new(),
        };
        let base = Base { zygote: None, layers: Vec::new() };
        Capture { zygote: ZygoteId(1), source, base, layer: "/layer".into(), purpose: Purpose::Pause }
    }

    #[tokio::test]
    async fn a_capture_is_heard_of_before_its_zygote_and_brings_its_file() {
        let (keeper, client, _events) = FakeKeeper::start().unwrap();
        let (sender, captured) = oneshot::channel();
        let asking = Arc::clone(&client);
        let waiting = tokio::spawn(async move { asking.call_capture(capture(), [], Some(sender)).await });
        let (go_on, wait) = std::sync::mpsc::channel();
        let playing = tokio::spawn(play(keeper, move |keeper| {
            let asked: Asked<Capture> = keeper.expect().unwrap();
            keeper.captured(&asked).unwrap();
            wait.recv().unwrap();
            let built = Built { facts: ZygoteFacts::default(), pause_us: 1, capture_us: 2, build_us: 3 };
            keeper.answer_with(asked, Ok(Ok(built)), Some(&null())).unwrap();
        }));
        assert!(captured.await.is_ok() && !waiting.is_finished());
        go_on.send(()).unwrap();
        let zygote = waiting.await.unwrap().unwrap().unwrap();
        assert_eq!((zygote.pause_us, zygote.capture_us, zygote.build_us), (1, 2, 3));
        assert!(zygote.file.is_some());
        playing.await.unwrap();
    }

    #[tokio::test]
    async fn a_capture_that_fails_is_never_heard_of() {
        let (keeper, client, _events) = FakeKeeper::start().unwrap();
        let (sender, captured) = oneshot::channel();
        let asking = Arc::clone(&client);
        let waiting = tokio::spawn(async move { asking.call_capture(capture(), [], Some(sender)).await });
        play(keeper, |keeper| {
            let asked: Asked<Capture> = keeper.expect().unwrap();
            keeper.answer(asked, Err(Failed::step("no memory"))).unwrap();
        })
        .await;
        assert!(captured.await.is_err());
        let failure = waiting.await.unwrap().unwrap_err();
        assert_eq!(failure.to_string(), "cannot build the zygote: no memory");
    }
}
