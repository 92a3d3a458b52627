//! The heads of requests and answers on their way through.

use axum::body::Body;
use hyper::{
    HeaderMap, Method, Request, Uri, Version, header,
    header::{HeaderName, HeaderValue},
    http::uri::{Authority, PathAndQuery, Scheme},
};

use super::{TRAFFIC_TOKEN_HEADER, Target};
use crate::serve::Origin;

/// What the program speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    /// HTTP/2 without TLS and without negotiation: what gRPC servers expect.
    Http2,
}

/// Headers of one connection, not of the message (RFC 9110, 7.6.1). `te` and `trailer` are looked at apart.
const HOP_BY_HOP: [&str; 6] =
    ["connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "upgrade"];

/// gRPC needs HTTP/2 and its trailers. A client of HTTP/1.1 cannot mean gRPC.
pub(super) fn protocol(request: &Request<Body>) -> Protocol {
    let kind = request.headers().get(header::CONTENT_TYPE);
    let is_grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if is_grpc && request.version() == Version::HTTP_2 { Protocol::Http2 } else { Protocol::Http1 }
}

/// What the client asks its connection to become. HTTP/2 over TCP is no such thing: we speak it already.
pub(super) fn wanted_upgrade(request: &Request<Body>) -> Option<HeaderValue> {
    let asked = tokens(request.headers(), &header::CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
    let wanted = request.headers().get(header::UPGRADE)?;
    let possible = request.version() == Version::HTTP_11 && !wanted.as_bytes().eq_ignore_ascii_case(b"h2c");
    (asked && possible).then(|| wanted.clone())
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Removes what belongs to one connection, and the headers that `connection` names.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = tokens(headers, &header::CONNECTION).filter_map(|token| token.parse().ok()).collect();
    // A client must not make the edge drop what the edge itself relies on.
    for name in named.iter().filter(|name| **name != header::HOST && **name != header::CONTENT_LENGTH) {
        headers.remove(name);
    }
    HOP_BY_HOP.iter().for_each(|name| drop(headers.remove(*name)));
}

/// Makes of the client's request the one that the program gets.
pub(super) fn rewrite_request(
    request: &mut Request<Body>,
    target: &Target,
    origin: Option<&Origin>,
    upgrade: Option<&HeaderValue>,
    protocol: Protocol,
) {
    let host = host(request);
    let takes_trailers = tokens(request.headers(), &header::TE).any(|token| token.eq_ignore_ascii_case("trailers"));
    let masked = target.mask_request_host.as_ref().map(|mask| mask.replace("${PORT}", &target.port.to_string()));
    let seen = masked.and_then(|mask| HeaderValue::try_from(mask).ok()).or_else(|| host.clone());
    let headers = request.headers_mut();
    remove_hop_by_hop(headers);
    headers.remove(header::TE);
    headers.remove(TRAFFIC_TOKEN_HEADER);
    // The edge answers it itself as soon as the body is read.
    headers.remove(header::EXPECT);
    headers.remove("http2-settings");
    if takes_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol.clone());
    }
    join_cookies(headers);
    forwarded(headers, host, origin);
    address(request, seen, protocol);
}

/// The host that the client used: the target's, or that of the header.
fn host(request: &Request<Body>) -> Option<HeaderValue> {
    let target = request.uri().authority().and_then(|authority| HeaderValue::try_from(authority.as_str()).ok());
    target.or_else(|| request.headers().get(header::HOST).cloned())
}

/// HTTP/2 sends cookies one by one; HTTP/1.1 knows one header (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, joined);
    }
}

/// Whether programs take a header as the word of a proxy about its client.
fn says_origin(name: &str) -> bool {
    let others = ["forwarded", "x-forwarded", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip"];
    name.starts_with("x-forwarded-") || others.contains(&name)
}

/// What a client says of its own origin is not believed.
fn forwarded(headers: &mut HeaderMap, host: Option<HeaderValue>, origin: Option<&Origin>) {
    let forged: Vec<HeaderName> = headers.keys().filter(|name| says_origin(name.as_str())).cloned().collect();
    for name in forged {
        headers.remove(name);
    }
    if let Some(host) = host {
        headers.insert("x-forwarded-host", host);
    }
    if let Some(origin) = origin {
        if let Ok(peer) = HeaderValue::try_from(origin.peer.ip().to_canonical().to_string()) {
            headers.insert("x-forwarded-for", peer);
        }
        let scheme = if origin.is_tls { "https" } else { "http" };
        headers.insert("x-forwarded-proto", HeaderValue::from_static(scheme));
    }
}

/// Path and host, in the form of the protocol.
fn address(request: &mut Request<Body>, host: Option<HeaderValue>, protocol: Protocol) {
    let path = match request.uri().path_and_query() {
        Some(path) if path.as_str() != "*" || *request.method() == Method::OPTIONS => path.clone(),
        _ => PathAndQuery::from_static("/"),
    };
    let host = host.unwrap_or_else(|| HeaderValue::from_static("localhost"));
    request.headers_mut().remove(header::HOST);
    match protocol {
        Protocol::Http1 => {
            request.headers_mut().insert(header::HOST, host);
            *request.version_mut() = Version::HTTP_11;
            *request.uri_mut() = Uri::from(path);
        }
        Protocol::Http2 => {
            let authority = Authority::try_from(host.as_bytes()).unwrap_or(Authority::from_static("localhost"));
            let mut parts = hyper::http::uri::Parts::default();
            parts.scheme = Some(Scheme::HTTP);
            parts.authority = Some(authority);
            parts.path_and_query = Some(path);
            *request.version_mut() = Version::HTTP_2;
            *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
        }
    }
}
