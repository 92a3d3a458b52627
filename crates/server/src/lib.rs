//! A node as a process: what answers HTTP, listens on sockets and heeds signals. The operations are those of `pando-node`.
//!
//! ```text
//! serve: state directory locked -> socket -> self-test of the host -> node loaded -> requests until a signal -> orderly end
//! http:  parse -> call the node -> convert -> map the error
//! ```

mod base;
mod beside;
mod e2b;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod http;
mod key;
mod public;
mod serve;

pub use beside::{run_holder, run_pager, run_volumes};
pub use public::Public;
pub use serve::run;
