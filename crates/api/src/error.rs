//! How a request fails: a code for programs, a message and a hint for people.

use serde::{Deserialize, Serialize};

/// What kind of failure it is. Clients decide by this, never by the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request itself is wrong.
    InvalidRequest,
    /// No such template or sandbox.
    NotFound,
    /// Something else is under way or in use.
    Conflict,
    /// The program cannot be forked; `details` has the reasons.
    CannotFork,
    /// The template's program ended or was not ready in time; `details` has the end of its output.
    NotReady,
    /// The program to run does not exist in the sandbox.
    ProgramMissing,
    /// The program to run is there, but may not be executed.
    ProgramNotExecutable,
    /// A start failed.
    StartFailed,
    /// A part of the node died under the request; repeating it is safe.
    Interrupted,
    /// The node did not finish within the request's deadline.
    TimedOut,
    /// What was sent or is stored is damaged.
    Damaged,
    /// The volume is full, or the request is larger than what one may be.
    NoSpace,
    /// The volume can be read, and nothing in it can be changed here.
    ReadOnly,
    /// The object store or the database of heads does not answer; repeating it later is safe.
    StoreUnavailable,
    /// The client went away.
    Cancelled,
    /// The host refused something the node needs.
    Host,
}

impl ErrorCode {
    /// The status of an answer that fails so.
    pub fn http_status(self) -> u16 {
        match self {
            Self::InvalidRequest => 400,
            Self::NotFound => 404,
            Self::Conflict | Self::ReadOnly => 409,
            Self::CannotFork | Self::NotReady | Self::ProgramMissing | Self::ProgramNotExecutable | Self::Damaged => {
                422
            }
            // The client does not read it. The number is nginx's, for logs.
            Self::Cancelled => 499,
            Self::StartFailed | Self::Host => 500,
            Self::Interrupted | Self::StoreUnavailable => 503,
            Self::TimedOut => 504,
            Self::NoSpace => 507,
        }
    }
}

/// The body of every failed answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What failed.
    pub error: ErrorDetail,
}

/// One failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// For programs.
    pub code: ErrorCode,
    /// For people: what failed and why, without a full stop.
    pub message: String,
    /// What to do next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Reasons or output lines that belong to the message, one per line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
}
