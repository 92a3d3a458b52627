//! Why a call failed, in words for an agent.

/// A failed call, or a failed start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The environment names no server.
    #[error("no server is named: run `eval \"$(pando env)\"`, or set PANDO_URL and PANDO_KEY")]
    NoServer,
    /// Part of the address is missing or cannot be used.
    #[error("{variable} cannot be used: {reason}")]
    Variable {
        /// Which one.
        variable: &'static str,
        /// Why.
        reason: String,
    },
    /// The HTTP client cannot be made.
    #[error("cannot make an HTTP client")]
    Http(#[source] reqwest::Error),
    /// No connection, or one that broke.
    #[error("the server does not answer")]
    Unreachable(#[source] reqwest::Error),
    /// The server refused.
    #[error("{message} (status {status})")]
    Refused {
        /// Of HTTP.
        status: u16,
        /// The server's words.
        message: String,
    },
    /// A command did not start, or its stream ended early.
    #[error("the command failed: {0}")]
    Command(String),
    /// The server's answer is not what this version expects.
    #[error("the answer of the server is not understood")]
    Answer(#[source] serde_json::Error),
    /// The server's answer has another form.
    #[error("the answer of the server is not understood: {0}")]
    Form(&'static str),
    /// The agent's arguments do not fit the tool.
    #[error("the arguments are not understood: {0}")]
    Arguments(String),
    /// The agent calls something else.
    #[error("there is no tool {0:?}")]
    NoTool(String),
    /// The client does not speak the protocol.
    #[error("the client does not speak the Model Context Protocol: {0}")]
    Client(String),
}
