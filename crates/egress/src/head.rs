//! What a connection begins with: a TLS hello with the name in it, or something else.

use std::{io, time::Duration};

use model::DomainName;
use rustls::server::Acceptor;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::timeout,
};

/// Longest hello that is read, in bytes: those of browsers, with keys that quantum computers do not break, have 2 KiB.
const BYTES_MAX: usize = 16 << 10;
/// How long the first bytes may take, all together.
const TIME_MAX: Duration = Duration::from_secs(10);
/// What begins each connection of TLS: a record with a handshake (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;

/// See the module.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// A hello, if it could be read, and if there is a name in it that could be one.
    Tls(Option<DomainName>),
    /// Something else.
    Other,
    /// Nothing, in time.
    Silence,
}

/// Reads it, with the bytes that were read.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(Head, Vec<u8>)> {
    let mut bytes = Vec::new();
    let head = match timeout(TIME_MAX, read_into(stream, &mut bytes)).await {
        Ok(head) => head?,
        Err(_) if bytes.is_empty() => Head::Silence,
        Err(_) => Head::Tls(None),
    };
    Ok((head, bytes))
}

async fn read_into(stream: &mut (impl AsyncRead + Unpin), bytes: &mut Vec<u8>) -> io::Result<Head> {
    let mut acceptor = Acceptor::default();
    let mut part = [0; 4 << 10];
    loop {
        let got = stream.read(&mut part).await?;
        let mut new = &part[..got];
        bytes.extend(new);
        if bytes.first().is_some_and(|first| *first != HANDSHAKE) {
            return Ok(Head::Other);
        }
        if got == 0 || bytes.len() > BYTES_MAX {
            return Ok(Head::Tls(None));
        }
        while !new.is_empty() {
            // It takes a part at a time.
            if acceptor.read_tls(&mut new)? == 0 {
                return Ok(Head::Tls(None));
            }
            match acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    let name = accepted.client_hello().server_name().and_then(|name| name.parse().ok());
                    return Ok(Head::Tls(name));
                }
                Err(_) => return Ok(Head::Tls(None)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::{ClientConfig, ClientConnection, RootCertStore, crypto::ring, pki_types::ServerName};

    use super::*;

    fn hello(name: &'static str) -> Vec<u8> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let name = ServerName::try_from(name).unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    async fn head(bytes: &[u8]) -> Head {
        let (head, read) = read(&mut &bytes[..]).await.unwrap();
        assert!(bytes.starts_with(&read), "other bytes than those that came");
        head
    }

    #[tokio::test(start_paused = true)]
    async fn the_name_of_a_hello_is_read_whole_or_in_parts() {
        let named = Head::Tls(Some("a.example".parse().unwrap()));
        let hello = hello("A.example");
        assert_eq!(head(&hello).await, named);
        let (mut near, mut far) = tokio::io::duplex(64);
        let writing = async move {
            for byte in hello {
                tokio::io::AsyncWriteExt::write_all(&mut near, &[byte]).await.unwrap();
            }
            near
        };
        let (read, _near) = tokio::join!(read(&mut far), writing);
        assert_eq!(read.unwrap().0, named);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_hello_has_no_name() {
        assert_eq!(head(b"GET / HTTP/1.1\r\n").await, Head::Other);
        assert_eq!(head(&hello("1.1.1.1")).await, Head::Tls(None));
        let whole = hello("a.example");
        for end in 1..whole.len() {
            assert_eq!(head(&whole[..end]).await, Head::Tls(None), "{end} bytes");
        }
        assert_eq!(head(&[HANDSHAKE; 100]).await, Head::Tls(None));
        let mut long = vec![HANDSHAKE, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff];
        long.resize(BYTES_MAX * 2, 0);
        assert_eq!(head(&long).await, Head::Tls(None));
        let (_near, mut far) = tokio::io::duplex(64);
        assert_eq!(read(&mut far).await.unwrap().0, Head::Silence);
    }
}
