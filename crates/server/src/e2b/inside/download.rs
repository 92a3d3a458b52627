//! Downloads: a whole file, or one range of it.

use std::sync::Arc;

use api::e2b::Error;
use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use bytes::BytesMut;
use control::FileOperation;
use hands::Reader;
use utoipa::IntoParams;

use super::{Asked, FileQuery, Shared, authorise_file};
use crate::e2b::{
    failed::{Failed, Result},
    openapi::{ENVD, NoFile},
    place::Inside,
    sandboxes::Query,
};

/// How much is read and sent at once, at most.
const CHUNK_BYTES: usize = 256 << 10;

/// Bytes from and to, both included; the end may be open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Range {
    From(u64, Option<u64>),
    Last(u64),
}

/// The header of ranges. Only its description uses the type.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "the header is read as it comes")]
struct RangeHeader {
    /// `bytes=FROM-TO`; other forms mean the whole file.
    #[param(rename = "Range")]
    range: Option<String>,
}

/// Reads a file, or one range of it.
#[utoipa::path(
    get,
    path = "/files",
    operation_id = "readFile",
    tag = ENVD,
    params(FileQuery, RangeHeader),
    security(("AccessToken" = []), ("Signature" = [])),
    responses(
        (status = 200, description = "The file", content(("application/octet-stream"))),
        (status = 206, description = "The range", content(("application/octet-stream"))),
        (status = 416, description = "The file ends before the range", body = Error),
        NoFile
    ),
)]
pub(super) async fn get((platform, of): Shared, Query(query): Asked, headers: HeaderMap) -> Result<Response> {
    authorise_file(&platform, &of, &headers, (&query, FileOperation::Read))?;
    read(&Inside::new(Arc::clone(&platform.node), &of.0.0), &query, &headers).await
}

/// Reads a file, for who may.
pub(crate) async fn read(place: &Inside, query: &FileQuery, headers: &HeaderMap) -> Result<Response> {
    let user = query.username.as_deref();
    let path = query.path.as_deref().ok_or_else(|| Failed::invalid("the query has no path"))?;
    let path = place.resolve(user, path).await?;
    let hand = place.hand(user).await?;
    let range = headers.get(header::RANGE).and_then(|range| parse(range.to_str().ok()?));
    let (offset, length) = match range {
        None => (0, None),
        Some(Range::From(from, to)) => (from, to.map(|to| (to - from).saturating_add(1))),
        Some(Range::Last(bytes)) => {
            let size = hand.stat(path.as_ref()).await?.size;
            (size.saturating_sub(bytes), None)
        }
    };
    let reader = hand.read(path.as_ref(), offset, length).await?;
    let size = reader.size();
    match range {
        // Clients that add a range to every request get an empty file, too.
        Some(_) if size == 0 => Ok(answer(reader, None, &path)),
        Some(_) if offset >= size => Err(Failed::new(
            StatusCode::RANGE_NOT_SATISFIABLE,
            format!("the range begins behind the end: the file has {size} bytes"),
        )),
        range => Ok(answer(reader, range.map(|_| offset), &path)),
    }
}

/// Hides `Accept-Encoding` from the layer that compresses, unless the client means it.
pub(super) async fn compressed_if_meant(mut request: Request, next: Next) -> Response {
    if !request.headers().get(header::ACCEPT_ENCODING).is_some_and(means_gzip) {
        request.headers_mut().remove(header::ACCEPT_ENCODING);
    }
    next.run(request).await
}

/// HTTP libraries list every coding that they can decode, with every request. `gzip` alone is a wish: the SDKs' option
/// sends that. Compressing everything made downloads several times slower than a local network.
fn means_gzip(accepted: &HeaderValue) -> bool {
    let mut codings = accepted.to_str().unwrap_or_default().split(',');
    let coding = codings.next().and_then(|coding| coding.split(';').next()).unwrap_or_default();
    codings.next().is_none() && coding.trim().eq_ignore_ascii_case("gzip")
}

fn answer(reader: Reader, from: Option<u64>, path: &str) -> Response {
    let (size, length) = (reader.size(), reader.length());
    let name = path.rsplit('/').next().unwrap_or_default();
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    if let Ok(disposition) = HeaderValue::from_str(&format!("attachment; filename*=UTF-8''{}", encoded(name))) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    let status = match from {
        Some(from) => {
            let range = format!("bytes {from}-{}/{size}", (from + length).saturating_sub(1));
            if let Ok(range) = HeaderValue::from_str(&range) {
                headers.insert(header::CONTENT_RANGE, range);
            }
            StatusCode::PARTIAL_CONTENT
        }
        None => StatusCode::OK,
    };
    (status, headers, stream(reader)).into_response()
}

/// A file as it is read. An error ends the connection: the client must not take a part for the whole.
fn stream(reader: Reader) -> Body {
    let next = async |(mut reader, mut buffer): (Reader, BytesMut)| {
        // Takes back what has been sent meanwhile, if that is enough.
        buffer.reserve(CHUNK_BYTES);
        let read = reader.read(&mut buffer).await.map_err(std::io::Error::other)?;
        let chunk = buffer.split().freeze();
        Ok::<_, std::io::Error>((read > 0).then_some((chunk, (reader, buffer))))
    };
    Body::from_stream(futures::stream::try_unfold((reader, BytesMut::new()), next))
}

/// One range (RFC 9110, 14.1.2). The standard ignores every other header.
fn parse(text: &str) -> Option<Range> {
    let (from, to) = text.strip_prefix("bytes=")?.trim().split_once('-')?;
    // Rust takes a sign as well.
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
    match (number(from), number(to)) {
        (Some(from), Some(to)) if from <= to => Some(Range::From(from, Some(to))),
        (Some(from), None) if to.is_empty() => Some(Range::From(from, None)),
        (None, Some(bytes)) if from.is_empty() && bytes > 0 => Some(Range::Last(bytes)),
        _ => None,
    }
}

/// A range that is taken has bytes.
#[cfg(feature = "fuzzing")]
pub(super) fn fuzz(text: &str) {
    match parse(text) {
        Some(Range::From(from, Some(to))) => assert!(from <= to, "{text:?}"),
        Some(Range::Last(bytes)) => assert!(bytes > 0, "{text:?}"),
        Some(Range::From(_, None)) | None => {}
    }
}

/// As RFC 8187 has it.
fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    name.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_counts_and_anything_else_means_all() {
        assert_eq!(parse("bytes=0-9"), Some(Range::From(0, Some(9))));
        assert_eq!(parse("bytes=5-"), Some(Range::From(5, None)));
        assert_eq!(parse("bytes=-3"), Some(Range::Last(3)));
        for other in ["bytes=9-0", "bytes=+1-2", "bytes=-+3", "bytes=-", "bytes=0-1,3-4", "lines=1-2", "bytes=-0", ""] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn only_gzip_alone_is_meant() {
        for (accepted, means) in [
            ("gzip", true),
            ("GZIP;q=1", true),
            ("gzip, deflate", false),
            ("br, gzip", false),
            ("identity", false),
            ("*", false),
            ("", false),
        ] {
            assert_eq!(means_gzip(&HeaderValue::from_static(accepted)), means, "{accepted}");
        }
    }

    #[test]
    fn names_of_files_are_encoded_for_headers() {
        assert_eq!(encoded("a b\n\u{e4}.txt"), "a%20b%0A%C3%A4.txt");
    }
}
