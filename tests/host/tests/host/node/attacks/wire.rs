//! Bytes on a connection, as no well-behaved client would send them.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};

use anyhow::Result;

/// Every answer and every refusal comes within this time, on a busy machine, too.
pub(super) const SOON: Duration = Duration::from_secs(5);

/// A connection whose reads end.
pub(super) fn connect(address: &str) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SOON))?;
    stream.set_write_timeout(Some(SOON))?;
    Ok(stream)
}

/// Sends bytes, and reads until the server closes.
pub(super) fn exchange(address: &str, bytes: &[u8]) -> Result<String> {
    let mut stream = connect(address)?;
    // The server may answer and close before it has all.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The body of an answer, also of one that came in chunks.
pub(super) fn body(answer: &str) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    if !head.to_ascii_lowercase().contains("\r\ntransfer-encoding: chunked") {
        return body.to_owned();
    }
    let mut whole = String::new();
    let mut rest = body;
    while let Some((length, chunk)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap_or_default();
        let Some(part) = chunk.get(..length).filter(|part| !part.is_empty()) else { break };
        whole.push_str(part);
        rest = chunk[length..].trim_start_matches("\r\n");
    }
    whole
}

/// Sends bytes and goes away.
pub(super) fn break_off(address: &str, bytes: &[u8]) -> Result<()> {
    let mut stream = connect(address)?;
    stream.write_all(bytes)?;
    // So that the server has read them.
    std::thread::sleep(Duration::from_millis(20));
    stream.shutdown(Shutdown::Both)?;
    Ok(())
}
