//! Volumes mounted on the real kernel, used by real programs.
//!
//! The volume is served by another process, which is this program again. More parts of it are the programs of the adoption case and the
//! one that attaches a mount elsewhere.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cases;
#[path = "../../../../crates/fuse/examples/mount/local.rs"]
mod local;
mod place;
mod serve;
mod storm;

use testkit::runner::Case;

pub(crate) use cases::attach;
pub(crate) use serve::run as serve;
pub(crate) use storm::run as storm;

/// Arguments by which this program is started as a part of a case.
pub(crate) const SERVE: &str = "--serve";
pub(crate) const STORM: &str = "--storm";
pub(crate) const ATTACH: &str = "--attach";

pub(crate) fn cases() -> Vec<Case> {
    let case = |(name, body): &(&str, fn())| {
        let body = *body;
        Case::new(format!("fuse::{name}"), move || {
            body();
            Ok(())
        })
        // A first runtime opens descriptors that stay.
        .after(|| drop(tokio::runtime::Runtime::new()))
    };
    cases::ALL.iter().map(case).collect()
}
