//! A server that does nothing: each request gets an answer that was ready before. What a client takes with it is the
//! client's own cost.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, Result, bail};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

const ID: &str = "sstub00000000";
const BUFFER_BYTES: usize = 256 << 10;
/// Of one line of a request's head.
const LINE_BYTES_MAX: usize = 16 << 10;

/// Listens until it is dropped.
pub(super) struct Stub {
    address: SocketAddr,
    listening: AbortHandle,
}

/// What is answered. Made once.
struct Answers {
    sandbox: Vec<u8>,
    detail: Vec<u8>,
    list: Vec<u8>,
    command: Vec<u8>,
    written: Vec<u8>,
    small: Vec<u8>,
    large_bytes: u64,
}

/// A request without its body, which has been read.
struct Asked {
    method: String,
    path: String,
}

impl Stub {
    /// One whose large file has this many bytes.
    pub(super) async fn start(large_bytes: u64) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("cannot start the stub")?;
        let address = listener.local_addr()?;
        let answers = Arc::new(Answers::new(large_bytes));
        let listening = tokio::spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let answers = Arc::clone(&answers);
                // A client that breaks off is no failure of the stub.
                clients.spawn(async move { serve(stream, &answers).await.ok() });
                while clients.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, listening: listening.abort_handle() })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Answers {
    fn new(large_bytes: u64) -> Self {
        let known = format!(
            r#""templateID":"base","sandboxID":"{ID}","clientID":"stub","envdVersion":"0.6.7","alias":"base","domain":null"#
        );
        let state =
            r#""startedAt":"2026-01-01T00:00:00Z","endAt":"2026-01-01T01:00:00Z","state":"running","metadata":{}"#;
        let state = format!(r#"{state},"cpuCount":2,"memoryMB":512,"diskSizeMB":0"#);
        let detail = format!(r#"{{{known},"envdAccessToken":"token",{state}}}"#);
        let list = format!("[{}]", [format!("{{{known},{state}}}").as_str(); LISTED].join(","));
        let written = br#"[{"name":"small","type":"file","path":"/home/user/small"}]"#;
        Self {
            sandbox: answer("201 Created", JSON, format!(r#"{{{known},"envdAccessToken":"token"}}"#).as_bytes()),
            detail: answer("200 OK", JSON, detail.as_bytes()),
            list: answer("200 OK", JSON, list.as_bytes()),
            command: answer("200 OK", "application/connect+json", &command()),
            written: answer("200 OK", JSON, written),
            small: answer("200 OK", "application/octet-stream", &[b'a'; 4096]),
            large_bytes,
        }
    }
}

/// Sandboxes in a list.
pub(super) const LISTED: usize = 10;
const JSON: &str = "application/json";

fn answer(status: &str, kind: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// The stream of a command that ends at once: frames of the Connect protocol.
fn command() -> Vec<u8> {
    let frame =
        |flags: u8, text: &str| [&[flags], (text.len() as u32).to_be_bytes().as_slice(), text.as_bytes()].concat();
    let end = r#"{"event":{"end":{"exitCode":0,"exited":true,"status":"exit status 0"}}}"#;
    [frame(0, r#"{"event":{"start":{"pid":2}}}"#), frame(0, end), frame(2, "{}")].concat()
}

async fn serve(stream: TcpStream, answers: &Answers) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::with_capacity(BUFFER_BYTES, stream);
    while let Some(asked) = request(&mut stream).await? {
        let path = asked.path.split('?').next().unwrap_or_default();
        let ready = match (asked.method.as_str(), path) {
            ("POST", "/v2/sandboxes" | "/sandboxes") => &answers.sandbox,
            ("GET", "/v2/sandboxes") => &answers.list,
            ("GET", path) if path.starts_with("/sandboxes/") => &answers.detail,
            ("POST", "/process.Process/Start") => &answers.command,
            ("POST", "/files") => &answers.written,
            ("GET", "/files") if asked.path.contains("large") => {
                send_large(stream.get_mut(), answers.large_bytes).await?;
                continue;
            }
            ("GET", "/files") => &answers.small,
            ("DELETE", _) | ("GET", "/health") => NO_CONTENT,
            _ => NOT_FOUND,
        };
        stream.get_mut().write_all(ready).await?;
    }
    Ok(())
}

const NO_CONTENT: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";
const NOT_FOUND: &[u8] = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";

async fn send_large(stream: &mut TcpStream, bytes: u64) -> Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: {bytes}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let zeros = vec![0; BUFFER_BYTES];
    let mut left = bytes;
    while left > 0 {
        let part = left.min(BUFFER_BYTES as u64);
        stream.write_all(&zeros[..part as usize]).await?;
        left -= part;
    }
    Ok(())
}

/// Reads one request to its end. None: the client has none left.
async fn request(stream: &mut BufReader<TcpStream>) -> Result<Option<Asked>> {
    let Some(first) = line(stream).await? else { return Ok(None) };
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (mut length, mut is_chunked, mut waits) = (0, false, false);
    loop {
        let header = line(stream).await?.context("the request breaks off")?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(':').context("no header")?;
        match (name.to_ascii_lowercase().as_str(), value.trim()) {
            ("content-length", value) => length = value.parse::<u64>()?,
            ("transfer-encoding", value) => is_chunked = value.eq_ignore_ascii_case("chunked"),
            ("expect", _) => waits = true,
            _ => {}
        }
    }
    if waits {
        stream.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    if is_chunked {
        while let size @ 1.. = chunk(stream).await? {
            skip(stream, size + 2).await?;
        }
        while line(stream).await?.is_some_and(|trailer| !trailer.is_empty()) {}
    } else {
        skip(stream, length).await?;
    }
    Ok(Some(Asked { method, path }))
}

/// The size of the next chunk; 0 ends the body.
async fn chunk(stream: &mut BufReader<TcpStream>) -> Result<u64> {
    let size = line(stream).await?.context("the body breaks off")?;
    let size = size.split(';').next().unwrap_or_default();
    u64::from_str_radix(size.trim(), 16).with_context(|| format!("{size:?} is no size of a chunk"))
}

async fn skip(stream: &mut BufReader<TcpStream>, mut bytes: u64) -> Result<()> {
    while bytes > 0 {
        let found = stream.fill_buf().await?.len();
        if found == 0 {
            bail!("the body breaks off");
        }
        let part = bytes.min(found as u64);
        stream.consume(part as usize);
        bytes -= part;
    }
    Ok(())
}

/// A line without its end. None: the stream has ended.
async fn line(stream: &mut BufReader<TcpStream>) -> Result<Option<String>> {
    let mut bytes = Vec::new();
    stream.read_until(b'\n', &mut bytes).await?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.len() > LINE_BYTES_MAX {
        bail!("a line is too long");
    }
    let text = String::from_utf8(bytes).context("no text")?;
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    async fn ask(stub: &Stub, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(stub.address()).await.unwrap();
        stream.write_all(request).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn bodies_are_read_and_answers_are_ready() {
        let stub = Stub::start(7).await.unwrap();
        let both = b"POST /files?path=a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n\
                     POST /v2/sandboxes HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}";
        let answered = ask(&stub, both).await;
        assert!(answered.starts_with("HTTP/1.1 200 OK") && answered.contains("HTTP/1.1 201 Created"), "{answered}");
        let large = ask(&stub, b"GET /files?path=large HTTP/1.1\r\n\r\n").await;
        assert!(large.ends_with(&"\0".repeat(7)) && large.contains("content-length: 7"), "{large}");
        let nothing = ask(&stub, b"GET /nowhere HTTP/1.1\r\n\r\n").await;
        assert!(nothing.starts_with("HTTP/1.1 404"), "{nothing}");
    }

    #[test]
    fn a_command_is_three_frames() {
        let frames = command();
        assert_eq!(frames[..5], [0, 0, 0, 0, 29]);
        assert!(frames.ends_with(b"\x02\0\0\0\x02{}"));
    }
}
