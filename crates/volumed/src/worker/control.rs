//! Mounts for clients, by descriptor, and who holds them.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::net::{SocketFlags, accept_with};
use tokio::{io::unix::AsyncFd, sync::watch};
use volume::VolumeError;

use super::table::Table;
use crate::{
    error::chain,
    failure::{Failure, Result},
    http::{detail, status},
    limits::{HOLDER_BYTES_MAX, HOLDERS_BYTES_MAX},
    message::{self, Access, Attach, Reply, Request, Source},
};

type Watched = AsyncFd<OwnedFd>;
type Stop = Arc<watch::Sender<bool>>;

/// Takes clients until the process ends. A shutdown that a client asks for is told to `stop`.
pub(super) async fn listen(listener: OwnedFd, table: Arc<Table>, stop: Stop) {
    let listener = match watched(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(error = chain(&error), "no mounts can be asked for"),
    };
    loop {
        let accept = |socket: &OwnedFd| Ok(accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?);
        match listener.async_io(tokio::io::Interest::READABLE, accept).await {
            Ok(client) => drop(tokio::spawn(serve(client, table.clone(), stop.clone()))),
            Err(error) => {
                tracing::warn!(error = chain(&error), "a client cannot be taken");
                tokio::time::sleep(crate::limits::TICK).await;
            }
        }
    }
}

/// Until it has nothing to ask any more.
async fn serve(client: OwnedFd, table: Arc<Table>, stop: Stop) {
    let answer_all = async {
        let client = watched(client)?;
        let readable = tokio::io::Interest::READABLE;
        while let Some((request, _)) = client.async_io(readable, |client| message::receive::<Request>(client)).await? {
            table.touch();
            let (table, ours) = (table.clone(), stop.clone());
            // To its end, although the client may go away.
            let answered = tokio::spawn(async move { answer(&table, &ours, request).await }).await;
            let (reply, mount) = match answered.unwrap_or(Err(Failure::Interrupted)) {
                Ok(answered) => answered,
                Err(failure) => (Reply::Refused { status: status(&failure).as_u16(), error: detail(&failure) }, None),
            };
            let descriptors: Vec<_> = mount.iter().map(AsFd::as_fd).collect();
            client
                .async_io(tokio::io::Interest::WRITABLE, |client| message::send(client, &reply, &descriptors))
                .await?;
        }
        Ok::<_, io::Error>(())
    };
    if let Err(error) = answer_all.await {
        tracing::debug!(error = chain(&error), "a client broke off, or does not speak as it should");
    }
}

async fn answer(table: &Arc<Table>, stop: &Stop, request: Request) -> Result<(Reply, Option<OwnedFd>)> {
    match request {
        Request::Attach(attach) => Ok((Reply::Done, Some(self::attach(table, attach).await?))),
        Request::Detach { holder } => {
            table.link.remove_holder(&holder);
            Ok((Reply::Done, None))
        }
        Request::Holders => Ok((holders(table.link.all_holders(), ""), None)),
        Request::HoldersAfter { after } => Ok((holders(table.link.all_holders(), &after), None)),
        Request::Shutdown => {
            let holders = table.link.all_holders();
            if !holders.is_empty() {
                return Err(Failure::InUse { holders });
            }
            table.close_all().await;
            stop.send_replace(true);
            Ok((Reply::Done, None))
        }
    }
}

/// As many of `all` behind `after` as fit into a message, `all` in order.
fn holders(all: Vec<String>, after: &str) -> Reply {
    let mut rest = all.into_iter().filter(|holder| holder.as_str() > after).peekable();
    let (mut some, mut bytes) = (Vec::new(), 0);
    // With quotes and a comma. The longest name alone is below the bound.
    while let Some(holder) = rest.next_if(|holder| bytes + holder.len() + 3 <= HOLDERS_BYTES_MAX) {
        bytes += holder.len() + 3;
        some.push(holder);
    }
    if rest.peek().is_none() { Reply::Holders(some) } else { Reply::SomeHolders(some) }
}

async fn attach(table: &Arc<Table>, Attach { volume, snapshot, holder, access }: Attach) -> Result<OwnedFd> {
    if holder.is_empty() || holder.len() > HOLDER_BYTES_MAX || holder.chars().any(char::is_control) {
        return Err(Failure::invalid(format!(
            "a holder's name has 1 to {HOLDER_BYTES_MAX} bytes, without control characters"
        )));
    }
    let source = Source::new(volume, snapshot);
    let opened = match access {
        Access::ReadOnly => table.open_to_read(&source).await?,
        Access::ReadWrite => table.open(&source).await?,
    };
    if opened.source.is_current() && access == Access::ReadWrite && opened.engine().is_read_only() {
        return Err(VolumeError::ReadOnly { name: opened.source.volume.to_string() }.into());
    }
    let link = table.link.clone();
    table.work.run_whole(move || opened.attach(&link, &holder, access)).await
}

/// Has the runtime watch it; it must be non-blocking.
fn watched(fd: OwnedFd) -> io::Result<Watched> {
    // Deprecated because a type of the caller's could answer with another descriptor each time. `OwnedFd` cannot, and the successor is an
    // unsafe function, which this crate has none of.
    #[allow(deprecated)]
    AsyncFd::new(fd)
}
