//! The command line: one file per command below `commands/`.

pub(crate) mod attach;
pub(crate) mod checkpoint;
pub(crate) mod completion;
pub(crate) mod connect;
pub(crate) mod cp;
pub(crate) mod create;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod env;
pub(crate) mod exec;
pub(crate) mod fork;
pub(crate) mod forward;
pub(crate) mod guardian;
pub(crate) mod holder;
pub(crate) mod image;
pub(crate) mod inspect;
pub(crate) mod keeper;
pub(crate) mod key;
pub(crate) mod kill;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod mcp;
pub(crate) mod merge;
pub(crate) mod network;
pub(crate) mod node;
pub(crate) mod pause;
pub(crate) mod resume;
pub(crate) mod self_test;
pub(crate) mod serve;
pub(crate) mod server;
pub(crate) mod stats;
pub(crate) mod store;
pub(crate) mod team;
pub(crate) mod template;
pub(crate) mod timeout;
pub(crate) mod tree;
pub(crate) mod volume;
pub(crate) mod volumed;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    address::Address,
    exit::{self, EXIT_CODES, Failure},
    output::{self, Log},
    target::Target,
};

pub(crate) const GLOBAL: &str = "Options of every command";

/// Starts isolated sandboxes in milliseconds, by forking a program that is already warm.
#[derive(Debug, Parser)]
#[command(name = "pando", version, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) address: Address,
    #[command(flatten)]
    pub(crate) log: Log,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Every command. Its help is the documentation of its arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(serve::Args),
    Node(node::Args),
    /// Build, list, inspect and remove templates.
    #[command(subcommand)]
    Template(template::Command),
    /// Take in, list, inspect and remove images.
    #[command(subcommand)]
    Image(image::Command),
    #[command(flatten)]
    Daily(Daily),
    Connect(connect::Args),
    Inspect(inspect::Args),
    Tree(tree::Args),
    Diff(diff::Args),
    Pick(tree::PickArgs),
    Merge(merge::Args),
    Checkpoint(checkpoint::Args),
    /// Check, measure and clean the store of checkpoints and volumes.
    #[command(subcommand)]
    Store(store::Command),
    /// Create, list, snapshot, restore, fork and mount volumes: durable workspaces.
    #[command(subcommand, after_help = volume::EXAMPLES)]
    Volume(Box<volume::Command>),
    /// Make, list and revoke API keys of a server's teams.
    #[command(subcommand)]
    Key(key::Command),
    /// List the teams of a server, and change their quotas.
    #[command(subcommand)]
    Team(team::Command),
    /// List the servers that share a database, and remove those that are gone.
    #[command(subcommand)]
    Server(server::Command),
    Env(env::Args),
    Mcp(mcp::Args),
    Doctor(doctor::Args),
    Completion(completion::Args),
    /// Measure, and compare within one run.
    #[command(subcommand)]
    Bench(bench::Command),
    /// The node's helper; started by it.
    #[command(hide = true)]
    Keeper(keeper::Args),
    /// The node's server of page faults; started by it.
    #[command(hide = true)]
    Guardian(guardian::Args),
    /// The node's processes that hold commands; started by it.
    #[command(hide = true)]
    Holder(holder::Args),
    /// The node's processes of volumes; started by it.
    #[command(hide = true)]
    Volumed(volumed::Args),
    /// The probes of `doctor --self-test`, in a process of their own.
    #[command(hide = true)]
    SelfTest(self_test::Args),
}

/// Daily work with sandboxes, of a node or of a server.
#[derive(Debug, Subcommand)]
pub(crate) enum Daily {
    #[command(alias = "run")]
    Create(create::Args),
    #[command(alias = "ps")]
    Ls(ls::Args),
    Exec(exec::Args),
    Attach(attach::Args),
    Cp(cp::Args),
    Forward(forward::Args),
    Logs(logs::Args),
    Stats(stats::Args),
    Network(network::Args),
    Timeout(timeout::Args),
    Fork(fork::Args),
    Pause(pause::Args),
    Resume(resume::Args),
    #[command(alias = "rm")]
    Kill(kill::Args),
}

/// Runs a command; Ctrl-C ends every one but those that handle it themselves.
pub(crate) async fn run(cli: Cli) -> ExitCode {
    let result = match cli.command {
        // These have their own way with signals.
        Command::Node(args) => node::run(args, cli.address.socket(), &cli.log, None).await,
        Command::Serve(args) => serve::run(args, cli.address.socket(), &cli.log).await,
        command => client(command, &cli.address).await,
    };
    output::exit_code(result.unwrap_or_else(|error| exit::report(&error)))
}

/// Every command but the servers.
async fn client(command: Command, address: &Address) -> Result<ExitCode> {
    match command {
        Command::Template(command) => template::run(command, &address.only_node()?).await,
        Command::Image(command) => image::run(command, &address.only_node()?).await,
        Command::Checkpoint(args) => {
            let node = address.only_node()?;
            interruptible("a checkpoint that was begun is completed", checkpoint::run(args, &node)).await
        }
        Command::Store(command) => interruptible("", store::run(command, &address.only_node()?)).await,
        Command::Volume(command) => interruptible(command.interrupted(), volume::run(*command, address)).await,
        Command::Connect(args) => interruptible("", connect::run(args, &address.only_node()?)).await,
        Command::Inspect(args) => interruptible("", inspect::run(args, &address.only_node()?)).await,
        Command::Tree(args) => interruptible("", tree::run(args, &address.only_node()?)).await,
        Command::Diff(args) => interruptible("", diff::run(args, &address.only_node()?)).await,
        Command::Pick(args) => {
            interruptible("what was removed stays removed", tree::pick(args, &address.only_node()?)).await
        }
        Command::Merge(args) => {
            interruptible("a merge that was begun is completed", merge::run(args, &address.only_node()?)).await
        }
        Command::Bench(command) => interruptible("the private node is removed", bench(command)).await,
        Command::Key(command) => interruptible("", key::run(command)).await,
        Command::Team(command) => interruptible("", team::run(command)).await,
        Command::Server(command) => interruptible("", server::run(command)).await,
        Command::Env(args) => interruptible("", env::run(args)).await,
        Command::Mcp(args) => interruptible("", mcp::run(args, address)).await,
        Command::Doctor(args) => doctor::run(args, address).await,
        Command::Completion(args) => Ok(completion::run(&args)),
        Command::Node(_)
        | Command::Serve(_)
        | Command::Keeper(_)
        | Command::Guardian(_)
        | Command::Holder(_)
        | Command::Volumed(_)
        | Command::SelfTest(_) => Err(Failure::Usage("it is started by the node".to_owned()).into()),
        Command::Daily(command) => daily(command, &*address.target()?).await,
    }
}

/// Daily work with sandboxes, of a node or of a server.
async fn daily(command: Daily, target: &dyn Target) -> Result<ExitCode> {
    match command {
        // These have their own way with signals.
        Daily::Create(args) => create::run(args, target).await,
        Daily::Fork(args) => fork::run(args, target).await,
        Daily::Exec(args) => exec::run(args, target).await,
        Daily::Attach(args) => attach::run(args, target).await,
        Daily::Pause(args) => interruptible("a pause that was begun is completed", pause::run(args, target)).await,
        Daily::Resume(args) => interruptible("a resume that was begun is completed", resume::run(args, target)).await,
        Daily::Cp(args) => interruptible("what was copied so far is there", cp::run(args, target)).await,
        Daily::Forward(args) => interruptible("", forward::run(args, target)).await,
        Daily::Ls(args) => interruptible("", ls::run(args, target)).await,
        Daily::Logs(args) => interruptible("", logs::run(args, target)).await,
        Daily::Stats(args) => interruptible("", stats::run(args, target)).await,
        Daily::Network(args) => interruptible("", network::run(args, target)).await,
        Daily::Timeout(args) => interruptible("", timeout::run(args, target)).await,
        Daily::Kill(args) => interruptible("", kill::run(args, target)).await,
    }
}

/// `pando bench`.
async fn bench(command: bench::Command) -> Result<ExitCode> {
    let report = bench::run(&command).await?;
    if command.wants_json() {
        output::json(&report)?
    } else {
        outln!("{report}")
    }
    Ok(ExitCode::SUCCESS)
}

/// Joins the control group whose `cgroup.procs` is the standard input. Before there is memory and there are children: what is taken earlier counts
/// elsewhere.
fn join_group() -> Result<()> {
    rustix::io::write(rustix::stdio::stdin(), b"0").context("cannot join the control group")?;
    let null = std::fs::File::open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdin(null).context("cannot replace standard input")
}

/// Ends the command at Ctrl-C by dropping it: that hangs up on the node, which undoes what is half done.
async fn interruptible(
    consequence: &str,
    command: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    // Before anything is begun: what an interrupt finds half done is undone from then on.
    let mut interrupts = interrupts()?;
    tokio::select! {
        biased;
        result = command => result,
        _ = interrupts.recv() => Err(interrupted(consequence)),
    }
}

fn interrupts() -> anyhow::Result<Signal> {
    signal(SignalKind::interrupt()).context("cannot listen for interrupts")
}

/// A start was interrupted, and the node removes what it had started.
fn removed_again() -> anyhow::Error {
    interrupted("what was started is removed again")
}

fn interrupted(consequence: &str) -> anyhow::Error {
    let separator = if consequence.is_empty() { "" } else { ": " };
    Failure::Interrupted(format!("interrupted{separator}{consequence}")).into()
}
