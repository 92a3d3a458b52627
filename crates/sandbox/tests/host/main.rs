//! Sandboxes on the real kernel. Runs as root, single-threaded, one named case after the other; after each, nothing of
//! it may be left on the host. An argument selects the cases whose names contain it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cases;
mod guard;
mod host;

use std::panic::{AssertUnwindSafe, catch_unwind};

use guard::Guard;
use host::Host;

fn main() {
    if !rustix::process::geteuid().is_root() {
        println!("0 passed, 0 failed: skipped, these tests need root");
        return;
    }
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let host = Host::prepare();
    let (mut passed, mut failed) = (0, 0);
    for (name, case) in cases::ALL.iter().filter(|(name, _)| name.contains(&wanted)) {
        let before = Guard::look(&host);
        let result = catch_unwind(AssertUnwindSafe(|| {
            case(&host);
            host::reap_all();
            before.compare(&Guard::look(&host));
        }));
        println!("{} {name}", if result.is_ok() { "ok    " } else { "FAILED" });
        if result.is_ok() { passed += 1 } else { failed += 1 }
    }
    host.close();
    println!("{passed} passed, {failed} failed");
    if failed > 0 {
        std::process::exit(1);
    }
}
