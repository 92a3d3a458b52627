//! A client of held commands.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use api::{
    Command, ExitStatus, TerminalSize,
    frame::{Decoder, Frame},
};
use testkit::node::Node;

/// How long anything may take.
const MAX: Duration = Duration::from_secs(30);

/// A request for a shell script, with more fields.
pub(super) fn command(script: &str, extra: serde_json::Value) -> serde_json::Value {
    let mut request = serde_json::json!({"command": ["/bin/sh", "-c", script]});
    if let (Some(fields), Some(more)) = (request.as_object_mut(), extra.as_object()) {
        fields.extend(more.clone());
    }
    request
}

/// Starts a command and goes away; gives its pid inside.
pub(super) fn start(node: &Node, id: &str, request: serde_json::Value) -> Result<String> {
    let (status, answer) = node.api(&format!("POST /v1/sandboxes/{id}/commands"), request.to_string().as_bytes())?;
    ensure!(status == 200, "{request}: {status} {answer}");
    Ok(pid_of(&serde_json::from_str(&answer)?))
}

pub(super) fn pid_of(command: &Command) -> String {
    command.pid.to_string()
}

pub(super) fn commands(node: &Node, id: &str) -> Result<Vec<Command>> {
    let (status, answer) = node.api(&format!("GET /v1/sandboxes/{id}/commands"), b"")?;
    ensure!(status == 200, "{status} {answer}");
    Ok(serde_json::from_str(&answer)?)
}

pub(super) fn until_ended(node: &Node, id: &str, pid: &str) -> Result<()> {
    let deadline = Instant::now() + MAX;
    loop {
        let all = commands(node, id)?;
        if all.iter().any(|command| pid_of(command) == pid && command.status.is_some()) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{pid} does not end: {all:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(super) fn signal(node: &Node, id: &str, which: &str, signal: &str) -> Result<()> {
    let body = serde_json::json!({ "signal": signal }).to_string();
    let (status, answer) = node.api(&format!("POST /v1/sandboxes/{id}/commands/{which}/signal"), body.as_bytes())?;
    ensure!(status == 200, "{status} {answer}");
    Ok(())
}

/// The holder and its spare, once both are there.
pub(super) fn holders(node: &Node) -> Result<[i32; 2]> {
    let state = format!("--state\0{}\0", node.state.display());
    let deadline = Instant::now() + MAX;
    loop {
        let (mut holder, mut spare) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let command = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            if !command.contains("\0holder\0") || !command.contains(&state) {
                continue;
            }
            // A spare that has taken over has the name of a holder.
            let pids = if name.trim_end() == "holder" { &mut holder } else { &mut spare };
            pids.extend(entry.file_name().to_string_lossy().parse::<i32>());
        }
        if let ([holder], [spare]) = (&holder[..], &spare[..]) {
            return Ok([*holder, *spare]);
        }
        ensure!(Instant::now() < deadline, "holders {holder:?}, spares {spare:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What a client got.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) notices: Vec<String>,
    pub(super) status: Option<ExitStatus>,
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = &self.stdout[self.stdout.len().saturating_sub(200)..];
        let end = String::from_utf8_lossy(end);
        write!(f, "{:?}, {:?}, {} bytes: ...{end:?}", self.status, self.notices, self.stdout.len())
    }
}

/// A client that is attached to a command.
pub(super) struct Attached {
    stream: UnixStream,
    decoder: Decoder,
    seen: Seen,
}

impl Attached {
    pub(super) fn new(node: &Node, id: &str, which: &str) -> Result<Self> {
        let mut stream = UnixStream::connect(&node.socket)?;
        stream.set_read_timeout(Some(MAX))?;
        write!(
            stream,
            "POST /v1/sandboxes/{id}/commands/{which}/attach HTTP/1.1\r\nHost: node\r\nConnection: upgrade\r\n\
             Upgrade: pando-exec\r\nContent-Length: 0\r\n\r\n"
        )?;
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            ensure!(stream.read(&mut byte)? == 1, "no answer: {}", String::from_utf8_lossy(&head));
            head.extend(byte);
        }
        ensure!(head.starts_with(b"HTTP/1.1 101 "), "{which}: {}", String::from_utf8_lossy(&head));
        Ok(Self { stream, decoder: Decoder::default(), seen: Seen::default() })
    }

    pub(super) fn input(&mut self, bytes: &[u8]) -> Result<()> {
        self.send(&Frame::Stdin(bytes.to_vec()))
    }

    pub(super) fn end_input(&mut self) -> Result<()> {
        self.send(&Frame::StdinEnd)
    }

    pub(super) fn resize(&mut self, rows: u16, columns: u16) -> Result<()> {
        self.send(&Frame::Resize(TerminalSize { rows, columns }))
    }

    fn send(&mut self, frame: &Frame) -> Result<()> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        Ok(self.stream.write_all(&bytes)?)
    }

    /// Reads until standard output has these bytes.
    pub(super) fn expect(&mut self, bytes: &[u8]) -> Result<()> {
        while !self.seen.stdout.windows(bytes.len()).any(|window| window == bytes) {
            if !self.more().with_context(|| format!("waiting for {:?}", String::from_utf8_lossy(bytes)))? {
                bail!("the end came before {:?}: {:?}", String::from_utf8_lossy(bytes), self.seen);
            }
        }
        Ok(())
    }

    /// Reads to the end.
    pub(super) fn rest(&mut self) -> Result<Seen> {
        while self.more().with_context(|| format!("{:?}", self.seen))? {}
        Ok(std::mem::take(&mut self.seen))
    }

    pub(super) fn all(mut self) -> Result<Seen> {
        self.rest()
    }

    /// Reads more. False: there is none.
    fn more(&mut self) -> Result<bool> {
        let mut buffer = vec![0; 64 << 10];
        let length = match self.stream.read(&mut buffer) {
            // The server was killed.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => 0,
            length => length?,
        };
        self.decoder.push(&buffer[..length]);
        while let Some(frame) = self.decoder.next_frame()? {
            match frame {
                Frame::Stdout(bytes) => self.seen.stdout.extend(bytes),
                Frame::Stderr(bytes) => self.seen.stderr.extend(bytes),
                Frame::Notice(text) => self.seen.notices.push(text),
                Frame::Exit(status) => self.seen.status = Some(status),
                other => bail!("{other:?} from the node"),
            }
        }
        Ok(length > 0)
    }
}
