//! A folder with a family, and programs whose streams it holds.

use std::{
    os::fd::{AsFd, OwnedFd},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use holder::{Client, Events, Family, Meta, Process, Role};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// First argument of this program when it runs a role.
pub(crate) const FOLDER: &str = "--folder";

pub(crate) struct Place {
    folder: tempfile::TempDir,
    first: Child,
    pub(crate) client: Client,
}

impl Place {
    pub(crate) async fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let first = start(folder.path())?;
        let client = Client::new(folder.path());
        let place = Self { folder, first, client };
        place.family().await?;
        Ok(place)
    }

    /// Starts another family where the last one was killed.
    pub(crate) async fn again(&mut self) -> Result<()> {
        let _ = self.first.wait();
        self.first = start(self.folder.path())?;
        self.family().await.map(drop)
    }

    /// The family, once both are there.
    pub(crate) async fn family(&self) -> Result<Family> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match self.client.family().await {
                Ok(family) if family.spare != 0 => return Ok(family),
                other => ensure!(Instant::now() < deadline, "no family: {other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the family is not `before`, and whole.
    pub(crate) async fn changed(&self, before: Family) -> Result<Family> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let family = self.family().await?;
            if (family.holder, family.spare) != (before.holder, before.spare) {
                return Ok(family);
            }
            ensure!(Instant::now() < deadline, "the family is as before: {before:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn start(&self, key: &str, script: &str) -> Result<(Running, Events)> {
        self.start_with(key, script, false).await
    }

    /// Starts a shell whose streams are held.
    pub(crate) async fn start_with(&self, key: &str, script: &str, stdin: bool) -> Result<(Running, Events)> {
        let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
        let ((in_read, in_write), (out_read, out_write), (err_read, err_write)) = (pipe()?, pipe()?, pipe()?);
        let meta = meta(key, stdin);
        let outputs = [out_read.as_fd(), err_read.as_fd()];
        let starting = self.client.hold(&meta, &[], &outputs, stdin.then(|| in_write.as_fd())).await?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(in_read).stdout(out_write).stderr(err_write).process_group(0);
        let child = command.spawn()?;
        drop(command);
        let pid = child.id() as i32;
        let pidfd = pidfd_open(Pid::from_raw(pid).context("no pid")?, PidfdFlags::empty())?;
        let process = process(pid)?;
        let events = starting.begin(process, &pidfd).await?;
        Ok((Running { child: Some(child) }, events))
    }

    /// Starts a shell on a terminal.
    pub(crate) async fn start_on_terminal(&self, key: &str, script: &str) -> Result<(Running, Events)> {
        use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        let meta = Meta { terminal: true, ..meta(key, true) };
        let starting = self.client.hold(&meta, &[], &[master.as_fd()], None).await?;
        let mut command = Command::new("/usr/bin/setsid");
        command.args(["-c", "/bin/sh", "-c", script]);
        command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
        let child = command.spawn()?;
        drop(command);
        let pid = child.id() as i32;
        let pidfd: OwnedFd = pidfd_open(Pid::from_raw(pid).context("no pid")?, PidfdFlags::empty())?;
        let process = process(pid)?;
        let events = starting.begin(process, &pidfd).await?;
        Ok((Running { child: Some(child) }, events))
    }
}

fn start(folder: &std::path::Path) -> Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.arg(FOLDER).arg(folder).arg(Role::Holder.argument()).stdin(Stdio::null()).process_group(0);
    Ok(command.spawn()?)
}

fn process(pid: i32) -> Result<Process> {
    let start_ticks = procfs::Stat::read(&pid.to_string())?.start_ticks();
    Ok(Process { inside: pid, outside: pid, start_ticks })
}

fn meta(key: &str, stdin: bool) -> Meta {
    Meta {
        key: key.into(),
        sandbox: "s0123456789ab".into(),
        argv: vec!["sh".into()],
        env: Vec::new(),
        cwd: "/".into(),
        tag: None,
        user: "user".into(),
        terminal: false,
        stdin,
        foreground: false,
        started_ms: 1,
        deadline_ns: None,
        timeout_ms: None,
        streams: Vec::new(),
        terminal_number: None,
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Handle::current();
        let client = self.client.clone();
        let family = std::thread::spawn(move || runtime.block_on(async move { client.family().await })).join();
        if let Ok(Ok(family)) = family {
            // The spare first, or it would take over.
            for pid in [family.spare, family.holder] {
                let _ = kill(pid);
            }
        }
        let _ = self.first.wait();
    }
}

pub(crate) fn kill(pid: i32) -> Result<()> {
    Ok(kill_process(Pid::from_raw(pid).context("no pid")?, Signal::KILL)?)
}

/// A program. Dropped, it is killed.
pub(crate) struct Running {
    child: Option<Child>,
}

impl Running {
    /// Reaps it in the background, as its parent in the product does.
    pub(crate) fn reap(mut self) {
        if let Some(mut child) = self.child.take() {
            std::thread::spawn(move || child.wait());
        }
    }

    pub(crate) fn kill(&mut self) -> Result<()> {
        Ok(self.child.as_mut().context("no child")?.kill()?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
