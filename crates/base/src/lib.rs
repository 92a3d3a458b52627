//! What every other crate may use: identifiers, limits and the framed encoding of what outlives a process.

pub mod frame;
pub mod id;
pub mod limits;
