//! Two connections that have become one: WebSockets, and every other protocol that a request switches to.

use std::{
    io,
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use axum::body::Body;
use base::limits::EDGE_HALF_OPEN_MS_MAX;
use futures::future::{self, Either};
use hyper::{
    Request, Response, StatusCode, header,
    header::HeaderValue,
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::headers::remove_hop_by_hop;
use crate::errors::Refusal;

/// Of each direction of a tunnel: what a TLS record can hold.
const TUNNEL_BUFFER_BYTES: usize = 16 << 10;

/// Takes the client's side of an upgrade out of its request. It is left alone if no upgrade is wanted.
pub(super) fn take_client(mut request: Request<Body>, wanted: bool) -> (Request<Body>, Option<OnUpgrade>) {
    let client = request.extensions_mut().remove::<OnUpgrade>();
    // Nothing of the server's own goes on.
    request.extensions_mut().clear();
    (request, client.filter(|_| wanted))
}

/// If the program has switched protocols, the client's connection is joined to the program's. A program that switches
/// without being asked has broken off.
pub(super) fn join(
    response: &mut Response<Body>,
    client: Option<OnUpgrade>,
    wanted: Option<&HeaderValue>,
) -> Result<(), Refusal> {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(());
    }
    let (Some(client), Some(wanted)) = (client, wanted) else { return Err(Refusal::Broken) };
    let chosen = response.headers().get(header::UPGRADE).unwrap_or(wanted).clone();
    let program = hyper::upgrade::on(&mut *response);
    remove_hop_by_hop(response.headers_mut());
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(header::UPGRADE, chosen);
    tokio::spawn(async move {
        // The client's side is there once the answer is written.
        match tokio::try_join!(client, program) {
            Ok((client, program)) => tunnel(client, program).await,
            Err(error) => tracing::debug!(error = base::error::chain(&error), "a protocol was not switched"),
        }
    });
    Ok(())
}

/// Until both sides have ended, or one breaks off. A client that is gone looks like one that has only ended its side:
/// such a tunnel ends when nothing has moved for a while.
async fn tunnel(client: Upgraded, program: Upgraded) {
    let (from_client, to_client) = tokio::io::split(TokioIo::new(client));
    let (from_program, to_program) = tokio::io::split(TokioIo::new(program));
    let moved = AtomicU64::new(0);
    let up = pin!(pump(from_client, to_program, &moved));
    let down = pin!(pump(from_program, to_client, &moved));
    match future::select(up, down).await {
        Either::Left((Ok(()), down)) => half_open(down, &moved).await,
        Either::Right((Ok(()), up)) => half_open(up, &moved).await,
        // An end of either side is an end, not a failure.
        Either::Left((Err(_), _)) | Either::Right((Err(_), _)) => {}
    }
}

/// Moves bytes until the reader ends, then ends the writer.
async fn pump(
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    moved: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; TUNNEL_BUFFER_BYTES];
    loop {
        let got = reader.read(&mut buffer).await?;
        if got == 0 {
            return writer.shutdown().await;
        }
        writer.write_all(&buffer[..got]).await?;
        moved.fetch_add(got as u64, Ordering::Relaxed);
    }
}

async fn half_open(mut rest: impl Future<Output = io::Result<()>> + Unpin, moved: &AtomicU64) {
    loop {
        let before = moved.load(Ordering::Relaxed);
        let waited = tokio::time::timeout(Duration::from_millis(EDGE_HALF_OPEN_MS_MAX), &mut rest).await;
        if waited.is_ok() || moved.load(Ordering::Relaxed) == before {
            return;
        }
    }
}
