//! `pando node`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use base::limits::{PARKED_COPIES_DEFAULT, POOL_SANDBOXES_DEFAULT};
use node::config::{AtExit, Config, STATE_DIR_DEFAULT};

/// Run the node in the foreground. Its log goes to standard error; "node ready" says that it takes requests.
///
/// When it is stopped (SIGINT, SIGTERM), sandboxes run on and the next node with the same state directory takes them over.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where templates and sandboxes are kept. One node per directory.
    #[arg(long, value_name = "DIR", default_value = STATE_DIR_DEFAULT)]
    state: PathBuf,
    /// Most blank sandboxes kept ready, over all templates. 0: none.
    #[arg(long, value_name = "N", default_value_t = POOL_SANDBOXES_DEFAULT)]
    pool: usize,
    /// Most of those that have a copy forked ahead, which a start only lets go. Each holds up to 4 MiB. 0: none.
    #[arg(long, value_name = "N", default_value_t = PARKED_COPIES_DEFAULT)]
    ahead: usize,
    /// Remove all sandboxes when the node is stopped.
    #[arg(long)]
    ephemeral: bool,
}

pub(crate) async fn run(args: Args, socket: PathBuf, log: String) -> Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        bail!("the node has to run as root, to make namespaces and control groups; the programs in sandboxes never do");
    }
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    // Overlay layers and the keeper's paths must not depend on a working directory.
    let state_dir = std::path::absolute(&args.state).context("cannot make the state directory's path absolute")?;
    if state_dir.parent().is_none() {
        bail!("the root directory cannot be the state directory; name one of its own with --state");
    }
    let socket = std::path::absolute(&socket).context("cannot make the socket's path absolute")?;
    let config = Config {
        state_dir,
        socket,
        pool_limit: args.pool,
        parked_limit: args.ahead,
        at_exit: if args.ephemeral { AtExit::Remove } else { AtExit::Keep },
        keeper_command: vec![program.display().to_string(), "--log".to_owned(), log, "keeper".to_owned()],
    };
    node::run(config).await?;
    Ok(ExitCode::SUCCESS)
}
