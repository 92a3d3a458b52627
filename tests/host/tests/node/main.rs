//! The whole product on the real kernel: each case starts a node of its own and uses the `pando` command as a user would. Every
//! case leaves nothing behind, and fails if anything is left.
//!
//! usage: node [PART OF A CASE'S NAME]
//!
//! PANDO_ROUNDS   rounds of the crash loop (6)
//! PANDO_SEED     seed of its random choices (a new one, which is printed)
//! PANDO_BINARY   the binary (target/debug/pando)

mod ahead;
mod cancel;
mod checkpoint;
mod crash;
mod disk;
mod failures;
mod isolation;
mod limits;
mod live_fork;
mod memory;
mod output;
mod pause;
mod requests;
mod services;
mod store;

use pando_host_tests::runner;

fn main() {
    let mut cases = services::cases();
    cases.extend(ahead::cases());
    cases.extend(live_fork::cases());
    cases.extend(checkpoint::cases());
    cases.extend(pause::cases());
    cases.extend(store::cases());
    cases.extend(isolation::cases());
    cases.extend(output::cases());
    cases.extend(limits::cases());
    cases.extend(failures::cases());
    cases.extend(requests::cases());
    cases.extend(cancel::cases());
    cases.extend(crash::cases());
    cases.extend(disk::cases());
    cases.extend(memory::cases());
    runner::run(&cases)
}
