//! One command, from its start to its end: the stream of `process.Process/Start`.

use std::time::Duration;

use base::limits::MCP_ANSWER_BYTES_MAX;
use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::{
    Error,
    kept::Kept,
    remote::{Inside, accepted},
};

/// Flags and length of each message.
const HEAD_BYTES: usize = 5;
/// The last message: an error, or nothing.
const END_FLAG: u8 = 2;

/// How much later the server ends a command by itself, if this process has died meanwhile. Not by whole seconds: servers
/// take a deadline of exactly 60 s, which the SDKs send unasked, for none.
const GRACE: Duration = Duration::from_millis(1001);

/// What became of a command.
#[derive(Debug, Default)]
pub(crate) struct Ran {
    /// Its id in the sandbox.
    pub(crate) pid: u64,
    pub(crate) stdout: Kept,
    pub(crate) stderr: Kept,
    /// None: it runs on, or was killed because its time was over.
    pub(crate) exit_code: Option<i64>,
}

/// A command for bash.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    pub(crate) command: &'a str,
    pub(crate) directory: Option<&'a str>,
    pub(crate) timeout: Duration,
}

/// Runs a command to its end, or kills it when its time is over.
pub(crate) async fn to_the_end(inside: &Inside, order: &Order<'_>) -> Result<Ran, Error> {
    let mut ran = Ran::default();
    let mut stream = start(inside, order, Some(order.timeout + GRACE)).await?;
    match tokio::time::timeout(order.timeout, follow(&mut stream, &mut ran)).await {
        Ok(ended) => ended?,
        // It has not begun: its deadline ends it, if it still does.
        Err(_) if ran.pid == 0 => return Err(Error::Command("it did not start in time".to_owned())),
        Err(_) => kill(inside, ran.pid).await?,
    }
    Ok(ran)
}

/// Starts a command that runs on. Its output is not followed.
pub(crate) async fn in_the_background(inside: &Inside, order: &Order<'_>) -> Result<Ran, Error> {
    let mut ran = Ran::default();
    let mut stream = start(inside, order, None).await?;
    while ran.pid == 0 && ran.exit_code.is_none() {
        let message = stream.next().await?.ok_or_else(|| Error::Command("it did not start".to_owned()))?;
        note(&message, &mut ran)?;
    }
    Ok(ran)
}

async fn start(inside: &Inside, order: &Order<'_>, deadline: Option<Duration>) -> Result<Stream, Error> {
    let mut process = json!({ "cmd": "/bin/bash", "args": ["-l", "-c", order.command] });
    if let Some(directory) = order.directory {
        process["cwd"] = directory.into();
    }
    let body = json!({ "process": process, "stdin": false }).to_string().into_bytes();
    let length = u32::try_from(body.len()).map_err(|_| Error::Arguments("the command is too long".to_owned()))?;
    let envelope = [&[0], &length.to_be_bytes()[..], &body].concat();
    let request = inside.request(Method::POST, "/process.Process/Start");
    let request = request.header("content-type", "application/connect+json").body(envelope);
    let request = match deadline {
        Some(deadline) => request.header("connect-timeout-ms", deadline.as_millis().to_string()),
        None => request,
    };
    Ok(Stream { response: accepted(request).await?, buffer: Vec::new() })
}

async fn follow(stream: &mut Stream, ran: &mut Ran) -> Result<(), Error> {
    while let Some(message) = stream.next().await? {
        note(&message, ran)?;
    }
    if ran.exit_code.is_some() {
        return Ok(());
    }
    Err(Error::Command("its stream ended before it did".to_owned()))
}

/// Takes one event into account.
fn note(message: &Value, ran: &mut Ran) -> Result<(), Error> {
    let event = &message["event"];
    if let Some(pid) = event["start"]["pid"].as_u64() {
        ran.pid = pid;
    }
    for (name, output) in [("stdout", &mut ran.stdout), ("stderr", &mut ran.stderr)] {
        if let Some(text) = event["data"][name].as_str() {
            output.push(&BASE64_STANDARD.decode(text).map_err(|_| Error::Form("output is not base64"))?);
        }
    }
    if let Some(end) = event.get("end") {
        // The codec leaves out a zero.
        ran.exit_code = Some(end["exitCode"].as_i64().unwrap_or(0));
    }
    Ok(())
}

async fn kill(inside: &Inside, pid: u64) -> Result<(), Error> {
    let body = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" });
    match inside.call("process.Process/SendSignal", &body).await {
        // It ended in the same moment.
        Ok(_) | Err(Error::Refused { status: 404, .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The messages of a stream.
#[derive(Debug)]
struct Stream {
    response: Response,
    buffer: Vec<u8>,
}

impl Stream {
    /// The next message, or none after the last.
    async fn next(&mut self) -> Result<Option<Value>, Error> {
        loop {
            if let Some((flags, body)) = split(&mut self.buffer)? {
                let message: Value = serde_json::from_slice(&body).map_err(Error::Answer)?;
                if flags & END_FLAG == 0 {
                    return Ok(Some(message));
                }
                return match message.get("error") {
                    None => Ok(None),
                    Some(error) => Err(Error::Command(error["message"].as_str().unwrap_or("unknown").to_owned())),
                };
            }
            let chunk = self.response.chunk().await.map_err(|error| Error::Unreachable(error.without_url()))?;
            self.buffer.extend_from_slice(&chunk.ok_or(Error::Form("a stream broke off"))?);
        }
    }
}

/// Takes a whole message off the front: its flags and its body.
fn split(buffer: &mut Vec<u8>) -> Result<Option<(u8, Vec<u8>)>, Error> {
    let Some(&[flags, a, b, c, d]) = buffer.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > MCP_ANSWER_BYTES_MAX {
        return Err(Error::Form("a message is too long"));
    }
    if buffer.len() < HEAD_BYTES + length {
        return Ok(None);
    }
    let rest = buffer.split_off(HEAD_BYTES + length);
    let message = std::mem::replace(buffer, rest);
    Ok(Some((flags, message[HEAD_BYTES..].to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_split_wherever_chunks_end() {
        let whole = [&[0, 0, 0, 0, 2][..], b"{}", &[2, 0, 0, 0, 1], b"x"].concat();
        let (mut buffer, mut found) = (Vec::new(), Vec::new());
        for byte in whole {
            buffer.push(byte);
            found.extend(split(&mut buffer).unwrap());
        }
        assert_eq!(found, [(0, b"{}".to_vec()), (2, b"x".to_vec())]);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_message_that_claims_too_much_is_refused() {
        assert!(split(&mut vec![0, 255, 255, 255, 255]).is_err());
    }

    #[test]
    fn an_exit_code_of_zero_may_be_left_out() {
        let mut ran = Ran::default();
        note(&json!({ "event": { "end": { "exited": true, "status": "exit status 0" } } }), &mut ran).unwrap();
        assert_eq!(ran.exit_code, Some(0));
    }
}
