//! TCP connections into a sandbox's own network namespace.

use std::{
    net::{IpAddr, SocketAddr, TcpStream},
    os::fd::AsFd,
};

use procfs::ProcessIdentity;
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, connect, socket_with},
    process::{Pid, PidfdFlags, pidfd_open},
};

use sys::namespace::{Kind, inside};

use crate::error::{Context, Error};

/// A TCP socket made inside the sandbox of the pid 1 `init`, non-blocking, whose connection to the address was begun.
///
/// It never blocks, and any thread may do it: the visit to the sandbox's network namespace is the calling thread's alone.
pub fn dial(init: ProcessIdentity, ip: IpAddr, port: u16) -> Result<TcpStream, Error> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let dial = || {
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, &SocketAddr::new(ip, port)) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.into()),
            Err(error) => Err(error),
        }
    };
    in_network(init, dial)?.doing("connect into the sandbox")
}

/// Does `visit` in the network namespace of the sandbox of the pid 1 `init`. Any thread may: it comes back.
pub fn in_network<T>(init: ProcessIdentity, visit: impl FnOnce() -> T) -> Result<T, Error> {
    let pid = Pid::from_raw(init.pid).ok_or(Errno::SRCH).doing("enter the sandbox")?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).doing("enter the sandbox")?;
    // Only after the descriptor is open: now it cannot become another process.
    if !init.is_alive() {
        return Err(Errno::SRCH).doing("enter the sandbox");
    }
    inside(pidfd.as_fd(), Kind::Network, visit).doing("enter the sandbox")
}
