//! Real servers and askers over loopback, and peers that hang, lie or have another key.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use peers::{Peers, Server};
use store::{
    Store,
    cache::Cache,
    chunks::Peer,
    keys::{MasterKeys, RealmKeys},
    object::{Location, Objects, RequestOptions},
    peer::{self, PeerKey},
    segment::ChunkRef,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// An object store with one segment, and caches beside it.
struct Place {
    folder: tempfile::TempDir,
    chunks: Vec<ChunkRef>,
}

fn plain(number: usize) -> Vec<u8> {
    (0..100_000).map(|at| (at * 7 + number * 13) as u8).collect()
}

impl Place {
    async fn new(chunks: usize) -> Self {
        let mut place = Self { folder: tempfile::tempdir().unwrap(), chunks: Vec::new() };
        let mut writer = place.store("writer", &[]).await.0.write().await.unwrap();
        for number in 0..chunks {
            place.chunks.push(writer.append(&plain(number)).await.unwrap());
        }
        writer.finish().await.unwrap();
        place
    }

    /// A store with a cache of its own, which asks the peers at these addresses.
    async fn store(&self, name: &str, peers: &[String]) -> (Store, Arc<Peers>) {
        let location = Location::Directory(self.folder.path().join("objects"));
        let objects = Objects::open(&location, RequestOptions::default()).unwrap();
        let masters = MasterKeys::from_file(&self.folder.path().join("master.keys")).unwrap();
        let keys = RealmKeys::new(objects.clone(), Arc::new(masters), "test".parse().unwrap());
        let cache = Cache::open(&self.folder.path().join(name), 1 << 30).unwrap();
        let peers = Peers::new(peers);
        (Store::new(objects, keys, Some(cache), Some(peers.clone())), peers)
    }

    /// A node that has the chunks of `held` in its cache, and its address.
    async fn holder(&self, name: &str, held: std::ops::Range<usize>) -> (Arc<Server>, String, JoinHandle<()>) {
        let (store, _) = self.store(name, &[]).await;
        for chunk in &self.chunks[held] {
            store.read(chunk).await.unwrap();
        }
        let server = Server::new(store);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (server.clone(), address, tokio::spawn(server.serve(listener)))
    }

    async fn expect(&self, store: &Store, numbers: std::ops::Range<usize>) {
        for number in numbers {
            assert_eq!(store.read(&self.chunks[number]).await.unwrap(), plain(number), "chunk {number}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_come_from_the_peer_that_has_them_and_else_from_the_store() {
    let place = Place::new(12).await;
    let (first, first_at, _first) = place.holder("first", 0..4).await;
    let (second, second_at, _second) = place.holder("second", 4..8).await;
    let (store, peers) = place.store("asker", &[first_at, second_at]).await;
    place.expect(&store, 0..12).await;
    let reads = store.counters();
    assert_eq!((reads.from_peers, reads.fetched, reads.broken), (8, 4, 0));
    assert_eq!(reads.peer_bytes, place.chunks[..8].iter().map(|chunk| u64::from(chunk.length)).sum::<u64>());
    let asked = peers.counters();
    assert_eq!((asked.hits, asked.misses, asked.failures), (8, 4, 0));
    assert_eq!((first.counters().chunks, second.counters().chunks), (4, 4), "each chunk was given once");
    assert_eq!((first.counters().refused, second.counters().refused), (0, 0));
    let many = place.store("many", &[]).await;
    let server = Server::new(store);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let asker = place.store("other", &[listener.local_addr().unwrap().to_string()]).await;
    let _serving = tokio::spawn(server.clone().serve(listener));
    assert_eq!(many.0.read_many(&place.chunks).await.unwrap(), asker.0.read_many(&place.chunks).await.unwrap());
    assert_eq!(asker.0.counters().from_peers, 12, "what came from anywhere is served, many at once");
}

/// How a peer that is no good answers a request for a chunk.
#[derive(Clone)]
enum Fault {
    Silent,
    HangUp,
    Bytes(Bytes),
    HeadOnly,
    Endless,
}

/// Speaks the protocol up to the challenge, then fails.
async fn faulty(fault: Fault) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let task = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(fail(stream, fault.clone()));
        }
    });
    (address, task)
}

async fn fail(mut stream: TcpStream, fault: Fault) {
    let mut head = [0; 2048];
    while stream.read(&mut head).await.is_ok_and(|length| length > 0) {
        let answer: Vec<u8> = if head.starts_with(b"GET /v1/challenge") {
            [&b"HTTP/1.1 200 OK\r\ncontent-length: 32\r\n\r\n"[..], &[7; 32]].concat()
        } else {
            match &fault {
                Fault::Silent => return std::future::pending().await,
                Fault::HangUp => return,
                Fault::Bytes(bytes) => {
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", bytes.len());
                    [head.as_bytes(), bytes].concat()
                }
                Fault::HeadOnly => b"HTTP/1.1 200 OK\r\ncontent-length: 100024\r\n\r\nxx".to_vec(),
                Fault::Endless => {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
                    while stream.write_all(&[0; 65536]).await.is_ok() {}
                    return;
                }
            }
        };
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_hang_or_lie_cost_little_and_nothing_wrong_is_read() {
    let place = Place::new(40).await;
    let (holder, _) = place.store("holder", &[]).await;
    place.expect(&holder, 0..2).await;
    let length = place.chunks[0].length as usize;
    let other = holder.sealed(&place.chunks[1]).await.unwrap();
    for (what, fault, broken) in [
        ("silent", Fault::Silent, 0),
        ("hangs up", Fault::HangUp, 0),
        ("garbage", Fault::Bytes(vec![0x55; length].into()), 1),
        ("another chunk", Fault::Bytes(other), 1),
        ("too long", Fault::Bytes(vec![0; length + 1].into()), 0),
        ("too short", Fault::Bytes(vec![0; length - 1].into()), 0),
        ("half a body", Fault::HeadOnly, 0),
        ("no end", Fault::Endless, 0),
    ] {
        let (address, task) = faulty(fault).await;
        let (store, peers) = place.store(&format!("asker {what}"), &[address]).await;
        // All but the second, which one of them gives for every other.
        let chunks: Vec<ChunkRef> = [&place.chunks[..1], &place.chunks[2..]].concat();
        let began = Instant::now();
        store.read(&chunks[0]).await.unwrap();
        place.expect(&store, 2..40).await;
        let took = began.elapsed();
        let reads = store.counters();
        assert_eq!((reads.from_peers, reads.fetched), (0, 39), "{what}");
        // It fails once, then rests; a machine under load may take long enough for a second time or a third.
        let tried = peers.counters().failures.max(reads.broken);
        assert!((1..=3).contains(&tried) && reads.broken >= broken, "{what}: {reads:?} {:?}", peers.counters());
        assert!(took < Duration::from_secs(5), "{what}: {took:?}");
        task.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_readers_wait_for_a_silent_peer_once_and_together() {
    let place = Place::new(40).await;
    let (address, _task) = faulty(Fault::Silent).await;
    let (store, peers) = place.store("asker", &[address]).await;
    let began = Instant::now();
    assert_eq!(store.read_many(&place.chunks).await.unwrap().len(), 40);
    assert!(peers.counters().failures <= peers::limits::CONNECTIONS_PER_PEER as u64, "{:?}", peers.counters());
    assert!(began.elapsed() < Duration::from_secs(5), "one after the other they would wait for ten seconds");
}

/// Sends one request on a connection; gives the status of the answer and its body.
async fn send(stream: &mut TcpStream, path: &str, tag: &str) -> (u16, Vec<u8>) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Pando-Peer {tag}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    loop {
        if let Some(at) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let head = String::from_utf8(answer[..at].to_vec()).unwrap().to_lowercase();
            let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
            if answer.len() == at + 4 + length.parse::<usize>().unwrap() {
                return (head[9..12].parse().unwrap(), answer.split_off(at + 4));
            }
        }
        assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "it hung up");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_answered_once_and_only_with_the_realms_key() {
    let place = Place::new(2).await;
    let (server, address, _task) = place.holder("holder", 0..1).await;
    let stranger = Place::new(1).await;
    let key_of = async |place: &Place| place.store("keys", &[]).await.0.keys().current().await.unwrap();
    let (right, wrong) = (key_of(&place).await, key_of(&stranger).await);
    let realm = "test".parse().unwrap();
    let hex = |bytes: &[u8]| base::id::hex(bytes);
    let path = |chunk: &ChunkRef| format!("/v1/chunks/test/{}/{}", right.id(), hex(&chunk.encode()));
    let sign = |key, challenge: &[u8; 32], number, chunk| {
        hex(&PeerKey::derive(key, &realm).sign(&peer::Request { challenge, number, chunk }))
    };
    let open = async || {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let (_, challenge) = send(&mut stream, "/v1/challenge", "").await;
        let challenge: [u8; 32] = challenge.try_into().unwrap();
        (stream, challenge)
    };
    let (held, absent) = (&place.chunks[0], &place.chunks[1]);
    let (mut stream, challenge) = open().await;
    let good = sign(&right, &challenge, 0, held);
    let (code, sealed) = send(&mut stream, &path(held), &good).await;
    assert_eq!((code, sealed.len()), (200, held.length as usize));
    assert_eq!(send(&mut stream, &path(absent), &sign(&right, &challenge, 1, absent)).await.0, 404);
    assert_eq!(send(&mut stream, &path(held), &good).await.0, 401, "again on the same connection");
    for what in ["again", "another chunk's", "a stranger's", "none"] {
        let (mut stream, challenge) = open().await;
        let tag = match what {
            "again" => good.clone(),
            "another chunk's" => sign(&right, &challenge, 0, absent),
            "a stranger's" => sign(&wrong, &challenge, 0, held),
            _ => String::new(),
        };
        let (code, body) = send(&mut stream, &path(held), &tag).await;
        assert_eq!((code, body.len()), (401, 0), "{what}");
    }
    assert_eq!(server.counters().refused, 5);
    assert_eq!(server.counters().chunks, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_realms_keys_get_nothing_and_are_passed_over() {
    let place = Place::new(1).await;
    let (server, address, _task) = place.holder("holder", 0..1).await;
    let stranger = Place::new(1).await;
    let (store, peers) = stranger.store("asker", &[address]).await;
    assert!(peers.fetch(store.keys(), &place.chunks[0]).await.is_none());
    assert_eq!((server.counters().chunks, server.counters().refused), (0, 1));
    stranger.expect(&store, 0..1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_connections_than_a_server_takes_are_hung_up_on() {
    let place = Place::new(1).await;
    let (_server, address, _task) = place.holder("holder", 0..1).await;
    let mut held = Vec::new();
    for _ in 0..peers::limits::SERVED_CONNECTIONS_MAX {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        assert_eq!(send(&mut stream, "/v1/challenge", "").await.0, 200);
        held.push(stream);
    }
    let mut one_more = TcpStream::connect(&address).await.unwrap();
    let read = one_more.read(&mut [0; 1]).await;
    assert!(!read.is_ok_and(|length| length > 0));
    drop(held);
    let (store, _) = place.store("asker", &[address]).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    place.expect(&store, 0..1).await;
    assert_eq!(store.counters().from_peers, 1, "there is room again");
}
