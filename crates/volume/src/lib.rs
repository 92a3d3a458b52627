//! Volumes: durable workspaces that snapshot and fork.
//!
//! ```text
//!   adapter (FUSE, HTTP)
//!      │
//!   engine ── operations; asks ─► state ── what is in memory of the tree, and what has changed      (pure)
//!      │                            │
//!     wal ── what was done          └─ materialise ─ pack ─► segments ─ tree ─ manifest ─ head      (the store)
//!      │
//!   recover ── after a crash: the log on the state that it was recorded for
//! ```
//!
//! [`Volumes`] are the volumes of one realm as one node sees them, a [`Volume`] is one that is open here, and its [`Engine`] is the
//! filesystem. One node writes a volume: opening takes it over, and whoever had it before is fenced off. How and why is in
//! docs/volume-engine.md.

mod apply;
pub mod archive;
mod chunk;
mod committer;
mod compact;
mod crash;
mod diff;
mod directory;
mod engine;
mod error;
mod extents;
#[cfg(test)]
mod golden_tests;
mod inode;
mod key;
mod layouts;
pub mod limits;
mod loader;
mod materialise;
mod names;
mod op;
mod pack;
mod paged;
mod pressure;
mod recover;
mod request;
mod state;
mod verify;
mod volume;
mod wal;

#[cfg(debug_assertions)]
pub use self::crash::{CRASH_POINTS, crash_at};
pub use self::{
    committer::Committer,
    compact::Effort,
    diff::{Change, Changed, Tell},
    engine::{Attributes, Engine, Hold, Links, Listed, Memory, Traffic, Usage},
    error::{Cause, VolumeError, WalError},
    inode::{Ino, Inode, Kind, ROOT, Time},
    op::{Changes, New, Rename, SetXattr},
    request::Done,
    state::Durability,
    verify::{Finding, Verified},
    volume::{About, Forget, Health, Options, Origin, Snapshot, Volume, Volumes, head_name},
};
