//! Commands: started, followed, and sent input.

use std::{io, time::Duration};

use api::{ErrorCode, ErrorDetail, ExitStatus, TerminalSize};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinHandle};

use super::{Failure, Inside, Messages, enveloped};
use crate::{Error, Result, Upload};

const STREAM: &str = "application/connect+json";
/// Messages of input that may wait to be sent.
const INPUTS_WAITING_MAX: usize = 4;
/// A timeout of exactly this is what SDKs send when they have none.
const TIMEOUT_UNSET_MS: u64 = 60_000;
/// How often the service sends a sign of life, in seconds.
const KEEPALIVE_S: u32 = 50;

/// A command to start.
#[derive(Debug, Clone, Default)]
pub struct Start {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment, beside that of the sandbox.
    pub env: Vec<(String, String)>,
    /// Working directory; none: that of the user.
    pub cwd: Option<String>,
    /// Whose rights it has; none: those of the default user.
    pub user: Option<String>,
    /// Give it a terminal of this size.
    pub terminal: Option<TerminalSize>,
    /// It can be sent input. Without, it reads the end of its input at once.
    pub stdin: bool,
    /// It is ended after this time.
    pub timeout: Option<Duration>,
    /// A name for it.
    pub tag: Option<String>,
}

/// Which command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// That with this process id inside the sandbox.
    Pid(u32),
    /// That with this tag.
    Tag(String),
}

impl Selector {
    fn json(&self) -> Value {
        match self {
            Self::Pid(pid) => json!({ "pid": pid }),
            Self::Tag(tag) => json!({ "tag": tag }),
        }
    }
}

/// What a command does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It runs, with this process id inside the sandbox.
    Started(u32),
    /// It has written to standard output.
    Stdout(Vec<u8>),
    /// It has written to standard error.
    Stderr(Vec<u8>),
    /// It has written to its terminal.
    Terminal(Vec<u8>),
    /// It has ended.
    Ended(ExitStatus),
}

/// A command that runs, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Its process id inside the sandbox.
    pub pid: u32,
    /// Its name.
    pub tag: Option<String>,
    /// Program and arguments.
    pub command: Vec<String>,
}

pub(super) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

impl Inside {
    /// Starts a command and follows it. Gives its process id inside the sandbox, too. It outlives its client.
    ///
    /// # Errors
    ///
    /// The sandbox does not run, or has no such program.
    pub async fn start(&self, start: &Start) -> Result<(u32, Events)> {
        let mut command = start.command.iter();
        let env: serde_json::Map<String, Value> =
            start.env.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
        let mut message = json!({
            "process": {
                "cmd": command.next(),
                "args": command.collect::<Vec<_>>(),
                "envs": env,
                "cwd": start.cwd,
            },
            "tag": start.tag,
            "stdin": start.stdin,
        });
        if let Some(size) = start.terminal {
            message["pty"] = pty(size);
        }
        let body = Full::new(enveloped(&message));
        let mut request = self.request_as(start.user.as_deref(), "/process.Process/Start", STREAM, body)?;
        request.headers_mut().insert("keepalive-ping-interval", KEEPALIVE_S.into());
        if let Some(timeout) = start.timeout {
            let ms = timeout.as_millis() as u64;
            request.headers_mut().insert("connect-timeout-ms", (ms + u64::from(ms == TIMEOUT_UNSET_MS)).into());
        }
        let mut events = Events::of(self.stream(request).await?.into_body());
        match events.next().await.map_err(not_started)? {
            Some(Event::Started(pid)) => Ok((pid, events)),
            Some(_) | None => Err(Error::HungUp),
        }
    }

    /// Follows a command from the start of the output that is kept.
    ///
    /// # Errors
    ///
    /// There is no such command, or its sandbox does not run.
    pub async fn follow(&self, which: &Selector) -> Result<Events> {
        let body = Full::new(enveloped(&json!({ "process": which.json() })));
        let mut request = self.request_as(None, "/process.Process/Connect", STREAM, body)?;
        request.headers_mut().insert("keepalive-ping-interval", KEEPALIVE_S.into());
        Ok(Events::of(self.stream(request).await?.into_body()))
    }

    /// The commands that run.
    ///
    /// # Errors
    ///
    /// The sandbox does not run.
    pub async fn commands(&self) -> Result<Vec<Running>> {
        let listed: Value = self.call(None, "/process.Process/List", &json!({})).await?;
        let running = |process: &Value| {
            let config = &process["config"];
            let arguments = config["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
            Running {
                pid: process["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap_or_default(),
                tag: process["tag"].as_str().map(str::to_owned),
                command: config["cmd"].as_str().into_iter().chain(arguments).map(str::to_owned).collect(),
            }
        };
        Ok(listed["processes"].as_array().into_iter().flatten().map(running).collect())
    }

    /// Opens a stream of input to a command, or to its terminal.
    ///
    /// # Errors
    ///
    /// The request cannot be made.
    pub fn inputs(&self, which: &Selector, terminal: bool) -> Result<Inputs> {
        let (messages, body) = mpsc::channel(INPUTS_WAITING_MAX);
        let request = self.request_as(None, "/process.Process/StreamInput", STREAM, Upload::new(body))?;
        let (inside, start) = (self.clone(), enveloped(&json!({ "start": { "process": which.json() } })));
        let sent = tokio::spawn(async move {
            let answer = inside.stream(request).await?;
            Events::of(answer.into_body()).end().await
        });
        Ok(Inputs { messages, first: Some(start), sent, terminal })
    }

    /// Lets a command read the end of its input.
    ///
    /// # Errors
    ///
    /// There is no such command.
    pub async fn close_input(&self, which: &Selector) -> Result<()> {
        let message = json!({ "process": which.json() });
        self.call::<Value>(None, "/process.Process/CloseStdin", &message).await.map(drop)
    }

    /// Gives the terminal of a command another size.
    ///
    /// # Errors
    ///
    /// There is no such command.
    pub async fn resize(&self, which: &Selector, size: TerminalSize) -> Result<()> {
        let message = json!({ "process": which.json(), "pty": pty(size) });
        self.call::<Value>(None, "/process.Process/Update", &message).await.map(drop)
    }

    /// Ends a command and all that it has started.
    ///
    /// # Errors
    ///
    /// There is no such command.
    pub async fn kill(&self, which: &Selector) -> Result<()> {
        let message = json!({ "process": which.json(), "signal": "SIGNAL_SIGKILL" });
        self.call::<Value>(None, "/process.Process/SendSignal", &message).await.map(drop)
    }
}

/// What these codes mean at a start.
fn not_started(error: Error) -> Error {
    match error {
        Error::Node(detail) if detail.code == ErrorCode::NotFound => {
            Error::Node(ErrorDetail { code: ErrorCode::ProgramMissing, ..detail })
        }
        Error::Node(detail) if detail.code == ErrorCode::ReadOnly => {
            Error::Node(ErrorDetail { code: ErrorCode::ProgramNotExecutable, ..detail })
        }
        other => other,
    }
}

fn pty(size: TerminalSize) -> Value {
    json!({ "size": { "rows": size.rows, "cols": size.columns } })
}

/// Input on its way to a command.
#[derive(Debug)]
pub struct Inputs {
    messages: mpsc::Sender<io::Result<Bytes>>,
    first: Option<Bytes>,
    sent: JoinHandle<Result<()>>,
    terminal: bool,
}

impl Inputs {
    /// Sends bytes. False: the command takes no more.
    pub async fn send(&mut self, bytes: &[u8]) -> bool {
        let kind = if self.terminal { "pty" } else { "stdin" };
        let message = enveloped(&json!({ "data": { "input": { kind: base64(bytes) } } }));
        for message in self.first.take().into_iter().chain([message]) {
            if self.messages.send(Ok(message)).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Waits until all that was sent has arrived.
    ///
    /// # Errors
    ///
    /// The command has ended, or takes no input.
    pub async fn finish(self) -> Result<()> {
        if self.first.is_some() {
            self.sent.abort();
            return Ok(());
        }
        drop(self.messages);
        self.sent.await.unwrap_or(Ok(()))
    }
}

/// What a command does, as it does it.
#[derive(Debug)]
pub struct Events {
    body: Incoming,
    messages: Messages,
    ended: bool,
}

#[derive(Deserialize)]
struct EndOfStream {
    error: Option<Failure>,
}

impl Events {
    fn of(body: Incoming) -> Self {
        Self { body, messages: Messages::default(), ended: false }
    }

    /// The next message of the stream. None: it has ended as it should.
    async fn message(&mut self) -> Result<Option<Bytes>> {
        loop {
            match self.messages.next()? {
                Some((false, message)) => return Ok(Some(message)),
                Some((true, end)) => {
                    self.ended = true;
                    let end: EndOfStream = serde_json::from_slice(&end).map_err(Error::NotUnderstood)?;
                    return end.error.map_or(Ok(None), |failure| Err(failure.error()));
                }
                None => {}
            }
            match self.body.frame().await {
                Some(frame) => {
                    self.messages.push(&frame.map_err(Error::BrokenOff)?.into_data().unwrap_or_default());
                }
                None if self.ended => return Ok(None),
                None => return Err(Error::HungUp),
            }
        }
    }

    async fn end(mut self) -> Result<()> {
        while self.message().await?.is_some() {}
        Ok(())
    }

    /// The next event.
    ///
    /// # Errors
    ///
    /// The command was ended because its time was up, it can no longer be followed, or the connection broke.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        while let Some(message) = self.message().await? {
            let message: Value = serde_json::from_slice(&message).map_err(Error::NotUnderstood)?;
            if let Some(event) = event(&message["event"])? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }
}

/// None: a sign of life.
fn event(event: &Value) -> Result<Option<Event>> {
    if let Some(start) = event.get("start") {
        let pid = start["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap_or_default();
        return Ok(Some(Event::Started(pid)));
    }
    if let Some(end) = event.get("end") {
        return Ok(Some(Event::Ended(status(end))));
    }
    let Some(data) = event.get("data") else { return Ok(None) };
    type Of = fn(Vec<u8>) -> Event;
    let kinds = [("stdout", Event::Stdout as Of), ("stderr", Event::Stderr as Of), ("pty", Event::Terminal as Of)];
    for (kind, of) in kinds {
        if let Some(text) = data.get(kind) {
            let text = text.as_str().unwrap_or_default();
            let bytes = STANDARD.decode(text).map_err(|_| {
                Error::Node(crate::server::detail(ErrorCode::Host, "the output is not understood".to_owned()))
            })?;
            return Ok(Some(of(bytes)));
        }
    }
    Ok(None)
}

/// How it ended. Signals come by their names.
fn status(end: &Value) -> ExitStatus {
    let text = end["status"].as_str().unwrap_or_default();
    if end["exited"].as_bool() == Some(true) {
        let code = end["exitCode"].as_i64().and_then(|code| i32::try_from(code).ok());
        return ExitStatus::Code(code.unwrap_or_default());
    }
    match text.strip_prefix("signal: ").map(signal) {
        Some(Some(signal)) => ExitStatus::Signal(signal),
        Some(None) | None => ExitStatus::Unknown,
    }
}

fn signal(name: &str) -> Option<i32> {
    let known = match name {
        "hangup" => 1,
        "interrupt" => 2,
        "quit" => 3,
        "illegal instruction" => 4,
        "aborted" => 6,
        "bus error" => 7,
        "floating point exception" => 8,
        "killed" => 9,
        "segmentation fault" => 11,
        "broken pipe" => 13,
        "alarm clock" => 14,
        "terminated" => 15,
        other => return other.strip_prefix("signal ").and_then(|number| number.parse().ok()),
    };
    Some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_has_a_code_or_a_signal() {
        let of = |end: Value| status(&end);
        assert_eq!(of(json!({"exited": true, "status": "exit status 0"})), ExitStatus::Code(0));
        assert_eq!(of(json!({"exitCode": 3, "exited": true, "status": "exit status 3"})), ExitStatus::Code(3));
        assert_eq!(of(json!({"exitCode": -1, "status": "signal: killed"})), ExitStatus::Signal(9));
        assert_eq!(of(json!({"exitCode": -1, "status": "signal: signal 35"})), ExitStatus::Signal(35));
        assert_eq!(of(json!({"exitCode": -1, "status": "unknown"})), ExitStatus::Unknown);
    }

    #[test]
    fn events_are_read_and_signs_of_life_are_not() {
        let of = |text: Value| event(&text).unwrap();
        assert_eq!(of(json!({"start": {"pid": 7}})), Some(Event::Started(7)));
        assert_eq!(of(json!({"data": {"stdout": "aGk="}})), Some(Event::Stdout(b"hi".to_vec())));
        assert_eq!(of(json!({"data": {"pty": "aGk="}})), Some(Event::Terminal(b"hi".to_vec())));
        assert_eq!(of(json!({"keepalive": {}})), None);
        assert!(event(&json!({"data": {"stderr": "?"}})).is_err());
    }
}
