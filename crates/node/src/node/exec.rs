//! Commands in a running sandbox, with pipes or with a terminal, as a stream of frames.

mod check;
mod group;
mod stream;
mod terminal;

use std::{collections::HashSet, os::fd::OwnedFd, sync::Arc, time::Duration};

use base::{id::SandboxId, limits::COMMAND_TIMEOUT_MS_MAX};
use keeper::{
    Spawned,
    protocol::{Call, Spawn, Status},
};
use model::{CommandSpec, TemplateSpec};
use rustix::pipe::{PipeFlags, pipe_with};
use sandbox::{Command, ProcessIdentity, monotonic_ns};
use tokio::{sync::oneshot, time::Instant};

use super::{Node, lifecycle::Operation, memory_limit::Watch};
use crate::error::{Context, Error, Result};

pub(crate) use check::{check, check_path};
use group::CommandGroup;
pub(super) use stream::Streams;
pub use stream::{Input, Inputs, Output, Outputs};

/// What every program gets to see; a template's own variables come on top.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/home/user"),
    ("USER", "user"),
    ("LANG", "C.UTF-8"),
];

/// A command as the engine takes it: the common environment, then the template's, then `env`.
pub(crate) fn command(spec: &TemplateSpec, argv: Vec<String>, env: &[(String, String)], cwd: Option<&str>) -> Command {
    let common = ENVIRONMENT.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let all: Vec<_> = common.chain(spec.env.iter().cloned()).chain(env.iter().cloned()).collect();
    // Of thousands, and of many with one name, as fast as of a few: the last one of each counts, in its place.
    let mut seen = HashSet::new();
    let mut last: Vec<bool> = all.iter().rev().map(|(name, _)| seen.insert(name.as_str())).collect();
    last.reverse();
    let env = all.iter().zip(last).filter(|(_, last)| *last).map(|(variable, _)| variable.clone()).collect();
    Command { argv, env, cwd: cwd.unwrap_or(&spec.cwd).to_owned(), tty: false, group: None, until_ns: None }
}

/// A command that runs. Dropped, it ends with all that it has started.
#[derive(Debug)]
pub struct Exec {
    streams: Streams,
    group: CommandGroup,
    ended: oneshot::Receiver<Status>,
    /// When its time is up.
    limit: Option<TimeLimit>,
    /// What the memory limit has killed meanwhile.
    memory: Watch,
}

/// When a command's time is up, and how much it had.
#[derive(Debug, Clone, Copy)]
struct TimeLimit {
    at: Instant,
    ms: u64,
}

impl Node {
    /// Starts a command in a sandbox that runs.
    #[tracing::instrument(skip_all, fields(sandbox = %id))]
    pub async fn exec(self: &Arc<Self>, id: &SandboxId, request: CommandSpec) -> Result<Exec> {
        let (init, spec) = {
            self.admits(id, Operation::Command)?;
            let state = self.state();
            let record = state.sandbox(id)?;
            (record.init, state.spec_of(record)?)
        };
        let mut command = command(&spec, request.command, &request.env, request.cwd.as_deref());
        check(&command)?;
        check_timeout(request.timeout_ms)?;
        let group = CommandGroup::new(&self.group(id));
        let memory = self.watch_limit(id);
        command.group = Some(group.name());
        let (streams, stdio) = match request.terminal {
            Some(size) => {
                command.tty = true;
                if !command.env.iter().any(|(name, _)| name == "TERM") {
                    command.env.push(("TERM".to_owned(), "xterm-256color".to_owned()));
                }
                let (master, slave) = terminal::open_sized(init.pid, size)?;
                (
                    Streams::terminal(master)?,
                    [
                        slave.try_clone().doing("share the terminal")?,
                        slave.try_clone().doing("share the terminal")?,
                        slave,
                    ],
                )
            }
            None => {
                let (stdin_read, stdin_write) = pipe()?;
                let (stdout_read, stdout_write) = pipe()?;
                let (stderr_read, stderr_write) = pipe()?;
                (Streams::pipes(stdin_write, stdout_read, stderr_read)?, [stdin_read, stdout_write, stderr_write])
            }
        };
        let (node, of) = (Arc::clone(self), id.clone());
        let spawn = async move {
            let [stdin, stdout, stderr] = &stdio;
            node.spawn(&of, command, false, [stdin, stdout, stderr]).await
        };
        let spawned = self.drive(id, Operation::Command, spawn).await;
        self.ledger.metrics.command(&spawned);
        let (_, ended) = match spawned {
            Err(Error::Keeper { .. }) if !init.is_alive() => {
                return Err(Error::NotRunning { id: id.clone(), state: model::SandboxState::Lost });
            }
            spawned => spawned?,
        };
        let limit = request.timeout_ms.map(|ms| TimeLimit { at: Instant::now() + Duration::from_millis(ms), ms });
        Ok(Exec { streams, group, ended, limit, memory })
    }

    /// Spawns a program into a sandbox: its identity, and what resolves at its end.
    pub(super) async fn spawn(
        &self,
        id: &SandboxId,
        mut command: Command,
        main: bool,
        stdio: [&OwnedFd; 3],
    ) -> Result<(ProcessIdentity, oneshot::Receiver<Status>)> {
        let keeper = self.keepers.get(Spawn::ACTION).await?;
        // Before the wait for the answer begins: when that is given up, the keeper starts it no more.
        command.until_ns = Some(monotonic_ns() + Spawn::DEADLINE.as_nanos() as u64);
        let Spawned { process, ended, .. } = keeper.call(Spawn { sandbox: id.clone(), command, main }, stdio).await?;
        Ok((process, ended))
    }
}

fn check_timeout(timeout_ms: Option<u64>) -> Result<()> {
    if timeout_ms.is_none_or(|ms| (1..=COMMAND_TIMEOUT_MS_MAX).contains(&ms)) {
        return Ok(());
    }
    Err(Error::Invalid { message: "a command's time limit is 1 ms to 30 days".to_owned(), hint: None })
}

fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    pipe_with(PipeFlags::CLOEXEC).doing("make a pipe")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_variables_replace_earlier_ones() {
        let spec = TemplateSpec {
            name: "a".parse().unwrap(),
            image: model::Image::Host,
            command: vec![],
            env: vec![("HOME".into(), "/srv".into()), ("A".into(), "1".into())],
            cwd: "/work".into(),
            ready: model::Ready::Listening,
            ready_timeout_ms: 1,
            limits: model::Limits::default(),
            mount_points: Vec::new(),
        };
        let command = command(&spec, vec!["x".into()], &[("A".into(), "2".into())], None);
        let value =
            |name: &str| command.env.iter().filter(|(n, _)| n == name).map(|(_, v)| v.as_str()).collect::<Vec<_>>();
        assert_eq!((value("HOME"), value("A"), command.cwd.as_str()), (vec!["/srv"], vec!["2"], "/work"));
    }
}
