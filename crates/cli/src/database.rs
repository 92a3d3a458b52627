//! The database of a server, opened by commands of its operator: the server need not run.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Result, bail};
use control::{Control, SystemClock};
use node::config::STATE_DIR_DEFAULT;

/// Which database.
#[derive(Debug, clap::Args)]
pub(crate) struct Database {
    /// State directory of the server.
    #[arg(long, value_name = "DIR", default_value = STATE_DIR_DEFAULT)]
    state: PathBuf,
    /// Database of the server, if it is not in the state directory: postgres://USER@HOST/DATABASE.
    #[arg(long, value_name = "URL")]
    database: Option<String>,
}

impl Database {
    /// Opens it; `client` is the command's name among those that have it open.
    pub(crate) async fn open(&self, client: &'static str) -> Result<Control> {
        let clock = Arc::new(SystemClock);
        let file = self.state.join("control.db");
        match &self.database {
            Some(url) => Ok(Control::open(url, client, clock).await?),
            None if file.exists() => Ok(Control::open_file(&file, client, clock).await?),
            None => bail!(
                "{} has no server's database: start `pando serve --state {}` once, or name another directory with --state",
                self.state.display(),
                self.state.display()
            ),
        }
    }
}
