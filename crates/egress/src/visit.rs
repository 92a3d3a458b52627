//! One connection of a sandbox.

use std::{net::SocketAddrV4, sync::Arc, time::Duration};

use model::DomainName;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy_bidirectional_with_sizes},
    net::TcpStream,
    time::timeout,
};

use crate::{
    client::{Client, Moved},
    head::{self, Head},
    http::Requests,
    proxy::Proxy,
    route::{Guest, Refused, Route},
};

/// How long nothing may move.
const IDLE_MAX: Duration = Duration::from_secs(3_600);
/// How long the handshake with a sandbox may take, where the proxy speaks for the host; and with the host.
pub(crate) const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Of each direction of a connection that is passed on.
const BUFFER_BYTES: usize = 16 << 10;

/// A record with the alert that ends a handshake (RFC 8446, 6): clients say "access denied".
const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// See the module.
pub(crate) struct Visit {
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) guest: Guest,
    /// Where the sandbox wants to go.
    pub(crate) to: SocketAddrV4,
}

impl Visit {
    pub(crate) async fn run(self, stream: TcpStream) -> Result {
        let moved = Moved::default();
        let guest = self.guest.clone();
        tokio::select! {
            passed = self.pass(stream, moved.clone()) => passed,
            () = guest.loses() => Err("its policy does not allow it any more".into()),
            () = moved.rests(IDLE_MAX) => Err("nothing moved for too long".into()),
        }
    }

    async fn pass(self, mut stream: TcpStream, moved: Moved) -> Result {
        stream.set_nodelay(true)?;
        let (head, first) = head::read(&mut stream).await?;
        let mut client = Client::new(first, stream, moved);
        let reach = self.guest.reach();
        let is_ruled = |name: &DomainName| reach.rule(name, self.to.port()).is_some() && self.may_reach(name);
        match head {
            Head::Tls(Some(name)) if is_ruled(&name) => {
                let client = timeout(HANDSHAKE_MAX, self.proxy.tls.accept(client)).await??;
                Requests::of(self, Some(name)).serve(client).await
            }
            Head::Tls(name) => {
                let passed = self.pass_tls(name, &mut client).await;
                if let Err(error) = &passed
                    && error.downcast_ref().is_some_and(Refused::is_by_policy)
                {
                    client.write_all(&ACCESS_DENIED).await?;
                }
                passed
            }
            Head::Other if !reach.permits(self.to) => Requests::of(self, None).serve(client).await,
            Head::Other | Head::Silence => self.pass_on(&mut client).await,
        }
    }

    /// By its name, or because of the address that the sandbox has chosen: that of the name is looked at once more.
    pub(crate) fn may_reach(&self, name: &DomainName) -> bool {
        let reach = self.guest.reach();
        reach.allows(name, self.to.port()) || reach.permits(self.to)
    }

    async fn pass_tls(&self, name: Option<DomainName>, client: &mut Client) -> Result {
        let reach = self.guest.reach();
        match name {
            Some(name) if reach.allows(&name, self.to.port()) => {
                let upstream = self.proxy.connect_to(&self.guest, &name, self.to.port()).await?;
                join(client, upstream).await
            }
            Some(name) if !reach.permits(self.to) => Err(Refused::Name(name).into()),
            Some(_) | None => self.pass_on(client).await,
        }
    }

    /// As if there were no proxy.
    async fn pass_on(&self, client: &mut Client) -> Result {
        let upstream = self.proxy.connect(&self.guest, &Route { name: None, address: self.to }).await?;
        join(client, upstream).await
    }
}

/// Until both ends have ended, or one breaks off.
pub(crate) async fn join(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    mut upstream: impl AsyncRead + AsyncWrite + Unpin,
) -> Result {
    copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER_BYTES, BUFFER_BYTES).await?;
    Ok(())
}
