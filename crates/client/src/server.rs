//! The API of a server: what E2B's SDKs ask for, for the sandboxes of a team.

mod forward;
mod volumes;

use api::{ErrorCode, ErrorDetail, e2b};
use base::id::SandboxId;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming,
    header::{self, HeaderValue},
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    Error, Inside, Result,
    address::{Address, Url},
    line::Line,
};

const KEY_HEADER: &str = "x-api-key";
/// Where the next page of a list begins.
const NEXT_HEADER: &str = "x-next-token";
const ID_HEADER: &str = "e2b-sandbox-id";
const PORT_HEADER: &str = "e2b-sandbox-port";
const TOKEN_HEADER: &str = "x-access-token";
const TRAFFIC_HEADER: &str = "e2b-traffic-access-token";
/// Of the services inside sandboxes.
const INSIDE_PORT: u16 = 49983;
/// Most sandboxes in one question about metrics.
const METRICS_MAX: usize = 100;

pub use forward::Port;

/// A server, and the team whose key this is.
#[derive(Clone)]
pub struct Server {
    line: Line,
    url: Url,
    key: HeaderValue,
}

/// Calls about the sandboxes of the team.
///
/// # Errors
///
/// Each fails with the server's own error, or if the server cannot be reached or its answer cannot be read.
impl Server {
    /// A client of the server at a URL. Nothing is connected yet.
    pub fn new(url: Url, key: &str) -> Result<Self> {
        let mut key = HeaderValue::from_str(key).map_err(|error| Error::Request(error.into()))?;
        key.set_sensitive(true);
        Ok(Self { line: Line::to(url.clone())?, url, key })
    }

    /// Where it is.
    pub fn address(&self) -> Address {
        self.line.address()
    }

    /// Creates a sandbox. `request` is the body of `POST /v2/sandboxes`.
    pub async fn create(&self, request: &Value) -> Result<e2b::Sandbox> {
        parse(self.ask(Method::POST, "/v2/sandboxes", Some(request)).await?).await
    }

    /// All sandboxes, running and paused, the newest first.
    pub async fn list(&self) -> Result<Vec<e2b::ListedSandbox>> {
        let mut all = Vec::new();
        let mut path = "/v2/sandboxes?limit=100".to_owned();
        loop {
            let answer = self.ask(Method::GET, &path, None).await?;
            let next = answer.headers().get(NEXT_HEADER).and_then(|next| next.to_str().ok()).map(str::to_owned);
            all.extend(parse::<Vec<e2b::ListedSandbox>>(answer).await?);
            let Some(next) = next else { return Ok(all) };
            path = format!("/v2/sandboxes?limit=100&nextToken={}", encoded(&next));
        }
    }

    /// Everything about one sandbox.
    pub async fn sandbox(&self, id: &SandboxId) -> Result<e2b::SandboxDetail> {
        parse(self.ask(Method::GET, &format!("/sandboxes/{id}"), None).await?).await
    }

    /// Removes a sandbox, running or paused.
    pub async fn kill(&self, id: &SandboxId) -> Result<()> {
        self.ask(Method::DELETE, &format!("/sandboxes/{id}"), None).await.map(drop)
    }

    /// Ends a sandbox so many seconds from now.
    pub async fn set_timeout(&self, id: &SandboxId, seconds: u64) -> Result<()> {
        let body = json!({ "timeout": seconds });
        self.ask(Method::POST, &format!("/sandboxes/{id}/timeout"), Some(&body)).await.map(drop)
    }

    /// Replaces what a sandbox may reach, while it runs.
    pub async fn set_network(&self, id: &SandboxId, policy: &Value) -> Result<()> {
        self.ask(Method::PUT, &format!("/sandboxes/{id}/network"), Some(policy)).await.map(drop)
    }

    /// Pauses a sandbox, with its memory or with its files only.
    pub async fn pause(&self, id: &SandboxId, memory: bool) -> Result<()> {
        let body = json!({ "memory": memory });
        self.ask(Method::POST, &format!("/sandboxes/{id}/pause"), Some(&body)).await.map(drop)
    }

    /// Continues a paused sandbox. One that runs lives at least as long.
    pub async fn connect(&self, id: &SandboxId, timeout: Option<u64>, memory: bool) -> Result<e2b::Sandbox> {
        let mut body = json!({ "memory": memory });
        if let Some(timeout) = timeout {
            body["timeout"] = timeout.into();
        }
        parse(self.ask(Method::POST, &format!("/v2/sandboxes/{id}/connect"), Some(&body)).await?).await
    }

    /// Forks a sandbox, with its memory or its files only: one result for each copy.
    pub async fn fork(&self, id: &SandboxId, count: u32, timeout: u64, memory: bool) -> Result<Vec<e2b::ForkResult>> {
        let body = json!({ "count": count, "timeout": timeout, "memory": memory });
        parse(self.ask(Method::POST, &format!("/sandboxes/{id}/fork"), Some(&body)).await?).await
    }

    /// What sandboxes use now. Those that do not run are left out.
    pub async fn metrics(&self, ids: &[SandboxId]) -> Result<e2b::MetricsOf> {
        let mut all = e2b::MetricsOf { sandboxes: Default::default() };
        for ids in ids.chunks(METRICS_MAX) {
            let ids: Vec<&str> = ids.iter().map(SandboxId::as_str).collect();
            let path = format!("/sandboxes/metrics?sandbox_ids={}", ids.join(","));
            let found: e2b::MetricsOf = parse(self.ask(Method::GET, &path, None).await?).await?;
            all.sandboxes.extend(found.sandboxes);
        }
        Ok(all)
    }

    /// Commands and files of a sandbox.
    pub fn inside(&self, sandbox: &e2b::SandboxDetail) -> Result<Inside> {
        let mut headers = self.to_sandbox(&sandbox.sandbox_id, sandbox.domain.as_deref(), INSIDE_PORT)?;
        let token = sandbox.envd_access_token.as_deref().ok_or_else(|| {
            let message = "this key may only look: it cannot work inside sandboxes".to_owned();
            Error::Node(detail(ErrorCode::Conflict, message))
        })?;
        headers.insert(TOKEN_HEADER, header_value(token)?);
        Ok(Inside::new(self.line.clone(), String::new(), headers))
    }

    /// A port in a sandbox. The token is needed if its ports are not public.
    pub fn port(&self, sandbox: &e2b::SandboxDetail, token: Option<&str>, port: u16) -> Result<Port> {
        let mut headers = self.to_sandbox(&sandbox.sandbox_id, sandbox.domain.as_deref(), port)?;
        if let Some(token) = token {
            headers.insert(TRAFFIC_HEADER, header_value(token)?);
        }
        Ok(Port { line: self.line.clone(), headers })
    }

    /// The headers that lead to a port of a sandbox.
    fn to_sandbox(&self, id: &str, domain: Option<&str>, port: u16) -> Result<HeaderMap> {
        // A host below the domain counts more than headers, but for this name.
        let host = match domain {
            Some(domain) if !self.url.has_no_domain() => format!("sandbox.{domain}"),
            Some(_) | None => self.url.authority.clone(),
        };
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, header_value(&host)?);
        headers.insert(ID_HEADER, header_value(id)?);
        headers.insert(PORT_HEADER, port.into());
        Ok(headers)
    }

    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Response<Incoming>> {
        let request = Request::builder().method(method).uri(path);
        let request = request.header(header::HOST, &self.url.authority).header(KEY_HEADER, &self.key);
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.header(header::CONTENT_TYPE, "application/json").body(Full::new(Bytes::from(body)));
        let answer = self.line.send(request.map_err(|error| Error::Request(error.into()))?).await?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        Err(refused(answer).await)
    }
}

/// Text inside a query.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn header_value(text: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(text).map_err(|error| Error::Request(error.into()))
}

pub(crate) fn detail(code: ErrorCode, message: String) -> ErrorDetail {
    ErrorDetail { code, message, hint: None, details: Vec::new() }
}

/// The error in an answer of a server.
pub(crate) async fn refused(answer: Response<Incoming>) -> Error {
    let status = answer.status();
    let retry = answer.headers().get(header::RETRY_AFTER).and_then(|after| after.to_str().ok()).map(str::to_owned);
    let body = match answer.into_body().collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return Error::BrokenOff(error),
    };
    refusal(status, retry, &body)
}

/// The error that a body has.
pub(crate) fn refusal(status: StatusCode, retry: Option<String>, body: &[u8]) -> Error {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = body["message"].as_str().or(body["error"]["message"].as_str()).map(str::to_owned);
    let Some(message) = message else { return Error::Status(status) };
    // A proxy on the way says the same of a server that is away.
    let is_gone = status == StatusCode::BAD_GATEWAY && body["sandboxId"].is_string() && body["port"].is_null();
    let mut detail = detail(if is_gone { ErrorCode::NotFound } else { code_of(status) }, message);
    detail.hint = match (status, retry) {
        (StatusCode::UNAUTHORIZED, _) => Some("check PANDO_KEY or --key: `pando key ls` lists keys".to_owned()),
        (_, Some(after)) => Some(format!("try again in {after} s")),
        _ => None,
    };
    Error::Node(detail)
}

fn code_of(status: StatusCode) -> ErrorCode {
    match status {
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => ErrorCode::InvalidRequest,
        StatusCode::NOT_FOUND => ErrorCode::NotFound,
        StatusCode::INSUFFICIENT_STORAGE => ErrorCode::NoSpace,
        StatusCode::GATEWAY_TIMEOUT => ErrorCode::TimedOut,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY => ErrorCode::Interrupted,
        status if status.is_client_error() => ErrorCode::Conflict,
        _ => ErrorCode::Host,
    }
}

pub(crate) async fn parse<T: DeserializeOwned>(answer: Response<Incoming>) -> Result<T> {
    let body = answer.into_body().collect().await.map_err(Error::BrokenOff)?.to_bytes();
    serde_json::from_slice(&body).map_err(Error::NotUnderstood)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_server_itself_says_that_a_sandbox_is_gone() {
        let is_gone = |body: &str| refusal(StatusCode::BAD_GATEWAY, None, body.as_bytes()).is_not_found();
        assert!(is_gone(r#"{"sandboxId":"s0123456789ab","message":"The sandbox was not found","code":502}"#));
        for other in [
            r#"{"sandboxId":"s0123456789ab","message":"The sandbox is running but port is not open","port":80,"code":502}"#,
            r#"{"message":"upstream connect error"}"#,
            "<html>Bad Gateway</html>",
        ] {
            assert!(!is_gone(other), "{other}");
        }
    }
}
