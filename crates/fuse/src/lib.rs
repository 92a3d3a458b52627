//! Volumes as filesystems of the kernel.
//!
//! ```text
//!   mount ─► a superblock that is attached nowhere: device + tree ─► clones of the tree, one for each place
//!                                                     │
//!   kernel ◄── /dev/fuse ──► session (threads) ─► adapter ─► volume::Engine
//!                               ▲
//!   handshake ── the INIT of a new superblock, or one that is made up for a superblock that is running already
//! ```
//!
//! Node ids are inode numbers and there are no file handles, so a process that has the device needs nothing else to go on where another
//! has died: see [`Served::adopt`]. Why and how is in docs/volume-fuse.md.

mod adapter;
mod convert;
mod crew;
mod error;
mod features;
mod handshake;
mod mount;
mod session;
mod warm_up;

pub use self::{
    error::FuseError,
    features::{Features, features},
    mount::{Access, FILESYSTEM, Mount, clone_tree, keep_writable, mount, mount_again, set_read_ahead},
    session::{Options, Served},
};
