//! One step: a sandbox on the layers so far, what is done in it, and a copy of what that has changed.

use std::{path::Path, sync::Arc};

use base::{id::SandboxId, limits::BUILD_STEP_MAX_MS};
use model::{
    Action, BuildLevel, BuildTimings, CommandEvent, CommandSpec, ExitStatus, Interpreter, MountPoints, NetworkPolicy,
    RunSpec, TemplateSpec,
};

use super::{Building, copy};
use crate::{
    error::{Context as _, Error, Result},
    node::{Node, inspect::pids, now_ms},
    records::TemplateRecord,
};

/// Shells, in the order of preference.
const SHELLS: [&str; 2] = ["/bin/bash", "/bin/sh"];

/// Lines of a command that are shown with its failure.
const LINES_SHOWN: usize = 20;
/// Bytes of a line; the rest goes into the next.
const LINE_BYTES_MAX: usize = 4 << 10;

/// `path` as seen from the directory `cwd`.
pub(super) fn within(cwd: &str, path: &str) -> String {
    let joined = Path::new(if cwd.is_empty() { "/" } else { cwd }).join(path);
    let mut clean = std::path::PathBuf::from("/");
    for component in joined.components() {
        match component {
            std::path::Component::Normal(name) => clean.push(name),
            std::path::Component::ParentDir => drop(clean.pop()),
            std::path::Component::CurDir | std::path::Component::RootDir | std::path::Component::Prefix(_) => {}
        }
    }
    let is_into = path.ends_with('/') && clean.as_os_str() != "/";
    format!("{}{}", clean.display(), if is_into { "/" } else { "" })
}

/// A shell command as a program of these layers.
pub(super) fn shell(layers: &[std::path::PathBuf], command: &str) -> Vec<String> {
    let is_there = |shell: &&&str| layers.iter().any(|layer| has_program(layer, shell));
    let shell = SHELLS.iter().find(is_there).unwrap_or(&SHELLS[1]);
    vec![(*shell).to_owned(), "-c".to_owned(), command.to_owned()]
}

/// Whether one of the layers has something there. No link is followed: this is the host's filesystem.
pub(super) fn is_there(layers: &[std::path::PathBuf], path: &str) -> bool {
    let name = path.trim_matches('/');
    name.is_empty() || layers.iter().any(|layer| layer.join(name).symlink_metadata().is_ok())
}

/// Whether a layer has a file there: `/bin` may be a link to `usr/bin`. It is not followed: this is the host's filesystem.
fn has_program(layer: &Path, path: &str) -> bool {
    let name = path.trim_start_matches('/');
    let is_there = |name: &str| layer.join(name).symlink_metadata().is_ok_and(|found| !found.is_dir());
    is_there(name) || is_there(&format!("usr/{name}"))
}

/// What a step awaits is on the heap: many calls deep, the futures would not fit on a thread's stack.
impl Building<'_> {
    /// Does something in a sandbox, and copies what has changed then.
    pub(super) async fn make_layer(&mut self, action: &Action) -> Result<std::path::PathBuf> {
        let id = Box::pin(self.start()).await?;
        let made = match Box::pin(self.act(&id, action)).await {
            Ok(()) => Box::pin(self.take(&id)).await,
            Err(error) => Err(error),
        };
        Box::pin(self.node.remove(&id)).await?;
        made
    }

    /// Fails if no such user is there.
    pub(super) async fn check_user(&mut self, user: &str) -> Result<()> {
        if matches!(user, "root" | "user") {
            return Ok(());
        }
        let id = Box::pin(self.start()).await?;
        let found = Box::pin(self.node.account(&id, Some(user))).await;
        Box::pin(self.node.remove(&id)).await?;
        found.map(drop)
    }

    /// Starts a sandbox of what has been built, as clients will.
    pub(super) async fn try_startup(&mut self) -> Result<()> {
        let id = Box::pin(self.start()).await?;
        Box::pin(self.node.remove(&id)).await
    }

    async fn start(&mut self) -> Result<SandboxId> {
        let [layer, below @ ..] = &self.layers[..] else {
            return Err(Error::NoTemplate(self.name.clone()));
        };
        let record = TemplateRecord {
            spec: TemplateSpec { name: self.name.clone(), ..self.spec.clone() },
            created_ms: now_ms(),
            image_layers: below.to_vec(),
            layer: layer.clone(),
            timings: BuildTimings::default(),
            checkpoint: None,
            is_built: false,
            pages: None,
            volumes: Vec::new(),
        };
        let directory = self.node.host.config.template_dir(&self.name);
        std::fs::create_dir_all(&directory).at("create", &directory)?;
        self.node.install(record, None).await?;
        let request = RunSpec {
            count: 1,
            interpreter: Interpreter::InProcess,
            volumes: Vec::new(),
            mount_points: MountPoints::Declared,
            reservation: None,
            network: NetworkPolicy::default(),
        };
        Ok(Box::pin(self.node.run_one(&self.name, &request)).await?.id)
    }

    async fn act(&self, id: &SandboxId, action: &Action) -> Result<()> {
        match action {
            Action::Run { command, user, env } => self.run(id, command, user.as_deref(), env).await,
            Action::Copy { archive, source, target, owner, mode, .. } => {
                let target = within(&self.spec.cwd, target);
                let owner = owner.as_deref().or(self.spec.user.as_deref());
                let copied = copy::Copied { archive, source, target: &target, owner, mode: *mode };
                copied.bring(self.node, id).await
            }
            Action::Directory(_) => {
                let target = format!("{}/", self.spec.cwd.trim_end_matches('/'));
                copy::make_directory(self.node, id, &target, self.spec.user.as_deref()).await
            }
            Action::Env(_) | Action::User(_) => Ok(()),
        }
    }

    async fn run(&self, id: &SandboxId, command: &str, user: Option<&str>, env: &[(String, String)]) -> Result<()> {
        let request = CommandSpec {
            command: shell(&self.layers, command),
            env: env.to_vec(),
            cwd: None,
            terminal: None,
            timeout_ms: Some(BUILD_STEP_MAX_MS),
            user: user.map(str::to_owned),
            tag: None,
            stdin: false,
        };
        let (_, mut stream) = self.node.start_command(id, request).await?;
        let mut lines = Lines { building: self, rest: [Vec::new(), Vec::new()], last: Vec::new() };
        let mut cancelled = self.options.cancelled.clone();
        let end = loop {
            let event = tokio::select! {
                event = stream.next() => event,
                Ok(_) = cancelled.wait_for(|cancelled| *cancelled) => return Err(Error::Cancelled),
            };
            match event {
                Some(CommandEvent::Stdout(bytes) | CommandEvent::Terminal(bytes)) => lines.take(0, &bytes),
                Some(CommandEvent::Stderr(bytes)) => lines.take(1, &bytes),
                Some(CommandEvent::Missed(bytes)) => lines.say(&format!("({bytes} bytes of output are missing)")),
                Some(CommandEvent::Started(_)) => {}
                Some(CommandEvent::Ended(end)) => break Some(end.status),
                None => break None,
            }
        };
        let output = lines.end();
        match end {
            Some(ExitStatus::Code(0)) => Ok(()),
            status => {
                let reason = self.node.killed_at_limit(id);
                Err(Error::StepFailed { status: status.unwrap_or(ExitStatus::Unknown), reason, output })
            }
        }
    }

    /// Copies what has changed. Nothing goes on meanwhile, or after.
    async fn take(&self, id: &SandboxId) -> Result<std::path::PathBuf> {
        let node = self.node;
        node.end_hands(id, std::time::Duration::from_secs(5)).await?;
        let new = node.new_layer().doing("make a directory for the layer")?;
        let copied = self.copy_still(id, &new).await;
        let kept = match copied {
            Ok(()) => node.keep_layer(&self.key, &new).await.at("keep the layer", &new),
            Err(error) => Err(error),
        };
        if kept.is_err() {
            crate::node::images::remove_quietly(new.parent().unwrap_or(&new)).await;
        }
        kept
    }

    async fn copy_still(&self, id: &SandboxId, new: &Path) -> Result<()> {
        let node: &Arc<Node> = self.node;
        node.freeze(id).await?;
        let (changes, group, layer) = (node.host.changes.of(id), node.group(id), new.to_owned());
        let copy = move || Ok(sandbox::copy_still(&changes, &layer, &pids(&group)?)?);
        tokio::task::spawn_blocking(copy).await.doing("copy what the step has changed").flatten()
    }
}

/// Output as lines.
struct Lines<'a> {
    building: &'a Building<'a>,
    rest: [Vec<u8>; 2],
    last: Vec<String>,
}

impl Lines<'_> {
    fn take(&mut self, stream: usize, bytes: &[u8]) {
        for byte in bytes {
            let is_end = *byte == b'\n';
            if !is_end {
                self.rest[stream].push(*byte);
            }
            if is_end || self.rest[stream].len() >= LINE_BYTES_MAX {
                let line = std::mem::take(&mut self.rest[stream]);
                self.say(&String::from_utf8_lossy(&line));
            }
        }
    }

    fn say(&mut self, line: &str) {
        let line = base::text::harmless(line.trim_end_matches('\r')).to_string();
        self.building.say(BuildLevel::Info, line.clone());
        if self.last.len() == LINES_SHOWN {
            self.last.remove(0);
        }
        self.last.push(line);
    }

    /// The last lines.
    fn end(mut self) -> Vec<String> {
        for stream in 0..2 {
            let line = std::mem::take(&mut self.rest[stream]);
            if !line.is_empty() {
                self.say(&String::from_utf8_lossy(&line));
            }
        }
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_directory() {
        assert_eq!(within("/home/user", "app"), "/home/user/app");
        assert_eq!(within("/home/user", "app/"), "/home/user/app/");
        assert_eq!(within("/home/user", "../../.."), "/");
        assert_eq!(within("", "/etc/./x"), "/etc/x");
        assert_eq!(within("/a", "/"), "/");
        assert_eq!(within("/a", "."), "/a");
    }
}
