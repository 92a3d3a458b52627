//! Volumes mounted on the real kernel, used by real programs. Runs as root, in a mount namespace of its own, one named case after the
//! other; after each, nothing of it may be left. An argument selects the cases whose names contain it.
//!
//! The volume is served by another process, which is this program again: `serve`. More parts of it are the programs of the adoption
//! case, `storm`, and the one that attaches a mount elsewhere, `attach`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cases;
#[path = "../../examples/mount/local.rs"]
mod local;
mod place;
mod serve;
mod storm;

use std::panic::{AssertUnwindSafe, catch_unwind};

use place::Guard;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", state, how] => serve::run(state.as_ref(), how),
        ["storm", directory, seed] => storm::run(directory.as_ref(), seed.parse().unwrap()),
        ["attach", directory] => cases::attach(directory.as_ref()),
        ["cases", wanted @ ..] => run_cases(wanted),
        _ => enter(&words),
    }
}

fn enter(words: &[String]) {
    if !rustix::process::geteuid().is_root() {
        println!("0 passed, 0 failed: skipped, these tests need root");
        return;
    }
    let wanted = words.iter().filter(|word| !word.starts_with('-'));
    let status = place::in_mount_namespace().arg("cases").args(wanted).status().unwrap();
    std::process::exit(status.code().unwrap_or(1));
}

fn run_cases(wanted: &[&str]) {
    // A first runtime opens descriptors that stay.
    drop(tokio::runtime::Runtime::new());
    let (mut passed, mut failed) = (0, 0);
    for (name, case) in cases::ALL.iter().filter(|(name, _)| wanted.iter().all(|wanted| name.contains(wanted))) {
        let before = Guard::look();
        let result = catch_unwind(AssertUnwindSafe(|| {
            case();
            before.compare(&Guard::look());
        }));
        println!("{} {name}", if result.is_ok() { "ok    " } else { "FAILED" });
        if result.is_ok() { passed += 1 } else { failed += 1 }
    }
    println!("{passed} passed, {failed} failed");
    if failed > 0 {
        std::process::exit(1);
    }
}
