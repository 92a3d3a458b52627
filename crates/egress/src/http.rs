//! Requests of HTTP/1: each one is for a host of its own, and is judged by that. Where the proxy speaks for a host, each one is for that host, and gets the
//! headers of its rule.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode, Uri, body::Incoming, client::conn::http1 as client, header,
    server::conn::http1 as server, service::service_fn, upgrade::OnUpgrade,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use model::DomainName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    route::Refused,
    visit::{HANDSHAKE_MAX, Result, Visit, join},
};

/// Longest head of a request or an answer, in bytes, and most headers of one.
const HEAD_BYTES_MAX: usize = 64 << 10;
const HEADERS_MAX: usize = 200;
/// How long a head may take, and how long a connection waits for the next one.
const HEAD_MAX: Duration = Duration::from_secs(30);

type Answer = Response<Either<Incoming, Full<Bytes>>>;

/// The requests of one visit, one after the other.
pub(crate) struct Requests {
    visit: Visit,
    /// The host, if the proxy speaks for one.
    host: Option<DomainName>,
    upstream: tokio::sync::Mutex<Option<Upstream>>,
    /// Both ends of a connection that has switched to another protocol.
    switched: Mutex<Option<(OnUpgrade, OnUpgrade)>>,
}

/// A connection with a host.
struct Upstream {
    name: DomainName,
    sender: client::SendRequest<Incoming>,
    _driver: Driver,
}

/// Ends its task when it is dropped.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Requests {
    pub(crate) fn of(visit: Visit, host: Option<DomainName>) -> Arc<Self> {
        Arc::new(Self { visit, host, upstream: tokio::sync::Mutex::new(None), switched: Mutex::new(None) })
    }

    /// Until the client ends, or switches to another protocol and that ends.
    pub(crate) async fn serve(self: Arc<Self>, client: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result {
        let service = service_fn(|request| async { Ok::<_, Infallible>(self.answer(request).await) });
        let mut builder = server::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX);
        builder.max_buf_size(HEAD_BYTES_MAX).max_headers(HEADERS_MAX).preserve_header_case(true);
        builder.serve_connection(TokioIo::new(client), service).with_upgrades().await?;
        let switched = self.switched.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((client, upstream)) = switched {
            let (client, upstream) = tokio::try_join!(client, upstream)?;
            join(TokioIo::new(client), TokioIo::new(upstream)).await?;
        }
        Ok(())
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let Some(name) = host_of(&request) else {
            return text(StatusCode::BAD_REQUEST, "the request names no host, or several");
        };
        if self.host.as_ref().is_some_and(|host| *host != name) {
            return text(StatusCode::MISDIRECTED_REQUEST, "the request is for another host than the connection");
        }
        // The second would have the host send back the headers that a sandbox does not see.
        if [Method::CONNECT, Method::TRACE].contains(request.method()) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "the egress proxy passes neither CONNECT nor TRACE on");
        }
        match self.forward(name, request).await {
            Ok(answer) => answer,
            Err(error) => {
                let refused = error.downcast_ref::<Refused>();
                let is_by_policy = refused.is_some_and(Refused::is_by_policy);
                let status = if is_by_policy { StatusCode::FORBIDDEN } else { StatusCode::BAD_GATEWAY };
                let chain = base::error::chain(&*error).to_string();
                if refused.is_none() {
                    // The node's own affairs are none of the sandbox's.
                    tracing::warn!(error = chain, "a request of a sandbox failed");
                }
                text(status, refused.map_or("the request failed", |_| &chain))
            }
        }
    }

    async fn forward(&self, name: DomainName, mut request: Request<Incoming>) -> Result<Answer> {
        let (reach, port) = (self.visit.guest.reach(), self.visit.to.port());
        if !self.visit.may_reach(&name) {
            return Err(Refused::Name(name).into());
        }
        if self.host.is_some()
            && let Some(rule) = reach.rule(&name, port)
        {
            for (name, value) in self.visit.proxy.open_values(rule).await? {
                request.headers_mut().insert(name, value);
            }
        }
        // The host is in its header.
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = path.map_or_else(|| Uri::from_static("/"), Uri::from);
        let client = request.headers().contains_key(header::UPGRADE).then(|| hyper::upgrade::on(&mut request));
        // Answered here, as soon as the body is asked for.
        request.headers_mut().remove(header::EXPECT);
        let mut answer = self.send(&name, request).await?;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            let client = client.ok_or("it switches to another protocol without being asked")?;
            let upstream = hyper::upgrade::on(&mut answer);
            *self.switched.lock().unwrap_or_else(PoisonError::into_inner) = Some((client, upstream));
        }
        Ok(answer.map(Either::Left))
    }

    /// By the connection that is there, if it leads to this host and has not ended.
    async fn send(&self, name: &DomainName, mut request: Request<Incoming>) -> Result<Response<Incoming>> {
        let mut slot = self.upstream.lock().await;
        if let Some(mut upstream) = slot.take().filter(|upstream| upstream.name == *name) {
            match upstream.sender.try_send_request(request).await {
                Ok(answer) => {
                    *slot = Some(upstream);
                    return Ok(answer);
                }
                Err(mut error) => match error.take_message() {
                    // It had ended before anything was sent.
                    Some(unsent) => request = unsent,
                    None => return Err(error.into_error().into()),
                },
            }
        }
        let stream = self.visit.proxy.connect_to(&self.visit.guest, name, self.visit.to.port()).await?;
        stream.set_nodelay(true)?;
        let mut upstream = match &self.host {
            Some(host) => {
                let stream = timeout(HANDSHAKE_MAX, self.visit.proxy.tls.connect(host, stream)).await??;
                begin(name, stream).await?
            }
            None => begin(name, stream).await?,
        };
        let answer = upstream.sender.send_request(request).await?;
        *slot = Some(upstream);
        Ok(answer)
    }
}

async fn begin(
    name: &DomainName,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> hyper::Result<Upstream> {
    let mut builder = client::Builder::new();
    builder.max_buf_size(HEAD_BYTES_MAX).max_headers(HEADERS_MAX).preserve_header_case(true);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(async move {
        // Its end is seen by the requests.
        let _ = connection.with_upgrades().await;
    });
    Ok(Upstream { name: name.clone(), sender, _driver: Driver(driver) })
}

/// The host that a request is for. None: it names none, or several, or an address.
fn host_of(request: &Request<Incoming>) -> Option<DomainName> {
    let authority = request.uri().authority().map(|authority| authority.as_str());
    named(request.headers(), authority)
}

fn named(headers: &HeaderMap, authority: Option<&str>) -> Option<DomainName> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next()?.to_str().ok()?;
    let is_one = hosts.next().is_none() && authority.is_none_or(|authority| authority.eq_ignore_ascii_case(host));
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    is_one.then(|| name.parse().ok())?
}

fn text(status: StatusCode, text: &str) -> Answer {
    let mut answer = Response::new(Either::Right(Full::from(format!("{text}\n"))));
    *answer.status_mut() = status;
    // What follows may be a body that is not read.
    answer.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_one_host() {
        let named = |hosts: &[&'static str], authority| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, header::HeaderValue::from_static(host));
            }
            named(&headers, authority).map(|name| name.to_string())
        };
        assert_eq!(named(&["A.example:8080"], None).as_deref(), Some("a.example"));
        assert_eq!(named(&["a.example"], Some("A.example")).as_deref(), Some("a.example"));
        assert_eq!(named(&["a.example"], Some("b.example")), None);
        assert_eq!(named(&["a.example", "b.example"], None), None);
        assert_eq!((named(&[], None), named(&["1.1.1.1"], None), named(&["[::1]:80"], None)), (None, None, None));
    }
}
