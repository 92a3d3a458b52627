//! Sandboxes without a node.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cases;
mod host;

use testkit::runner::{self, Case};

use host::Host;

pub(crate) fn cases() -> Vec<Case> {
    let case = |(name, body): &(&str, fn(&Host))| {
        let body = *body;
        Case::new(format!("sandbox::{name}"), move || {
            let host = Host::prepare();
            body(&host);
            host.close().map_or(Ok(()), runner::skip)
        })
    };
    cases::ALL.iter().map(case).collect()
}
