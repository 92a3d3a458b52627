//! One step: a sandbox on the layers so far, what is done in it, and a copy of what that has changed.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base::{id::SandboxId, limits::BUILD_STEP_MAX_MS};
use model::{
    Action, BuildLevel, BuildTimings, CommandEvent, CommandSpec, ExitStatus, Interpreter, MountPoints, NetworkPolicy,
    RunSpec, TemplateSpec,
};

use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2},
    io::Errno,
};
use sandbox::Users;

use super::{Building, cache::KeptLayer, copy};
use crate::{
    error::{Context as _, Error, Result},
    node::{Node, files::SETTLE_MAX, inspect::pids, now_ms},
    records::TemplateRecord,
};

/// Where bash may be, and the shell where it is not.
const BASH: [&str; 2] = ["/bin/bash", "/usr/bin/bash"];
const SH: &str = "/bin/sh";

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
pub(super) fn shell(layers: &[PathBuf], command: &str) -> Vec<String> {
    let shell = BASH.into_iter().find(|shell| is_there(layers, shell)).unwrap_or(SH);
    vec![shell.to_owned(), "-c".to_owned(), command.to_owned()]
}

/// Whether a root of these layers, topmost first, has something there. Links that lead into another layer are not followed.
pub(super) fn is_there(layers: &[PathBuf], path: &str) -> bool {
    let name = path.trim_start_matches('/');
    let seen = layers.iter().map(|layer| look(layer, name)).find(|seen| *seen != Seen::Nothing);
    name.is_empty() || seen == Some(Seen::Something)
}

/// What a layer has at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Nothing,
    /// It hides what lower layers have.
    Hidden,
    Something,
}

/// The layer is the root of the look: a link of it leads to no file of the host.
fn look(layer: &Path, name: &str) -> Seen {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let root = open(layer, flags | OFlags::DIRECTORY, Mode::empty());
    match root.and_then(|root| openat2(&root, name, flags, Mode::empty(), resolve)).and_then(fstat) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice && found.st_rdev == 0 => {
            Seen::Hidden
        }
        Ok(_) => Seen::Something,
        // A whiteout, or a file, in the place of a directory.
        Err(Errno::NOTDIR) => Seen::Hidden,
        Err(_) => Seen::Nothing,
    }
}

/// What a step awaits is on the heap: many calls deep, the futures would not fit on a thread's stack.
impl Building<'_> {
    /// Does something in a sandbox, and copies what has changed then.
    pub(super) async fn make_layer(&mut self, action: &Action) -> Result<KeptLayer> {
        let id = Box::pin(self.start()).await?;
        let made = match Box::pin(self.act_in_time(&id, action)).await {
            Ok(()) => Box::pin(self.take(&id)).await,
            Err(error) => Err(error),
        };
        Box::pin(self.node.remove(&id)).await?;
        made
    }

    /// Fails if no such user is there.
    pub(super) async fn check_user(&mut self, user: &str) -> Result<()> {
        if user == "user" || user == "root" && Users::of(&self.layers) == Users::All {
            return Ok(());
        }
        let id = Box::pin(self.start()).await?;
        let found = Box::pin(self.node.account(&id, Some(user))).await;
        Box::pin(self.node.remove(&id)).await?;
        found.map(drop)
    }

    /// Starts a sandbox of what has been built, as clients will.
    pub(super) async fn start(&mut self) -> Result<SandboxId> {
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

    /// What is cut off ends with its sandbox.
    async fn act_in_time(&self, id: &SandboxId, action: &Action) -> Result<()> {
        let mut cancelled = self.options.cancelled.clone();
        tokio::select! {
            done = self.act(id, action) => done,
            Ok(_) = cancelled.wait_for(|cancelled| *cancelled) => Err(Error::Cancelled),
            () = tokio::time::sleep(Duration::from_millis(BUILD_STEP_MAX_MS)) => {
                Err(Error::Deadline { action: "do the step", deadline_ms: BUILD_STEP_MAX_MS })
            }
        }
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
            timeout_ms: None,
            user: user.map(str::to_owned),
            tag: None,
            stdin: false,
        };
        let (_, mut stream) = self.node.start_command(id, request).await?;
        let mut lines = Lines { building: self, rest: [Vec::new(), Vec::new()], last: Vec::new() };
        let end = loop {
            match stream.next().await {
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
    async fn take(&self, id: &SandboxId) -> Result<KeptLayer> {
        let node: &Arc<Node> = self.node;
        node.end_hands(id, SETTLE_MAX).await?;
        node.freeze(id).await?;
        node.check_build_room()?;
        let (changes, group) = (node.host.changes.of(id), node.group(id));
        let (node, key) = (Arc::clone(node), self.key.clone());
        let copy = move || {
            let (new, id) = node.new_layer().doing("make a directory for the layer")?;
            let bytes = sandbox::copy_still(&changes, &Node::within_new(&new), &pids(&group)?)?;
            node.keep_layer(&key, (new, &id), bytes).doing("keep the layer of the step")
        };
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
