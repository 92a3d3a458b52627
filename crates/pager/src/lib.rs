//! The pager: fills the memory of restored processes when they touch it, and survives its own death.
//!
//! ```text
//!   Client ──► guardian ◄──► spare         three processes, one table of descriptors,
//!                 │                        one board (shared memory)
//!                 └──► pager
//!                        │ events  ◄── userfaultfds of zygotes and of all that are forked from them
//!                        │ fetch   ──► PageSource (given by the binary: the store, or a still)
//!                        └ fill
//! ```
//!
//! - `pages`: where pages come from ([`PageSource`]), and how they are numbered.
//! - `space` and `missing`: where a process's pages are now, and which have no content yet. Pure.
//! - `board`: the journal of all that, and whatever else must outlive any one process.
//! - `server`: the pager. [`guardian`]: the other two. [`Client`]: for the node.
//!
//! A process reads what its image has, or it is stopped with a recorded reason; it never reads a silent zero page. See `docs/pager.md`.

mod board;
mod client;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod guardian;
pub mod limits;
mod message;
mod missing;
mod pages;
mod server;
mod space;

pub use client::{Client, Serve};
pub use error::{BoxError, Error, SourceError};
pub use message::{Counters, Failure, PageImageStatus, Status};
pub use pages::{Cluster, OpenSource, PageSource};
pub use server::{Options, RECORDING};
