//! WebSockets and other protocols that a request switches to.

use futures::{SinkExt, StreamExt};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, timeout},
};
use tokio_tungstenite::{
    accept_async, client_async,
    tungstenite::{Message, client::IntoClientRequest},
};

use crate::support::{Edge, ID, SOON, listener, tls};

/// A program that sends every message back.
async fn echo() -> u16 {
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut socket = accept_async(stream).await.unwrap();
                while let Some(Ok(message)) = socket.next().await {
                    if message.is_close() || socket.send(message).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn a_web_socket_goes_through_both_ways() {
    let edge = Edge::start().await;
    let port = echo().await;
    let request = format!("ws://{}/chat?x=1", edge.host(port)).into_client_request().unwrap();
    let (mut socket, response) = timeout(SOON, client_async(request, edge.connect().await)).await.unwrap().unwrap();
    assert_eq!(response.status(), 101);
    for message in [Message::text("héllo"), Message::binary(vec![7; 300_000])] {
        socket.send(message.clone()).await.unwrap();
        assert_eq!(timeout(SOON, socket.next()).await.unwrap().unwrap().unwrap(), message);
    }
    socket.close(None).await.unwrap();
    timeout(SOON, async { while socket.next().await.is_some() {} }).await.unwrap();
}

/// As a browser does it: TLS, and HTTP/1.1 by ALPN.
#[tokio::test]
async fn a_web_socket_goes_through_tls() {
    let edge = Edge::start().await;
    let port = echo().await;
    let stream = tls(&edge, &edge.authority(), &format!("{port}-{ID}.pando.localhost")).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let request = format!("wss://{}/", edge.host(port)).into_client_request().unwrap();
    let (mut socket, _) = timeout(SOON, client_async(request, stream)).await.unwrap().unwrap();
    socket.send(Message::text("sealed")).await.unwrap();
    assert_eq!(timeout(SOON, socket.next()).await.unwrap().unwrap().unwrap(), Message::text("sealed"));
}

#[tokio::test]
async fn any_other_protocol_goes_through_and_its_ends_do() {
    let edge = Edge::start().await;
    let (listener, port) = listener().await;
    let head =
        format!("GET / HTTP/1.1\r\nhost: {}\r\nconnection: Upgrade\r\nupgrade: my-own/1\r\n\r\n", edge.host(port));
    let mut client = edge.connect().await;
    client.write_all(head.as_bytes()).await.unwrap();
    let (mut program, _) = timeout(SOON, listener.accept()).await.unwrap().unwrap();
    let mut buffer = [0; 1024];
    let got = program.read(&mut buffer).await.unwrap();
    assert!(String::from_utf8_lossy(&buffer[..got]).contains("upgrade: my-own/1\r\n"));
    let answer = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: my-own/1\r\n\r\nfirst";
    program.write_all(answer).await.unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"first") {
        let got = timeout(SOON, client.read(&mut buffer)).await.unwrap().unwrap();
        assert_ne!(got, 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..got]);
    }
    assert!(seen.starts_with(b"HTTP/1.1 101"));
    client.write_all(b"second").await.unwrap();
    let got = timeout(SOON, program.read(&mut buffer)).await.unwrap().unwrap();
    assert_eq!(&buffer[..got], b"second");
    // The client has finished sending; the program still answers.
    client.shutdown().await.unwrap();
    assert_eq!(timeout(SOON, program.read(&mut buffer)).await.unwrap().unwrap(), 0);
    program.write_all(b"third").await.unwrap();
    drop(program);
    let mut rest = Vec::new();
    timeout(SOON, client.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert_eq!(rest, b"third");
}

#[tokio::test]
async fn tunnels_are_cut_when_the_server_stops() {
    let mut edge = Edge::start().await;
    let port = echo().await;
    let request = format!("ws://{}/", edge.host(port)).into_client_request().unwrap();
    let (mut socket, _) = timeout(SOON, client_async(request, edge.connect().await)).await.unwrap().unwrap();
    socket.send(Message::text("it is there")).await.unwrap();
    assert!(timeout(SOON, socket.next()).await.unwrap().unwrap().is_ok());
    let begun = Instant::now();
    edge.stop();
    edge.stopped().await;
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let ended = timeout(SOON, socket.next()).await.unwrap();
    assert!(!matches!(ended, Some(Ok(_))), "{ended:?}");
}
