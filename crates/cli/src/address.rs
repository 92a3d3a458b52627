//! Where commands go: to a node by its socket, or to a server by its URL.

use std::path::PathBuf;

use anyhow::Result;
use client::{Client, Server, Url};
use node::config::SOCKET_DEFAULT;

use crate::{
    commands::GLOBAL,
    exit::Failure,
    target::{Target, needs_node},
};

const SOCKET_VARIABLE: &str = "PANDO_SOCKET";
const URL_VARIABLE: &str = "PANDO_URL";
const KEY_VARIABLE: &str = "PANDO_KEY";

/// What names the node or the server.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Address {
    /// Socket of the node. Environment: `PANDO_SOCKET`. Default: `/run/pando/node.sock`.
    #[arg(long, global = true, value_name = "PATH", conflicts_with = "url", help_heading = GLOBAL)]
    socket: Option<PathBuf>,
    /// URL of a server, for daily work with sandboxes: https://HOST:PORT. It counts more than the socket's variable.
    /// Environment: `PANDO_URL`.
    #[arg(long, global = true, value_name = "URL", help_heading = GLOBAL)]
    url: Option<Url>,
    /// API key of the server's team. Environment: `PANDO_KEY`.
    #[arg(long, global = true, value_name = "KEY", conflicts_with = "socket", help_heading = GLOBAL)]
    key: Option<String>,
}

/// A variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Address {
    /// The socket, for what only a node can do.
    pub(crate) fn socket(&self) -> PathBuf {
        let named = self
            .socket
            .clone()
            .or_else(|| std::env::var_os(SOCKET_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from));
        named.unwrap_or_else(|| SOCKET_DEFAULT.into())
    }

    fn node(&self) -> Client {
        Client::new(self.socket())
    }

    /// The node, for what only a node can do. Flags that name a server are an error: the command would change another place.
    pub(crate) fn only_node(&self) -> Result<Client> {
        match self.url.is_some() || self.key.is_some() {
            true => Err(needs_node("this command")),
            false => Ok(self.node()),
        }
    }

    /// The URL and the key that flags name.
    pub(crate) fn flags(&self) -> (Option<String>, Option<String>) {
        (self.url.as_ref().map(Url::to_string), self.key.clone())
    }

    /// What daily work with sandboxes goes to.
    pub(crate) fn target(&self) -> Result<Box<dyn Target>> {
        Ok(match self.server()? {
            Some(server) => Box::new(server),
            None => Box::new(self.node()),
        })
    }

    /// The server, if one is named: flags count first, then the variables of a server, then the socket.
    pub(crate) fn server(&self) -> Result<Option<Server>> {
        let named = if self.socket.is_some() { None } else { variable(URL_VARIABLE) };
        let (url, by) = match (&self.url, named) {
            (Some(url), _) => (url.clone(), "--url"),
            (None, Some(text)) => {
                let url = text.parse().map_err(|error| Failure::Usage(format!("{URL_VARIABLE}: {error}")))?;
                (url, URL_VARIABLE)
            }
            (None, None) if self.key.is_some() => {
                let message = format!("--key is for a server: name it with --url or {URL_VARIABLE}");
                return Err(Failure::Usage(message).into());
            }
            (None, None) => return Ok(None),
        };
        let key = self.key.clone().or_else(|| variable(KEY_VARIABLE)).ok_or_else(|| {
            Failure::Usage(format!(
                "{by} names the server at {url}, and there is no key: set {KEY_VARIABLE} or --key; \
                 `pando key create` makes one"
            ))
        })?;
        Ok(Some(Server::new(url, &key)?))
    }
}
