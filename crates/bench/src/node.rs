//! A private node for the time of a measurement.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use api::{
    Checkpoint, CheckpointRequest, ForkRequest, ForkResponse, Image, ImportRequest, Interpreter, Limits, MountRequest,
    NetworkPolicy, PoolInfo, Ready, Recipe, RunRequest, Sandbox, SandboxDetail, StoreStats, Template, TemplateSpec,
    TemplateState,
    volume::{ForkVolumeRequest, RestoreRequest, SnapshotRequest, VolumeDurability, VolumeSpec},
};
use base::id::{SandboxId, SnapshotName, VolumeName};
use client::Client;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
};

use super::{pages, place::Way, proc::bytes_of, program};

/// How long the node may take to come up, and to clean up.
const NODE_WAIT: Duration = Duration::from_secs(30);

/// A pool that has not changed for so long is as it will be.
const REST: Duration = Duration::from_secs(2);

/// Whether the node forks copies ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    /// As nodes do.
    Yes,
    /// Every start forks.
    No,
}

/// A running node, removed with all it made by [`PrivateNode::stop`], or killed when dropped.
pub(super) struct PrivateNode {
    process: Child,
    dir: PathBuf,
    pub(super) client: Client,
}

/// How long a start took, as the caller of the node saw it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Started {
    /// Until the node had answered that the copy runs.
    pub(super) running: Duration,
    /// Until the copy had answered its first request.
    pub(super) answered: Duration,
}

impl PrivateNode {
    pub(super) async fn start(ahead: Ahead) -> Result<Self> {
        Self::start_with(ahead, &[]).await
    }

    /// The same with more of the arguments of `pando node`.
    pub(super) async fn start_with(ahead: Ahead, more: &[OsString]) -> Result<Self> {
        Self::run(base::scratch::make("bench")?, "warn", ahead, more).await
    }

    /// The same in the network namespace of a process.
    pub(super) async fn start_within(pid: u32, more: &[OsString]) -> Result<Self> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{pid}/ns/net")).arg(std::env::current_exe()?);
        Self::run_as((command, "node"), base::scratch::make("bench")?, "warn", Ahead::Yes, more).await
    }

    /// One that has seen nothing of what is behind `way`, and has made itself comfortable.
    pub(super) async fn fresh(way: &Way) -> Result<Self> {
        let node = Self::start_with(Ahead::Yes, &way.arguments()).await?;
        node.settle().await?;
        Ok(node)
    }

    /// `pando serve` instead of `pando node`, and the file with the variables of its clients.
    pub(super) async fn serve(more: &[OsString]) -> Result<(Self, PathBuf)> {
        let dir = base::scratch::make("bench")?;
        let env_file = dir.join("env");
        let mut arguments = vec!["--env-file".into(), env_file.as_os_str().to_owned()];
        arguments.extend_from_slice(more);
        let mut node =
            Self::run_as((Command::new(std::env::current_exe()?), "serve"), dir, "warn", Ahead::Yes, &arguments)
                .await?;
        let deadline = Instant::now() + NODE_WAIT;
        while !env_file.exists() {
            if let Some(status) = node.process.try_wait()? {
                bail!("the private server ended at once: {status}");
            }
            ensure!(Instant::now() < deadline, "the private server took no clients within {NODE_WAIT:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok((node, env_file))
    }

    /// Waits until these templates are ready.
    pub(super) async fn await_templates(&self, names: &[&str], longest: Duration) -> Result<()> {
        let deadline = Instant::now() + longest;
        loop {
            let found = self.client.templates().await?;
            let ready: Vec<&str> = found
                .iter()
                .filter(|template| template.state == TemplateState::Ready)
                .map(|template| template.spec.name.as_str())
                .collect();
            if names.iter().all(|name| ready.contains(name)) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "not all of {names:?} are ready within {longest:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn run(dir: PathBuf, log: &str, ahead: Ahead, more: &[OsString]) -> Result<Self> {
        Self::run_as((Command::new(std::env::current_exe()?), "node"), dir, log, ahead, more).await
    }

    async fn run_as(
        (mut command, role): (Command, &str),
        dir: PathBuf,
        log: &str,
        ahead: Ahead,
        more: &[OsString],
    ) -> Result<Self> {
        let socket = dir.join("node.sock");
        command.args(["--log", log, "--socket"]).arg(&socket).args([role, "--ephemeral", "--state"]);
        command.arg(dir.join("state")).stdin(Stdio::null()).stdout(Stdio::null());
        if ahead == Ahead::No {
            command.args(["--ahead", "0"]);
        }
        command.args(more);
        // Ctrl-C in the terminal is for the measurement, which then ends the node in order.
        command.process_group(0);
        let process = command.spawn().context("cannot start a node")?;
        let mut node = Self { process, dir, client: Client::new(socket.clone()) };
        let deadline = Instant::now() + NODE_WAIT;
        while tokio::net::UnixStream::connect(&socket).await.is_err() {
            if let Some(status) = node.process.try_wait()? {
                bail!("the private node ended at once: {status}; does this run as root?");
            }
            ensure!(Instant::now() < deadline, "the private node did not come up within {NODE_WAIT:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(node)
    }

    /// Waits until it has made itself comfortable: one that has just come up is not what users have.
    pub(super) async fn settle(&self) -> Result<()> {
        let deadline = Instant::now() + NODE_WAIT;
        loop {
            let pool = self.pool().await?;
            if pool.bare == pool.limit {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the private node's pool is not full within {NODE_WAIT:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until it has forked ahead what it will, after something was started.
    pub(super) async fn rest(&self) -> Result<()> {
        let mut pool = self.pool().await?;
        let mut since = Instant::now();
        while since.elapsed() < REST {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = self.pool().await?;
            if now != pool {
                (pool, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    /// What it has ready, and at most.
    pub(super) async fn pool(&self) -> Result<PoolInfo> {
        Ok(self.client.node().await?.pool)
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        if let Some(pid) = self.process.id().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)) {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }
        let ended = tokio::time::timeout(NODE_WAIT, self.process.wait()).await;
        ended.context("the private node does not end")??;
        Ok(())
    }

    /// Kills it, and all its processes: as good as a machine that is lost.
    pub(super) async fn kill(&mut self) -> Result<()> {
        self.process.start_kill()?;
        self.process.wait().await?;
        let name = self.state_dir().display().to_string();
        let deadline = Instant::now() + NODE_WAIT;
        let mut killed: Vec<i32> = Vec::new();
        // Again and again: who dies first may have been started again by another.
        loop {
            killed.retain(|pid| is_alive(*pid));
            let found = processes_that_name(&name)?;
            if found.is_empty() && killed.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "processes of the private node do not end: {found:?}, {killed:?}");
            found.iter().copied().for_each(pages::kill);
            killed.extend(found);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Removes what is left of one that was killed: another one finds its state, and removes its sandboxes and control groups.
    pub(super) async fn clean_up(mut self) -> Result<()> {
        let more = ["--pool".into(), "0".into()];
        // It would warn of what it finds. What it cannot remove shows.
        let log = "error,pando_node::node::supervisor=warn";
        Self::run(std::mem::take(&mut self.dir), log, Ahead::No, &more).await?.stop().await
    }

    /// Makes an empty volume.
    pub(super) async fn create_volume(&self, name: &VolumeName, durability: VolumeDurability) -> Result<()> {
        let (bytes_max, inodes_max) = (None, None);
        let spec =
            VolumeSpec { name: name.clone(), bytes_max, inodes_max, durability, uid: None, gid: None, mode: None };
        self.client.create_volume(&spec).await?;
        Ok(())
    }

    /// Puts the present state of a volume into the store, and names it.
    pub(super) async fn snapshot(&self, name: &VolumeName) -> Result<SnapshotName> {
        let request = SnapshotRequest { snapshot: None, note: None, early: false };
        Ok(self.client.snapshot(name, &request).await?.snapshot)
    }

    /// Makes another volume of the present state of one.
    pub(super) async fn fork_volume(&self, name: &VolumeName, new: VolumeName) -> Result<()> {
        let request = ForkVolumeRequest { name: new, snapshot: None, state: None };
        self.client.fork_volume(name, &request).await?;
        Ok(())
    }

    /// Has a volume be what it was.
    pub(super) async fn restore_volume(&self, name: &VolumeName, snapshot: SnapshotName) -> Result<()> {
        self.client.restore_volume(name, &RestoreRequest { snapshot }).await?;
        Ok(())
    }

    /// Memory that the processes of volumes have for themselves, in bytes.
    pub(super) fn memory_of_volumes(&self) -> Result<u64> {
        let mut bytes = 0;
        for pid in processes_that_name(&self.state_dir().display().to_string())? {
            let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if command.split('\0').any(|word| word == VOLUMES_COMMAND) {
                bytes += bytes_of(&format!("/proc/{pid}/status"), "RssAnon:")?;
            }
        }
        Ok(bytes)
    }

    /// Mounts a volume on a directory of the host.
    pub(super) async fn mount(&self, name: &VolumeName, directory: &Path) -> Result<()> {
        let path = directory.to_str().context("a directory in UTF-8")?.to_owned();
        let request = MountRequest { path, read_only: false, snapshot: None };
        self.client.mount(name, &request).await?;
        Ok(())
    }

    /// Its directory of state.
    fn state_dir(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// How many pages its pager has handed out.
    pub(super) async fn paged(&self) -> Result<Option<pages::Paged>> {
        let state_dir = self.state_dir();
        tokio::task::spawn_blocking(move || pages::paged(&state_dir)).await?
    }

    /// Waits until no program lacks memory of its checkpoint.
    pub(super) async fn wait_filled(&self) -> Result<()> {
        let deadline = Instant::now() + NODE_WAIT;
        loop {
            let state_dir = self.state_dir();
            if tokio::task::spawn_blocking(move || pages::is_filled(&state_dir)).await?? {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "programs lack memory after {NODE_WAIT:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Its process.
    pub(super) fn pid(&self) -> Result<i32> {
        Ok(self.process.id().context("the private node has ended")? as i32)
    }

    pub(super) async fn build(&self, name: &str, command: Vec<String>) -> Result<Template> {
        self.build_spec(&spec(name, command)?).await
    }

    pub(super) async fn build_spec(&self, spec: &TemplateSpec) -> Result<Template> {
        self.client.build(spec).await.with_context(|| format!("cannot build {}", spec.name))
    }

    /// Starts one copy and waits for its first answer.
    pub(super) async fn start_one(&self, template: &str) -> Result<(Sandbox, Started)> {
        self.start_with_policy(template, NetworkPolicy::default()).await
    }

    /// The same with a policy of its network.
    pub(super) async fn start_with_policy(&self, template: &str, network: NetworkPolicy) -> Result<(Sandbox, Started)> {
        let began = Instant::now();
        let sandboxes = self.run_request(template, 1, network).await?;
        let running = began.elapsed();
        let sandbox = sandboxes.into_iter().next().context("the node started nothing")?;
        self.request(&sandbox.id).await?;
        Ok((sandbox, Started { running, answered: began.elapsed() }))
    }

    /// Starts copies and asks them nothing.
    pub(super) async fn start_many(&self, template: &str, count: u32) -> Result<()> {
        self.run_request(template, count, NetworkPolicy::default()).await.map(drop)
    }

    async fn run_request(&self, template: &str, count: u32, network: NetworkPolicy) -> Result<Vec<Sandbox>> {
        let request = RunRequest { count, interpreter: Interpreter::InProcess, volumes: Vec::new(), network };
        let response = self.client.run(&template.parse()?, &request).await?;
        match response.failures.first() {
            Some(failure) => bail!("a start failed: {}", failure.message),
            None => Ok(response.sandboxes),
        }
    }

    /// Takes in an image.
    pub(super) async fn import_image(&self, archive: &Path, name: &str) -> Result<()> {
        let request = ImportRequest { path: archive.to_owned(), name: Some(name.to_owned()) };
        let done = self.client.import_image_until(&mut signal(SignalKind::interrupt())?, &request, |_, _| ()).await?;
        done.map(drop).context("interrupted")
    }

    pub(super) async fn remove_image(&self, name: &str) -> Result<()> {
        self.client.remove_image(name).await?;
        self.client.prune_images().await?;
        Ok(())
    }

    /// Builds a template of a recipe.
    pub(super) async fn build_recipe(&self, recipe: &Recipe) -> Result<()> {
        let done = self.client.build_recipe_until(&mut signal(SignalKind::interrupt())?, recipe, |_, _| ()).await?;
        done.map(drop).context("interrupted")
    }

    /// Its process, and those that belong to it.
    pub(super) fn processes(&self) -> Result<Vec<i32>> {
        processes_that_name(&self.state_dir().display().to_string())
    }

    /// One HTTP request to a copy's program, on a connection of its own.
    pub(super) async fn request(&self, id: &SandboxId) -> Result<()> {
        let mut connection = self.client.dial(id, program::PORT).await?;
        exchange(&mut connection).await
    }

    /// The same of another path; the answer is how many microseconds something took.
    pub(super) async fn ask(&self, id: &SandboxId, path: &str) -> Result<Duration> {
        let mut connection = self.client.dial(id, program::PORT).await?;
        let answer = get(&mut connection, path).await?;
        let micros = answer.rsplit("\r\n\r\n").next().and_then(|body| body.parse().ok());
        Ok(Duration::from_micros(micros.with_context(|| format!("unexpected answer: {answer}"))?))
    }

    /// What keeps the files that sandboxes change.
    pub(super) async fn layers(&self) -> Result<String> {
        Ok(self.client.node().await?.layers)
    }

    pub(super) async fn fork(&self, id: &SandboxId, count: u32) -> Result<ForkResponse> {
        let response = self.client.fork(id, &ForkRequest { count, memory: true }).await?;
        match response.failures.first() {
            Some(failure) => bail!("a fork failed: {}", failure.message),
            None => Ok(response),
        }
    }

    /// Takes a checkpoint, in the place of an earlier one of that name.
    pub(super) async fn checkpoint(&self, id: &SandboxId, name: &str) -> Result<Checkpoint> {
        let request = CheckpointRequest { name: Some(name.parse()?), replace: true, memory: true };
        self.client.take_checkpoint(id, &request, |_| ()).await.context("cannot take a checkpoint")
    }

    pub(super) async fn remove_checkpoint(&self, name: &str) -> Result<()> {
        Ok(self.client.remove_checkpoint(&name.parse()?).await?)
    }

    pub(super) async fn store_stats(&self) -> Result<StoreStats> {
        Ok(self.client.store_stats().await?)
    }

    pub(super) async fn inspect(&self, id: &SandboxId) -> Result<SandboxDetail> {
        Ok(self.client.sandbox(id).await?)
    }

    pub(super) async fn remove(&self, id: &SandboxId) -> Result<()> {
        self.client.remove(id).await?;
        Ok(())
    }

    pub(super) async fn remove_all(&self) -> Result<()> {
        self.client.remove_all().await?;
        Ok(())
    }
}

impl Drop for PrivateNode {
    fn drop(&mut self) {
        // After `stop` it has ended; after an error or Ctrl-C it is told to, and cleans up behind us.
        if let Some(pid) = self.process.id().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let deadline = Instant::now() + NODE_WAIT;
            while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        if self.dir.as_os_str().is_empty() {
            // Another one has it now.
            return;
        }
        // It outlives nodes, and may not have noticed yet that it has no work.
        pages::end_pager(&self.state_dir());
        remove(&self.dir);
    }
}

/// A program on [`program::PORT`] in a sandbox over this host's files.
pub(super) fn spec(name: &str, command: Vec<String>) -> Result<TemplateSpec> {
    Ok(TemplateSpec {
        name: name.parse()?,
        image: Image::Host,
        command,
        env: Vec::new(),
        cwd: "/home/user".to_owned(),
        ready: Ready::Port(program::PORT),
        ready_timeout_ms: base::limits::READY_TIMEOUT_MS_DEFAULT,
        limits: Limits::default(),
        mount_points: Vec::new(),
        user: None,
        startup: Vec::new(),
        on_fork: Vec::new(),
    })
}

/// The word in the command of the processes of volumes.
const VOLUMES_COMMAND: &str = "volumed";

/// The processes in whose command this text is.
fn processes_that_name(text: &str) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // It may be gone meanwhile. If it is dead and its parent has not waited for it, its command is empty.
        let Ok(command) = std::fs::read(format!("/proc/{pid}/cmdline")) else { continue };
        if command.windows(text.len()).any(|part| part == text.as_bytes()) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Whether the kernel has still something to take apart of a process: much memory takes a second, and it has no command any more by then.
fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
}

fn remove(dir: &Path) {
    // Of a node that was killed.
    let _ = rustix::mount::unmount(dir.join("state").join("changes"), rustix::mount::UnmountFlags::DETACH);
    if let Err(error) = std::fs::remove_dir_all(dir) {
        tracing::warn!(dir = %dir.display(), %error, "cannot remove the private node's directory");
    }
}

/// Sends a request and reads the whole answer.
pub(super) async fn exchange(connection: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin)) -> Result<()> {
    get(connection, "health").await.map(drop)
}

async fn get(connection: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin), path: &str) -> Result<String> {
    let request = format!("GET /{path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    ensure!(answer.starts_with("HTTP/1.1 200"), "unexpected answer: {answer}");
    Ok(answer)
}
