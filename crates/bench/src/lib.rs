//! Measured comparisons: what `pando bench` does. Each compares within one run on one machine. Ratios carry over, times do not.
//!
//! Every measurement starts private nodes from this same program, asks them through `client` as a user would, and removes them again.

mod api;
mod cold;
mod criu;
mod machine;
mod memory;
mod node;
mod pages;
mod place;
mod proc;
mod program;
mod proxy;
mod report;
mod restore;
mod start;
mod tree;
mod volume;

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;
use store::object::Location;

pub use report::Report;

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Starts: cold, the kernel's bare fork, and Pando's, of the same program.
    ///
    /// Starts two private nodes, one after the other, and removes them again. Needs root, python3 and some minutes, or half a minute with --quick.
    Start(StartArgs),
    /// Starts of checkpoints on nodes that have never seen them.
    ///
    /// Starts fresh nodes, one after the other, and removes them again. Needs root, python3 and some minutes.
    /// `scripts/s3.sh sh -c 'pando bench restore --s3 "$PANDO_TEST_S3"'` has an S3 service for it.
    Restore(RestoreArgs),
    /// Checkpoints: size, time, pause of the program, memory of the node.
    ///
    /// Starts private nodes for four programs and removes them again. Needs root, python3, node, geo-go (`make examples`) and some minutes.
    Memory(MemoryArgs),
    /// Volumes: on a node that has never seen them, after the one that wrote them was destroyed.
    ///
    /// Kills each node that wrote a volume with all its processes, removes its state, and mounts the volume on a fresh node. Also measures one long
    /// file. Needs root, some minutes, and 10 GB of /var/tmp (1 GB with --quick).
    /// `scripts/s3.sh sh -c 'pando bench volume --s3 "$PANDO_TEST_S3"'` has an S3 service for it.
    Volume(VolumeArgs),
    /// What users of E2B's Python SDK wait for, beside what the SDK takes with a server that does nothing.
    ///
    /// Starts a private server and removes it again. Needs root, a Python with the package e2b, a minute, and 3 GB of /var/tmp (0.4 GB with
    /// --quick).
    Api(ApiArgs),
    /// What a sandbox has of a machine: files that it changes, and forks of them, with snapshots (btrfs) and with copies; its network beside a plain
    /// veth; images and builds; what 500 idle ones cost.
    ///
    /// Starts private nodes, one after the other, and removes them again. Needs root, python3, mkfs.btrfs, iproute2, five minutes, and 12 GB of
    /// /var/tmp (one minute and 2 GB with --quick).
    Machine(MachineArgs),
    /// Trees of processes: pause of a fork, until copies run and answer, memory of a copy.
    ///
    /// Starts a private node and removes it again. Needs root, python3 and two minutes (half a minute with --quick).
    Tree(TreeArgs),
}

/// See [`Command::Tree`].
#[derive(Debug, clap::Args)]
pub struct TreeArgs {
    /// 100 MiB instead of 500, and fewer samples.
    #[arg(long)]
    quick: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// See [`Command::Machine`].
#[derive(Debug, clap::Args)]
pub struct MachineArgs {
    /// 160 MiB and 10,000 files instead of 1.6 GiB and 100,000, 256 MiB of traffic instead of 2 GiB, and fewer samples.
    #[arg(long)]
    quick: bool,
    /// Only this part; may be repeated.
    #[arg(long, value_name = "PART", value_enum)]
    only: Vec<machine::Part>,
    /// Root filesystem of the 500 sandboxes: `scripts/base.sh --print-path` makes one. Without it they are left out.
    #[arg(long, value_name = "PATH", env = "PANDO_BASE")]
    base: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// See [`Command::Api`].
#[derive(Debug, clap::Args)]
pub struct ApiArgs {
    /// Calls of each kind, one at a time. Without it 100, or 20 with --quick.
    #[arg(long, value_parser = clap::value_parser!(u32).range(5..=1000))]
    rounds: Option<u32>,
    /// Fewer samples, and 128 MiB instead of 1 GiB.
    #[arg(long)]
    quick: bool,
    /// A Python that has the package e2b. Default: target/sdk/new/bin/python, where `scripts/sdk.sh` installs it, or python3.
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Root filesystem of the sandboxes: `scripts/base.sh --print-path` makes one. Default: the host's.
    #[arg(long, value_name = "PATH", env = "PANDO_BASE")]
    base: Option<PathBuf>,
    /// Reach the server by names and TLS, as `pando env` says. The stub always speaks plain HTTP.
    #[arg(long)]
    tls: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// See [`Command::Start`].
#[derive(Debug, clap::Args)]
pub struct StartArgs {
    /// Starts measured one at a time. Without it 50, or 15 with --quick.
    #[arg(long, value_parser = clap::value_parser!(u32).range(5..=1000))]
    rounds: Option<u32>,
    /// The short form, of half a minute on two CPUs: fewer samples, fewer cold starts at once, no larger programs and none with many threads.
    #[arg(long)]
    quick: bool,
    /// The CRIU to compare with, 4.1 or newer; may be a wrapper script. Without it the one in PATH, if it is new enough.
    #[arg(long, value_name = "PATH")]
    criu: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// See [`Command::Restore`].
#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    /// Fresh nodes for each row. Without it 30, or 10 with --quick.
    #[arg(long, value_parser = clap::value_parser!(u32).range(3..=1000))]
    rounds: Option<u32>,
    /// Leave out the long one: 2 GiB.
    #[arg(long)]
    quick: bool,
    /// Also measure with this running S3 service, 1 and 10 ms further away: s3://BUCKET?endpoint=http://HOST:PORT&path_style=true
    /// (keys from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY). The bench removes what it writes there.
    #[arg(long, value_name = "URL", value_parser = parse_objects)]
    s3: Option<Location>,
    /// The CRIU to compare with, 4.1 or newer; may be a wrapper script. Without it there is no comparison.
    #[arg(long, value_name = "PATH")]
    criu: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// See [`Command::Memory`].
#[derive(Debug, clap::Args)]
pub struct MemoryArgs {
    /// Leave out the long ones: 1 GB, and 4 GiB (512 MiB instead).
    #[arg(long)]
    quick: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// See [`Command::Volume`].
#[derive(Debug, clap::Args)]
pub struct VolumeArgs {
    /// Fresh nodes for each row.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(3..=1000))]
    rounds: u32,
    /// Leave out the long one: 1,000,000 files; and read and write 128 MiB instead of 1 GiB.
    #[arg(long)]
    quick: bool,
    /// Also measure with this running S3 service, 1 ms further away: s3://BUCKET?endpoint=http://HOST:PORT&path_style=true
    /// (keys from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY). The bench removes what it writes there.
    #[arg(long, value_name = "URL", value_parser = parse_objects)]
    s3: Option<Location>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Command {
    /// Whether the report is wanted as JSON.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::Start(args) => args.json,
            Self::Restore(args) => args.json,
            Self::Memory(args) => args.json,
            Self::Volume(args) => args.json,
            Self::Api(args) => args.json,
            Self::Machine(args) => args.json,
            Self::Tree(args) => args.json,
        }
    }
}

/// Measures. Progress goes to standard error.
///
/// # Errors
///
/// The private nodes cannot be started, or one of them fails.
pub async fn run(command: &Command) -> Result<Report> {
    match command {
        Command::Start(args) => start::measure(args).await,
        Command::Restore(args) => restore::measure(args).await,
        Command::Memory(args) => memory::measure(args).await,
        Command::Volume(args) => volume::measure(args).await,
        Command::Api(args) => api::measure(args).await,
        Command::Machine(args) => machine::measure(args).await,
        Command::Tree(args) => tree::measure(args).await,
    }
}

fn parse_objects(text: &str) -> Result<Location, String> {
    text.parse::<Location>().map_err(|error| error.to_string())
}
