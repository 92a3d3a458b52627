//! Requests without an SDK, as many as a server answers: the server's own cost of one.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    task::JoinSet,
};

/// Connections that each have one request under way: more than a server has processors.
const CONNECTIONS: usize = 4;
/// Of `/proc/PID/stat`, on x86-64.
const TICKS_PER_SECOND: f64 = 100.0;

/// How often a request was answered.
pub(super) struct Load {
    /// In a second of the clock, with the client on the same processors.
    pub(super) per_second: f64,
    /// In a second of the server's processor time.
    pub(super) per_cpu_second: Option<f64>,
}

/// Asks for `path` for this long. `server`: the process whose time counts.
pub(super) async fn run(
    address: SocketAddr,
    key: &str,
    path: &str,
    span: Duration,
    server: Option<i32>,
) -> Result<Load> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nX-API-Key: {key}\r\n\r\n");
    let (before, began) = (server.map(cpu_seconds).transpose()?, Instant::now());
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        clients.spawn(client(address, request.clone(), began + span));
    }
    let mut requests = 0;
    while let Some(client) = clients.join_next().await {
        requests += client??;
    }
    let took = began.elapsed().as_secs_f64();
    let used = server.map(cpu_seconds).transpose()?.zip(before).map(|(after, before)| after - before);
    let requests = f64::from(requests);
    Ok(Load { per_second: requests / took, per_cpu_second: used.map(|used| requests / used.max(1e-9)) })
}

async fn client(address: SocketAddr, request: String, until: Instant) -> Result<u32> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut body = Vec::new();
    let mut requests = 0;
    while Instant::now() < until {
        stream.get_mut().write_all(request.as_bytes()).await?;
        answer(&mut stream, "200", &mut body).await?;
        requests += 1;
    }
    Ok(requests)
}

/// Reads one answer, which has to have this status.
async fn answer(stream: &mut BufReader<TcpStream>, status: &str, body: &mut Vec<u8>) -> Result<()> {
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    ensure!(line.split(' ').nth(1) == Some(status), "unexpected answer: {line:?}");
    let mut length = None;
    loop {
        line.clear();
        ensure!(stream.read_line(&mut line).await? > 0, "the answer breaks off");
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.trim().parse()?);
        }
    }
    body.resize(length.context("an answer without a length")?, 0);
    stream.read_exact(body).await?;
    Ok(())
}

/// Creates a sandbox; its id.
pub(super) async fn create(address: SocketAddr, key: &str) -> Result<String> {
    let body = r#"{"templateID":"base","timeout":600}"#;
    let length = body.len();
    let mut stream = BufReader::new(TcpStream::connect(address).await?);
    let request = format!(
        "POST /v2/sandboxes HTTP/1.1\r\nHost: {address}\r\nX-API-Key: {key}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.get_mut().write_all(request.as_bytes()).await?;
    let mut answered = Vec::new();
    answer(&mut stream, "201", &mut answered).await?;
    let answered: serde_json::Value = serde_json::from_slice(&answered)?;
    Ok(answered["sandboxID"].as_str().context("an answer without an id")?.to_owned())
}

/// Processor time of a process so far, with all its threads.
fn cpu_seconds(pid: i32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("the server has ended")?;
    // The name, in parentheses, may hold anything.
    let fields = text.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let ticks = fields.split_ascii_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    Ok(ticks.sum::<f64>() / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_grows() {
        let own = std::process::id() as i32;
        let (before, began) = (cpu_seconds(own).unwrap(), Instant::now());
        while cpu_seconds(own).unwrap() <= before {
            assert!(began.elapsed() < Duration::from_secs(60));
        }
    }
}
