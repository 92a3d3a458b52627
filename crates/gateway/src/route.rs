//! Where a request goes: to the API, to envd on behalf of a sandbox, or to a port in a sandbox.
//!
//! [`route`] is pure. The rule is E2B's: a host below the domain decides by its left-most label. Only where the host
//! says nothing about a sandbox (`localhost`, an address, `sandbox.<domain>`), headers may name one.

mod host;

use std::fmt;

use base::limits::NAME_BYTES_MAX;
use hyper::{header, http::request::Parts};

use crate::domain::{Domain, is_label, port_number};
use host::Host;

/// The port of envd. The server answers requests to this port itself; programs cannot be reached on it.
pub const ENVD_PORT: u16 = 49983;

/// Names the sandbox where the host cannot.
pub const SANDBOX_ID_HEADER: &str = "e2b-sandbox-id";
/// Names the port, beside [`SANDBOX_ID_HEADER`].
pub const SANDBOX_PORT_HEADER: &str = "e2b-sandbox-port";

/// What a client calls a sandbox: a label of a host name, in lower case. Whether such a sandbox exists is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SandboxLabel(String);

impl SandboxLabel {
    /// Takes a label of a host name; `None` if the text is none.
    pub fn new(text: &str) -> Option<Self> {
        is_label(text).then(|| Self(text.to_ascii_lowercase()))
    }

    /// The label as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// To the REST API, the volume content API and the console.
    Api,
    /// To the services of envd, which the server provides for the sandbox.
    Envd {
        /// The sandbox.
        id: SandboxLabel,
    },
    /// To a port of a program in the sandbox.
    Port {
        /// The sandbox.
        id: SandboxLabel,
        /// The port, never [`ENVD_PORT`].
        port: u16,
    },
}

/// A request goes nowhere. The answer is 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unroutable {
    /// There is no host, or it is no host name and no address, or there are two.
    #[error("invalid host")]
    InvalidHost,
    /// The host is neither the domain nor below it.
    #[error("unknown host {host}: use api.{domain} or PORT-SANDBOX.{domain}")]
    UnknownHost {
        /// The beginning of what the client sent.
        host: String,
        /// The domain of this server.
        domain: String,
    },
    /// Only one of the two routing headers is there, or none where one is needed.
    #[error("missing header {0}")]
    MissingHeader(&'static str),
    /// The port is no number from 1 to 65535.
    #[error("invalid sandbox port")]
    InvalidPort,
    /// The text cannot be the name of a sandbox.
    #[error("invalid sandbox id")]
    InvalidId,
}

/// The parts of a request that decide.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked<'a> {
    /// The host, perhaps with a port.
    pub host: Option<&'a str>,
    /// The value of [`SANDBOX_ID_HEADER`].
    pub sandbox_id: Option<&'a str>,
    /// The value of [`SANDBOX_PORT_HEADER`].
    pub sandbox_port: Option<&'a str>,
}

impl<'a> Asked<'a> {
    /// Reads a request. Its target counts before the `Host` header (RFC 9112, 3.2.2). If neither is there, the name
    /// from the TLS handshake counts.
    pub fn of(request: &'a Parts, server_name: Option<&'a str>) -> Result<Self, Unroutable> {
        let mut hosts = request.headers.get_all(header::HOST).iter();
        let (first, second) = (hosts.next(), hosts.next());
        let host = match (request.uri.authority(), first, second) {
            (_, _, Some(_)) => return Err(Unroutable::InvalidHost),
            (Some(authority), _, None) => Some(authority.as_str()),
            (None, Some(host), None) => Some(host.to_str().map_err(|_| Unroutable::InvalidHost)?),
            (None, None, None) => server_name,
        };
        // Bytes that are no text must not count as an absent header.
        let value = |name| request.headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        Ok(Self { host, sandbox_id: value(SANDBOX_ID_HEADER), sandbox_port: value(SANDBOX_PORT_HEADER) })
    }
}

/// Decides where a request goes.
pub fn route(asked: Asked<'_>, domain: &Domain) -> Result<Route, Unroutable> {
    let text = asked.host.ok_or(Unroutable::InvalidHost)?;
    let unknown =
        || Unroutable::UnknownHost { host: text.chars().take(NAME_BYTES_MAX).collect(), domain: domain.to_string() };
    match Host::parse(text, domain.name()).ok_or(Unroutable::InvalidHost)? {
        Host::Local => Ok(by_headers(asked)?.unwrap_or(Route::Api)),
        Host::Domain => Ok(Route::Api),
        Host::Elsewhere => Err(unknown()),
        Host::Below(label) => match label.as_str() {
            "api" => Ok(Route::Api),
            "sandbox" => by_headers(asked)?.ok_or(Unroutable::MissingHeader(SANDBOX_ID_HEADER)),
            label => by_label(label)?.ok_or_else(unknown),
        },
    }
}

/// `PORT-SANDBOX`. `None` if the label has no hyphen.
fn by_label(label: &str) -> Result<Option<Route>, Unroutable> {
    label.split_once('-').map(|(port, id)| to(id, port)).transpose()
}

/// `None` if neither header is there.
fn by_headers(asked: Asked<'_>) -> Result<Option<Route>, Unroutable> {
    // An empty header counts as none, as at E2B.
    let given = |value: Option<&'_ str>| value.filter(|value| !value.is_empty()).map(str::to_owned);
    match (given(asked.sandbox_id), given(asked.sandbox_port)) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Unroutable::MissingHeader(SANDBOX_ID_HEADER)),
        (Some(_), None) => Err(Unroutable::MissingHeader(SANDBOX_PORT_HEADER)),
        (Some(id), Some(port)) => to(&id, &port).map(Some),
    }
}

fn to(id: &str, port: &str) -> Result<Route, Unroutable> {
    let port = port_number(port).ok_or(Unroutable::InvalidPort)?;
    let id = SandboxLabel::new(id).ok_or(Unroutable::InvalidId)?;
    Ok(if port == ENVD_PORT { Route::Envd { id } } else { Route::Port { id, port } })
}

#[cfg(test)]
mod tests;
