//! One case in this process.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::Command,
};

use anyhow::{Context, Result, anyhow};
use rustix::process::{Signal, getpid, set_child_subreaper, set_parent_process_death_signal};

use super::{Case, Skipped, guard::Traces};

/// Followed by the name of the case.
pub(super) const FLAG: &str = "--case";

/// Exit status of a case that was skipped, as automake and Meson have it.
pub(super) const SKIPPED: i32 = 77;

/// A command that runs this program again for one case. Mounts, links and rules of networks that the case makes are visible in its processes only.
pub(super) fn command(name: &str) -> Result<Command> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--net"]).arg(std::env::current_exe()?).args([FLAG, name]);
    Ok(command)
}

/// Runs the case and gives the exit status. What went wrong is printed.
pub(super) fn run(cases: &[Case], name: &str) -> i32 {
    match run_case(cases, name) {
        Ok(()) => 0,
        Err(error) if error.is::<Skipped>() => {
            println!("{error}");
            SKIPPED
        }
        Err(error) => {
            let chain: Vec<String> = error.chain().map(ToString::to_string).collect();
            println!("{}", chain.join("\ncaused by: "));
            1
        }
    }
}

fn run_case(cases: &[Case], name: &str) -> Result<()> {
    let case = cases.iter().find(|case| case.name == name).with_context(|| format!("there is no case {name}"))?;
    // If the parent is killed, the case ends too, and the watchdogs of its nodes clean up.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    set_child_subreaper(Some(getpid()))?;
    sys::namespace::loopback_up().context("switch the loopback interface on")?;
    (case.prepare)();
    let before = Traces::now();
    let result = catch_unwind(AssertUnwindSafe(&case.body)).unwrap_or_else(|_| Err(anyhow!("the case panicked")));
    result.and_then(|()| before.check())
}
