//! Durable bytes: sealed segments in an object store, immutable trees and manifests over them, and heads that name them.
//!
//! ```text
//!   heads ── (realm, name) -> manifest, generation          SQLite or PostgreSQL: the only thing that changes
//!     │
//!   manifest ─ tree ── immutable, incremental               sealed chunks in segments
//!     │
//!   segment ── chunks, each sealed by `seal` with a realm's key from `keys`
//!     │
//!   cache ─ peers ─ object                                  local disk, other nodes, directory or S3
//! ```
//!
//! Every write goes bottom up: segment, then manifest, then head. A crash in between leaves garbage, never damage, and `gc`
//! removes it. No object is ever written twice.

pub mod cache;
pub mod chunks;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod gc;
pub mod heads;
pub mod id;
pub mod keys;
mod kind;
pub mod limits;
pub mod manifest;
pub mod object;
pub mod peer;
pub mod seal;
pub mod segment;
pub mod text;
pub mod tree;
mod unnamed;
pub mod verify;

pub use chunks::Store;
