//! Commands and files inside one sandbox. Servers and nodes offer the same services: those of E2B's envd, by the
//! Connect protocol with JSON, and files over HTTP.

mod files;
mod process;

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::Full;
use hyper::{
    HeaderMap, Method, Request, Response,
    body::{Body, Incoming},
    header,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    Error, Result,
    line::Line,
    server::{detail, parse, refused},
};

pub use files::{Entry, EntryKind};
pub use process::{Event, Events, Inputs, Running, Selector, Start};

/// The kind and the length before each message of a stream.
const HEAD_BYTES: usize = 5;
/// Marks the last message of a stream.
const END: u8 = 2;
/// Most bytes of one message. The server sends 32 KiB of output at a time.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// One sandbox, seen from inside.
#[derive(Debug, Clone)]
pub struct Inside {
    line: Line,
    /// What every path begins with.
    prefix: String,
    headers: HeaderMap,
}

/// How the services say that they failed.
#[derive(Debug, Deserialize)]
struct Failure {
    code: String,
    #[serde(default)]
    message: String,
}

impl Failure {
    fn error(self) -> Error {
        use api::ErrorCode;
        let code = match self.code.as_str() {
            "invalid_argument" => ErrorCode::InvalidRequest,
            "not_found" => ErrorCode::NotFound,
            "permission_denied" => ErrorCode::ReadOnly,
            "already_exists" | "failed_precondition" | "unauthenticated" => ErrorCode::Conflict,
            "resource_exhausted" => ErrorCode::NoSpace,
            "unavailable" => ErrorCode::Interrupted,
            "deadline_exceeded" => return Error::TimedOut(self.message),
            _ => ErrorCode::Host,
        };
        Error::Node(detail(code, self.message))
    }
}

impl Inside {
    pub(crate) fn new(line: Line, prefix: String, headers: HeaderMap) -> Self {
        Self { line, prefix, headers }
    }

    fn request<B>(&self, method: Method, path: &str, kind: &'static str, body: B) -> Result<Request<B>> {
        let request = Request::builder().method(method).uri(format!("{}{path}", self.prefix));
        let mut request = request.body(body).map_err(|error| Error::Request(error.into()))?;
        request.headers_mut().extend(self.headers.clone());
        request.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
        Ok(request)
    }

    /// As the user with this name, if one is given.
    fn request_as<B>(&self, user: Option<&str>, path: &str, kind: &'static str, body: B) -> Result<Request<B>> {
        let mut request = self.request(Method::POST, path, kind, body)?;
        if let Some(user) = user {
            let basic = format!("Basic {}", process::base64(format!("{user}:").as_bytes()));
            let value = basic.parse().map_err(|error: header::InvalidHeaderValue| Error::Request(error.into()))?;
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        Ok(request)
    }

    /// One question, one answer.
    async fn call<T: DeserializeOwned>(&self, user: Option<&str>, path: &str, message: &Value) -> Result<T> {
        let body = Full::new(Bytes::from(message.to_string()));
        let answer = self.line.send(self.request_as(user, path, "application/json", body)?).await?;
        if answer.status().is_success() {
            return parse(answer).await;
        }
        Err(failed(answer).await)
    }

    /// A question, and an answer that is a stream.
    async fn stream<B>(&self, request: Request<B>) -> Result<Response<Incoming>>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    {
        let answer = self.line.send(request).await?;
        if answer.status().is_success() { Ok(answer) } else { Err(failed(answer).await) }
    }
}

/// The error in an answer: of the services, or of what is before them.
async fn failed(answer: Response<Incoming>) -> Error {
    use http_body_util::BodyExt;
    let is_json = answer.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"appli"));
    if !is_json {
        return refused(answer).await;
    }
    let (parts, body) = answer.into_parts();
    let bytes = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return Error::BrokenOff(error),
    };
    match serde_json::from_slice::<Failure>(&bytes) {
        Ok(failure) => failure.error(),
        Err(_) => crate::server::refusal(parts.status, None, &bytes),
    }
}

/// A message with its head.
fn enveloped(message: &Value) -> Bytes {
    let text = message.to_string();
    let mut bytes = BytesMut::with_capacity(HEAD_BYTES + text.len());
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
    bytes.put_slice(text.as_bytes());
    bytes.freeze()
}

/// Cuts a stream into messages: bytes in, messages out.
#[derive(Debug, Default)]
struct Messages {
    buffer: BytesMut,
}

impl Messages {
    fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, and whether it is the last one.
    fn next(&mut self) -> Result<Option<(bool, Bytes)>> {
        let Some((&[kind, a, b, c, d], rest)) = self.buffer.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > MESSAGE_BYTES_MAX {
            return Err(Error::TooLong { bytes: length });
        }
        if rest.len() < length {
            return Ok(None);
        }
        let mut message = self.buffer.split_to(HEAD_BYTES + length).freeze();
        Ok(Some((kind & END != 0, message.split_off(HEAD_BYTES))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_wherever_bytes_are() {
        let mut bytes = enveloped(&serde_json::json!({"a": 1})).to_vec();
        bytes.extend([2, 0, 0, 0, 2, b'{', b'}']);
        let mut messages = Messages::default();
        let mut found = Vec::new();
        for byte in bytes {
            messages.push(&[byte]);
            found.extend(messages.next().unwrap());
        }
        assert_eq!(found, [(false, Bytes::from_static(b"{\"a\":1}")), (true, Bytes::from_static(b"{}"))]);
        messages.push(&[0, 255, 255, 255, 255]);
        assert!(messages.next().is_err());
    }
}
