//! The client of a server: E2B's REST API, and the services inside a sandbox with the JSON codec.

use std::{net::SocketAddr, sync::Arc};

use base::limits::{MCP_ANSWER_BYTES_MAX, MCP_ANSWER_TIMEOUT, MCP_CONNECT_TIMEOUT};
use reqwest::{
    Method, RequestBuilder, Response,
    dns::{Addrs, Name, Resolve, Resolving},
};
use serde_json::Value;

use crate::{Address, Error};

/// The port of commands and files in every sandbox.
const INSIDE_PORT: u16 = 49983;

/// A server, spoken to with one key.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    http: reqwest::Client,
    address: Address,
}

/// How requests reach one sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Inside {
    remote: Remote,
    id: String,
    base: String,
    token: String,
}

impl Remote {
    pub(crate) fn new(address: &Address) -> Result<Self, Error> {
        // A second call finds the provider installed, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .dns_resolver(Arc::new(Names))
            // The server is named, and often this machine: what the environment says of proxies is for other programs.
            .no_proxy()
            .connect_timeout(MCP_CONNECT_TIMEOUT)
            .build()
            .map_err(Error::Http)?;
        Ok(Self { http, address: address.clone() })
    }

    /// A request to the REST API, and the JSON that it answers. No answer is null.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Error> {
        let request = self.http.request(method, format!("{}{path}", self.address.api));
        let request = request.header("x-api-key", &self.address.key);
        let request = match body {
            Some(body) => request.header("content-type", "application/json").body(body.to_string()),
            None => request,
        };
        json(&send(request).await?)
    }

    /// A running sandbox. One that is paused is resumed.
    pub(crate) async fn inside(&self, id: &str) -> Result<Inside, Error> {
        let path = format!("/sandboxes/{}", segment(id)?);
        let mut detail = self.ask(Method::GET, &path, None).await?;
        if detail["state"] == "paused" {
            detail = self.ask(Method::POST, &format!("/v2{path}/connect"), Some(&serde_json::json!({}))).await?;
        }
        Ok(Inside {
            remote: self.clone(),
            id: id.to_owned(),
            base: self.address.of_sandboxes(detail["domain"].as_str()),
            token: detail["envdAccessToken"].as_str().unwrap_or_default().to_owned(),
        })
    }
}

impl Inside {
    /// A request to commands and files.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.routed(method, INSIDE_PORT, path).header("x-access-token", &self.token)
    }

    /// A request to a program's port.
    pub(crate) fn to_port(&self, port: u16, path: &str) -> RequestBuilder {
        self.routed(Method::POST, port, path)
    }

    /// A unary call.
    pub(crate) async fn call(&self, method: &str, body: &Value) -> Result<Value, Error> {
        let request = self.request(Method::POST, &format!("/{method}"));
        json(&send(request.header("content-type", "application/json").body(body.to_string())).await?)
    }

    fn routed(&self, method: Method, port: u16, path: &str) -> RequestBuilder {
        let request = self.remote.http.request(method, format!("{}{path}", self.base));
        request.header("e2b-sandbox-id", &self.id).header("e2b-sandbox-port", port)
    }
}

/// An id or a name as one segment of a path.
pub(crate) fn segment(id: &str) -> Result<&str, Error> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if id.is_empty() || id.starts_with('.') || !id.bytes().all(is_plain) {
        return Err(Error::Arguments(format!("{id:?} is no id of a sandbox: list_sandboxes shows them")));
    }
    Ok(id)
}

/// Sends a request, and takes the whole answer.
pub(crate) async fn send(request: RequestBuilder) -> Result<Vec<u8>, Error> {
    let response = accepted(request.timeout(MCP_ANSWER_TIMEOUT)).await?;
    let (body, is_whole) = bounded(response, MCP_ANSWER_BYTES_MAX).await?;
    if is_whole { Ok(body) } else { Err(Error::Form("it is too long")) }
}

/// Sends a request, and makes the server's refusal an error.
pub(crate) async fn accepted(request: RequestBuilder) -> Result<Response, Error> {
    let response = request.send().await.map_err(|error| Error::Unreachable(error.without_url()))?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let (body, _) = bounded(response, MCP_ANSWER_BYTES_MAX).await?;
    Err(Error::Refused { status: status.as_u16(), message: message(&body) })
}

/// The server's words in a refusal.
fn message(body: &[u8]) -> String {
    let told = serde_json::from_slice::<Value>(body).ok();
    let told = told.as_ref().and_then(|body| body["message"].as_str());
    told.map_or_else(|| "the server refused".to_owned(), str::to_owned)
}

/// At most so many bytes of a body, and whether that is all of it.
pub(crate) async fn bounded(mut response: Response, bytes_max: usize) -> Result<(Vec<u8>, bool), Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| Error::Unreachable(error.without_url()))? {
        let room = bytes_max - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            return Ok((body, false));
        }
    }
    Ok((body, true))
}

fn json(body: &[u8]) -> Result<Value, Error> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(body).map_err(Error::Answer)
}

/// Names below `localhost` are this machine (RFC 6761). Name servers need not know them.
struct Names;

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let host = name.as_str().to_ascii_lowercase();
            let found: Vec<SocketAddr> = if host.ends_with(".localhost") {
                vec![([127, 0, 0, 1], 0).into()]
            } else {
                tokio::net::lookup_host((host, 0)).await?.collect()
            };
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_stays_one_segment() {
        assert!(segment("i0123abc").is_ok());
        for wrong in ["", "..", "a/b", "a?b", "a b", "a%2fb", "ü"] {
            assert!(segment(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_refusal_has_the_servers_words() {
        assert_eq!(message(br#"{"code":404,"message":"there is no sandbox"}"#), "there is no sandbox");
        assert_eq!(message(b"<html>"), "the server refused");
    }
}
