//! Answers for other nodes: sealed chunks that the local cache holds.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, Response, StatusCode, body::Incoming, header, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use store::{
    Store,
    id::KeyId,
    peer::{self, CHALLENGE_BYTES, PeerKey},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};

use crate::{
    limits::{CHUNK_BYTES_MAX, CONNECTION_MAX, HEAD_BYTES_MAX, IDLE_MAX, KEYS_PERIOD, SERVED_CONNECTIONS_MAX},
    wire::{self, Asked, CHALLENGE_PATH},
};

/// How long a listener rests that cannot accept: it lacks descriptors, and more tries make none.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// What was answered since this server began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServeCounters {
    /// Chunks given.
    pub chunks: u64,
    /// Sealed bytes of these.
    pub bytes: u64,
    /// Requests without a right to ask, or that make no sense.
    pub refused: u64,
}

/// Serves the cache of a store.
pub struct Server {
    store: Store,
    connections: Arc<Semaphore>,
    chunks: AtomicU64,
    bytes: AtomicU64,
    refused: AtomicU64,
    /// When the store was last asked for keys that were not known.
    keys_looked_for: Mutex<Option<Instant>>,
}

/// What one connection has.
struct Session {
    challenge: [u8; CHALLENGE_BYTES],
    /// Requests for chunks so far.
    number: AtomicU64,
}

impl Server {
    /// A server of the chunks that the cache of `store` holds.
    pub fn new(store: Store) -> Arc<Self> {
        Arc::new(Self {
            store,
            connections: Arc::new(Semaphore::new(SERVED_CONNECTIONS_MAX)),
            chunks: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            keys_looked_for: Mutex::new(None),
        })
    }

    /// What was answered.
    pub fn counters(&self) -> ServeCounters {
        ServeCounters {
            chunks: self.chunks.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            refused: self.refused.load(Relaxed),
        }
    }

    /// Serves until it is dropped; all connections end with it.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) {
        let mut connections = JoinSet::new();
        self.look_for_keys();
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    while connections.try_join_next().is_some() {}
                    match Arc::clone(&self.connections).try_acquire_owned() {
                        Ok(slot) => {
                            let connection = Arc::clone(&self).connection(stream, from);
                            connections.spawn(async move {
                                connection.await;
                                drop(slot);
                            });
                        }
                        Err(_) => tracing::debug!(%from, "a peer is hung up on: there are too many"),
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "a peer's connection was not accepted");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            }
        }
    }

    async fn connection(self: Arc<Self>, stream: TcpStream, from: SocketAddr) {
        let mut session = Session { challenge: [0; CHALLENGE_BYTES], number: AtomicU64::new(0) };
        base::id::fill_random(&mut session.challenge);
        let _ = stream.set_nodelay(true);
        let session = Arc::new(session);
        let service = service_fn(|request| {
            let (server, session) = (Arc::clone(&self), Arc::clone(&session));
            async move { Ok::<_, Infallible>(server.answer(&request, &session).await) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(IDLE_MAX).max_buf_size(HEAD_BYTES_MAX);
        let served = timeout(CONNECTION_MAX, builder.serve_connection(TokioIo::new(stream), service)).await;
        if let Ok(Err(error)) = served {
            tracing::trace!(%from, %error, "a peer's connection ended");
        }
    }

    async fn answer(&self, request: &Request<Incoming>, session: &Session) -> Response<Full<Bytes>> {
        if request.method() != Method::GET {
            return self.refuse(StatusCode::METHOD_NOT_ALLOWED);
        }
        if request.uri().path() == CHALLENGE_PATH {
            return Response::new(Full::new(Bytes::copy_from_slice(&session.challenge)));
        }
        let Some(asked) = Asked::parse(request.uri().path()) else { return self.refuse(StatusCode::BAD_REQUEST) };
        let number = session.number.fetch_add(1, Relaxed);
        let tag = request.headers().get(header::AUTHORIZATION).and_then(|value| wire::tag(value.as_bytes()));
        let may = tag.is_some_and(|tag| self.may_ask(&asked, &session.challenge, number, &tag));
        if !may {
            return self.refuse(StatusCode::UNAUTHORIZED);
        }
        if asked.chunk.length as usize > CHUNK_BYTES_MAX {
            return status(StatusCode::NOT_FOUND);
        }
        match self.store.sealed(&asked.chunk).await {
            Some(sealed) => {
                self.chunks.fetch_add(1, Relaxed);
                self.bytes.fetch_add(sealed.len() as u64, Relaxed);
                Response::new(Full::new(sealed))
            }
            None => status(StatusCode::NOT_FOUND),
        }
    }

    fn may_ask(&self, asked: &Asked, challenge: &[u8; CHALLENGE_BYTES], number: u64, tag: &[u8]) -> bool {
        if asked.realm != *self.store.realm() {
            return false;
        }
        let Some(key) = self.store.keys().known(asked.key) else {
            self.look_for_key(asked.key);
            return false;
        };
        let request = peer::Request { challenge, number, chunk: &asked.chunk };
        PeerKey::derive(&key, &asked.realm).verify(&request, tag)
    }

    /// Another node may have made a data key since this one has read them. Whoever made it up cannot have the store asked often.
    fn look_for_key(&self, id: KeyId) {
        let mut looked = self.keys_looked_for.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.is_none_or(|at| at.elapsed() > KEYS_PERIOD) {
            *looked = Some(Instant::now());
            let store = self.store.clone();
            tokio::spawn(async move { store.keys().get(id).await.map(drop) });
        }
    }

    /// The keys of the realm are read before anyone asks.
    fn look_for_keys(&self) {
        let store = self.store.clone();
        tokio::spawn(async move {
            if let Err(error) = store.keys().current().await {
                tracing::warn!(%error, "peers cannot be served before the realm's keys are read");
            }
        });
    }

    /// The connection ends with it: who guesses pays for a new one.
    fn refuse(&self, code: StatusCode) -> Response<Full<Bytes>> {
        self.refused.fetch_add(1, Relaxed);
        let mut response = status(code);
        response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
        response
    }
}

fn status(code: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::new()));
    *response.status_mut() = code;
    response
}
