//! Exit codes, and how a failure is told.

use std::{fmt, process::ExitCode};

use api::{ErrorCode, ErrorDetail};

/// What `--help` says about them.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  failed
    2  wrong usage
    3  the node cannot be reached
    4  no such template, checkpoint, sandbox, volume or snapshot
    5  the program cannot be forked
    6  the program ended or was not ready in time
    7  verify: something is out of reach, nothing is damaged
  126  the program to run is not executable
  127  the program to run does not exist in the sandbox
  130  interrupted
`pando exec` exits as its command does: with its code, or with 128 plus the number of the signal that killed it. It exits with 124 after
--timeout, and with 141 if no process reads its output any more.";

/// Of `verify`: what was not read may be sound.
pub(crate) const OUT_OF_REACH: u8 = 7;

/// A failure with an exit code of its own.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The node answered with an error.
    Node(ErrorDetail),
    /// The node cannot be reached.
    Unreachable { socket: String, cause: String },
    /// The node's answer has no end.
    HungUp,
    /// The user interrupted.
    Interrupted(String),
    /// Wrong usage that clap cannot see.
    Usage(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(detail) => f.write_str(&detail.message),
            Self::Unreachable { socket, cause } => write!(f, "the node at {socket} cannot be reached: {cause}"),
            Self::HungUp => f.write_str("the node hung up before it had finished"),
            Self::Interrupted(what) | Self::Usage(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Failure {}

impl Failure {
    fn code(&self) -> u8 {
        match self {
            Self::Node(detail) => code_of(detail.code),
            Self::Unreachable { .. } => 3,
            Self::HungUp => 1,
            Self::Interrupted(_) => 130,
            Self::Usage(_) => 2,
        }
    }

    fn hint(&self) -> Option<&str> {
        match self {
            Self::Node(detail) => detail.hint.as_deref(),
            Self::Unreachable { .. } => {
                Some("start one with `pando node`, or name its socket with --socket or PANDO_SOCKET")
            }
            Self::HungUp | Self::Interrupted(_) | Self::Usage(_) => None,
        }
    }

    fn details(&self) -> &[String] {
        match self {
            Self::Node(detail) => &detail.details,
            Self::Unreachable { .. } | Self::HungUp | Self::Interrupted(_) | Self::Usage(_) => &[],
        }
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
    let Some(failure) = error.downcast_ref::<Failure>() else { return ExitCode::FAILURE };
    for line in failure.details() {
        errln!("    {line}");
    }
    if let Some(hint) = failure.hint() {
        errln!("hint: {hint}");
    }
    ExitCode::from(failure.code())
}
