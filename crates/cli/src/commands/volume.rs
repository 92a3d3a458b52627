//! `pando volume`.

mod files;
mod history;
mod mount;
mod prune;
mod remote;
mod state;

use std::process::ExitCode;

use anyhow::Result;
use client::Client;

use super::store;
use crate::address::Address;

pub(super) use mount::{describe_mount, parse_mount};

pub(crate) const EXAMPLES: &str = "\
Examples:
    pando volume create ws --size 20G
    pando template build agent --mount-point /workspace --cwd /workspace -- /usr/bin/agent
    pando create agent --volume ws:/workspace
    pando volume snapshot ws before-the-refactoring --note 'all tests pass'
    pando volume diff ws@before-the-refactoring
    pando volume restore ws before-the-refactoring
    pando volume fork ws@before-the-refactoring experiment
    pando volume mount ws /mnt/ws
A state of a volume that has a name is written VOLUME@SNAPSHOT.";

/// What can be done with volumes.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Create(state::CreateArgs),
    /// List volumes.
    Ls(state::ListArgs),
    /// Show everything about a volume.
    Inspect(state::NameArgs),
    /// Remove volumes that are mounted nowhere, or snapshots. Prints what is removed.
    ///
    /// On a node, snapshots of a removed volume stay, and belong to the next volume of its name. A server removes them
    /// with the volume.
    Rm(state::RmArgs),
    Prune(prune::PruneArgs),
    /// Show what volumes hold, and count what this node did with them.
    Usage(JsonArgs),
    Snapshot(history::SnapshotArgs),
    /// List the snapshots of a volume, newest first.
    Log(history::LogArgs),
    Restore(history::RestoreArgs),
    Fork(history::ForkArgs),
    Diff(history::DiffArgs),
    Export(files::ExportArgs),
    Import(files::ImportArgs),
    Cat(files::CatArgs),
    Verify(state::VerifyArgs),
    /// Remove what nothing in the store needs any more: the same as `pando store gc`.
    Gc(store::GcArgs),
    Mount(mount::MountArgs),
    Unmount(mount::UnmountArgs),
}

impl Command {
    /// What becomes of it at an interrupt.
    pub(crate) fn interrupted(&self) -> &'static str {
        match self {
            Self::Create(_)
            | Self::Rm(_)
            | Self::Prune(_)
            | Self::Snapshot(_)
            | Self::Restore(_)
            | Self::Fork(_)
            | Self::Mount(_)
            | Self::Unmount(_) => "a change that was begun is completed",
            Self::Import(_) => "what was unpacked whole by then stays",
            Self::Ls(_)
            | Self::Inspect(_)
            | Self::Usage(_)
            | Self::Log(_)
            | Self::Diff(_)
            | Self::Export(_)
            | Self::Cat(_)
            | Self::Verify(_)
            | Self::Gc(_) => "",
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct JsonArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs a command with the node, or with the server that the address names.
pub(crate) async fn run(command: Command, address: &Address) -> Result<ExitCode> {
    match address.server()? {
        Some(server) => remote::run(command, &server).await,
        None => with_node(command, &address.only_node()?).await,
    }
}

async fn with_node(command: Command, client: &Client) -> Result<ExitCode> {
    match command {
        Command::Create(args) => state::create(args, client).await?,
        Command::Ls(args) => state::list(&args, client).await?,
        Command::Inspect(args) => state::inspect(&args, client).await?,
        Command::Rm(args) => return state::remove(&args, client).await,
        Command::Prune(args) => return prune::prune(&args, client).await,
        Command::Usage(args) => state::usage(&args, client).await?,
        Command::Snapshot(args) => history::snapshot(args, client).await?,
        Command::Log(args) => history::log(&args, client).await?,
        Command::Restore(args) => history::restore(args, client).await?,
        Command::Fork(args) => history::fork(args, client).await?,
        Command::Diff(args) => history::diff(&args, client).await?,
        Command::Export(args) => files::export(&args, client).await?,
        Command::Import(args) => files::import(&args, client).await?,
        Command::Cat(args) => files::cat(&args, client).await?,
        Command::Verify(args) => return state::verify(&args, client).await,
        Command::Gc(args) => store::collect(&args, client).await?,
        Command::Mount(args) => mount::mount(args, client).await?,
        Command::Unmount(args) => mount::unmount(args, client).await?,
    }
    Ok(ExitCode::SUCCESS)
}
