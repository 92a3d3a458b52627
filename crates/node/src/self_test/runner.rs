//! The self-test in a process of its own.

use std::{ffi::OsString, path::PathBuf, process::Stdio, time::Duration};

use tokio::{process::Command, time::timeout};

use super::{Finding, Scope};
use crate::error::{Context, Error, Result};

/// Longest run of all probes: each of their waits is bounded, and together they take a fraction of a second.
const RUN_MAX: Duration = Duration::from_secs(60);

/// What a run needs.
#[derive(Debug, Clone)]
pub struct Runner {
    /// For its files; it is made if it is missing, and removed.
    pub dir: PathBuf,
    /// Names its control group. Two runs with one name, or in one directory, are not possible at once.
    pub group: String,
    /// What is tried.
    pub scope: Scope,
}

impl Runner {
    /// Runs the probes in a process of this program.
    pub async fn run(&self) -> Result<Vec<Finding>> {
        std::fs::create_dir_all(&self.dir).at("create", &self.dir)?;
        let own = std::env::current_exe().doing("find the path of this program")?;
        let scope = match self.scope {
            Scope::Registers => "registers",
            Scope::All => "all",
        };
        let arguments: [OsString; 6] = [
            "self-test".into(),
            "--dir".into(),
            self.dir.clone().into(),
            "--group".into(),
            self.group.clone().into(),
            "--scope".into(),
        ];
        let mut command = Command::new(own);
        command.args(arguments).arg(scope).stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(RUN_MAX, command.output())
            .await
            .map_err(|_| Error::SelfTest(format!("it takes longer than {} s", RUN_MAX.as_secs())))?;
        let output = output.doing("start the self-test")?;
        // If it is empty, as it should be.
        let _ = std::fs::remove_dir(&self.dir);
        serde_json::from_slice(&output.stdout).map_err(|_| {
            Error::SelfTest(format!(
                "it ended with {}: {}",
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            ))
        })
    }
}
