//! The whole product on the real kernel: each case starts a node of its own and uses the `pando` command as a user would. Every
//! case leaves nothing behind, and fails if anything is left.
//!
//! usage: node [PART OF A CASE'S NAME]
//!
//! PANDO_ROUNDS   rounds of the crash loops (6), and of checkpoints on a distant node (1)
//! PANDO_OUTAGE_S seconds that the store is away (6; 30 is what is promised: `make soak`)
//! PANDO_TEST_S3  the bucket for the cases that need one; without it they only say so (scripts/s3.sh sets it)
//! PANDO_SEED     seed of its random choices (a new one, which is printed)
//! PANDO_BINARY   the binary (target/debug/pando)

mod ahead;
mod beside_commands;
mod burst;
mod cancel;
mod checkpoint;
mod command_line;
mod commands;
mod copies;
mod crash;
mod disk;
mod doctor;
mod failures;
mod faults;
mod faults_captured;
mod faults_host;
mod faults_s3;
mod isolation;
mod kills;
mod limits;
mod live_fork;
mod memory;
mod output;
mod pager;
mod pause;
mod peers;
mod requests;
mod services;
mod shared_memory;
mod store;
mod twins;
mod volumes;
mod volumes_faults;
mod volumes_host;
mod volumes_kept;
mod volumes_mapped;
mod volumes_states;

use pando_host_tests::runner;

fn main() {
    let mut cases = services::cases();
    cases.extend(ahead::cases());
    cases.extend(beside_commands::cases());
    cases.extend(burst::cases());
    cases.extend(live_fork::cases());
    cases.extend(checkpoint::cases());
    cases.extend(copies::cases());
    cases.extend(pager::cases());
    cases.extend(twins::cases());
    cases.extend(pause::cases());
    cases.extend(shared_memory::cases());
    cases.extend(store::cases());
    cases.extend(peers::cases());
    cases.extend(isolation::cases());
    cases.extend(output::cases());
    cases.extend(commands::cases());
    cases.extend(command_line::cases());
    cases.extend(limits::cases());
    cases.extend(failures::cases());
    cases.extend(requests::cases());
    cases.extend(cancel::cases());
    cases.extend(crash::cases());
    cases.extend(disk::cases());
    cases.extend(doctor::cases());
    cases.extend(faults::cases());
    cases.extend(faults_s3::cases());
    cases.extend(kills::cases());
    cases.extend(memory::cases());
    cases.extend(volumes::cases());
    cases.extend(volumes_faults::cases());
    cases.extend(volumes_host::cases());
    cases.extend(volumes_kept::cases());
    cases.extend(volumes_mapped::cases());
    cases.extend(volumes_states::cases());
    runner::run(&cases)
}
