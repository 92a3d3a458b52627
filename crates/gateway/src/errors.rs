//! Answers of the edge itself: E2B's exact bodies as JSON, and the same facts as a page for browsers.
//!
//! SDKs look for `was not found` and `port is not open` in the message, and take 502 of `/health` for a sandbox that
//! does not run.

use axum::body::Body;
use hyper::{HeaderMap, Response, StatusCode, header, header::HeaderValue};
use serde::Serialize;

use crate::{
    proxy::{DialError, TRAFFIC_TOKEN_HEADER},
    route::{SandboxLabel, Unroutable},
};

/// The form in which a client wants an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For programs.
    Json,
    /// For browsers.
    Html,
}

impl Form {
    /// HTML if the client accepts it by name, as browsers do and libraries do not.
    pub fn wanted(headers: &HeaderMap) -> Self {
        let named = |value: &HeaderValue| value.to_str().is_ok_and(|value| value.contains("text/html"));
        if headers.get_all(header::ACCEPT).iter().any(named) { Self::Html } else { Self::Json }
    }
}

/// The sandbox cannot be reached, or the client may not reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such sandbox.
    NoSandbox,
    /// No program listens on the port.
    PortClosed(u16),
    /// The sandbox is paused and stays so.
    Paused,
    /// The sandbox cannot be reached right now. The client may retry after this many seconds.
    Busy {
        /// For `Retry-After`.
        retry_after_s: u64,
    },
    /// The sandbox has as many connections or streams as it may have.
    SandboxFull {
        /// So many.
        connections_max: usize,
    },
    /// All sandboxes together have as many connections as the server may have.
    Full,
    /// The connection failed or broke off before an answer.
    Broken,
    /// The traffic access token is missing.
    TokenMissing,
    /// The traffic access token is wrong.
    TokenInvalid,
    /// The method cannot be forwarded.
    Method,
}

impl From<&DialError> for Refusal {
    fn from(error: &DialError) -> Self {
        match error {
            DialError::NoSandbox => Self::NoSandbox,
            DialError::PortClosed { port } => Self::PortClosed(*port),
            DialError::Paused => Self::Paused,
            DialError::Busy { retry_after_s } => Self::Busy { retry_after_s: *retry_after_s },
            DialError::Failed(_) => Self::Broken,
        }
    }
}

/// The order of the fields is E2B's.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(rename = "sandboxId")]
    sandbox_id: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(rename = "canAutoResume", skip_serializing_if = "Option::is_none")]
    can_auto_resume: Option<bool>,
    code: u16,
}

impl Refusal {
    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NoSandbox | Self::PortClosed(_) | Self::Broken => StatusCode::BAD_GATEWAY,
            Self::Paused => StatusCode::CONFLICT,
            Self::Busy { .. } | Self::Full => StatusCode::SERVICE_UNAVAILABLE,
            Self::SandboxFull { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::TokenMissing | Self::TokenInvalid => StatusCode::FORBIDDEN,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
        }
    }

    fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::Busy { retry_after_s } => Some(*retry_after_s),
            Self::SandboxFull { .. } | Self::Full => Some(1),
            Self::NoSandbox
            | Self::PortClosed(_)
            | Self::Paused
            | Self::Broken
            | Self::TokenMissing
            | Self::TokenInvalid
            | Self::Method => None,
        }
    }

    /// For people and SDKs.
    pub fn message(&self) -> String {
        match self {
            Self::NoSandbox => "The sandbox was not found".to_owned(),
            Self::PortClosed(_) => "The sandbox is running but port is not open".to_owned(),
            Self::Paused => "The sandbox is paused".to_owned(),
            Self::Busy { .. } => "The sandbox cannot be reached right now, retry".to_owned(),
            Self::SandboxFull { connections_max } => {
                format!("The sandbox has {connections_max} connections or streams already: close some, then retry")
            }
            Self::Full => "The server has no room for another connection to a sandbox, retry".to_owned(),
            Self::Broken => "The connection to the sandbox failed".to_owned(),
            Self::TokenMissing => format!(
                "Sandbox is secured with traffic access token. Token header '{TRAFFIC_TOKEN_HEADER}' is missing"
            ),
            Self::TokenInvalid => format!(
                "Sandbox is secured with traffic access token. \
                 Provided token in header '{TRAFFIC_TOKEN_HEADER}' is invalid"
            ),
            Self::Method => "CONNECT cannot be forwarded".to_owned(),
        }
    }

    /// The whole answer.
    pub fn answer(&self, id: &SandboxLabel, form: Form) -> Response<Body> {
        let (status, message) = (self.status(), self.message());
        let port = if let Self::PortClosed(port) = self { Some(*port) } else { None };
        let mut response = match form {
            Form::Json => json(&Document {
                sandbox_id: id.as_str(),
                message: &message,
                port,
                can_auto_resume: matches!(self, Self::Paused).then_some(false),
                code: status.as_u16(),
            }),
            Form::Html => {
                page(&message, &format!("Sandbox {id}{}", port.map_or(String::new(), |p| format!(", port {p}"))))
            }
        };
        *response.status_mut() = status;
        if let Some(seconds) = self.retry_after_s() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// A sandbox that does not exist, for those who answer on behalf of one.
pub fn no_sandbox(id: &SandboxLabel, headers: &HeaderMap) -> Response<Body> {
    Refusal::NoSandbox.answer(id, Form::wanted(headers))
}

/// The answer to a request that goes nowhere, in the form of the API's errors.
pub fn unroutable(reason: &Unroutable, form: Form) -> Response<Body> {
    #[derive(Serialize)]
    struct Reason {
        code: u16,
        message: String,
    }
    let status = StatusCode::BAD_REQUEST;
    let message = capitalised(&reason.to_string());
    let mut response = match form {
        Form::Json => json(&Reason { code: status.as_u16(), message }),
        Form::Html => page(&message, ""),
    };
    *response.status_mut() = status;
    response
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn json(document: &impl Serialize) -> Response<Body> {
    // Plain strings and numbers cannot fail.
    let text = serde_json::to_vec(document).unwrap_or_default();
    uncached(Response::new(Body::from(text)), "application/json")
}

fn page(message: &str, detail: &str) -> Response<Body> {
    let (message, detail) = (escaped(message), escaped(detail));
    let text = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{message}</title>\
         <body><h1>{message}</h1><p>{detail}</p></body></html>\n"
    );
    let mut response = uncached(Response::new(Body::from(text)), "text/html; charset=utf-8");
    // It shares its origin with a program in the sandbox.
    let policy = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    response
}

fn uncached(mut response: Response<Body>, kind: &'static str) -> Response<Body> {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn text(response: Response<Body>) -> (u16, String) {
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn bodies_are_those_that_sdks_look_for() {
        let id = SandboxLabel::new("s0123456789ab").unwrap();
        for (refusal, status, body) in [
            (
                Refusal::NoSandbox,
                502,
                r#"{"sandboxId":"s0123456789ab","message":"The sandbox was not found","code":502}"#,
            ),
            (
                Refusal::PortClosed(8080),
                502,
                r#"{"sandboxId":"s0123456789ab","message":"The sandbox is running but port is not open","port":8080,"code":502}"#,
            ),
            (
                Refusal::TokenMissing,
                403,
                r#"{"sandboxId":"s0123456789ab","message":"Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing","code":403}"#,
            ),
            (
                Refusal::TokenInvalid,
                403,
                r#"{"sandboxId":"s0123456789ab","message":"Sandbox is secured with traffic access token. Provided token in header 'e2b-traffic-access-token' is invalid","code":403}"#,
            ),
            (
                Refusal::Paused,
                409,
                r#"{"sandboxId":"s0123456789ab","message":"The sandbox is paused","canAutoResume":false,"code":409}"#,
            ),
        ] {
            assert_eq!(text(refusal.answer(&id, Form::Json)).await, (status, body.to_owned()));
        }
    }

    #[tokio::test]
    async fn browsers_get_a_page_and_libraries_json() {
        let mut headers = HeaderMap::new();
        assert_eq!(Form::wanted(&headers), Form::Json);
        headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
        assert_eq!(Form::wanted(&headers), Form::Json);
        headers.insert(header::ACCEPT, HeaderValue::from_static("text/html,application/xhtml+xml"));
        assert_eq!(Form::wanted(&headers), Form::Html);
        let id = SandboxLabel::new("s0123456789ab").unwrap();
        let (status, page) = text(Refusal::PortClosed(80).answer(&id, Form::Html)).await;
        assert_eq!(status, 502);
        assert!(page.contains("port is not open") && page.contains("s0123456789ab, port 80"), "{page}");
    }

    #[tokio::test]
    async fn hostile_hosts_cannot_write_a_page() {
        let reason = Unroutable::UnknownHost { host: "<script>".to_owned(), domain: "a.b".to_owned() };
        let (status, page) = text(unroutable(&reason, Form::Html)).await;
        assert_eq!(status, 400);
        assert!(page.contains("Unknown host &lt;script&gt;") && !page.contains("<script>"), "{page}");
        let (_, body) = text(unroutable(&Unroutable::InvalidPort, Form::Json)).await;
        assert_eq!(body, r#"{"code":400,"message":"Invalid sandbox port"}"#);
    }
}
