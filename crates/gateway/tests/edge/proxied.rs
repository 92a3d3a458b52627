//! What a program sees of a request, and a client of the answer.

use std::sync::Arc;

use axum::body::Body;
use hyper::{Request, Response};
use pando_gateway::token::Secret;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Mutex,
    time::timeout,
};

use crate::support::{Edge, ID, SOON, TOKEN, Wanted, listener, program, text};

/// A program that keeps the head of its last request.
async fn recorder() -> (u16, Arc<Mutex<Option<hyper::http::request::Parts>>>) {
    let seen = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&seen);
    let port = program(move |request| {
        let kept = Arc::clone(&kept);
        async move {
            *kept.lock().await = Some(request.into_parts().0);
            Response::builder()
                .header("connection", "x-hop")
                .header("x-hop", "1")
                .header("x-kept", "2")
                .body("ok".into())
                .unwrap()
        }
    })
    .await;
    (port, seen)
}

#[tokio::test]
async fn a_program_sees_the_request_without_what_is_the_edges() {
    let edge = Edge::start().await;
    let (port, seen) = recorder().await;
    let host = edge.host(port);
    let request = Request::builder()
        .method("POST")
        .uri("/a%20b?c=d&e")
        .header("host", &host)
        .header("connection", "keep-alive, x-mine")
        .header("x-mine", "1")
        .header("te", "trailers, gzip")
        .header("x-forwarded-for", "6.6.6.6")
        .header("forwarded", "for=6.6.6.6")
        .header("e2b-traffic-access-token", TOKEN)
        .header("authorization", "Bearer own")
        .header("cookie", "a=b")
        .body(Body::from("body"))
        .unwrap();
    let response = edge.send(request).await;
    assert_eq!(response.status(), 200);
    assert_eq!((response.headers().get("x-hop"), response.headers()["x-kept"].to_str().unwrap()), (None, "2"));
    assert_eq!(text(response).await, "ok");
    let seen = seen.lock().await.take().unwrap();
    assert_eq!(seen.uri, "/a%20b?c=d&e");
    let get = |name| seen.headers.get(name).map(|value| value.to_str().unwrap());
    for (name, expected) in [
        ("host", Some(host.as_str())),
        ("x-forwarded-host", Some(&host)),
        ("x-forwarded-for", Some("127.0.0.1")),
        ("x-forwarded-proto", Some("http")),
        ("te", Some("trailers")),
        ("authorization", Some("Bearer own")),
        ("cookie", Some("a=b")),
        ("content-length", Some("4")),
        ("x-mine", None),
        ("forwarded", None),
        ("connection", None),
        ("e2b-traffic-access-token", None),
    ] {
        assert_eq!(get(name), expected, "{name}");
    }
}

#[tokio::test]
async fn the_host_is_masked_if_the_sandbox_says_so() {
    let mask = Some("localhost:${PORT}".to_owned());
    let edge = Edge::with(Wanted { mask_request_host: mask, ..Wanted::default() }).await;
    let (port, seen) = recorder().await;
    text(edge.get(&edge.host(port)).await).await;
    let seen = seen.lock().await.take().unwrap();
    assert_eq!(seen.headers["host"], format!("localhost:{port}"));
    assert_eq!(seen.headers["x-forwarded-host"], edge.host(port));
}

#[tokio::test]
async fn only_the_right_token_opens_a_closed_sandbox() {
    let edge = Edge::with(Wanted { traffic_token: Some(Secret::new(TOKEN)), ..Wanted::default() }).await;
    let (port, seen) = recorder().await;
    for (token, status, words) in
        [(None, 403, "is missing"), (Some("let me ix"), 403, "is invalid"), (Some(TOKEN), 200, "ok")]
    {
        let mut request = Request::builder().header("host", edge.host(port));
        if let Some(token) = token {
            request = request.header("E2B-Traffic-Access-Token", token);
        }
        let response = edge.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), status);
        assert!(text(response).await.contains(words));
        assert_eq!(seen.lock().await.take().is_some(), status == 200);
    }
}

#[tokio::test]
async fn sandboxes_and_ports_that_are_not_there_are_told_apart() {
    let edge = Edge::start().await;
    let (closed, port) = listener().await;
    drop(closed);
    let expected = format!(
        r#"{{"sandboxId":"{ID}","message":"The sandbox is running but port is not open","port":{port},"code":502}}"#
    );
    assert_eq!(text(edge.get(&edge.host(port)).await).await, expected);
    let missing = edge.get("80-sffffffffffff.pando.localhost").await;
    assert_eq!(
        (missing.status().as_u16(), missing.headers()["content-type"].to_str().unwrap()),
        (502, "application/json")
    );
    assert!(text(missing).await.contains("was not found"));
    assert_eq!(edge.get("80-paused.pando.localhost").await.status(), 409);
    let busy = edge.get("80-busy.pando.localhost").await;
    assert_eq!((busy.status().as_u16(), busy.headers()["retry-after"].to_str().unwrap()), (503, "7"));
    let browser = Request::builder().header("host", edge.host(port)).header("accept", "text/html,*/*;q=0.8");
    let page = edge.send(browser.body(Body::empty()).unwrap()).await;
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    assert!(text(page).await.contains("<h1>The sandbox is running but port is not open</h1>"));
}

#[tokio::test]
async fn a_program_that_breaks_off_is_a_bad_gateway() {
    let edge = Edge::start().await;
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        loop {
            drop(listener.accept().await.unwrap());
        }
    });
    let response = edge.get(&edge.host(port)).await;
    assert_eq!(response.status(), 502);
    assert!(text(response).await.contains("The connection to the sandbox failed"));
}

#[tokio::test]
async fn a_client_that_goes_away_ends_the_connection_to_the_program() {
    let edge = Edge::start().await;
    let (listener, port) = listener().await;
    let head = format!("GET / HTTP/1.1\r\nhost: {}\r\n\r\n", edge.host(port));
    // Before there is an answer, and in the middle of one.
    for answer in ["", "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nbegin"] {
        let mut client = edge.connect().await;
        client.write_all(head.as_bytes()).await.unwrap();
        let (mut program, _) = timeout(SOON, listener.accept()).await.unwrap().unwrap();
        let mut buffer = [0; 1024];
        assert!(program.read(&mut buffer).await.unwrap() > 0);
        program.write_all(answer.as_bytes()).await.unwrap();
        if !answer.is_empty() {
            assert!(client.read(&mut buffer).await.unwrap() > 0);
        }
        drop(client);
        let ended = timeout(SOON, program.read(&mut buffer)).await.expect("the program is told");
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    }
}
