//! Clients that take nothing, and clients that take all places.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use http_body_util::BodyExt;
use hyper::{Request, Response, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pando_gateway::proxy::ProxyBounds;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::support::{Edge, SOON, Wanted, program, text};

/// Counts how many of it there are.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A program that never ends its answer to `/endless`, and the number of such answers under way.
async fn endless() -> (u16, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let port = program(move |request: Request<hyper::body::Incoming>| {
        let alive = (request.uri().path() == "/endless").then(|| Alive::new(&counted));
        async move {
            let Some(alive) = alive else { return Response::new("short".into()) };
            let chunk = Bytes::from(vec![b'x'; 64 << 10]);
            let chunks = stream::unfold((alive, chunk), |(alive, chunk)| async move {
                Some((Ok::<_, Infallible>(chunk.clone()), (alive, chunk)))
            });
            Response::new(Body::from_stream(chunks))
        }
    })
    .await;
    (port, count)
}

async fn expect(count: &AtomicUsize, wanted: usize) {
    let until = Instant::now() + SOON;
    while count.load(Ordering::SeqCst) != wanted {
        assert!(Instant::now() < until, "{} answers, not {wanted}", count.load(Ordering::SeqCst));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn impatient() -> Wanted {
    let mut wanted = Wanted::default();
    wanted.bounds.stall = Duration::from_millis(300);
    wanted
}

#[tokio::test]
async fn a_client_that_never_reads_is_cut() {
    let edge = Edge::with(impatient()).await;
    let (port, count) = endless().await;
    let mut client = edge.connect().await;
    let head = format!("GET /endless HTTP/1.1\r\nhost: {}\r\n\r\n", edge.host(port));
    client.write_all(head.as_bytes()).await.unwrap();
    expect(&count, 1).await;
    expect(&count, 0).await;
    let mut rest = Vec::new();
    let _ = timeout(SOON, client.read_to_end(&mut rest)).await.expect("the connection ends");
}

#[tokio::test]
async fn an_http2_stream_that_is_not_read_ends_alone() {
    let edge = Edge::with(impatient()).await;
    let (port, count) = endless().await;
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(64 << 10).initial_connection_window_size(4 << 20);
    let (mut sender, connection) = builder.handshake(TokioIo::new(edge.connect().await)).await.unwrap();
    tokio::spawn(connection);
    let request =
        |path: &str| Request::builder().uri(format!("http://{}{path}", edge.host(port))).body(Body::empty()).unwrap();
    let unread = timeout(SOON, sender.send_request(request("/endless"))).await.unwrap().unwrap();
    expect(&count, 1).await;
    let mut read = timeout(SOON, sender.send_request(request("/endless"))).await.unwrap().unwrap().into_body();
    let until = Instant::now() + SOON;
    while count.load(Ordering::SeqCst) == 2 {
        assert!(Instant::now() < until, "the answer that is not read goes on");
        timeout(SOON, read.frame()).await.unwrap().unwrap().unwrap();
    }
    // The other one goes on, and the connection takes requests.
    for _ in 0..100 {
        timeout(SOON, read.frame()).await.unwrap().unwrap().unwrap();
    }
    let response = timeout(SOON, sender.send_request(request("/"))).await.unwrap().unwrap();
    assert_eq!(text(response).await, "short");
    drop((unread, read));
    expect(&count, 0).await;
}

#[tokio::test]
async fn connections_to_programs_are_bounded_and_given_back() {
    let bounds = ProxyBounds { sandbox: 3, all: 5 };
    let edge = Edge::with(Wanted { proxy: bounds, ..Wanted::default() }).await;
    let (port, count) = endless().await;
    let request = || Request::builder().uri("/endless").header("host", edge.host(port)).body(Body::empty()).unwrap();
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(edge.send(request()).await);
    }
    let refused = edge.send(request()).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "1");
    assert!(text(refused).await.contains("3 connections or streams already"));
    drop(held);
    expect(&count, 0).await;
    let until = Instant::now() + SOON;
    while edge.send(request()).await.status() != 200 {
        assert!(Instant::now() < until, "no place is given back");
    }
}
