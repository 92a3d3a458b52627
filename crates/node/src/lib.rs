//! One node's daemon: the keeper, the state, the pool and the HTTP API, composed of the engines.
//!
//! ```text
//! http (axum over a unix socket) -> node (operations) -> state (one lock, pure transitions) + records (disk)
//!                                        |
//!                                        +-> keeper_client ==SEQPACKET==> keeper (own process; see `keeper`)
//! ```

pub mod config;
mod descriptor;
pub mod durable;
pub mod error;
mod http;
pub mod keeper;
mod keeper_client;
mod node;
mod records;
mod server;
mod state;

pub use config::Config;
pub use error::{Error, Result, chain};
pub use server::run;
