//! Long bodies, trailers, HTTP/2 to programs, and many requests at a time.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use axum::body::Body;
use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::{HeaderMap, Request, Response, Version, body::Frame, client::conn::http2, header::HeaderValue};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{sync::mpsc, time::timeout};

use crate::support::{Edge, SOON, program, text};

const CHUNK: usize = 64 << 10;
const CHUNKS: usize = 1_600;

fn long() -> Body {
    let chunk = Bytes::from(vec![b'x'; CHUNK]);
    Body::from_stream(stream::iter((0..CHUNKS).map(move |_| Ok::<_, Infallible>(chunk.clone()))))
}

/// Kibibytes, from `/proc/self/status`.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn one_hundred_mebibytes_go_through_both_ways_in_flat_memory() {
    let edge = Edge::start().await;
    let port = program(|request| async move {
        let sent: usize = request
            .into_body()
            .into_data_stream()
            .map(|chunk| chunk.map_or(0, |chunk| chunk.len()))
            .fold(0, |a, b| async move { a + b })
            .await;
        Response::builder().header("x-received", sent).body(long()).unwrap()
    })
    .await;
    // The highest use is counted from here on.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS");
    let request = Request::builder().method("PUT").header("host", edge.host(port)).body(long()).unwrap();
    let response = edge.send(request).await;
    assert_eq!(response.headers()["x-received"], (CHUNK * CHUNKS).to_string());
    let mut body = response.into_body();
    let mut got = 0;
    while let Some(frame) = timeout(SOON, body.frame()).await.unwrap() {
        got += frame.unwrap().into_data().map_or(0, |data| data.len());
    }
    assert_eq!(got, CHUNK * CHUNKS);
    let grown = status("VmHWM").saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB");
}

pub(crate) async fn http2(edge: &Edge) -> http2::SendRequest<Body> {
    let stream = TokioIo::new(edge.connect().await);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

#[tokio::test]
async fn grpc_reaches_a_program_over_http2_with_trailers_both_ways() {
    let edge = Edge::start().await;
    let port = program(|request| async move {
        assert_eq!((request.version(), request.uri().path()), (Version::HTTP_2, "/pkg.Service/Method"));
        let authority = request.uri().authority().unwrap().to_string();
        let collected = request.into_body().collect().await.unwrap();
        let asked = collected.trailers().unwrap()["x-asked"].clone();
        let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))]);
        let frames = [Ok::<_, Infallible>(Frame::data(collected.to_bytes())), Ok(Frame::trailers(trailers))];
        let body = Body::new(StreamBody::new(stream::iter(frames)));
        Response::builder()
            .header("content-type", "application/grpc")
            .header("x-asked", asked)
            .header("x-host", authority)
            .body(body)
            .unwrap()
    })
    .await;
    let mut sender = http2(&edge).await;
    let trailers = HeaderMap::from_iter([("x-asked".parse().unwrap(), HeaderValue::from_static("yes"))]);
    let frames = [Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"message"))), Ok(Frame::trailers(trailers))];
    let request = Request::builder()
        .method("POST")
        .uri(format!("http://{}/pkg.Service/Method", edge.host(port)))
        .header("content-type", "application/grpc+proto")
        .header("te", "trailers")
        .body(Body::new(StreamBody::new(stream::iter(frames))))
        .unwrap();
    let response = timeout(SOON, sender.send_request(request)).await.unwrap().unwrap();
    assert_eq!(response.headers()["x-asked"], "yes");
    assert_eq!(response.headers()["x-host"], edge.host(port));
    let collected = timeout(SOON, response.into_body().collect()).await.unwrap().unwrap();
    assert_eq!(collected.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(collected.to_bytes(), "message");
}

#[tokio::test]
async fn other_requests_over_http2_reach_a_program_over_http1() {
    let edge = Edge::start().await;
    let port = program(|request| async move {
        let cookies = request.headers().get_all("cookie").iter().count();
        let cookie = request.headers()["cookie"].to_str().unwrap().to_owned();
        let host = request.headers()["host"].to_str().unwrap().to_owned();
        Response::new(format!("{:?} {host} {cookies} {cookie}", request.version()).into())
    })
    .await;
    let mut sender = http2(&edge).await;
    let request =
        Request::builder().uri(format!("http://{}/", edge.host(port))).header("cookie", "a=b").header("cookie", "c=d");
    let response = timeout(SOON, sender.send_request(request.body(Body::empty()).unwrap())).await.unwrap().unwrap();
    assert_eq!(text(response).await, format!("HTTP/1.1 {} 1 a=b; c=d", edge.host(port)));
}

#[tokio::test]
async fn a_stream_arrives_piece_by_piece() {
    let edge = Edge::start().await;
    let (pieces, received) = mpsc::channel::<Result<Bytes, Infallible>>(1);
    let received = std::sync::Arc::new(tokio::sync::Mutex::new(Some(received)));
    let port = program(move |_| {
        let received = std::sync::Arc::clone(&received);
        async move {
            let received = received.lock().await.take().unwrap();
            let pieces = stream::unfold(received, |mut received| async { Some((received.recv().await?, received)) });
            Response::new(Body::from_stream(pieces))
        }
    })
    .await;
    let mut body = edge.get(&edge.host(port)).await.into_body();
    for piece in ["one", "two"] {
        pieces.send(Ok(Bytes::from(piece))).await.unwrap();
        assert_eq!(timeout(SOON, body.frame()).await.unwrap().unwrap().unwrap().into_data().unwrap(), piece);
    }
    drop(pieces);
    assert!(timeout(SOON, body.frame()).await.unwrap().is_none());
}

#[tokio::test]
async fn one_thousand_idle_streams_of_one_connection_hold_up_nothing() {
    let edge = Edge::start().await;
    let sender = http2(&edge).await;
    let idle: Vec<_> = (0..1_000)
        .map(|_| {
            let mut sender = sender.clone();
            let request = Request::builder().uri("http://localhost/never").body(Body::empty()).unwrap();
            tokio::spawn(async move { sender.send_request(request).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let begun = Instant::now();
    let request = Request::builder().uri("http://localhost/").body(Body::empty()).unwrap();
    let response = timeout(SOON, sender.clone().send_request(request)).await.unwrap().unwrap();
    assert_eq!(text(response).await, "api over HTTP/2.0");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(idle.iter().all(|stream| !stream.is_finished()));
}
