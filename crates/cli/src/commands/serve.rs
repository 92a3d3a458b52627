//! `pando serve`.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use anyhow::Result;

use crate::output::Log;

/// Run a server that E2B's SDKs drive: a node, and the control plane on a TCP port.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Where clients reach it. Port 0: any.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:3000")]
    listen: SocketAddr,
    #[command(flatten)]
    node: super::node::Args,
}

pub(crate) async fn run(args: Args, socket: PathBuf, log: &Log) -> Result<ExitCode> {
    super::node::run(args.node, socket, log, Some(server::Public { listen: args.listen })).await
}
