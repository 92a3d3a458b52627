//! Requests that mean one thing to the edge and another to a program: none reaches a program in two forms.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use hyper::{Request, Response};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::support::{Edge, ID, SOON, TOKEN, Wanted, listener, program};

/// A program without a parser: it keeps the bytes of each connection, and answers each of them once.
async fn wire() -> (u16, Arc<Mutex<Vec<String>>>) {
    let (listener, port) = listener().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(record(stream, Arc::clone(&kept)));
        }
    });
    (port, seen)
}

async fn record(mut stream: TcpStream, kept: Arc<Mutex<Vec<String>>>) {
    let at = {
        let mut kept = kept.lock().unwrap();
        kept.push(String::new());
        kept.len() - 1
    };
    let mut buffer = [0; 64 << 10];
    let mut answered = false;
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        kept.lock().unwrap()[at].push_str(&text);
        if !answered {
            answered = true;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        }
    }
}

/// What the edge answers to raw bytes until it closes.
async fn raw(edge: &Edge, bytes: &[u8]) -> String {
    let mut client = edge.connect().await;
    let _ = client.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = timeout(SOON, client.read_to_end(&mut answer)).await.expect("the edge closes");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Sends raw bytes, and waits a moment for an answer: the edge may keep the connection.
async fn send(edge: &Edge, bytes: &[u8]) {
    let mut client = edge.connect().await;
    let _ = client.write_all(bytes).await;
    let mut answer = [0; 4096];
    while let Ok(Ok(1..)) = timeout(Duration::from_millis(100), client.read(&mut answer)).await {}
}

#[tokio::test]
async fn a_body_of_two_lengths_smuggles_no_request() {
    let edge = Edge::start().await;
    let (port, seen) = wire().await;
    let host = edge.host(port);
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
    let length = smuggled.len();
    for headers in [
        format!("content-length: {length}\r\ntransfer-encoding: chunked\r\n"),
        format!("transfer-encoding: chunked\r\ncontent-length: {length}\r\n"),
        format!("content-length: {length}\r\ncontent-length: 0\r\n"),
        "content-length: 0, 36\r\n".to_owned(),
        "content-length: +5\r\n".to_owned(),
        "content-length: 0x5\r\n".to_owned(),
        "transfer-encoding: chunked, identity\r\n".to_owned(),
        "transfer-encoding: xchunked\r\n".to_owned(),
        "transfer-encoding : chunked\r\n".to_owned(),
        "transfer-encoding:\x0bchunked\r\n".to_owned(),
        " content-length: 0\r\n".to_owned(),
        "x: y\rtransfer-encoding: chunked\r\n".to_owned(),
        "x: y\ncontent-length: 0\r\n".to_owned(),
        "connection: content-length\r\ncontent-length: 0\r\n".to_owned(),
        "connection: transfer-encoding\r\ntransfer-encoding: chunked\r\n".to_owned(),
    ] {
        let request = format!("POST /outer HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n0\r\n\r\n{smuggled}");
        send(&edge, request.as_bytes()).await;
    }
    let seen = seen.lock().unwrap();
    assert!(!seen.is_empty(), "nothing reached the program");
    for connection in seen.iter() {
        let (head, body) = connection.split_once("\r\n\r\n").unwrap();
        let lower = head.to_ascii_lowercase();
        let lengths = lower.matches("\r\ncontent-length:").count() + lower.matches("\r\ntransfer-encoding:").count();
        assert!(lengths <= 1, "two lengths reach a program: {connection}");
        // What looks like a request is inside a body, or was answered by the edge as a request of its own.
        if body.contains("GET /smuggled") {
            assert_eq!(lengths, 1, "{connection}");
        }
        assert!(head.starts_with("POST /outer HTTP/1.1\r\n"), "{connection}");
    }
}

#[tokio::test]
async fn nothing_in_a_head_becomes_a_second_head() {
    let edge = Edge::start().await;
    let (port, seen) = wire().await;
    let host = edge.host(port);
    for (target, header) in [
        ("/a%0d%0ax-evil:1", "x: y"),
        ("/a\u{85}b", "x: y"),
        ("/a", "x: y\u{0}z"),
        ("/a", "x\u{0}: y"),
        ("/a b HTTP/1.1", "x: y"),
        ("http://api.pando.localhost/a", "x: y"),
        ("//evil.example/a", "x: y"),
        ("/a", "host: api.pando.localhost"),
    ] {
        let request = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n{header}\r\nconnection: close\r\n\r\n");
        let answer = raw(&edge, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200") || answer.starts_with("HTTP/1.1 400"), "{target:?}: {answer}");
    }
    for connection in seen.lock().unwrap().iter() {
        assert!(!connection.to_ascii_lowercase().contains("\r\nx-evil"), "{connection}");
        assert_eq!(connection.matches("HTTP/1.1\r\n").count(), 1, "{connection}");
        assert_eq!(connection.to_ascii_lowercase().matches("\r\nhost:").count(), 1, "{connection}");
    }
}

#[tokio::test]
async fn a_mask_with_line_ends_makes_no_header() {
    for mask in ["a\r\nx-evil: 1", "a\nb", "\u{0}", "a b\r\n\r\nGET / HTTP/1.1"] {
        let edge = Edge::with(Wanted { mask_request_host: Some(mask.to_owned()), ..Wanted::default() }).await;
        let (port, seen) = wire().await;
        edge.get(&edge.host(port)).await;
        let seen = seen.lock().unwrap();
        assert!(!seen[0].contains("x-evil") && seen[0].matches("HTTP/1.1\r\n").count() == 1, "{:?}", seen[0]);
    }
}

#[tokio::test]
async fn a_client_cannot_say_who_forwarded_it() {
    let edge = Edge::start().await;
    let (port, seen) = wire().await;
    let names = [
        "forwarded",
        "x-forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-prefix",
        "x-forwarded-proto",
        "x-forwarded-scheme",
        "x-forwarded-server",
        "x-forwarded-ssl",
        "x-client-ip",
        "x-cluster-client-ip",
        "x-real-ip",
        "true-client-ip",
    ];
    let mut request = Request::builder().header("host", edge.host(port));
    for name in names {
        request = request.header(name, "forged");
    }
    edge.send(request.body(axum::body::Body::empty()).unwrap()).await;
    let seen = seen.lock().unwrap();
    assert!(!seen[0].contains("forged"), "{}", seen[0]);
}

#[tokio::test]
async fn a_program_cannot_answer_twice_or_for_another_request() {
    let edge = Edge::start().await;
    let (listener, port) = listener().await;
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfirst\
                  HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecond";
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = [0; 4096];
            let _ = stream.read(&mut buffer).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let host = edge.host(port);
    let one = format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n");
    let two = "GET / HTTP/1.1\r\nhost: api.pando.localhost\r\nconnection: close\r\n\r\n";
    let said = raw(&edge, format!("{one}{two}").as_bytes()).await;
    assert!(said.contains("first") && said.ends_with("api over HTTP/1.1") && !said.contains("second"), "{said}");
}

#[tokio::test]
async fn an_upgrade_needs_the_token_and_opens_no_other_sandbox() {
    let edge =
        Edge::with(Wanted { traffic_token: Some(pando_gateway::token::Secret::new(TOKEN)), ..Wanted::default() }).await;
    let (port, seen) = wire().await;
    let upgrade = format!(
        "GET / HTTP/1.1\r\nhost: {}\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n",
        edge.host(port)
    );
    assert!(raw(&edge, format!("{upgrade}\r\n").as_bytes()).await.starts_with("HTTP/1.1 403"));
    let wrong = format!("{upgrade}cookie: e2b-traffic-access-token={TOKEN}\r\n\r\n");
    assert!(raw(&edge, wrong.as_bytes()).await.starts_with("HTTP/1.1 403"));
    assert!(seen.lock().unwrap().is_empty(), "a request without the token reached the program");
    // After a refused upgrade the connection is HTTP: what follows is routed anew.
    let piped = format!(
        "{}\r\nGET / HTTP/1.1\r\nhost: 80-other.pando.localhost\r\nconnection: close\r\n\r\n",
        upgrade.replace(", close", "")
    );
    let said = raw(&edge, piped.as_bytes()).await;
    assert!(said.contains("403") && !said.contains("HTTP/1.1 101"), "{said}");
}

#[tokio::test]
async fn what_a_host_cannot_say_no_form_of_it_says() {
    let edge = Edge::start().await;
    let port = program(|_| async { Response::new("program".into()) }).await;
    for host in [
        format!("{port}-{ID}.pando.localhost.evil.example"),
        format!("evil.{port}-{ID}.pando.localhost"),
        format!("{port}-{ID}.pando.localhost@evil.example"),
        format!("evil.example/{port}-{ID}.pando.localhost"),
        format!("{port}-{ID}.pando.localhost, api.pando.localhost"),
        format!("{port}-{ID}..pando.localhost"),
        format!("{port}-{ID}%2epando.localhost"),
        format!("0{port}-{ID}.pando.localhost"),
        format!("+{port}-{ID}.pando.localhost"),
        format!("-{port}-{ID}.pando.localhost"),
        format!("65536-{ID}.pando.localhost"),
        format!("{port}-{ID}-x.pando.localhost"),
    ] {
        let answer =
            raw(&edge, format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").as_bytes()).await;
        assert!(!answer.contains("program"), "{host}: {answer}");
    }
}
