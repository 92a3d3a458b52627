//! Keeps the commands of sandboxes: their streams, their output and their exit statuses, whatever becomes of the node.
//!
//! ```text
//! node ──SEQPACKET: requests, events──> holder ──SEQPACKET: the same descriptors──> spare
//!                                         │ reads                                     │ waits for the holder's end,
//!                                         ▼                                           ▼ then takes its place
//!                        pipes and terminals of commands             records: files in memory with rings of output
//! ```
//!
//! Both processes have every descriptor, and all that is known of a command is in its record, which both can read. So
//! the death of one loses no command: the other one goes on and starts the missing one again. Only if both die at once
//! are streams lost.
//!
//! - [`run`] is the life of either process.
//! - [`Client`] is the node's side.

mod client;
mod error;
mod held;
mod limits;
mod message;
mod record;
mod ring;
mod server;
mod spare;

use std::{ffi::OsString, path::PathBuf};

pub use client::{Channel, Client, Event, Events, Starting, Unsettled};
pub use error::{Error, Refusal};
pub use limits::INPUT_BYTES_MAX;
pub use message::Family;
pub use record::{End, Entry, Meta, Process, Reason, Status};

/// Which of the two processes one is at its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It serves clients.
    Holder,
    /// It waits for the holder's end.
    Spare,
}

impl Role {
    /// The last argument of a process that has this role.
    pub fn argument(self) -> &'static str {
        match self {
            Self::Holder => "serve",
            Self::Spare => "spare",
        }
    }
}

/// What both processes are told at their start.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the socket and the lock are.
    pub folder: PathBuf,
    /// The arguments with which this program runs either of them, without the role, which comes last.
    pub arguments: Vec<OsString>,
}

/// Name of the socket in the folder.
const SOCKET: &str = "holder.sock";
/// Name of the lock in the folder. The family has it as long as one of its processes lives.
const LOCK: &str = "holder.lock";

/// The body of either process: call it in a process of one thread that does nothing else. Returns when it is of no use
/// any more.
pub fn run(role: Role, config: &Config) -> Result<(), Error> {
    if let Err(error) = sys::oom::set(-1000) {
        // Not permitted in some containers.
        tracing::debug!(%error, "the out-of-memory killer chooses among the holder's processes as it likes");
    }
    raise_descriptor_limit();
    match role {
        Role::Holder => server::begin(config),
        Role::Spare => match spare::wait()? {
            Some(inheritance) => server::take_over(config, inheritance),
            None => Ok(()),
        },
    }
}

/// Each command takes up to five descriptors.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // As far as it is allowed; what does not fit is refused when it comes.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
