//! Exit codes, and how a failure is told.

use std::process::ExitCode;

use api::{ErrorCode, ErrorDetail};

/// What `--help` says about them.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  failed
    2  wrong usage
    3  the node or the server cannot be reached
    4  no such template, checkpoint, sandbox, volume or snapshot
    5  the program cannot be forked
    6  the program ended or was not ready in time
    7  verify: something is out of reach, nothing is damaged
  126  the program to run is not executable
  127  the program to run does not exist in the sandbox
  130  interrupted
`pando exec` exits as its command does: with its code, or with 128 plus the number of the signal that killed it. It
exits with 124 after --timeout, and with 141 if no process reads its output any more.";

/// Of `verify`: what was not read may be sound.
pub(crate) const OUT_OF_REACH: u8 = 7;

/// A failure of the command itself with an exit code of its own. Failures of the node are [`client::Error`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The user interrupted.
    #[error("{0}")]
    Interrupted(String),
    /// Wrong usage that clap cannot see.
    #[error("{0}")]
    Usage(String),
}

/// Something is not there. `hint`: what to do next.
pub(crate) fn missing(message: String, hint: Option<&str>) -> anyhow::Error {
    let hint = hint.map(str::to_owned);
    client::Error::Node(ErrorDetail { code: ErrorCode::NotFound, message, hint, details: Vec::new() }).into()
}

/// The exit code of a failure.
fn code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref() {
        Some(Failure::Interrupted(_)) => return 130,
        Some(Failure::Usage(_)) => return 2,
        None => {}
    }
    if let Some(gateway::env::Error::NoServer { .. } | gateway::env::Error::NoAnswer { .. }) = error.downcast_ref() {
        return 3;
    }
    match error.downcast_ref() {
        Some(client::Error::Node(detail)) => code_of(detail.code),
        Some(client::Error::Unreachable { .. } | client::Error::NoAnswer { .. }) => 3,
        Some(client::Error::IsDirectory(_) | client::Error::Url(_)) => 2,
        Some(
            client::Error::HungUp
            | client::Error::BrokenOff(_)
            | client::Error::NotUnderstood(_)
            | client::Error::Status(_)
            | client::Error::TimedOut(_)
            | client::Error::TooLong { .. }
            | client::Error::Upload(_)
            | client::Error::Request(_)
            | client::Error::HangUp(_),
        )
        | None => 1,
    }
}

/// The exit code for a failure that the node names.
pub(crate) fn code_of(code: ErrorCode) -> u8 {
    match code {
        ErrorCode::InvalidRequest => 2,
        ErrorCode::NotFound => 4,
        ErrorCode::CannotFork => 5,
        ErrorCode::NotReady => 6,
        // As shells have it.
        ErrorCode::ProgramMissing => 127,
        ErrorCode::ProgramNotExecutable => 126,
        ErrorCode::Cancelled => 130,
        ErrorCode::Conflict
        | ErrorCode::StartFailed
        | ErrorCode::Interrupted
        | ErrorCode::TimedOut
        | ErrorCode::Damaged
        | ErrorCode::NoSpace
        | ErrorCode::ReadOnly
        | ErrorCode::StoreUnavailable
        | ErrorCode::Host => 1,
    }
}

/// Prints a failure with its whole chain, once.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    errln!("pando: {error:#}");
    match error.downcast_ref() {
        Some(client::Error::Node(detail)) => {
            detail.details.iter().for_each(|line| errln!("    {line}"));
            detail.hint.iter().for_each(|hint| errln!("hint: {hint}"));
        }
        Some(
            client::Error::Unreachable { at: client::Address::Url(_), .. }
            | client::Error::NoAnswer { at: client::Address::Url(_), .. },
        ) => {
            errln!("hint: check --url or PANDO_URL; `eval \"$(pando env)\"` sets what a server on this machine needs");
        }
        Some(client::Error::Unreachable { .. } | client::Error::NoAnswer { .. }) => {
            errln!("hint: start one with `pando node`, or name its socket with --socket or PANDO_SOCKET");
        }
        _ => {}
    }
    ExitCode::from(code(error))
}
