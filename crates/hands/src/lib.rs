//! Hands: file work in a sandbox on behalf of a client outside.
//!
//! A *hand* is a process that the keeper has put into a sandbox's filesystem, with the ids of one user. Every path is
//! walked by the kernel, from the sandbox's root, with that user's rights. Nothing is resolved outside.
//!
//! ```text
//! node: client ==SEQPACKET: requests, replies, events==> hand: serve --> files of the sandbox
//!          \------- one pipe for each transfer ---------/
//! ```
//!
//! [`serve`] is the hand itself: plain threads, bounded in number. [`client`] is the node's side. [`protocol`] has the messages. The crate
//! knows neither sandboxes nor the keeper: it is given a socket.

pub mod client;
pub mod protocol;
pub mod serve;

pub use client::{Error, Hand, Reader, Shares, Watch, WatchOptions, Writer};
pub use protocol::{Account, CopySource, Copying, Entry, EventKind, Kind, Metadata, Problem, WatchEvent};
pub use serve::accounts::account_in;
