//! TCP connections into a sandbox's own network namespace.

use std::{net::TcpStream as StdStream, time::Duration};

use base::id::SandboxId;
use tokio::net::TcpStream;

use super::{CREATE_DEADLINE, Node, unexpected};
use crate::{
    error::{Context, Error, Result},
    keeper::message::{Reply, Request},
};

/// A loopback connection is made or refused at once; this is for a program whose queue is full.
const CONNECT_MAX: Duration = Duration::from_secs(10);

impl Node {
    /// Connects to a port of the program in a sandbox.
    pub(crate) async fn dial(&self, id: &SandboxId, port: u16) -> Result<TcpStream> {
        self.state().running(id)?;
        let keeper = self.keeper("connect to the sandbox").await?;
        let request = Request::Dial { id: id.clone(), port };
        let answer = keeper.call("connect to the sandbox", request, &[], CREATE_DEADLINE).await?;
        let (Reply::Dialed, Some(socket)) = (&answer.reply, answer.descriptors.into_iter().next()) else {
            return Err(unexpected("connect to the sandbox", &answer.reply));
        };
        let stream = TcpStream::from_std(StdStream::from(socket)).doing("take the connection")?;
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
