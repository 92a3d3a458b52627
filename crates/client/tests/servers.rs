//! What a client asks of a server, and what it makes of the answers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use api::ErrorCode;
use client::{Address, Error, Server};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};

const ID: &str = "s0123456789ab";

/// A server that gives these answers, one on each connection. Its handle gives the requests.
async fn answering(answers: Vec<String>) -> (Server, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let requests = tokio::spawn(async move {
        let mut requests = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            requests.push(String::from_utf8_lossy(&request[..length]).into_owned());
        }
        requests
    });
    (Server::new(url.parse().unwrap(), "e2b_key").unwrap(), requests)
}

fn response(head: &str, body: &str) -> String {
    format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn listed(id: &str) -> String {
    format!(
        r#"[{{"templateID":"t","sandboxID":"{id}","clientID":"c","startedAt":"2026-11-26T20:00:00.000Z",
        "endAt":"2026-11-26T21:00:00.000Z","cpuCount":1,"memoryMB":1,"diskSizeMB":1,"state":"running",
        "envdVersion":"0.6.13"}}]"#
    )
}

#[tokio::test]
async fn a_list_is_read_page_by_page_with_the_key() {
    let pages = vec![
        response("200 OK\r\nx-next-token: a b", &listed("s0123456789ab")),
        response("200 OK", &listed("s0123456789ac")),
    ];
    let (server, requests) = answering(pages).await;
    let ids: Vec<String> = server.list().await.unwrap().into_iter().map(|sandbox| sandbox.sandbox_id).collect();
    assert_eq!(ids, ["s0123456789ab", "s0123456789ac"]);
    let requests = requests.await.unwrap();
    assert!(requests[0].starts_with("GET /v2/sandboxes?limit=100 HTTP/1.1\r\n"), "{requests:?}");
    assert!(requests[1].starts_with("GET /v2/sandboxes?limit=100&nextToken=a%20b HTTP/1.1\r\n"), "{requests:?}");
    assert!(requests.iter().all(|request| request.contains("x-api-key: e2b_key\r\n")), "{requests:?}");
}

#[tokio::test]
async fn errors_of_the_server_keep_message_and_kind() {
    let body = r#"{"code":404,"message":"Sandbox was not found"}"#;
    let busy = response("429 Too Many Requests\r\nretry-after: 7", r#"{"code":429,"message":"no room"}"#);
    let (server, _requests) = answering(vec![response("404 Not Found", body), busy]).await;
    let id = ID.parse().unwrap();
    let error = server.kill(&id).await.unwrap_err();
    assert!(error.is_not_found() && error.to_string() == "Sandbox was not found", "{error:?}");
    let Error::Node(detail) = server.kill(&id).await.unwrap_err() else { panic!("no detail") };
    assert_eq!((detail.code, detail.hint.as_deref()), (ErrorCode::Conflict, Some("try again in 7 s")));
}

#[tokio::test]
async fn a_server_that_is_gone_is_named() {
    let server = Server::new("http://127.0.0.1:1".parse().unwrap(), "e2b_key").unwrap();
    let error = server.list().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { at: Address::Url(_), .. }), "{error:?}");
    assert_eq!(error.to_string(), "the server at http://127.0.0.1:1 cannot be reached");
}
