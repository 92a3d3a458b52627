//! Slow and hostile clients, and the end of the server.

use std::{
    net::{IpAddr, UdpSocket},
    time::{Duration, Instant},
};

use http_body_util::BodyExt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    streams::http2,
    support::{Edge, SOON, Wanted, text},
};

/// Waits until the edge closes, and gives what it has said.
async fn rest(mut stream: TcpStream) -> String {
    let mut said = Vec::new();
    // A reset is an end as well.
    let _ = timeout(SOON, stream.read_to_end(&mut said)).await.expect("the edge closes");
    String::from_utf8_lossy(&said).into_owned()
}

fn impatient() -> Wanted {
    let mut wanted = Wanted::default();
    wanted.bounds.first_request = Duration::from_millis(300);
    wanted.bounds.handshake = Duration::from_millis(300);
    wanted.bounds.idle = Duration::from_millis(600);
    wanted
}

#[tokio::test]
async fn a_client_without_a_request_is_closed_whether_it_is_silent_or_slow() {
    let edge = Edge::with(impatient()).await;
    for beginning in
        ["", "GET / HT", "GET / HTTP/1.1\r\nhost: localhost\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16\x03\x01"]
    {
        let mut client = edge.connect().await;
        let begun = Instant::now();
        client.write_all(beginning.as_bytes()).await.unwrap();
        rest(client).await;
        assert!(begun.elapsed() < SOON, "{beginning:?}: {:?}", begun.elapsed());
    }
    let mut trickling = edge.connect().await;
    let begun = Instant::now();
    while trickling.write_all(b"x").await.is_ok() {
        assert!(begun.elapsed() < SOON, "a client that trickles is never closed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    let edge = Edge::with(impatient()).await;
    let mut idle = edge.connect().await;
    idle.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let begun = Instant::now();
    assert!(rest(idle).await.ends_with("api over HTTP/1.1"));
    assert!((Duration::from_millis(400)..Duration::from_secs(4)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    let mut busy = edge.connect().await;
    busy.write_all(b"GET /never HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut byte = [0];
    assert!(timeout(Duration::from_secs(2), busy.read(&mut byte)).await.is_err(), "a running request was closed");
}

#[tokio::test]
async fn garbage_ends_its_own_connection_only() {
    let edge = Edge::start().await;
    let long = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(1 << 20));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100_000));
    let mut samples: Vec<Vec<u8>> = vec![
        b"\x16garbage that is no handshake at all, long enough for a record of TLS".to_vec(),
        b"\x16\x03\x01\xff\xff".iter().copied().chain([0; 70_000]).collect(),
        b"\0\0\0\0".to_vec(),
        b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\ngarbage garbage garbage".to_vec(),
        b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nhost: a b\r\ncontent-length: -1\r\n\r\n".to_vec(),
        long.into_bytes(),
        many.into_bytes(),
    ];
    let mut random = 1_u32;
    samples.extend((0..100).map(|_| {
        let mut byte = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 24) as u8
        };
        (0..200).map(|_| byte()).collect()
    }));
    for sample in samples {
        let mut client = edge.connect().await;
        // It may be closed before all is written.
        let _ = client.write_all(&sample).await;
        let _ = client.shutdown().await;
        let said = rest(client).await;
        assert!(!said.contains("HTTP/1.1 2"), "{said:.100}");
    }
    assert_eq!(text(edge.get("localhost").await).await, "api over HTTP/1.1");
}

#[tokio::test]
async fn one_thousand_idle_connections_hold_up_nothing() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let edge = Edge::start().await;
    let mut idle = Vec::new();
    for _ in 0..1_000 {
        let mut client = edge.connect().await;
        client.write_all(b"GET /never HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        idle.push(client);
    }
    let begun = Instant::now();
    assert_eq!(text(edge.get("localhost").await).await, "api over HTTP/1.1");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_full_edge_closes_idle_connections_and_no_running_request() {
    let mut wanted = Wanted::default();
    wanted.bounds.connections = 3;
    wanted.bounds.idle_full = Duration::from_millis(500);
    let edge = Edge::with(wanted).await;
    let _silent = edge.connect().await;
    let mut idle = edge.connect().await;
    idle.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut running = edge.connect().await;
    running.write_all(b"GET /never HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut waiting = edge.connect().await;
    waiting.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut byte = [0];
    assert!(timeout(Duration::from_millis(200), waiting.read(&mut byte)).await.is_err());
    assert!(rest(waiting).await.ends_with("api over HTTP/1.1"));
    assert!(rest(idle).await.ends_with("api over HTTP/1.1"));
    assert!(
        timeout(Duration::from_millis(700), running.read(&mut byte)).await.is_err(),
        "a running request was closed"
    );
}

#[tokio::test]
async fn a_full_edge_does_not_wait_for_silent_clients() {
    let mut wanted = Wanted::default();
    wanted.bounds.connections = 2;
    wanted.bounds.idle_full = Duration::from_millis(300);
    let edge = Edge::with(wanted).await;
    let mut silent = [edge.connect().await, edge.connect().await];
    silent[1].write_all(b"\x16\x03\x01").await.unwrap();
    let mut waiting = edge.connect().await;
    waiting.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    assert!(rest(waiting).await.ends_with("api over HTTP/1.1"));
}

#[tokio::test]
async fn plain_http_is_for_this_machine_only() {
    let edge = Edge::with(Wanted { listen: "0.0.0.0:0", ..Wanted::default() }).await;
    let Some(own) = own_address() else { return };
    let mut client = TcpStream::connect((own, edge.port())).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: 10.0.0.1\r\nx-api-key: secret\r\n\r\n").await.unwrap();
    let said = rest(client).await;
    assert!(said.starts_with("HTTP/1.1 403") && said.contains("use https"), "{said}");
}

/// An address of this machine that is not loopback. Nothing is sent.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback())
}

#[tokio::test]
async fn running_requests_finish_when_the_server_stops() {
    let mut edge = Edge::start().await;
    let mut idle = edge.connect().await;
    idle.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut running = edge.connect().await;
    running.write_all(b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    edge.stop();
    assert!(rest(running).await.ends_with("slow"));
    assert!(rest(idle).await.ends_with("api over HTTP/1.1"));
    let address = edge.address;
    edge.stopped().await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_request_that_never_ends_is_cut_after_the_grace_period() {
    let mut wanted = Wanted::default();
    wanted.bounds.grace = Duration::from_millis(200);
    let mut edge = Edge::with(wanted).await;
    let mut running = edge.connect().await;
    running.write_all(b"GET /never HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    edge.stop();
    edge.stopped().await;
    assert_eq!(rest(running).await, "");
}

#[tokio::test]
async fn an_answer_without_an_end_ends_when_the_server_stops() {
    let mut edge = Edge::start().await;
    let mut client = edge.connect().await;
    client.write_all(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"begins\r\n") {
        assert!(timeout(SOON, client.read_buf(&mut answer)).await.unwrap().unwrap() > 0);
    }
    let mut streams = http2(&edge).await;
    let request = hyper::Request::builder().uri("http://localhost/events").body(axum::body::Body::empty()).unwrap();
    let mut stream = timeout(SOON, streams.send_request(request)).await.unwrap().unwrap();
    assert!(timeout(SOON, stream.frame()).await.unwrap().unwrap().is_ok());
    let begun = Instant::now();
    edge.stop();
    edge.stopped().await;
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    // It is not taken for a whole one.
    assert_eq!(rest(client).await, "");
    assert!(timeout(SOON, stream.frame()).await.unwrap().unwrap().is_err());
}

#[tokio::test]
async fn connections_without_requests_do_not_hold_up_the_end() {
    let mut edge = Edge::start().await;
    let _silent = edge.connect().await;
    let mut idle = edge.connect().await;
    idle.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut sender = http2(&edge).await;
    let request = hyper::Request::builder().uri("http://localhost/").body(axum::body::Body::empty()).unwrap();
    text(timeout(SOON, sender.send_request(request)).await.unwrap().unwrap()).await;
    let begun = Instant::now();
    edge.stop();
    edge.stopped().await;
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}
