//! Bodies that are small on the wire and large in memory, and bodies without an end.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use testkit::node::Node;

use super::{Target, count_memory, highest_memory, wire};

const MIB: usize = 1 << 20;

/// What the server may need for any of this.
const MEMORY_MAX: usize = 24 * MIB;

/// A body that is small on the wire.
const UNFOLDED: usize = 40 * MIB;

pub(super) fn bodies(node: &mut Node) -> Result<()> {
    let target = Target::new(node)?;
    let before = count_memory(target.node)?;
    unfolded(&target)?;
    nested(&target)?;
    heads(&target)?;
    let grown = highest_memory(target.node)?.saturating_sub(before);
    ensure!(grown < MEMORY_MAX, "the server grew by {grown} bytes");
    target.end()
}

/// Bytes as gzip has them.
fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut child = Command::new("gzip").arg("-1c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    let bytes = bytes.to_vec();
    let writing = std::thread::spawn(move || stdin.write_all(&bytes));
    let output = child.wait_with_output()?;
    writing.join().map_err(|_| anyhow::anyhow!("gzip was not fed"))??;
    Ok(output.stdout)
}

fn unfolded(target: &Target<'_>) -> Result<()> {
    let form = "content-type: multipart/form-data; boundary=XX\r\n";
    let beginning = "--XX\r\ncontent-disposition: form-data; name=\"file\"; filename=\"";
    let bomb = gzip(&[beginning.as_bytes(), &vec![b'a'; UNFOLDED]].concat())?;
    ensure!(bomb.len() < 2 * MIB, "{} bytes", bomb.len());
    let encoded = format!("{form}content-encoding: gzip\r\n");
    let (status, body) = target.ask("POST", "/files?path=/tmp/x", &encoded, &bomb)?;
    ensure!(status == 400 && body.contains("headers of a part"), "{status} {body}");
    let plain = [beginning.as_bytes(), &vec![b'a'; 100 << 10]].concat();
    let (status, body) = target.ask("POST", "/files?path=/tmp/x", form, &plain)?;
    ensure!(status == 400 && body.contains("headers of a part"), "{status} {body}");
    // The services take messages of 4 MiB, however they come.
    let bomb = gzip(&[b"{\"path\": \"", &vec![b'a'; UNFOLDED][..], b"\"}"].concat())?;
    let encoded = "content-type: application/json\r\ncontent-encoding: gzip\r\n";
    let (status, body) = target.ask("POST", "/filesystem.Filesystem/Stat", encoded, &bomb)?;
    ensure!((400..500).contains(&status), "{status} {body:.200}");
    streamed(target)
}

/// A frame of a stream that says it is long, and one that unfolds. Streams tell of errors in their last frame.
fn streamed(target: &Target<'_>) -> Result<()> {
    let stream = "content-type: application/connect+json\r\nconnect-protocol-version: 1\r\n";
    let long = [&[0, 0xff, 0xff, 0xff, 0xff], &b"{}"[..]].concat();
    let (status, body) = target.ask("POST", "/process.Process/Start", stream, &long)?;
    ensure!(status >= 400 || body.contains("\"error\""), "{status} {body:.200}");
    let bomb = gzip(&vec![b' '; UNFOLDED])?;
    let framed = [&[1], &u32::try_from(bomb.len())?.to_be_bytes()[..], &bomb].concat();
    let encoded = format!("{stream}connect-content-encoding: gzip\r\n");
    let (status, body) = target.ask("POST", "/process.Process/Start", &encoded, &framed)?;
    ensure!(status >= 400 || body.contains("\"error\""), "{status} {body:.200}");
    Ok(())
}

fn nested(target: &Target<'_>) -> Result<()> {
    let nested = [b"{\"path\": ".as_slice(), "[".repeat(100_000).as_bytes()].concat();
    let unknown = format!("{{\"x\": {}{}}}", "[".repeat(50_000), "]".repeat(50_000));
    let json = "content-type: application/json\r\n";
    for body in [&nested[..], unknown.as_bytes()] {
        // A field that is not known is passed over, however deep it is.
        let (status, answer) = target.ask("POST", "/filesystem.Filesystem/Stat", json, body)?;
        ensure!(status < 500, "{status} {answer:.200}");
        let (status, answer) = target.ask("POST", "/files/compose", json, body)?;
        ensure!((400..500).contains(&status), "{status} {answer:.200}");
    }
    // Groups in groups, as protobuf has them.
    let groups = [vec![0x7b; 50_000], vec![0x7c; 50_000]].concat();
    let (status, answer) =
        target.ask("POST", "/filesystem.Filesystem/Stat", "content-type: application/proto\r\n", &groups)?;
    ensure!(status < 500, "{status} {answer:.200}");
    let (key, address) = (&target.server.key, &target.server.address);
    for body in [&nested[..], unknown.as_bytes()] {
        let head = format!(
            "POST /v2/sandboxes HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\ncontent-type: application/json\r\n\
             connection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let answer = wire::exchange(address, &[head.as_bytes(), body].concat())?;
        ensure!(answer.starts_with("HTTP/1.1 4"), "{answer:.200}");
    }
    Ok(())
}

fn heads(target: &Target<'_>) -> Result<()> {
    let address = &target.server.address;
    for headers in ["a: b\r\n".repeat(20_000), format!("a: {}\r\n", "b".repeat(MIB)), "x-metadata-a: b\r\n".repeat(90)]
    {
        let answer = wire::exchange(address, target.head("GET", "/health", &headers)?.as_bytes())?;
        ensure!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.1 204"),
            "{answer}"
        );
    }
    // Metadata becomes attributes of the file: neither header lines nor more than fits.
    for (name, value, status) in [
        ("x-metadata-a", "b".repeat(5_000), 400),
        (&format!("x-metadata-{}", "k".repeat(247)), "b".to_owned(), 400),
        ("x-metadata-a", "\u{e9}".to_owned(), 400),
        ("x-metadata-a", "b".to_owned(), 200),
    ] {
        let headers = format!("content-type: application/octet-stream\r\n{name}: {value}\r\n");
        let (found, body) = target.ask("POST", "/files?path=/home/user/m", &headers, b"x")?;
        ensure!(found == status, "{name:.20}: {value:.20}: {found} {body:.200}");
    }
    Ok(())
}
