//! One peer, as it is asked: its connections, and how long it is left alone after it failed.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Empty};
use hyper::{Method, Request, Response, StatusCode, body::Incoming, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use store::{
    id::{KeyId, Realm},
    peer::{self, CHALLENGE_BYTES, PeerKey},
    segment::ChunkRef,
};
use tokio::{net::TcpStream, sync::Semaphore, task::JoinHandle, time::timeout};

use crate::{
    limits::{
        ANSWER_MAX, BYTES_PER_MS_MIN, CONNECT_MAX, CONNECTIONS_PER_PEER, HEAD_BYTES_MAX, KEEP_MAX, REST_FIRST, REST_MAX,
    },
    wire::{Asked, CHALLENGE_PATH, authorization},
};

/// What is asked, and with which key.
pub(crate) struct Question<'a> {
    pub(crate) realm: &'a Realm,
    pub(crate) key_id: KeyId,
    pub(crate) key: &'a PeerKey,
    pub(crate) chunk: &'a ChunkRef,
}

/// What came back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// As many bytes as the chunk has. Not opened yet.
    Sealed(Bytes),
    Absent,
    /// All connections to it are in use, or it rests.
    Busy,
    Failed,
}

pub(crate) struct Remote {
    address: String,
    slots: Semaphore,
    idle: Mutex<Vec<Connection>>,
    standing: Mutex<Standing>,
}

/// Whether a peer is of use. One that failed is tried by one request after its rest; the others count it as resting until that has ended.
#[derive(Debug, Default)]
struct Standing {
    failures: u32,
    failed_at: Option<Instant>,
    rests_until: Option<Instant>,
}

impl Standing {
    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    /// May a request be made? After a rest, the first to ask is the one that tries.
    fn admit(&mut self, now: Instant) -> bool {
        let admitted = !self.rests(now);
        if admitted && self.failures > 0 {
            self.rests_until = Some(now + REST_FIRST);
        }
        admitted
    }

    /// Requests that were under way together fail together: that is one failure. `began`: when the one that failed was admitted.
    fn failed(&mut self, began: Instant, now: Instant) {
        if self.failed_at.is_some_and(|at| began < at) {
            return;
        }
        self.failures = self.failures.saturating_add(1);
        self.failed_at = Some(now);
        self.rests_until = Some(now + rest(self.failures));
    }

    fn succeeded(&mut self) {
        *self = Self::default();
    }
}

/// Longest time of one request, with a new connection, for a chunk of `length` bytes.
fn limit(length: u32) -> Duration {
    CONNECT_MAX + ANSWER_MAX + Duration::from_millis(u64::from(length) / BYTES_PER_MS_MIN)
}

fn rest(failures: u32) -> Duration {
    REST_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(REST_MAX)
}

impl Remote {
    pub(crate) fn new(address: String) -> Self {
        Self {
            address,
            slots: Semaphore::new(CONNECTIONS_PER_PEER),
            idle: Mutex::default(),
            standing: Mutex::default(),
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn rests(&self) -> bool {
        self.standing().rests(Instant::now())
    }

    /// Its answer did not open.
    pub(crate) fn was_broken(&self) {
        let now = Instant::now();
        self.standing().failed(now, now);
    }

    /// Asks. Takes [`ANSWER_MAX`] until it may, and [`limit`] at most.
    pub(crate) async fn ask(&self, question: &Question<'_>) -> Answer {
        let Ok(Ok(_slot)) = timeout(ANSWER_MAX, self.slots.acquire()).await else { return Answer::Busy };
        let began = Instant::now();
        if !self.standing().admit(began) {
            return Answer::Busy;
        }
        let limit = limit(question.chunk.length);
        let answer = timeout(limit, self.exchange(question)).await.unwrap_or(Answer::Failed);
        match answer {
            Answer::Failed => self.standing().failed(began, Instant::now()),
            Answer::Sealed(_) | Answer::Absent | Answer::Busy => self.standing().succeeded(),
        }
        answer
    }

    async fn exchange(&self, question: &Question<'_>) -> Answer {
        // One that was kept may have been closed meanwhile, and says so at once: then another is tried, and a new one made at last.
        while let Some(mut kept) = self.kept() {
            match kept.exchange(question).await {
                Some(answer) => return self.keep(kept, answer),
                None if kept.sender.is_closed() => {}
                None => return Answer::Failed,
            }
        }
        let Some(mut connection) = Connection::open(&self.address).await else { return Answer::Failed };
        match connection.exchange(question).await {
            Some(answer) => self.keep(connection, answer),
            None => Answer::Failed,
        }
    }

    fn kept(&self) -> Option<Connection> {
        let mut idle = self.idle();
        // The newest is at the end.
        idle.retain(|connection| connection.used.elapsed() < KEEP_MAX && !connection.sender.is_closed());
        idle.pop()
    }

    fn keep(&self, mut connection: Connection, answer: Answer) -> Answer {
        if matches!(answer, Answer::Sealed(_) | Answer::Absent) {
            connection.used = Instant::now();
            self.idle().push(connection);
        }
        answer
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection, its challenge, and how many requests it has carried.
struct Connection {
    sender: http1::SendRequest<Empty<Bytes>>,
    driver: JoinHandle<()>,
    host: String,
    challenge: [u8; CHALLENGE_BYTES],
    number: u64,
    used: Instant,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Also in the middle of an answer that nobody waits for any more.
        self.driver.abort();
    }
}

impl Connection {
    async fn open(address: &str) -> Option<Self> {
        let stream = timeout(CONNECT_MAX, TcpStream::connect(address)).await.ok()?.ok()?;
        stream.set_nodelay(true).ok()?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(HEAD_BYTES_MAX);
        let (sender, driver) = builder.handshake(TokioIo::new(stream)).await.ok()?;
        let driver = tokio::spawn(async move { drop(driver.await) });
        let challenge = [0; CHALLENGE_BYTES];
        let mut made = Self { sender, driver, host: address.to_owned(), challenge, number: 0, used: Instant::now() };
        let answer = made.send(CHALLENGE_PATH, None).await?;
        let bytes = body(answer, CHALLENGE_BYTES).await?;
        made.challenge = bytes[..].try_into().ok()?;
        Some(made)
    }

    /// None: there was no answer, or one that makes no sense.
    async fn exchange(&mut self, question: &Question<'_>) -> Option<Answer> {
        let Question { realm, key_id, key, chunk } = question;
        let request = peer::Request { challenge: &self.challenge, number: self.number, chunk };
        let tag = authorization(&key.sign(&request));
        self.number += 1;
        let answer = self.send(&Asked::path(realm, *key_id, chunk), Some(&tag)).await?;
        match answer.status() {
            StatusCode::OK => Some(Answer::Sealed(body(answer, chunk.length as usize).await?)),
            StatusCode::NOT_FOUND => Some(Answer::Absent),
            _ => None,
        }
    }

    async fn send(&mut self, path: &str, authorization: Option<&str>) -> Option<Response<Incoming>> {
        let mut request = Request::builder().method(Method::GET).uri(path).header(header::HOST, &self.host);
        if let Some(authorization) = authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::new()).ok()?;
        self.sender.ready().await.ok()?;
        self.sender.send_request(request).await.ok()
    }
}

/// The whole body, if it has exactly `length` bytes. No more than that is held.
async fn body(answer: Response<Incoming>, length: usize) -> Option<Bytes> {
    let mut body = answer.into_body();
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.ok()?.into_data() else { continue };
        if whole.len() + data.len() > length {
            return None;
        }
        whole.extend_from_slice(&data);
    }
    (whole.len() == length).then(|| whole.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fails_rests_longer_each_time_and_is_tried_by_one() {
        let (mut standing, start) = (Standing::default(), Instant::now());
        assert!(standing.admit(start) && standing.admit(start));
        let failed = start + ANSWER_MAX;
        standing.failed(start, failed);
        standing.failed(start, failed);
        assert_eq!(standing.failures, 1, "both were under way together");
        assert!(standing.rests(failed) && !standing.admit(failed));
        let again = failed + REST_FIRST;
        assert!(standing.admit(again), "one tries");
        assert!(!standing.admit(again), "the others do not wait for that");
        standing.failed(again, again + ANSWER_MAX);
        assert_eq!(standing.failures, 2);
        assert!(standing.rests(again + ANSWER_MAX + REST_FIRST));
        let later = again + ANSWER_MAX + REST_FIRST * 2;
        assert!(standing.admit(later));
        standing.succeeded();
        assert!(standing.admit(later) && standing.admit(later));
    }

    #[test]
    fn a_rest_is_bounded() {
        assert_eq!(rest(1), REST_FIRST);
        assert_eq!(rest(3), REST_FIRST * 4);
        assert_eq!(rest(u32::MAX), REST_MAX);
    }
}
