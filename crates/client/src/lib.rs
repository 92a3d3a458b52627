//! The node's API over its unix socket, and the API of a server: one typed call for each request.
//!
//! Callers see types of `api` only. Paths, methods, status codes and encodings stay in this crate.
//!
//! ```text
//!   Client::run, ...    a node: sandboxes, templates, checkpoints, volumes, store
//!   Server::create, ... a server: sandboxes of a team, as E2B's SDKs ask for them
//!   Inside::start, ...  commands and files of one sandbox, of either
//!          │
//!   exchange, line      one request on a connection of its own
//!          │
//!   transfer, events    answers and bodies that come piece by piece
//! ```
//!
//! A call whose name ends in `_until` is for a request that the node undoes when the client disconnects. It hangs up at the first interrupt, but
//! still takes an answer that is under way by then. It gives `None` if there is no answer, or if there is a second interrupt.

mod address;
mod checkpoints;
mod error;
mod events;
mod exchange;
mod images;
mod inside;
mod line;
mod sandboxes;
mod server;
mod store;
mod templates;
mod transfer;
mod volumes;

use std::path::PathBuf;

pub use address::{Address, InvalidUrl, Url};
pub use error::Error;
pub use exchange::Connection;
pub use inside::{Entry, EntryKind, Event, Events, Inputs, Inside, Running, Selector, Start};
pub use server::{Port, Server};
pub use transfer::{Download, Upload};
pub use volumes::VolumeState;

/// What calls return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A client of one node. Each call opens a connection of its own.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client of the node that listens on `socket`. Nothing is connected yet.
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }
}
