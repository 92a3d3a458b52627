//! A node's directories and groups for the tests, and programs run in sandboxes.

use std::{
    cell::RefCell,
    fs,
    io::Read,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use base::id::SandboxId;
use rustix::process::{Pid, WaitOptions, waitpid};
use sandbox::{Cgroups, Command, Limits, Sandbox, Spec, User, Users, prepare_base_layer, prepare_host_mask};

pub(crate) struct Host {
    state: tempfile::TempDir,
    pub(crate) cgroups: Cgroups,
    skipped: RefCell<Option<String>>,
}

/// What a program left behind.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: i32,
    pub(crate) text: String,
}

impl Host {
    pub(crate) fn prepare() -> Self {
        let state = tempfile::Builder::new()
            .prefix(&format!("pando-test-{}-", std::process::id()))
            .tempdir_in("/var/lib")
            .unwrap();
        let cgroups = Cgroups::open(&format!("test-{}", std::process::id())).unwrap();
        let host = Self { state, cgroups, skipped: RefCell::default() };
        fs::create_dir(host.sandboxes()).unwrap();
        fs::write(host.state().join("secret"), "host secret").unwrap();
        for _ in 0..2 {
            prepare_host_mask(&host.mask(), &[host.state().to_owned(), PathBuf::from("/run/pando-test-not-there")])
                .unwrap();
        }
        host
    }

    pub(crate) fn state(&self) -> &Path {
        self.state.path()
    }

    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.state().join("sandboxes")
    }

    pub(crate) fn mask(&self) -> PathBuf {
        self.state().join("mask")
    }

    /// What goes above an image.
    pub(crate) fn base(&self, image: &Path) -> PathBuf {
        prepare_base_layer(self.state(), &[image.to_owned()]).unwrap()
    }

    pub(crate) fn spec(&self) -> Spec {
        self.spec_of(vec![self.mask(), PathBuf::from("/")])
    }

    pub(crate) fn spec_of(&self, layers: Vec<PathBuf>) -> Spec {
        let id = SandboxId::random();
        let limits = Limits { memory_bytes: 256 << 20, pids: 64, cpu_millis: Some(1_500), disk_bytes: None };
        let dir = self.sandboxes().join(id.as_str());
        Spec { changes: dir.clone(), from: None, dir, id, layers, limits, users: Users::All, dns: None }
    }

    pub(crate) fn sandbox(&self) -> Sandbox {
        Sandbox::create(&self.spec(), &self.cgroups).unwrap()
    }

    /// Notes that the host lacks what the case needs.
    pub(crate) fn skip(&self, why: &str) {
        *self.skipped.borrow_mut() = Some(why.to_owned());
    }

    /// Fails if the case left a sandbox. Gives the reason if the case was skipped.
    pub(crate) fn close(self) -> Option<String> {
        reap_all();
        let left: Vec<_> = fs::read_dir(self.sandboxes()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "left: {left:?}");
        // Fails if a group is not empty.
        self.cgroups.remove_all().unwrap();
        self.skipped.take()
    }
}

pub(crate) fn command(argv: &[&str]) -> Command {
    let env = [("PATH", "/usr/bin:/bin"), ("HOME", "/home/user")];
    Command {
        argv: argv.iter().map(|text| (*text).to_owned()).collect(),
        env: env.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        cwd: "/home/user".to_owned(),
        tty: false,
        group: None,
        until_ns: None,
        user: User::PROGRAM,
    }
}

/// Ends a sandbox and removes its directory.
pub(crate) fn destroy(sandbox: Sandbox) {
    let dir = sandbox.dir().to_owned();
    sandbox.destroy().unwrap();
    sandbox::remove_directory(&dir).unwrap();
}

/// Starts a program with its output and errors in one pipe, which is returned.
pub(crate) fn start(sandbox: &Sandbox, command: &Command) -> (i32, OwnedFd) {
    let null: OwnedFd = fs::File::open("/dev/null").unwrap().into();
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let pid = sandbox.spawn(command, [null.as_fd(), writer.as_fd(), writer.as_fd()], None).unwrap();
    (pid, reader)
}

pub(crate) fn wait(pid: i32) -> i32 {
    let (_, status) = waitpid(Pid::from_raw(pid), WaitOptions::empty()).unwrap().unwrap();
    status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap())
}

pub(crate) fn run(sandbox: &Sandbox, argv: &[&str]) -> Output {
    let (pid, reader) = start(sandbox, &command(argv));
    let mut text = String::new();
    fs::File::from(reader).read_to_string(&mut text).unwrap();
    Output { code: wait(pid), text }
}

pub(crate) fn shell(sandbox: &Sandbox, script: &str) -> Output {
    run(sandbox, &["sh", "-c", script])
}

/// Waits until its pid 1 is the program that it comes to be a moment after it has reported.
pub(crate) fn at_rest(sandbox: &Sandbox) {
    let comm = format!("/proc/{}/comm", sandbox.init().pid);
    let exe = format!("/proc/{}/exe", sandbox.init().pid);
    let deadline = Instant::now() + Duration::from_secs(10);
    while fs::read_link(&exe).unwrap() != Path::new("/memfd:pando-rest (deleted)")
        || fs::read_to_string(&comm).unwrap() != "pando-init\n"
    {
        assert!(Instant::now() < deadline, "pid 1 does not come to rest");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn reap_all() {
    let mut tries = 0;
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) if tries < 1_000 => {
                tries += 1;
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            _ => return,
        }
    }
}
