//! A local port that leads to a port in a sandbox: HTTP, with upgrades to WebSocket and others.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{
    HeaderMap, Request, Response, StatusCode, Uri,
    body::Incoming,
    header::{self, HeaderValue},
    server::conn::http1,
    service::service_fn,
    upgrade::OnUpgrade,
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::line::Line;

type Answer = Response<BoxBody<Bytes, hyper::Error>>;

/// A port in a sandbox, through a server.
#[derive(Debug, Clone)]
pub struct Port {
    pub(super) line: Line,
    /// They lead to the port.
    pub(super) headers: HeaderMap,
}

impl Port {
    /// Answers the requests of one connection with the answers of the port, until either side ends it.
    pub async fn forward(&self, stream: TcpStream) {
        let port = Arc::new(self.clone());
        let service = service_fn(move |request| {
            let port = Arc::clone(&port);
            async move { Ok::<_, Infallible>(port.pass(request).await) }
        });
        let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades();
        // A client that breaks off has had enough.
        let _ = served.await;
    }

    async fn pass(&self, mut request: Request<Incoming>) -> Answer {
        let ours = request.extensions_mut().remove::<OnUpgrade>();
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = path.parse::<Uri>().unwrap_or_default();
        for (name, value) in &self.headers {
            request.headers_mut().insert(name, value.clone());
        }
        match self.line.send(request).await {
            Ok(mut answer) => {
                if answer.status() == StatusCode::SWITCHING_PROTOCOLS
                    && let Some((ours, theirs)) = ours.zip(answer.extensions_mut().remove::<OnUpgrade>())
                {
                    tokio::spawn(tunnel(ours, theirs));
                }
                answer.map(BodyExt::boxed)
            }
            Err(error) => unreachable(&error.to_string()),
        }
    }
}

/// Carries the bytes of a connection that speaks something else by now.
async fn tunnel(ours: OnUpgrade, theirs: OnUpgrade) {
    if let (Ok(ours), Ok(theirs)) = tokio::join!(ours, theirs) {
        // An end of either side is an end, not a failure.
        let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(ours), &mut TokioIo::new(theirs)).await;
    }
}

fn unreachable(message: &str) -> Answer {
    let body = Full::new(Bytes::from(format!("{message}\n"))).map_err(|never| match never {}).boxed();
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::BAD_GATEWAY;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}
