//! Volumes on a real store: against a model, with crashes, by several threads and nodes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod about;
mod adopt;
mod archive;
mod compact;
mod crash;
mod diff;
mod follow;
mod host_crash;
mod lifecycle;
mod model;
mod operations;
mod place;
mod random;
mod restore;
mod threads;
mod verify;
mod walk;
