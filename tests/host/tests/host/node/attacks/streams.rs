//! Many streams that say nothing.

use std::{
    io::{Read, Write},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testkit::node::Node;

use super::{
    super::requests::{descriptors, descriptors_at_rest},
    Target, wire,
};

/// Streams at a time. `make soak-serve` has 1,000.
const STREAMS: usize = 100;

pub(super) fn idle(node: &mut Node) -> Result<()> {
    let target = Target::new(node)?;
    let wanted = std::env::var("PANDO_STREAMS").ok().and_then(|wanted| wanted.parse().ok()).unwrap_or(STREAMS);
    let id = target.id()?.to_owned();
    let command = json!({"command": ["/bin/sleep", "10000"]}).to_string();
    let (status, answer) = target.node.api(&format!("POST /v1/sandboxes/{id}/commands"), command.as_bytes())?;
    ensure!(status == 200, "{status} {answer}");
    let pid = running(&target)?;
    // Brings a hand, and the first connection to the database.
    target.get("/etc/hostname")?;
    let before = descriptors_at_rest(target.node, usize::MAX)?;
    let mut streams = Vec::new();
    for number in 0..wanted {
        streams.push(follow(&target, pid).with_context(|| format!("stream {number}"))?);
    }
    let began = Instant::now();
    ensure!(target.get("/etc/hostname")?.0 == 200);
    ensure!(began.elapsed() < wire::SOON, "a request took {:?}", began.elapsed());
    let during = descriptors(target.node)?.len();
    ensure!(during >= before + wanted, "{during} descriptors with {wanted} streams, {before} without");
    // The program says nothing: no write tells the server that a reader is gone.
    for number in 0..wanted / 10 {
        let mut stream = wire::connect(&target.server.address)?;
        stream.write_all(target.head("GET", "/output?follow=true", "")?.as_bytes())?;
        let mut first = [0];
        ensure!(stream.read(&mut first)? == 1, "output {number} did not begin");
    }
    drop(streams);
    descriptors_at_rest(target.node, before + 9)?;
    target.end()
}

/// The pid of the command, as clients see it.
fn running(target: &Target<'_>) -> Result<u64> {
    let json = "content-type: application/json\r\n";
    let (status, body) = target.ask("POST", "/process.Process/List", json, b"{}")?;
    ensure!(status == 200, "{status} {body}");
    let found: serde_json::Value = serde_json::from_str(&body).with_context(|| body.clone())?;
    found["processes"][0]["pid"].as_u64().context(body)
}

/// A stream of the command's output, which has begun.
fn follow(target: &Target<'_>, pid: u64) -> Result<std::net::TcpStream> {
    let asked = json!({"process": {"pid": pid}}).to_string();
    let body = [&[0], &u32::try_from(asked.len())?.to_be_bytes()[..], asked.as_bytes()].concat();
    let headers = format!(
        "content-type: application/connect+json\r\nconnect-protocol-version: 1\r\ncontent-length: {}\r\n",
        body.len()
    );
    let mut stream = wire::connect(&target.server.address)?;
    stream.write_all(&[target.head("POST", "/process.Process/Connect", &headers)?.as_bytes(), &body].concat())?;
    let mut seen = String::new();
    let mut buffer = [0; 4096];
    while !seen.contains("\"start\"") {
        let length = stream.read(&mut buffer)?;
        ensure!(length > 0, "it ended: {seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..length]));
    }
    Ok(stream)
}
