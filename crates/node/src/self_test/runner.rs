//! The self-test in a process of its own.
//!
//! The process ends in order, whatever ends this one: it is in a process group of its own, where Ctrl-C does not reach it, and sees that its
//! standard input closes.

use std::{path::PathBuf, pin::pin, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use super::{Finding, Scope};
use crate::error::{Context, Error, Result};

/// Longest run of all probes: each of their waits is bounded, and together they take a fraction of a second.
const RUN_MAX: Duration = Duration::from_secs(60);
/// Longest wait for a run that was told to stop. What it then leaves is removed by another one.
const STOP_MAX: Duration = Duration::from_secs(10);

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
    /// Runs the probes in a process of this program. Dropped, it lets that process stop and clean up.
    pub async fn run(&self) -> Result<Vec<Finding>> {
        std::fs::create_dir_all(&self.dir).at("create", &self.dir)?;
        let mut child = self.begin(self.scope)?;
        let (lifeline, group) = (child.stdin.take(), child.id().and_then(|pid| Pid::from_raw(pid as i32)));
        let mut ended = pin!(child.wait_with_output());
        let Ok(output) = timeout(RUN_MAX, &mut ended).await else {
            drop(lifeline);
            if timeout(STOP_MAX, &mut ended).await.is_err() {
                // It is not reaped yet: the number is its own.
                let _ = group.map(|group| kill_process_group(group, Signal::KILL));
                let _ = timeout(STOP_MAX, &mut ended).await;
                self.clean_up().await?;
            }
            return Err(Error::SelfTest(format!("it takes longer than {} s", RUN_MAX.as_secs())));
        };
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

    /// Removes what a run that was killed has left.
    async fn clean_up(&self) -> Result<()> {
        let mut child = self.begin(Scope::Nothing)?;
        let _lifeline = child.stdin.take();
        let _ = timeout(STOP_MAX, child.wait_with_output()).await;
        Ok(())
    }

    fn begin(&self, scope: Scope) -> Result<Child> {
        let own = std::env::current_exe().doing("find the path of this program")?;
        let scope = match scope {
            Scope::Nothing => "nothing",
            Scope::Registers => "registers",
            Scope::All => "all",
        };
        let mut command = Command::new(own);
        command.arg("self-test").arg("--dir").arg(&self.dir).arg("--group").arg(&self.group).args(["--scope", scope]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command.spawn().doing("start the self-test")
    }
}
