//! How an operation fails: a kind for programs, a message and a hint for people.

/// What kind of failure it is. Programs decide by this, never by the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The request itself is wrong.
    InvalidRequest,
    /// The thing that the request names does not exist.
    NotFound,
    /// Something else is under way or in use.
    Conflict,
    /// The program cannot be forked; the details are the reasons.
    CannotFork,
    /// The template's program ended or was not ready in time; the details are the end of its output.
    NotReady,
    /// The program to run does not exist in the sandbox.
    ProgramMissing,
    /// The program to run exists but may not be executed.
    ProgramNotExecutable,
    /// A start failed.
    StartFailed,
    /// A part of the node died during the request. Repeating the request is safe.
    Interrupted,
    /// The node did not finish within the request's deadline.
    TimedOut,
    /// What was sent or is stored is damaged.
    Damaged,
    /// The volume is full, or the request is larger than a volume may be.
    NoSpace,
    /// The volume can be read, but nothing in it can be changed here.
    ReadOnly,
    /// The object store or the database of heads does not answer. Repeating the request later is safe.
    StoreUnavailable,
    /// The client went away.
    Cancelled,
    /// The host refused something that the node needs.
    Host,
}

/// One failure, with its causes in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// For programs.
    pub kind: FailureKind,
    /// For people: what failed and why, without a full stop.
    pub message: String,
    /// What to do next.
    pub hint: Option<String>,
    /// Reasons or output lines that belong to the message, one per line.
    pub details: Vec<String>,
}
