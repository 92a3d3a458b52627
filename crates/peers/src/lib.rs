//! Chunks from the caches of other nodes of the realm, asked before the object store; and answers for them.
//!
//! ```text
//!   Store::read ─ cache ─ Peers ─ choice: who? ─ remote: connections, time limits, rest ──HTTP/1.1──► server ─ Cache
//!                   │       └ found: addresses that are given, and those in the database              (another node)
//!                   └ object store, whenever no peer answers in time
//! ```
//!
//! A peer gives sealed bytes that its cache holds and nothing else: it neither opens them nor fetches any. What it answers is opened by
//! the one who asked, so it needs no trust. Only who has a data key of the realm may ask ([`store::peer`]). A peer that is gone, slow or
//! wrong costs a bounded time and is then left alone for a while. See `docs/peers.md`.

mod choice;
mod found;
pub mod limits;
mod remote;
mod server;
mod wire;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream::FuturesUnordered};
use store::{chunks::Peer, keys::RealmKeys, peer::PeerKey, segment::ChunkRef};

pub use found::{Directory, InvalidAddress, check_address};
pub use server::{ServeCounters, Server};

use choice::Choice;
use remote::{Answer, Question, Remote};

/// How asking has gone since this process began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AskCounters {
    /// Chunks that a peer gave.
    pub hits: u64,
    /// Chunks that none of the asked ones had.
    pub misses: u64,
    /// Answers that did not come in time, or were none.
    pub failures: u64,
}

/// The other nodes of the realm.
pub struct Peers {
    choice: Choice,
    hits: AtomicU64,
    misses: AtomicU64,
    failures: AtomicU64,
}

impl Peers {
    /// The peers at the addresses `given`, which always count as there. More are found by [`Directory::follow`].
    pub fn new(given: &[String]) -> Arc<Self> {
        let peers = Self {
            choice: Choice::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        };
        peers.choice.replace(given);
        Arc::new(peers)
    }

    /// How many peers are known.
    pub fn known(&self) -> usize {
        self.choice.len()
    }

    /// How asking has gone.
    pub fn counters(&self) -> AskCounters {
        AskCounters {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            failures: self.failures.load(Relaxed),
        }
    }

    async fn ask(&self, question: &Question<'_>) -> Option<Bytes> {
        let (holder, others) = self.choice.candidates(question.chunk.segment);
        // Who had the last chunk of the segment most likely has this one, so the others are not bothered.
        if let Some(holder) = holder
            && let Some(sealed) = self.ask_one(&holder, question).await
        {
            return Some(sealed);
        }
        let mut answers: FuturesUnordered<_> =
            others.iter().map(|other| async move { self.ask_one(other, question).await }).collect();
        while let Some(answer) = answers.next().await {
            if answer.is_some() {
                return answer;
            }
        }
        None
    }

    async fn ask_one(&self, remote: &Arc<Remote>, question: &Question<'_>) -> Option<Bytes> {
        match remote.ask(question).await {
            Answer::Sealed(sealed) => {
                self.choice.had(question.chunk.segment, remote);
                return Some(sealed);
            }
            Answer::Absent | Answer::Busy => {}
            Answer::Failed => {
                self.failures.fetch_add(1, Relaxed);
            }
        }
        None
    }
}

#[async_trait]
impl Peer for Peers {
    async fn fetch(&self, keys: &RealmKeys, chunk: &ChunkRef) -> Option<Bytes> {
        if chunk.length as usize > limits::CHUNK_BYTES_MAX || !self.choice.worth_asking(chunk.segment) {
            return None;
        }
        let data_key = keys.current().await.ok()?;
        let key = PeerKey::derive(&data_key, keys.realm());
        let question = Question { realm: keys.realm(), key_id: data_key.id(), key: &key, chunk };
        let sealed = self.ask(&question).await;
        match &sealed {
            Some(_) => self.hits.fetch_add(1, Relaxed),
            None => {
                self.choice.missed(chunk.segment);
                self.misses.fetch_add(1, Relaxed)
            }
        };
        sealed
    }

    fn was_broken(&self, chunk: &ChunkRef) {
        self.choice.was_broken(chunk.segment);
    }
}
