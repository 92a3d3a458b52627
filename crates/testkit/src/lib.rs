//! What tests on a real host share. `tests/host` has the cases.
//!
//! | module | what it gives |
//! |---|---|
//! | [`runner`] | one process per case, several cases at a time, a guard against leaks |
//! | [`node`] | a node of the case's own, and the command as a user calls it |
//! | [`engine`] | the fork engine without a node |
//! | [`ids`] | who a sandbox's users are on the host |
//! | [`twins`] | the memory of a restored program, compared page by page |
//! | [`registry`] | a registry of images, and a front that spoils its answers |
//! | [`postgres`], [`proxy`] | a database, and a way to a service that fails on demand |

pub mod engine;
pub mod ids;
pub mod node;
pub mod postgres;
pub mod proxy;
pub mod registry;
pub mod runner;
pub mod twins;
