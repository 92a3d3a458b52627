//! One request of a hand, from its turn to its last answer.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use base::limits::HAND_WATCHES_MAX;
use tokio::sync::{OwnedRwLockReadGuard, OwnedSemaphorePermit, mpsc};

use super::{Error, Hand, Result, SHORT, Use, line::Waiting, watch::Queue};
use crate::protocol::{FromHand, Letter, Problem, Request, ToHand};

/// How much longer than the hand the node waits. A hand that could, has answered by then.
const GRACE: Duration = Duration::from_secs(2);

/// What a request does with files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    Reads,
    Changes,
}

/// Counts a request among those that use the hand.
#[derive(Debug)]
struct InUse {
    hand: Arc<Hand>,
    kept: Kept,
}

impl InUse {
    fn new(hand: &Arc<Hand>, kept: Kept) -> Self {
        hand.usage.send_modify(|usage| count(usage, kept, |number| number + 1));
        Self { hand: Arc::clone(hand), kept }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.hand.usage.send_modify(|usage| count(usage, self.kept, |number| number.saturating_sub(1)));
    }
}

fn count(usage: &mut Use, kept: Kept, change: impl Fn(usize) -> usize) {
    usage.all = change(usage.all);
    if kept == Kept::Changes {
        usage.changes = change(usage.changes);
    }
    usage.since = Instant::now();
}

/// A request under way. Dropped before its last answer, it is cancelled.
#[derive(Debug)]
pub(super) struct Call {
    usage: InUse,
    seq: u64,
    answers: mpsc::UnboundedReceiver<FromHand>,
    action: &'static str,
    path: PathBuf,
    deadline: Duration,
    until: tokio::time::Instant,
    ended: bool,
    /// Of a change: nothing holds changes while it is made.
    change: Option<OwnedRwLockReadGuard<()>>,
    /// For as long as a transfer lasts.
    turn: Option<OwnedSemaphorePermit>,
}

impl Call {
    /// Makes a request when its turn has come.
    pub(super) async fn begin(
        hand: &Arc<Hand>,
        action: &'static str,
        path: &Path,
        request: Request,
        deadline: Duration,
        kept: Kept,
    ) -> Result<Self> {
        // It is held until the answer is there: the caller keeps the call.
        let turn = Arc::clone(&hand.requests).acquire_owned();
        let turn = tokio::time::timeout(deadline, turn).await;
        let Ok(Ok(turn)) = turn else { return Err(Problem::Busy).map_err(refused(action, path)) };
        let (mut call, letter) = Self::prepare(hand, action, path, request, deadline, kept, None)?;
        call.turn = Some(turn);
        if kept == Kept::Changes {
            call.begin_change().await;
            call.extend(deadline);
        }
        call.send(&letter, None).await?;
        Ok(call)
    }

    /// Waits until changes are not held. They are not from now on until this is dropped.
    pub(super) async fn begin_change(&mut self) {
        self.change = Some(Arc::clone(&self.usage.hand.shares.gate).read_owned().await);
    }

    fn prepare(
        hand: &Arc<Hand>,
        action: &'static str,
        path: &Path,
        request: Request,
        deadline: Duration,
        kept: Kept,
        queue: Option<&Arc<Queue>>,
    ) -> Result<(Self, Letter)> {
        // Before its number: settling the hand waits for it, or refuses the number.
        let usage = InUse::new(hand, kept);
        let (sender, answers) = mpsc::unbounded_channel();
        let waiting = match queue {
            None => Waiting::Answers(sender),
            Some(queue) => Waiting::Events(sender, Arc::clone(queue)),
        };
        let seq = hand.line.expect(waiting).ok_or_else(|| Error::interrupted(action, path))?;
        let until = tokio::time::Instant::now() + deadline + GRACE;
        let path = path.to_owned();
        let call = Self { usage, seq, answers, action, path, deadline, until, ended: false, change: None, turn: None };
        let body = ToHand::Do { deadline_ms: deadline.as_millis() as u64, request };
        let letter = Letter::new(seq, &body);
        let letter = letter.map_err(|_| Problem::BadPath).map_err(refused(action, &call.path))?;
        Ok((call, letter))
    }

    async fn send(&mut self, letter: &Letter, file: Option<&OwnedFd>) -> Result<()> {
        let sent = tokio::time::timeout_at(self.until, self.usage.hand.line.send(letter, file)).await;
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if is_end(&error) => Err(self.interrupted()),
            Ok(Err(source)) => Err(Error::System { action: self.action, path: self.path.clone(), source }),
            Err(_) => Err(self.late()),
        }
    }

    /// The next answer. A refusal is an error.
    pub(super) async fn answer(&mut self) -> Result<FromHand> {
        let answer = tokio::time::timeout_at(self.until, self.answers.recv()).await;
        match answer {
            Ok(Some(FromHand::Failed(problem))) => {
                self.ended = true;
                // Cut short because the hand was told to end.
                let gone = problem == Problem::Cancelled && !self.usage.hand.is_usable();
                if gone { Err(self.interrupted()) } else { Err(problem).map_err(refused(self.action, &self.path)) }
            }
            Ok(Some(answer @ (FromHand::Done | FromHand::Entry(_)))) => {
                self.ended = true;
                Ok(answer)
            }
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(self.interrupted()),
            Err(_) => Err(self.late()),
        }
    }

    /// Resolves when no answer can come any more, with the reason.
    pub(super) async fn ended(&mut self) -> Error {
        loop {
            match self.answers.recv().await {
                None => return self.interrupted(),
                Some(FromHand::Failed(problem)) => {
                    self.ended = true;
                    return refused(self.action, &self.path)(problem);
                }
                Some(_) => {}
            }
        }
    }

    /// Gives the next answer a new deadline.
    pub(super) fn extend(&mut self, deadline: Duration) {
        (self.deadline, self.until) = (deadline, tokio::time::Instant::now() + deadline + GRACE);
    }

    /// More is to come, though an answer looked like the last one.
    pub(super) fn goes_on(&mut self) {
        self.ended = false;
    }

    /// Says of an upload that all of it is in the pipe.
    pub(super) async fn commit(&mut self, bytes: u64) -> Result<()> {
        let letter = Letter::new(self.seq, &ToHand::Commit { bytes });
        let letter = letter.map_err(|source| Error::System { action: self.action, path: self.path.clone(), source })?;
        self.send(&letter, None).await
    }

    /// The hand does not answer: it takes no more requests, and ends with the last of those under way.
    pub(super) fn late(&mut self) -> Error {
        self.usage.hand.line.refuse();
        Error::Deadline { action: self.action, path: self.path.clone(), seconds: self.deadline.as_secs() }
    }

    pub(super) fn interrupted(&mut self) -> Error {
        self.ended = true;
        Error::interrupted(self.action, &self.path)
    }

    pub(super) fn failed(&self, source: io::Error) -> Error {
        Error::System { action: self.action, path: self.path.clone(), source }
    }

    /// The hand says something that is no answer to this.
    pub(super) fn unexpected(&self, answer: &FromHand) -> Error {
        self.failed(io::Error::other(format!("the hand's answer is not understood: {answer:?}")))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        match self.ended {
            true => self.usage.hand.line.forget(self.seq),
            false => self.usage.hand.line.cancel(self.seq),
        }
    }
}

impl Hand {
    /// Begins a transfer when its turn has come. The hand gets `pipe`.
    pub(super) async fn transfer(
        self: &Arc<Self>,
        action: &'static str,
        path: &Path,
        request: Request,
        pipe: OwnedFd,
        kept: Kept,
    ) -> Result<Call> {
        let turn = tokio::time::timeout(SHORT, Arc::clone(&self.transfers).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(Problem::Busy).map_err(refused(action, path)) };
        let (mut call, letter) = Call::prepare(self, action, path, request, SHORT, kept, None)?;
        call.turn = Some(turn);
        call.send(&letter, Some(&pipe)).await?;
        Ok(call)
    }

    /// A request whose events go to a queue. It is not sent yet.
    pub(super) fn watching(self: &Arc<Self>, path: &Path, request: Request) -> Result<(Call, Letter, Arc<Queue>)> {
        let queue = Arc::new(Queue::new(&self.shares.events));
        let max = HAND_WATCHES_MAX;
        let turn = Arc::clone(&self.watches).try_acquire_owned();
        let turn = turn.map_err(|_| Problem::TooManyWatches { max }).map_err(refused("watch", path))?;
        let (mut call, letter) = Call::prepare(self, "watch", path, request, SHORT, Kept::Reads, Some(&queue))?;
        call.turn = Some(turn);
        Ok((call, letter, queue))
    }
}

impl Call {
    /// Sends a request that was prepared.
    pub(super) async fn begin_prepared(&mut self, letter: &Letter) -> Result<()> {
        self.send(letter, None).await
    }
}

fn refused<'a>(action: &'static str, path: &'a Path) -> impl Fn(Problem) -> Error + 'a {
    move |problem| Error::Refused { action, path: path.to_owned(), problem }
}

fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}
