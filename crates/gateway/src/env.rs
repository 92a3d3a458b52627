//! The variables with which the SDKs and `pando` find this server.
//!
//! Where the names below the domain resolve, SDKs get the domain and the authorities to trust. Elsewhere they get plain
//! addresses: everything works but the links to ports and files that a browser opens.

mod names;

use std::{
    fmt::Write,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::net::TcpStream;

use crate::{
    domain::Domain,
    tls::{self, Authority},
};

pub use names::{HINT as NAMES_HINT, Unresolved, resolve};

/// The file of a running server's variables, below its state directory.
pub const FILE: &str = "env";

/// The first line of that file: where the server listens.
const ADDRESS_MARK: &str = "# pando serve listens on ";

/// A server on this machine answers at once.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// How SDKs reach the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// By names and TLS.
    Names {
        /// The domain with the port.
        domain: Domain,
        /// The files of the local authority. `None` if the certificate is one that all clients trust.
        trust: Option<Trust>,
    },
    /// By address and plain HTTP.
    Plain {
        /// Where the server listens.
        address: SocketAddr,
    },
}

impl Form {
    /// Names if they resolve on this machine. Otherwise the log says what to install, and SDKs get plain addresses.
    pub async fn choose(domain: &Domain, trust: Option<Trust>, listens_on: SocketAddr) -> Self {
        let Err(error) = resolve(domain).await else { return Self::Names { domain: domain.clone(), trust } };
        let hint = if domain.is_local() { NAMES_HINT } else { "add the name and *.NAME to your name server" };
        tracing::warn!(%error, hint, "names of sandboxes do not resolve: SDKs on this machine get plain addresses");
        Self::Plain { address: listens_on }
    }
}

/// The files of a local authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    /// For clients that take one file only.
    pub bundle: PathBuf,
    /// For clients that add to the system's authorities.
    pub authority: PathBuf,
}

impl From<&Authority> for Trust {
    fn from(authority: &Authority) -> Self {
        Self { bundle: authority.bundle_file(), authority: authority.certificate_file() }
    }
}

/// The variables of one server.
#[derive(Clone)]
pub struct Variables(Vec<(String, String)>);

/// The variables cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no file.
    #[error("no server runs with the state directory {dir}: start one with `pando serve --state {dir}`")]
    NoServer {
        /// The state directory.
        dir: PathBuf,
    },
    /// The file is there, its server is not.
    #[error("the server at {address} does not answer: start it again with `pando serve --state {dir}`")]
    NoAnswer {
        /// The state directory.
        dir: PathBuf,
        /// Where it should listen.
        address: String,
    },
    /// The file cannot be read.
    #[error("cannot read {path}: run this as the user of the server, or use its --env-file")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A line of the file is no variable.
    #[error("{path}:{line} is no variable: start the server again, it writes the file")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A value has a line end, which these files cannot hold.
    #[error("the value of {name} has a line end: choose another path")]
    Value {
        /// The variable.
        name: String,
    },
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] tls::Error),
}

impl Variables {
    /// The variables for a key and a way to the server.
    pub fn new(api_key: &str, form: &Form) -> Result<Self, Error> {
        // Ours last: SDKs do not know them.
        let ours = |url: String| [("PANDO_URL", url), ("PANDO_KEY", api_key.to_owned())];
        let mut found = vec![("E2B_API_KEY", api_key.to_owned())];
        match form {
            Form::Names { domain, trust } => {
                found.push(("E2B_DOMAIN", domain.to_string()));
                if let Some(Trust { bundle, authority }) = trust {
                    found.push(("SSL_CERT_FILE", bundle.display().to_string()));
                    found.push(("NODE_EXTRA_CA_CERTS", authority.display().to_string()));
                }
                found.extend(ours(format!("https://api.{domain}")));
            }
            Form::Plain { address } => {
                let url = format!("http://{}", reachable(*address));
                found.extend(["E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL"].map(|name| (name, url.clone())));
                found.extend(ours(url));
            }
        }
        match found.iter().find(|(_, value)| value.contains(['\n', '\r', '\0'])) {
            Some((name, _)) => Err(Error::Value { name: (*name).to_owned() }),
            None => Ok(Self(found.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())),
        }
    }

    /// Names and values.
    pub fn pairs(&self) -> &[(String, String)] {
        &self.0
    }

    /// One `KEY=value` in each line, as docker, systemd and dotenv read it.
    pub fn lines(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, (name, value)| {
            let _ = writeln!(text, "{name}={value}");
            text
        })
    }

    /// For `eval "$(pando env)"`.
    pub fn shell(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, (name, value)| {
            let _ = writeln!(text, "export {name}='{}'", value.replace('\'', r"'\''"));
            text
        })
    }

    /// Writes the lines to a file, mode 0600: it has the key. A reader sees all of them or the earlier file.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        Ok(tls::write_file(path, self.lines().as_bytes(), 0o600)?)
    }

    /// Leaves them for [`running`], with the address of the server.
    pub fn leave(&self, state_dir: &Path, listens_on: SocketAddr) -> Result<(), Error> {
        let text = format!("{ADDRESS_MARK}{}\n{}", reachable(listens_on), self.lines());
        Ok(tls::write_file(&state_dir.join(FILE), text.as_bytes(), 0o600)?)
    }
}

/// Removes what [`Variables::leave`] has left: the server ends.
pub fn withdraw(state_dir: &Path) {
    // It may never have come so far.
    let _ = std::fs::remove_file(state_dir.join(FILE));
}

/// The variables of the server that runs with this state directory.
pub async fn running(state_dir: &Path) -> Result<Variables, Error> {
    let (dir, path) = (state_dir.to_owned(), state_dir.join(FILE));
    let text = std::fs::read_to_string(&path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => Error::NoServer { dir: dir.clone() },
        _ => Error::Read { path: path.clone(), source },
    })?;
    let (address, variables) = parse(&text).map_err(|line| Error::Line { path, line })?;
    let connected = tokio::time::timeout(CONNECT_MAX, TcpStream::connect(address)).await;
    match connected {
        // A socket that is connected to itself is no server.
        Ok(Ok(stream)) if stream.local_addr().is_ok_and(|own| own != address) => Ok(variables),
        Ok(Ok(_) | Err(_)) | Err(_) => Err(Error::NoAnswer { dir, address: address.to_string() }),
    }
}

/// The line that is no variable, if there is one.
fn parse(text: &str) -> Result<(SocketAddr, Variables), usize> {
    let mut lines = text.lines();
    let address = lines.next().and_then(|line| line.strip_prefix(ADDRESS_MARK)?.parse().ok()).ok_or(1_usize)?;
    let pair = |(at, line): (usize, &str)| {
        line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).ok_or(at + 2)
    };
    Ok((address, Variables(lines.enumerate().map(pair).collect::<Result<_, _>>()?)))
}

/// A server that listens everywhere is reached on this machine by its loopback address.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests;
