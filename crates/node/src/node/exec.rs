//! Commands in the foreground of a client, with pipes or with a terminal, as a stream of frames.

mod check;
mod stream;

use std::{collections::HashSet, os::fd::OwnedFd, sync::Arc};

use base::id::SandboxId;
use holder::Reason;
use keeper::{
    Spawned,
    protocol::{Call, Spawn, Status},
};
use model::{CommandSpec, TemplateSpec};
use sandbox::{Command, ProcessIdentity, monotonic_ns};
use tokio::sync::oneshot;

use super::{
    Account, Node,
    commands::{Begun, CommandStream},
    memory_limit::Watch,
};
use crate::{error::Result, given::Given};

pub(crate) use check::{check, check_path};
pub use stream::{Input, Inputs, Output, Outputs, serve_attached};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What every program of a user gets to see; a template's own variables come on top.
fn environment(account: &Account) -> [(&str, &str); 5] {
    let Account { name, home, .. } = account;
    [("PATH", PATH), ("HOME", home), ("USER", name), ("LOGNAME", name), ("LANG", "C.UTF-8")]
}

/// A command as the engine takes it: the common environment, then what the operator gives, then the template's, then `env`.
pub(crate) fn command(
    given: &Given,
    spec: &TemplateSpec,
    account: &Account,
    argv: Vec<String>,
    env: &[(String, String)],
    cwd: Option<&str>,
) -> Command {
    let common = environment(account).map(|(name, value)| (name.to_owned(), value.to_owned()));
    let all: Vec<_> =
        common.into_iter().chain(given.env.iter().chain(&spec.env).cloned()).chain(env.iter().cloned()).collect();
    // Of thousands, and of many with one name, as fast as of a few: the last one of each counts, in its place.
    let mut seen = HashSet::new();
    let mut last: Vec<bool> = all.iter().rev().map(|(name, _)| seen.insert(name.as_str())).collect();
    last.reverse();
    let env = all.iter().zip(last).filter(|(_, last)| *last).map(|(variable, _)| variable.clone()).collect();
    Command {
        argv,
        env,
        cwd: cwd.unwrap_or(&spec.cwd).to_owned(),
        tty: false,
        group: None,
        until_ns: None,
        user: account.ids.clone(),
    }
}

/// A command in the foreground of a client. Dropped, it ends with all that it has started.
#[derive(Debug)]
pub struct Exec {
    foreground: Foreground,
    stream: CommandStream,
    timeout_ms: Option<u64>,
    /// What the memory limit has killed meanwhile.
    memory: Watch,
}

/// What ends with its client.
#[derive(Debug)]
struct Foreground {
    node: Arc<Node>,
    sandbox: SandboxId,
    /// None: it has ended.
    key: Option<String>,
}

impl Foreground {
    /// Ends the command now.
    async fn end(mut self) {
        if let Some(key) = self.key.take() {
            self.node.end_command(&self.sandbox, &key, Reason::ClientLeft).await;
        }
    }

    /// The command has ended by itself.
    fn release(mut self) {
        self.key = None;
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else { return };
        let (node, sandbox) = (Arc::clone(&self.node), self.sandbox.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { node.end_command(&sandbox, &key, Reason::ClientLeft).await });
        }
    }
}

impl Node {
    /// Starts a command in the foreground of a client: it ends with the client.
    pub async fn exec(self: &Arc<Self>, id: &SandboxId, request: CommandSpec) -> Result<Exec> {
        let memory = self.watch_limit(id);
        let timeout_ms = request.timeout_ms;
        let Begun { key, stream, .. } = self.begin_command(id, request, true).await?;
        let foreground = Foreground { node: Arc::clone(self), sandbox: id.clone(), key: Some(key) };
        Ok(Exec { foreground, stream, timeout_ms, memory })
    }

    /// Spawns a program into a sandbox: its identity, and what resolves at its end.
    pub(super) async fn spawn(
        &self,
        id: &SandboxId,
        command: Command,
        main: bool,
        stdio: [&OwnedFd; 3],
    ) -> Result<(ProcessIdentity, oneshot::Receiver<Status>)> {
        let Spawned { process, ended, .. } = self.spawn_whole(id, command, main, stdio).await?;
        Ok((process, ended))
    }

    /// As [`Node::spawn`], with the pidfd and the pid inside.
    pub(super) async fn spawn_whole(
        &self,
        id: &SandboxId,
        mut command: Command,
        main: bool,
        stdio: [&OwnedFd; 3],
    ) -> Result<Spawned> {
        let keeper = self.keepers.get(Spawn::ACTION).await?;
        // Before the wait for the answer begins: when that is given up, the keeper starts it no more.
        command.until_ns = Some(monotonic_ns() + Spawn::DEADLINE.as_nanos() as u64);
        Ok(keeper.call(Spawn { sandbox: id.clone(), command, main }, stdio).await?)
    }
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
            user: None,
            startup: Vec::new(),
            on_fork: Vec::new(),
        };
        let command = {
            let given = Given { env: vec![("A".into(), "0".into()), ("B".into(), "0".into())], files: Vec::new() };
            command(&given, &spec, &Account::program(), vec!["x".into()], &[("A".into(), "2".into())], None)
        };
        let value =
            |name: &str| command.env.iter().filter(|(n, _)| n == name).map(|(_, v)| v.as_str()).collect::<Vec<_>>();
        assert_eq!((value("HOME"), value("A"), value("B")), (vec!["/srv"], vec!["2"], vec!["0"]));
        assert_eq!(command.cwd, "/work");
    }
}
