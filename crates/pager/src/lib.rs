//! The pager.
mod board;
mod client;
mod error;
pub mod guardian;
pub mod limits;
mod message;
mod missing;
mod pages;
mod server;
mod space;

pub use client::{Client, Serve};
pub use error::{BoxError, Error, SourceError};
pub use message::{Counters, Failure, ImageStatus, Status};
pub use pages::{Cluster, OpenSource, PageSource};
pub use server::Options;
