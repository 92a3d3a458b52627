//! The socket of a hand, and who waits for what on it.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::mpsc,
};

use super::watch::Queue;
use crate::protocol::{BUFFER_BYTES, FromHand, Letter, Received, ToHand, receive};

/// Who waits for the messages of a request.
#[derive(Debug)]
pub(super) enum Waiting {
    /// A few answers, or the parts of a list.
    Answers(mpsc::UnboundedSender<FromHand>),
    /// Events. If there are too many, the newest are lost.
    Events(mpsc::UnboundedSender<FromHand>, Arc<Queue>),
}

#[derive(Debug, Default)]
struct Shared {
    next_seq: u64,
    waiting: HashMap<u64, Waiting>,
    /// No more requests.
    refuses: bool,
    gone: bool,
}

/// The socket.
#[derive(Debug)]
pub(super) struct Line {
    socket: AsyncFd<OwnedFd>,
    shared: Mutex<Shared>,
}

impl Line {
    pub(super) fn start(socket: OwnedFd) -> io::Result<Arc<Self>> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        // Deprecated because some types could return another descriptor each time. `OwnedFd` cannot, and the successor is unsafe.
        #[allow(deprecated)]
        let socket = AsyncFd::new(socket)?;
        let line = Arc::new(Self { socket, shared: Mutex::default() });
        tokio::spawn(Arc::clone(&line).read());
        Ok(line)
    }

    pub(super) fn is_open(&self) -> bool {
        let shared = self.shared();
        !shared.gone && !shared.refuses
    }

    /// Takes no more requests. Those under way go on.
    pub(super) fn refuse(&self) {
        self.shared().refuses = true;
    }

    /// The hand sees the end of its socket and exits; the task that reads ends, too.
    pub(super) fn close(&self) {
        self.refuse();
        // It fails only if the hand is gone.
        let _ = rustix::net::shutdown(self.socket.get_ref(), rustix::net::Shutdown::Both);
    }

    /// Numbers a request. None if no more are taken.
    pub(super) fn expect(&self, waiting: Waiting) -> Option<u64> {
        let mut shared = self.shared();
        if shared.gone || shared.refuses {
            return None;
        }
        shared.next_seq += 1;
        let seq = shared.next_seq;
        shared.waiting.insert(seq, waiting);
        Some(seq)
    }

    /// Forgets a request. What comes for it later is thrown away.
    pub(super) fn forget(&self, seq: u64) {
        self.shared().waiting.remove(&seq);
    }

    pub(super) async fn send(&self, letter: &Letter, file: Option<&OwnedFd>) -> io::Result<()> {
        let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
        self.socket.async_io(Interest::WRITABLE, |socket| letter.send(socket, &files)).await
    }

    /// Cancels a request without waiting.
    pub(super) fn cancel(self: &Arc<Self>, seq: u64) {
        self.forget(seq);
        let Ok(letter) = Letter::new(seq, &ToHand::Cancel) else { return };
        match letter.send(self.socket.get_ref(), &[]) {
            // The hand is behind with reading.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let line = Arc::clone(self);
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    runtime.spawn(async move { line.send(&letter, None).await });
                }
            }
            // If it fails, the hand is gone, and the request with it.
            Ok(()) | Err(_) => {}
        }
    }

    async fn read(self: Arc<Self>) {
        let mut buffer = vec![0; BUFFER_BYTES];
        // The error of a socket ends it as its end does.
        while let Ok(Some(received)) =
            self.socket.async_io(Interest::READABLE, |socket| receive(socket, &mut buffer)).await
        {
            self.take(received);
        }
        let mut shared = self.shared();
        shared.gone = true;
        // Each request sees the end of its answers.
        shared.waiting.clear();
    }

    fn take(&self, received: Received<FromHand>) {
        let mut shared = self.shared();
        let Received { seq, body, .. } = received;
        match (body, shared.waiting.get(&seq)) {
            (Ok(FromHand::Events(events)), Some(Waiting::Events(_, queue))) => queue.put(events),
            (Ok(answer), Some(Waiting::Answers(answers) | Waiting::Events(answers, _))) => {
                // The request may be about to be dropped.
                let _ = answers.send(answer);
            }
            (Ok(_), None) => {}
            // The request must not wait for ever: it sees the end of its answers.
            (Err(_), _) => drop(shared.waiting.remove(&seq)),
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        // Nothing panics in the middle of a change.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
