//! The whole product: each case starts a node of its own and uses the `pando` command as a user would.

mod ahead;
mod along;
mod attacks;
mod beside_commands;
mod builds;
mod burst;
mod cancel;
mod changes;
mod changing;
mod checkpoint;
mod client;
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
mod files_only;
mod held;
mod images;
mod isolation;
mod kills;
mod limits;
mod live_fork;
mod mcp;
mod memory;
mod merge;
mod network;
mod on_fork;
mod output;
mod overlay;
mod pager;
mod pause;
mod peers;
mod pull;
mod pull_faults;
mod real_trees;
mod requests;
mod serve;
mod serve_snapshots;
mod serve_volumes;
mod services;
mod shared;
mod shared_memory;
mod store;
mod telemetry;
mod twins;
mod volumes;
mod volumes_faults;
mod volumes_host;
mod volumes_kept;
mod volumes_mapped;
mod volumes_states;

use testkit::runner::Case;

pub(crate) fn cases() -> Vec<Case> {
    let parts = [
        serve::cases(),
        attacks::cases(),
        serve_snapshots::cases(),
        serve_volumes::cases(),
        client::cases(),
        services::cases(),
        ahead::cases(),
        along::cases(),
        beside_commands::cases(),
        builds::cases(),
        burst::cases(),
        live_fork::cases(),
        merge::cases(),
        checkpoint::cases(),
        copies::cases(),
        pager::cases(),
        telemetry::cases(),
        twins::cases(),
        pause::cases(),
        files_only::cases(),
        shared_memory::cases(),
        store::cases(),
        peers::cases(),
        held::cases(),
        isolation::cases(),
        on_fork::cases(),
        output::cases(),
        overlay::cases(),
        commands::cases(),
        command_line::cases(),
        limits::cases(),
        network::cases(),
        images::cases(),
        pull::cases(),
        pull_faults::cases(),
        failures::cases(),
        real_trees::cases(),
        requests::cases(),
        cancel::cases(),
        changes::cases(),
        changing::cases(),
        crash::cases(),
        disk::cases(),
        doctor::cases(),
        faults::cases(),
        faults_s3::cases(),
        kills::cases(),
        mcp::cases(),
        memory::cases(),
        volumes::cases(),
        volumes_faults::cases(),
        volumes_host::cases(),
        volumes_kept::cases(),
        volumes_mapped::cases(),
        volumes_states::cases(),
    ];
    parts.into_iter().flatten().collect()
}
