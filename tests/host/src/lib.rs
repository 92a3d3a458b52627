//! What the host tests share.

pub mod engine;
pub mod node;
pub mod postgres;
pub mod proxy;
pub mod runner;
pub mod twins;
