//! TCP connections into a sandbox's own network namespace.

use std::{
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream as StdStream},
    time::Duration,
};

use base::id::SandboxId;
use tokio::net::TcpStream;

use super::{Node, lifecycle::Operation};
use crate::error::{Context, Error, Result};

/// A loopback connection is made or refused at once; this is for a program whose queue is full.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Where programs listen that other hosts cannot reach: the IPv6 one only where nothing listens on the other.
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

impl Node {
    /// Connects to a port of the program in a sandbox.
    #[tracing::instrument(skip_all, fields(sandbox = %id))]
    pub async fn dial(&self, id: &SandboxId, port: u16) -> Result<TcpStream> {
        self.admits(id, Operation::Connect)?;
        let init = self.state().running(id)?.init;
        for ip in LOOPBACK {
            // A handful of system calls: not worth a way to the keeper, nor a thread.
            let stream = match sandbox::dial(init, ip, port) {
                // A host without IPv6.
                Err(_) if ip.is_ipv6() => break,
                stream => stream?,
            };
            if let Some(stream) = connected(stream).await? {
                return Ok(stream);
            }
        }
        Err(Error::PortClosed { id: id.clone(), port })
    }
}

/// `None` if no program listens there.
async fn connected(stream: StdStream) -> Result<Option<TcpStream>> {
    let stream = TcpStream::from_std(stream).doing("take the connection")?;
    let writable = tokio::time::timeout(CONNECT_MAX, stream.writable()).await;
    let deadline_ms = CONNECT_MAX.as_millis() as u64;
    writable
        .map_err(|_| Error::Deadline { action: "connect to the sandbox", deadline_ms })?
        .doing("connect to the sandbox")?;
    match stream.take_error().doing("connect to the sandbox")? {
        None => Ok(Some(stream)),
        Some(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(None),
        Some(error) => Err(error).doing("connect to the sandbox"),
    }
}
