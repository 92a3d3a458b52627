//! Takes the one TCP port of a server.

use std::{
    fmt, io,
    net::{SocketAddr, TcpListener as StdListener},
};

use procfs::Holder;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use tokio::net::TcpListener;

/// Clients that may wait until they are accepted: as many as the kernel allows by default (`net.core.somaxconn`).
const BACKLOG: i32 = 4_096;

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

/// Listens on `address`. Port 0 picks a free one.
pub fn take(address: SocketAddr) -> Result<TcpListener, Error> {
    let listener = open(address).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => Error::Taken { address, holder: procfs::port_holder(address).ok().flatten() },
        _ => Error::Failed { address, source },
    })?;
    TcpListener::from_std(listener).map_err(|source| Error::Failed { address, source })
}

fn open(address: SocketAddr) -> io::Result<StdListener> {
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
        let address = first.local_addr().unwrap();
        let error = take(address).unwrap_err().to_string();
        let own = procfs::text("/proc/self/comm").unwrap();
        let expected = format!("{address} is in use by {own} (process {}): ", std::process::id());
        assert!(error.starts_with(&expected) && error.contains("`--listen 127.0.0.1:0`"), "{error}");
        drop(first);
        take(address).unwrap();
    }

    #[tokio::test]
    async fn an_address_of_another_machine_is_named() {
        let error = take("192.0.2.1:0".parse().unwrap()).unwrap_err();
        assert!(error.to_string().starts_with("cannot listen on 192.0.2.1:0"), "{error}");
    }
}
