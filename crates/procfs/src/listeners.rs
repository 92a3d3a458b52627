//! Which process listens on a TCP port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::{
    error::Error,
    read::{link, numbers, read, text},
};

/// The state of a listening socket, as the kernel writes it (`TCP_LISTEN` of include/net/tcp_states.h).
const LISTEN: &str = "0A";

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its id.
    pub pid: i32,
    /// The name of its program, at most 15 bytes.
    pub name: String,
}

/// The process that keeps others from listening on `address`, as far as this process may see it: in the same network
/// namespace, and with a descriptor table that can be read. `None` if there is none.
pub fn port_holder(address: SocketAddr) -> Result<Option<Holder>, Error> {
    let mut wanted: Vec<Vec<u8>> = Vec::new();
    for file in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        // A kernel without IPv6 has no second file.
        let Ok(table) = read(file) else { continue };
        let table = String::from_utf8_lossy(&table);
        let inodes = table.lines().skip(1).filter_map(|line| conflicting(line, address));
        wanted.extend(inodes.map(|inode| format!("socket:[{inode}]").into_bytes()));
    }
    if wanted.is_empty() {
        return Ok(None);
    }
    for pid in numbers("/proc")? {
        // Any of them may end meanwhile, or be none of our business.
        let Ok(descriptors) = numbers(&format!("/proc/{pid}/fd")) else { continue };
        let mut links = descriptors.iter().filter_map(|fd| link(&format!("/proc/{pid}/fd/{fd}")).ok());
        if links.any(|link| wanted.contains(&link)) {
            return Ok(text(&format!("/proc/{pid}/comm")).ok().map(|name| Holder { pid, name }));
        }
    }
    Ok(None)
}

/// The inode of a listening socket whose address overlaps with `address`: a line of `/proc/net/tcp`.
fn conflicting(line: &str, address: SocketAddr) -> Option<&str> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (ip, port) = fields.get(1)?.split_once(':')?;
    let listens = *fields.get(3)? == LISTEN && u16::from_str_radix(port, 16).ok()? == address.port();
    let (held, asked) = (ip_address(ip)?.to_canonical(), address.ip().to_canonical());
    let overlaps = held == asked || held.is_unspecified() || asked.is_unspecified();
    (listens && overlaps).then(|| fields.get(9).copied())?
}

/// Words of 32 bits in the machine's own order.
fn ip_address(digits: &str) -> Option<IpAddr> {
    let word = |at: usize| Some(u32::from_str_radix(digits.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    match digits.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut octets = [0; 16];
            for (at, four) in octets.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(at * 8)?);
            }
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_holder_of_a_port_is_named() {
        for address in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let port = listener.local_addr().unwrap().port();
            for asked in ["127.0.0.1", "0.0.0.0", "::1"] {
                let asked = SocketAddr::new(asked.parse().unwrap(), port);
                let overlaps = asked.ip() == listener.local_addr().unwrap().ip()
                    || asked.ip().is_unspecified()
                    || address.starts_with("0.0.0.0");
                let found = port_holder(asked).unwrap();
                assert_eq!(
                    found.map(|holder| holder.pid),
                    overlaps.then_some(std::process::id() as i32),
                    "{address} {asked}"
                );
            }
        }
    }

    #[test]
    fn a_port_that_is_free_has_no_holder() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(port_holder(address).unwrap(), None);
    }

    #[test]
    fn only_listening_sockets_count() {
        let line = |state| {
            format!(
                "   0: 0100007F:1F90 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 4242 1"
            )
        };
        let address = "127.0.0.1:8080".parse().unwrap();
        assert_eq!(conflicting(&line("0A"), address), Some("4242"));
        assert_eq!(conflicting(&line("01"), address), None);
        assert_eq!(conflicting(&line("0A"), "127.0.0.2:8080".parse().unwrap()), None);
        assert_eq!(conflicting("", address), None);
    }
}
