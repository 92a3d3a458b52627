//! Takes the one TCP port of a server.

use std::{
    fmt, io,
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener as StdListener},
    task::Poll,
};

use procfs::Holder;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use tokio::net::{TcpListener, TcpStream};

/// Clients that may wait until they are accepted: as many as the kernel allows by default (`net.core.somaxconn`).
const BACKLOG: i32 = 4_096;

/// Ports that are tried if any will do: two sockets must have the same.
const PORTS_TRIED: usize = 16;

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process has it.
    #[error("{address} is in use{}: end it, or choose another address with `--listen {}:0`", By(.holder), .address.ip())]
    Taken {
        /// The address.
        address: SocketAddr,
        /// The process, where this one may see it.
        holder: Option<Holder>,
    },
    /// Anything else.
    #[error("cannot listen on {address}: choose another address with --listen")]
    Failed {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
}

struct By<'a>(&'a Option<Holder>);

impl fmt::Display for By<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(Holder { pid, name }) => write!(f, " by {} (process {pid})", base::text::one_line(name)),
            None => f.write_str(" by another process"),
        }
    }
}

/// The sockets of a server: one, or two that have the same port.
#[derive(Debug)]
pub struct Listeners {
    address: SocketAddr,
    sockets: Vec<TcpListener>,
}

impl Listeners {
    /// The address that was asked for, with the port that it got.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection on any of them.
    pub(crate) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        std::future::poll_fn(|cx| {
            let accepted = self.sockets.iter().map(|socket| socket.poll_accept(cx)).find(Poll::is_ready);
            accepted.unwrap_or(Poll::Pending)
        })
        .await
    }
}

/// Listens on `address`. Port 0 picks a free one.
///
/// With `127.0.0.1` and `0.0.0.0` it listens on `[::1]` as well, unless the machine has no IPv6: names below
/// `localhost` resolve to `::1` first.
pub fn take(address: SocketAddr) -> Result<Listeners, Error> {
    let mut attempts = 0;
    loop {
        let first = open(address)?;
        let got = first.local_addr().map_err(|source| Error::Failed { address, source })?;
        let second = match got.ip() {
            IpAddr::V4(ip) if ip.is_loopback() || ip.is_unspecified() => {
                open(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), got.port()))
            }
            _ => return Ok(Listeners { address: got, sockets: vec![first] }),
        };
        return match second {
            Ok(second) => Ok(Listeners { address: got, sockets: vec![first, second] }),
            // A port that is free for one address need not be for the other.
            Err(Error::Taken { .. }) if address.port() == 0 && attempts < PORTS_TRIED => {
                attempts += 1;
                continue;
            }
            Err(taken @ Error::Taken { .. }) => Err(taken),
            Err(Error::Failed { .. }) => Ok(Listeners { address: got, sockets: vec![first] }),
        };
    }
}

fn open(address: SocketAddr) -> Result<TcpListener, Error> {
    let listener = try_open(address).and_then(TcpListener::from_std);
    listener.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => Error::Taken { address, holder: procfs::port_holder(address).ok().flatten() },
        _ => Error::Failed { address, source },
    })
}

fn try_open(address: SocketAddr) -> io::Result<StdListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    // Connections of a server that has just ended must not hold up the next one.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_taken_port_names_its_holder_and_the_way_out() {
        let first = take("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.address();
        let error = take(address).unwrap_err().to_string();
        let own = procfs::text("/proc/self/comm").unwrap();
        let expected = format!("{address} is in use by {own} (process {}): ", std::process::id());
        assert!(error.starts_with(&expected) && error.contains("`--listen 127.0.0.1:0`"), "{error}");
        drop(first);
        take(address).unwrap();
    }

    #[tokio::test]
    async fn both_loopback_addresses_are_taken() {
        let listeners = take("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = listeners.address().port();
        for ip in ["127.0.0.1", "::1"].map(|ip| ip.parse::<IpAddr>().unwrap()) {
            if StdListener::bind((ip, 0)).is_ok() {
                let (client, accepted) = tokio::join!(TcpStream::connect((ip, port)), listeners.accept());
                assert_eq!(accepted.unwrap().1, client.unwrap().local_addr().unwrap());
            }
        }
    }

    #[tokio::test]
    async fn an_address_of_another_machine_is_named() {
        let error = take("192.0.2.1:0".parse().unwrap()).unwrap_err();
        assert!(error.to_string().starts_with("cannot listen on 192.0.2.1:0"), "{error}");
    }
}
