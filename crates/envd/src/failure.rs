//! How a request fails, and which code of the Connect protocol that is.

use connectrpc::ConnectError;

/// What kind of failure it is; the Connect protocol has a code for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// The request itself is wrong, or the file is of another kind.
    InvalidArgument,
    /// There is no such command, file or directory.
    NotFound,
    /// It is there already.
    AlreadyExists,
    /// The user of the sandbox may not do that.
    PermissionDenied,
    /// The state of the command or of the sandbox does not allow it.
    FailedPrecondition,
    /// A limit is reached, or the disk is full.
    ResourceExhausted,
    /// The sandbox does not run, or what serves it went away. Repeating the request may help.
    Unavailable,
    /// It took too long.
    DeadlineExceeded,
    /// Output or events were lost.
    DataLoss,
    /// This version cannot do that.
    Unimplemented,
    /// The host failed.
    Internal,
}

/// One failure: a code for programs, a message for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// For programs.
    pub code: Code,
    /// For people: what failed and why.
    pub message: String,
}

impl Failure {
    /// A failure of a kind.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl From<Failure> for ConnectError {
    fn from(Failure { code, message }: Failure) -> Self {
        match code {
            Code::InvalidArgument => Self::invalid_argument(message),
            Code::NotFound => Self::not_found(message),
            Code::AlreadyExists => Self::already_exists(message),
            Code::PermissionDenied => Self::permission_denied(message),
            Code::FailedPrecondition => Self::failed_precondition(message),
            Code::ResourceExhausted => Self::resource_exhausted(message),
            Code::Unavailable => Self::unavailable(message),
            Code::DeadlineExceeded => Self::deadline_exceeded(message),
            Code::DataLoss => Self::data_loss(message),
            Code::Unimplemented => Self::unimplemented(message),
            Code::Internal => Self::internal(message),
        }
    }
}
