//! Garbage collection and verification of a real directory with real heads.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod collecting;
mod place;
mod races;
mod verifying;
