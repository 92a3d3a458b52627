//! Running commands and code.

use std::time::Duration;

use base::limits::{MCP_COMMAND_TIMEOUT, MCP_COMMAND_TIMEOUT_MAX, MCP_OUTPUT_BYTES_MAX};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Error,
    kept::Kept,
    remote::{Remote, bounded},
    run::{self, Order},
};

/// Where the warm interpreters listen.
const INTERPRETER_PORT: u16 = 49999;
/// Code that failed: the traceback is the answer.
const CODE_FAILED: u16 = 422;
const NO_LISTENER: u16 = 502;

/// Arguments of `run_command`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCommand {
    /// Id of the sandbox.
    sandbox_id: String,
    /// The command, for `bash -l -c`. It reads no input.
    command: String,
    /// The directory in which it runs. /home/user if it is left out.
    cwd: Option<String>,
    /// Seconds after which the command is killed, at most 3600. 60 if it is left out.
    #[schemars(range(min = 1, max = 3_600))]
    timeout_seconds: Option<u64>,
    /// Return at once and leave it running. Its output is not returned.
    background: Option<bool>,
}

pub(crate) async fn run_command(remote: &Remote, arguments: RunCommand) -> Result<Value, Error> {
    let timeout = timeout(arguments.timeout_seconds)?;
    let inside = remote.inside(&arguments.sandbox_id).await?;
    let order = Order { command: &arguments.command, directory: arguments.cwd.as_deref(), timeout };
    if arguments.background.unwrap_or(false) {
        let ran = run::in_the_background(&inside, &order).await?;
        return Ok(json!({ "pid": ran.pid }));
    }
    let ran = run::to_the_end(&inside, &order).await?;
    Ok(json!({
        "exit_code": ran.exit_code,
        "timed_out": ran.exit_code.is_none(),
        "stdout": ran.stdout.text(),
        "stderr": ran.stderr.text(),
    }))
}

/// Arguments of `run_code`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCode {
    /// Id of a sandbox of template `python` or `node`.
    sandbox_id: String,
    /// Python or JavaScript, as the template has it.
    code: String,
    /// Seconds until the call gives up, at most 3600. 60 if it is left out. The code goes on.
    #[schemars(range(min = 1, max = 3_600))]
    timeout_seconds: Option<u64>,
}

pub(crate) async fn run_code(remote: &Remote, arguments: RunCode) -> Result<Value, Error> {
    let timeout = timeout(arguments.timeout_seconds)?;
    let inside = remote.inside(&arguments.sandbox_id).await?;
    let request = inside.to_port(INTERPRETER_PORT, "/").timeout(timeout).body(arguments.code);
    let response = request.send().await.map_err(|error| match error.is_timeout() {
        true => Error::Command("the code did not end in time, and goes on".to_owned()),
        false => Error::Unreachable(error.without_url()),
    })?;
    let status = response.status().as_u16();
    if status == NO_LISTENER {
        let message = "no interpreter waits in this sandbox: create one with template `python` or `node`".to_owned();
        return Err(Error::Command(message));
    }
    if !response.status().is_success() && status != CODE_FAILED {
        return Err(Error::Refused { status, message: "the interpreter cannot be reached".to_owned() });
    }
    let (printed, is_whole) = bounded(response, MCP_OUTPUT_BYTES_MAX).await?;
    let mut kept = Kept::default();
    kept.push(&printed);
    Ok(json!({ "ok": status != CODE_FAILED, "output": kept.text(), "is_cut": !is_whole }))
}

fn timeout(seconds: Option<u64>) -> Result<Duration, Error> {
    let timeout = seconds.map_or(MCP_COMMAND_TIMEOUT, Duration::from_secs);
    if timeout.is_zero() || timeout > MCP_COMMAND_TIMEOUT_MAX {
        let most = MCP_COMMAND_TIMEOUT_MAX.as_secs();
        return Err(Error::Arguments(format!("timeout_seconds has to be between 1 and {most}")));
    }
    Ok(timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_has_bounds() {
        assert_eq!(timeout(None).unwrap(), MCP_COMMAND_TIMEOUT);
        assert_eq!(timeout(Some(3_600)).unwrap(), MCP_COMMAND_TIMEOUT_MAX);
        assert!(timeout(Some(0)).is_err() && timeout(Some(3_601)).is_err() && timeout(Some(u64::MAX)).is_err());
    }
}
