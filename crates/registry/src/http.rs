//! Requests: each connects to what sandboxes may reach, and to nothing else, after redirects, too.

use std::{error::Error as StdError, io, sync::Arc, time::Duration};

use network::{Denied, Outside, Unresolved};
use reqwest::{
    Client, Method, NoProxy, Proxy, Response, StatusCode, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, LOCATION, RANGE, RETRY_AFTER},
    redirect::Policy,
};
use tokio::time::timeout;

use crate::{
    error::{Context, Error, Result},
    limits::{ANSWER_MAX, CONNECT_MAX, MESSAGE_BYTES_MAX, REDIRECTS_MAX, STEP_BYTES, STEP_MAX},
    settings::Settings,
};

/// Makes requests.
pub(crate) struct Http {
    client: Client,
    outside: Arc<Outside>,
    /// Hosts that are spoken to without TLS, as they are in URLs.
    plain: Vec<String>,
    /// The host of the operator's proxy: only it is connected to, whatever its address.
    proxy: Option<String>,
}

/// A request. Its header and its form may have secrets: it has no `Debug`.
#[derive(Clone)]
pub(crate) struct Ask<'a> {
    pub(crate) url: Url,
    /// For people: what is asked for.
    pub(crate) what: &'a str,
    pub(crate) accept: &'static str,
    /// The first byte that is wanted.
    pub(crate) from: u64,
    /// Goes to the host of `url` only.
    pub(crate) authorization: Option<HeaderValue>,
    /// A form that is posted.
    pub(crate) form: Option<String>,
}

impl<'a> Ask<'a> {
    pub(crate) fn of(url: Url, what: &'a str) -> Self {
        Self { url, what, accept: "*/*", from: 0, authorization: None, form: None }
    }
}

/// An answer, whatever its status.
pub(crate) struct Answer {
    pub(crate) response: Response,
    /// Who gave it, for people.
    pub(crate) host: String,
    what: String,
    /// What ended the body, told after the bytes before it.
    broken: Option<Error>,
    /// Whether it came from where the authorization was sent.
    pub(crate) is_own: bool,
}

impl Http {
    pub(crate) fn new(settings: &Settings, outside: Outside) -> Result<Self> {
        // The process has one provider of TLS primitives. A second call finds it installed, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let outside = Arc::new(outside);
        let mut builder = Client::builder()
            .user_agent(concat!("pando/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .connect_timeout(CONNECT_MAX)
            .pool_idle_timeout(Duration::from_secs(30))
            // Layers are stored compressed; what a transfer adds would spoil ranges.
            .no_gzip()
            .no_zstd()
            .no_brotli()
            .no_deflate();
        let mut host = None;
        builder = match &settings.proxy {
            Some(proxy) => {
                // As reqwest takes it.
                let proxy = if proxy.contains("://") { proxy.clone() } else { format!("http://{proxy}") };
                host = Url::parse(&proxy).ok().and_then(|url| url.host_str().map(str::to_owned));
                let none = settings.no_proxy.as_deref().and_then(NoProxy::from_string);
                builder.proxy(Proxy::https(&proxy).map_err(Error::Client)?.no_proxy(none))
            }
            None => builder.no_proxy(),
        };
        if let Some(path) = &settings.authorities {
            let bad = |source: reqwest::Error| Error::Authorities { path: path.clone(), source: source.into() };
            let pem = std::fs::read(path).at("read", path)?;
            builder = builder.tls_certs_merge(reqwest::Certificate::from_pem_bundle(&pem).map_err(bad)?);
        }
        let names = Names { outside: Arc::clone(&outside), proxy: host.clone() };
        let client = builder.dns_resolver(Arc::new(names)).build().map_err(Error::Client)?;
        let plain = settings.insecure.iter().map(|host| host.authority().to_owned()).collect();
        Ok(Self { client, outside, plain, proxy: host })
    }

    /// The URL of a path at a registry.
    pub(crate) fn url(&self, authority: &str, path: &str) -> Result<Url> {
        let scheme = if self.plain.iter().any(|plain| plain == authority) { "http" } else { "https" };
        let url = Url::parse(&format!("{scheme}://{authority}{path}"));
        url.map_err(|error| Error::Reference { name: authority.to_owned(), why: error.to_string() })
    }

    /// Asks, and follows redirects.
    pub(crate) async fn ask(&self, ask: Ask<'_>) -> Result<Answer> {
        let mut url = ask.url.clone();
        for _ in 0..=REDIRECTS_MAX {
            self.check(&url, ask.what)?;
            let is_own = url.origin() == ask.url.origin();
            let response = self.ask_once(&ask, &url, is_own).await?;
            let Some(next) = redirect(&response) else {
                return Ok(Answer { response, host: shown(&url), what: ask.what.to_owned(), broken: None, is_own });
            };
            let why = || format!("{} sends to a place that is no address", shown(&url));
            url = url.join(next).map_err(|_| Error::Redirect { what: ask.what.to_owned(), why: why() })?;
        }
        let why = format!("{} sends from one place to another more than {REDIRECTS_MAX} times", shown(&ask.url));
        Err(Error::Redirect { what: ask.what.to_owned(), why })
    }

    async fn ask_once(&self, ask: &Ask<'_>, url: &Url, is_own: bool) -> Result<Response> {
        let method = if ask.form.is_some() { Method::POST } else { Method::GET };
        let mut request = self.client.request(method, url.clone()).header(ACCEPT, ask.accept);
        if ask.from > 0 {
            request = request.header(RANGE, format!("bytes={}-", ask.from));
        }
        if let Some(authorization) = ask.authorization.as_ref().filter(|_| is_own) {
            request = request.header(AUTHORIZATION, authorization);
        }
        // It has a secret of that host.
        if let Some(form) = ask.form.as_ref().filter(|_| is_own) {
            request = request.header("content-type", "application/x-www-form-urlencoded").body(form.clone());
        }
        match timeout(ANSWER_MAX, request.send()).await {
            Err(_) => Err(Error::Slow { host: shown(url), what: ask.what.to_owned() }),
            Ok(answer) => answer.map_err(|error| failed(error, url, ask.what)),
        }
    }

    /// Whether the operator has named it so, with or without the usual port.
    fn is_plain(&self, url: &Url) -> bool {
        let host = url.host_str().unwrap_or_default();
        let with_port = |port: u16| self.plain.contains(&format!("{host}:{port}"));
        url.port_or_known_default().is_some_and(with_port)
            || (url.port().is_none() && self.plain.iter().any(|plain| plain == host))
    }

    /// Addresses in a URL are connected to without a question to [`Names`].
    fn check(&self, url: &Url, what: &str) -> Result<()> {
        let host = url.host_str().unwrap_or_default();
        let refuse = |why: String| Err(Error::Redirect { what: what.to_owned(), why });
        match url.scheme() {
            "https" => {}
            "http" if self.is_plain(url) => {}
            "http" => return refuse(format!("{} is to be spoken to without TLS", shown(url))),
            other => return refuse(format!("{} is to be spoken to by {other}", shown(url))),
        }
        if self.proxy.as_deref() == Some(host) {
            return refuse(format!("{host} is the node's proxy"));
        }
        match host.trim_matches(['[', ']']).parse() {
            Ok(address) => self.outside.check(host, address).map_err(|source| denied(source, what)),
            Err(_) => Ok(()),
        }
    }
}

impl Answer {
    /// Whether it has what was asked for. If not: what the host says of that.
    pub(crate) async fn checked(mut self) -> Result<Self> {
        let status = self.status();
        if matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
            return Ok(self);
        }
        let after = self.response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body = self.bytes_up_to(MESSAGE_BYTES_MAX).await.unwrap_or_default();
        let message = message_of(&body).map(|message| format!(": {message}")).unwrap_or_default();
        let (host, what) = (self.host, self.what);
        Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Error::Unauthorized { registry: host, what, message },
            StatusCode::NOT_FOUND => Error::NotFound { registry: host, what, message },
            status => {
                let (status, after) = (status.as_u16(), after.map(Duration::from_secs));
                Error::Answer { host, status, what, message, after }
            }
        })
    }

    /// All of a short answer.
    pub(crate) async fn bytes(&mut self, bytes_max: u64) -> Result<Vec<u8>> {
        let too_large = || Error::TooLarge { what: self.what.clone(), bytes_max };
        if self.length().is_some_and(|length| length > bytes_max) {
            return Err(too_large());
        }
        let bytes = self.bytes_up_to(bytes_max + 1).await?;
        if bytes.len() as u64 > bytes_max {
            return Err(Error::TooLarge { what: self.what.clone(), bytes_max });
        }
        Ok(bytes)
    }

    async fn bytes_up_to(&mut self, bytes_max: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < bytes_max {
            let step = self.step(usize::try_from(bytes_max).unwrap_or(usize::MAX)).await?;
            if step.is_empty() {
                break;
            }
            bytes.extend_from_slice(&step);
        }
        bytes.truncate(usize::try_from(bytes_max).unwrap_or(usize::MAX));
        Ok(bytes)
    }

    /// The next bytes of the body: at least [`STEP_BYTES`] or `bytes_max`, and fewer at its end, only. Nothing: it has ended. Memory: that, and one
    /// frame of the connection.
    pub(crate) async fn step(&mut self, bytes_max: usize) -> Result<Vec<u8>> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        let enough = bytes_max.min(STEP_BYTES as usize);
        let mut bytes = Vec::new();
        let read = async {
            while bytes.len() < enough {
                match self.response.chunk().await? {
                    Some(chunk) => bytes.extend_from_slice(&chunk),
                    None => break,
                }
            }
            Ok::<_, reqwest::Error>(())
        };
        let (host, what) = (self.host.clone(), self.what.clone());
        let error = match timeout(STEP_MAX, read).await {
            Ok(Ok(())) => return Ok(bytes),
            Ok(Err(error)) => Error::BrokenOff { host, what, source: Some(error.without_url().into()) },
            Err(_) => Error::Slow { host, what },
        };
        if bytes.is_empty() {
            return Err(error);
        }
        self.broken = Some(error);
        Ok(bytes)
    }

    /// Bytes of the body, if it says so.
    pub(crate) fn length(&self) -> Option<u64> {
        self.response.content_length()
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }
}

/// Where a redirect leads.
fn redirect(response: &Response) -> Option<&str> {
    let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = response.headers().get(LOCATION).filter(|_| is_redirect)?;
    location.to_str().ok()
}

/// For people: without a path, which may hold a signature.
fn shown(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn denied(source: Denied, what: &str) -> Error {
    Error::Denied { what: what.to_owned(), source }
}

fn failed(error: reqwest::Error, url: &Url, what: &str) -> Error {
    let (host, what) = (shown(url), what.to_owned());
    if let Some(Unresolved::Denied(source)) = cause(&error) {
        return denied(source.clone(), &what);
    }
    let is_of_tls = |error: &rustls::Error| {
        matches!(error, rustls::Error::InvalidCertificate(_) | rustls::Error::InvalidMessage(_))
    };
    if cause(&error).is_some_and(is_of_tls) {
        return Error::Tls { host, source: error.without_url().into() };
    }
    Error::Unreachable { host, what, source: error.without_url().into() }
}

/// The first cause of this type. Errors of input and output hide one.
fn cause<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        let hidden = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = hidden.map(|hidden| hidden as &(dyn StdError + 'static)).or_else(|| error.source());
    }
    None
}

/// What a registry says of an error (OCI's distribution specification), short and harmless.
fn message_of(body: &[u8]) -> Option<String> {
    const CHARACTERS_MAX: usize = 300;
    let document: serde_json::Value = serde_json::from_slice(body).ok()?;
    let first = &document["errors"][0];
    let message = first["message"].as_str().filter(|text| !text.is_empty()).or_else(|| first["code"].as_str())?;
    Some(base::text::one_line(&message.chars().take(CHARACTERS_MAX).collect::<String>()))
}

/// Resolves names to addresses that may be connected to.
struct Names {
    outside: Arc<Outside>,
    proxy: Option<String>,
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let outside = Arc::clone(&self.outside);
        let is_proxy = self.proxy.as_deref() == Some(name.as_str());
        Box::pin(async move {
            // The port is the connector's.
            let found = match is_proxy {
                true => tokio::net::lookup_host((name.as_str(), 0)).await?.collect(),
                false => outside.resolve(name.as_str(), 0).await?,
            };
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn behind_a_proxy_nothing_else_is_connected_to() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = format!("http://localhost:{}", listener.local_addr().unwrap().port());
        let asked = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut line = String::new();
            BufReader::new(&mut stream).read_line(&mut line).await.unwrap();
            stream.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            line
        });
        let settings = Settings { proxy: Some(proxy), ..Settings::default() };
        let http = Http::new(&settings, Outside::of(&network::Settings::default(), None)).unwrap();
        let ask = async |url: &str| http.ask(Ask::of(url.parse().unwrap(), "something")).await.err().unwrap();
        // The proxy resolves names: none of this machine is asked.
        let refused = ask("https://registry.invalid/v2/").await;
        assert!(matches!(refused, Error::Unreachable { .. }), "{refused}");
        assert_eq!(asked.await.unwrap(), "CONNECT registry.invalid:443 HTTP/1.1\r\n");
        assert!(matches!(ask("https://10.0.0.1/v2/").await, Error::Denied { .. }));
        assert!(matches!(ask("https://localhost/v2/").await, Error::Redirect { .. }));
    }

    #[test]
    fn plain_http_is_for_registries_that_are_named() {
        let hosts = ["a.example", "b.example:80", "c.example:5000"];
        let insecure = hosts.map(|host| crate::reference::Host::parse(host).unwrap()).to_vec();
        let settings = Settings { insecure, ..Settings::default() };
        let http = Http::new(&settings, Outside::of(&network::Settings::default(), None)).unwrap();
        for host in hosts {
            let url = http.url(host, "/v2/").unwrap();
            assert!(url.scheme() == "http" && http.check(&url, "something").is_ok(), "{host}");
        }
        for wrong in ["http://c.example/", "http://a.example:81/", "http://d.example/", "ftp://a.example/"] {
            assert!(http.check(&wrong.parse().unwrap(), "something").is_err(), "{wrong}");
        }
        assert_eq!(http.url("d.example", "/v2/").unwrap().scheme(), "https");
    }

    #[test]
    fn messages_of_registries_are_short_and_harmless() {
        let said = |message: &str| {
            message_of(serde_json::json!({"errors": [{"code": "X", "message": message}]}).to_string().as_bytes())
        };
        assert_eq!(said("manifest unknown").as_deref(), Some("manifest unknown"));
        assert_eq!(said("").as_deref(), Some("X"));
        assert_eq!(said("a\n\u{1b}[2J").as_deref(), Some("a\\n\\u{1b}[2J"));
        assert_eq!(said(&"x".repeat(1000)).map(|text| text.len()), Some(300));
        assert_eq!(message_of(b"<html>"), None);
    }
}
