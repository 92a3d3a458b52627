//! What a client makes of the answers of a node: of good ones, of errors, and of those that end too early.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use api::{ErrorCode, Image, Limits, Ready, TemplateSpec};
use client::{Client, Error};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixListener,
};

/// A node that reads one request, answers with these bytes, and hangs up.
struct Node {
    directory: tempfile::TempDir,
    request: tokio::task::JoinHandle<String>,
}

impl Node {
    fn answering(answer: String) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
        let request = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        Self { directory, request }
    }

    fn client(&self) -> Client {
        Client::new(self.directory.path().join("socket"))
    }
}

fn response(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn spec() -> TemplateSpec {
    TemplateSpec {
        name: "t".parse().unwrap(),
        image: Image::Host,
        command: vec!["/bin/true".to_owned()],
        env: Vec::new(),
        cwd: "/".to_owned(),
        ready: Ready::Listening,
        ready_timeout_ms: 1,
        limits: Limits::default(),
        mount_points: Vec::new(),
        user: None,
        startup: Vec::new(),
        on_fork: Vec::new(),
    }
}

#[tokio::test]
async fn a_call_is_one_request_with_its_path() {
    let node = Node::answering(response("200 OK", "[]"));
    assert!(node.client().sandboxes().await.unwrap().is_empty());
    let request = node.request.await.unwrap();
    assert!(request.starts_with("GET /v1/sandboxes HTTP/1.1\r\n"), "{request}");
}

#[tokio::test]
async fn errors_of_the_node_keep_code_and_hint() {
    let body = r#"{"error":{"code":"not_found","message":"there is no t","hint":"look"}}"#;
    let node = Node::answering(response("404 Not Found", body));
    let error = node.client().template(&"t".parse().unwrap()).await.unwrap_err();
    assert!(error.is_not_found());
    assert_eq!(error.to_string(), "there is no t");
    let Error::Node(detail) = error else { panic!("{error:?}") };
    assert_eq!((detail.code, detail.hint.as_deref()), (ErrorCode::NotFound, Some("look")));
}

#[tokio::test]
async fn answers_of_other_programs_are_not_understood() {
    let node = Node::answering(response("200 OK", "<html>"));
    assert!(matches!(node.client().sandboxes().await, Err(Error::NotUnderstood(_))));
    let node = Node::answering(response("502 Bad Gateway", "<html>"));
    assert!(matches!(node.client().sandboxes().await, Err(Error::Status(status)) if status.as_u16() == 502));
}

#[tokio::test]
async fn a_node_that_is_gone_is_told_from_one_that_hangs_up() {
    let gone = Client::new(PathBuf::from("/nowhere/node.sock"));
    let error = gone.sandboxes().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert_eq!(error.to_string(), "the node at /nowhere/node.sock cannot be reached");
    let node = Node::answering(String::new());
    assert!(matches!(node.client().sandboxes().await, Err(Error::NoAnswer { .. })));
    let node = Node::answering("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n[".to_owned());
    assert!(matches!(node.client().sandboxes().await, Err(Error::BrokenOff(_))));
}

#[tokio::test]
async fn a_build_ends_with_its_last_event() {
    let stage = r#"{"stage":{"stage":"starting_program","elapsed_ms":1}}"#;
    let failed = r#"{"failed":{"code":"not_ready","message":"it ended"}}"#;
    let node = Node::answering(response("200 OK", &format!("{stage}\n{failed}\n")));
    assert!(matches!(node.client().build(&spec()).await, Err(Error::Node(detail)) if detail.message == "it ended"));
    let node = Node::answering(response("200 OK", &format!("{stage}\n")));
    assert!(matches!(node.client().build(&spec()).await, Err(Error::HungUp)));
}

#[tokio::test]
async fn a_directory_is_no_file_of_a_volume() {
    let node = Node::answering(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
        "[]"
    ));
    let read = node.client().read_file(&"ws@before".parse().unwrap(), "/a b").await;
    assert!(matches!(read, Err(Error::IsDirectory(path)) if path == "/a b"));
    let request = node.request.await.unwrap();
    assert!(request.starts_with("GET /v1/volumes/ws/files/a%20b?snapshot=before HTTP"), "{request}");
}
