//! Objects, keys, segments, chunks and the cache together, over a local directory and over a real S3 service.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cache;
mod common;
mod faults;
mod places;
mod scenarios;
mod sealing;
