//! TCP connections into a sandbox's own network namespace.

use std::time::Duration;

use base::id::SandboxId;
use tokio::net::TcpStream;

use super::{Node, lifecycle::Operation};
use crate::error::{Context, Error, Result};

/// A loopback connection is made or refused at once; this is for a program whose queue is full.
const CONNECT_MAX: Duration = Duration::from_secs(10);

impl Node {
    /// Connects to a port of the program in a sandbox.
    #[tracing::instrument(skip_all, fields(sandbox = %id))]
    pub async fn dial(&self, id: &SandboxId, port: u16) -> Result<TcpStream> {
        self.admits(id, Operation::Connect)?;
        let init = self.state().running(id)?.init;
        // A handful of system calls: not worth a way to the keeper, nor a thread.
        let stream = sandbox::dial(init, port)?;
        let stream = TcpStream::from_std(stream).doing("take the connection")?;
        let writable = tokio::time::timeout(CONNECT_MAX, stream.writable()).await;
        let deadline_ms = CONNECT_MAX.as_millis() as u64;
        writable
            .map_err(|_| Error::Deadline { action: "connect to the sandbox", deadline_ms })?
            .doing("connect to the sandbox")?;
        match stream.take_error().doing("connect to the sandbox")? {
            None => Ok(stream),
            Some(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                Err(Error::PortClosed { id: id.clone(), port })
            }
            Some(error) => Err(error).doing("connect to the sandbox"),
        }
    }
}
