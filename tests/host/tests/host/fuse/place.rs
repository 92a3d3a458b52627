//! A mounted volume, its server process, and what must be gone afterwards.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use fuse::{Access, Mount, clone_tree, mount};
use rustix::{
    mount::{MoveMountFlags, UnmountFlags, move_mount, unmount},
    process::{Pid, Signal, kill_process},
};
use volume::Options;

pub(crate) const NAME: &str = "test";

pub(crate) struct Place {
    directory: tempfile::TempDir,
    mounted: Option<Mount>,
    server: Option<Child>,
}

impl Place {
    /// A new volume, mounted on [`Place::path`].
    pub(crate) fn new() -> Self {
        Self::with(&Options::default())
    }

    pub(crate) fn with(options: &Options) -> Self {
        let mut place = Self { directory: tempfile::tempdir().unwrap(), mounted: None, server: None };
        std::fs::create_dir(place.path()).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        super::local::volumes(&place.state(), &runtime).unwrap().create(NAME, options).unwrap();
        place.mount();
        place
    }

    /// Where the volume is mounted.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// A new superblock of the same volume.
    pub(crate) fn mount(&mut self) {
        let mounted = mount(NAME).unwrap();
        self.attach(&mounted, Access::ReadWrite, &self.path());
        self.mounted = Some(mounted);
        self.serve("start");
        // From here on it can be killed: an answer says that the conversation has begun.
        std::fs::metadata(self.path()).unwrap();
    }

    pub(crate) fn log_files(&self) -> usize {
        std::fs::read_dir(self.state().join("logs/default").join(NAME).join("log")).unwrap().count()
    }

    pub(crate) fn attach(&self, mounted: &Mount, access: Access, at: &Path) {
        let clone = clone_tree(NAME, mounted.device.as_fd(), mounted.tree.as_fd(), access).unwrap();
        Self::attach_clone(&clone, at);
    }

    pub(crate) fn attach_clone(clone: &OwnedFd, at: &Path) {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(clone, "", rustix::fs::CWD, at, flags).unwrap();
    }

    pub(crate) fn mounted(&self) -> &Mount {
        self.mounted.as_ref().unwrap()
    }

    /// Starts a process that serves the superblock: `start` a new one, or `adopt` a running one.
    pub(crate) fn serve(&mut self, how: &str) {
        let device = self.mounted().device.try_clone().unwrap();
        let server = Command::new("/proc/self/exe").arg(super::SERVE).arg(self.state()).arg(how).stdin(device).spawn();
        self.server = Some(server.unwrap());
    }

    /// Threads of the server that read requests.
    pub(crate) fn answering_threads(&self) -> usize {
        let server = self.server.as_ref().unwrap().id();
        let tasks = std::fs::read_dir(format!("/proc/{server}/task")).unwrap().flatten();
        // The others of `fuser` only wait for these.
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        tasks.map(name).filter(|name| name.starts_with("fuser-") && name.trim() != "fuser-bg").count()
    }

    /// Stops the server. Each of its threads stops on its own, so all of them are waited for.
    pub(crate) fn stop_server(&self) {
        let server = self.server.as_ref().unwrap();
        kill_process(Pid::from_child(server), Signal::STOP).unwrap();
        let state = |task: std::fs::DirEntry| {
            let status = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            status.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
        };
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| state(task.unwrap()) == Some('T');
        let until = Instant::now() + Duration::from_secs(10);
        while !std::fs::read_dir(format!("/proc/{}/task", server.id())).unwrap().all(is_stopped) {
            assert!(Instant::now() < until, "the server does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets a stopped server go on.
    pub(crate) fn continue_server(&self) {
        kill_process(Pid::from_child(self.server.as_ref().unwrap()), Signal::CONT).unwrap();
    }

    /// Kills the server as a crash does.
    pub(crate) fn kill(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    /// Ends the superblock; the server must end with it, by itself and without an error.
    pub(crate) fn unmount(&mut self) {
        unmount(self.path(), UnmountFlags::empty()).unwrap();
        self.mounted = None;
        let mut server = self.server.take().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            match server.try_wait().unwrap() {
                Some(status) => return assert!(status.success(), "the server ended with {status}"),
                None if Instant::now() > until => panic!("the server outlives its superblock"),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Unmounts and mounts again: nothing is cached, and all comes from the volume.
    pub(crate) fn remount(&mut self) {
        self.unmount();
        self.mount();
    }

    /// Runs a shell script in the mounted directory; it must succeed.
    pub(crate) fn shell(&self, script: &str) {
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", script]);
        self.run(command);
    }

    /// Runs a Python program in the mounted directory; it must succeed.
    pub(crate) fn python(&self, program: &str) {
        let mut command = Command::new("python3");
        command.args(["-c", program]);
        self.run(command);
    }

    fn run(&self, mut command: Command) {
        let output = command.current_dir(self.path()).stdin(Stdio::null()).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}\n{out}{err}", output.status);
    }
}

/// Whatever happened, nothing stays.
impl Drop for Place {
    fn drop(&mut self) {
        if self.server.is_some() && !std::thread::panicking() {
            self.unmount();
        }
        let _ = unmount(self.path(), UnmountFlags::DETACH);
        self.mounted = None;
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// Runs this program again in a mount namespace of its own: what is mounted there shows nowhere else and goes with it.
pub(crate) fn in_mount_namespace() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]).arg(std::env::current_exe().unwrap());
    command
}
