//! All tests that need a host: the real kernel, root, real programs. Each case leaves nothing behind, and fails if anything is left.
//!
//! usage: host [--list | PART OF A CASE'S NAME...]
//!
//! PANDO_TEST_JOBS  cases at a time (4)
//! PANDO_TEST_SECONDS  seconds that a case may take (120)
//! PANDO_ROUNDS     rounds of the crash loops (2 to 4), of differential cases (1) and of checkpoints on a distant node (1)
//! PANDO_STREAMS    idle streams of one client (100; 1,000 is what is promised: `make soak-serve`)
//! PANDO_OUTAGE_S   seconds that the store is away (6; 30 is what is promised: `make soak`)
//! PANDO_TEST_S3    the bucket for the cases that need one; without it they are skipped (scripts/s3.sh sets it)
//! PANDO_SEED       seed of the random choices (a new one, which is printed)
//! PANDO_BINARY     the binary (target/debug/pando)

mod engine;
mod fuse;
mod hands;
mod node;
mod sandbox;

use anyhow::Result;
use testkit::{engine::killed, runner};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Parts of some cases are processes of their own: this program again.
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [killed::CAPTURE, rest @ ..] => return killed::capture_for_ever(rest),
        [fuse::SERVE, state, how] => fuse::serve(state.as_ref(), how),
        [fuse::STORM, directory, seed] => fuse::storm(directory.as_ref(), seed.parse()?),
        [fuse::ATTACH, directory] => fuse::attach(directory.as_ref()),
        _ => {
            let cases = [engine::cases(), node::cases(), fuse::cases(), hands::cases(), sandbox::cases()];
            runner::run(&cases.into_iter().flatten().collect::<Vec<_>>());
        }
    }
    Ok(())
}
