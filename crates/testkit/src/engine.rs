//! A sandbox and the fork engine without a node: one source, its zygote, its copies.

use std::{
    fs::File,
    os::fd::AsFd,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use base::id::SandboxId;
use process::{BuildSpec, CaptureSpec, ProgramState, Report, RestoreSpec, Stream, StreamFile, Target, Zygote};
use sandbox::{Cgroups, Command, Limits, Sandbox, Spec, User, Users};

mod checkpoint;
pub mod filters;
pub mod killed;

/// Where sandboxes see the test programs.
pub const PROGRAMS: &str = "/opt/pando-programs";

/// A place for sandboxes.
pub struct Bench {
    /// All its files.
    pub dir: tempfile::TempDir,
    cgroups: Cgroups,
    layers: Vec<PathBuf>,
    seccomp: Vec<u64>,
    user: User,
}

/// A zygote and what can be made of it.
pub struct Built {
    /// The zygote.
    pub zygote: Zygote,
    /// How long the source stood still.
    pub pause: Duration,
    described: Vec<u8>,
}

/// How a copy is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// By the blob.
    AtOnce,
    /// By the stepping interpreter.
    Stepping,
    /// By the blob, after it has waited at its gate for this long.
    Parked(Duration),
}

/// A sandbox with its output file.
pub struct Place {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// Its directory.
    pub dir: PathBuf,
    /// What its program prints.
    pub output: PathBuf,
    null: File,
    log: File,
    user: User,
}

impl Bench {
    /// A new one in a temporary directory. Files of the directory `programs` are in every sandbox below [`PROGRAMS`].
    pub fn new(programs: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("pando-host-").tempdir_in("/var/tmp")?;
        let cgroups = Cgroups::open(&format!("test{}", std::process::id()))?;
        let mask = dir.path().join("mask");
        sandbox::prepare_host_mask(&mask, &[dir.path().to_owned()])?;
        let layer = dir.path().join("programs");
        let inside = layer.join(PROGRAMS.trim_start_matches('/'));
        std::fs::create_dir_all(&inside)?;
        for entry in std::fs::read_dir(programs).context("the test programs are not built: run `make programs`")? {
            let entry = entry?;
            std::fs::copy(entry.path(), inside.join(entry.file_name()))?;
        }
        let seccomp = sandbox::seccomp_program()?;
        Ok(Self { cgroups, layers: vec![layer, mask, PathBuf::from("/")], dir, seccomp, user: User::PROGRAM })
    }

    /// Its programs run as `user`.
    #[must_use]
    pub fn with_user(self, user: User) -> Self {
        Self { user, ..self }
    }

    /// A blank sandbox whose root has these layers, topmost first, over the host's.
    pub fn place(&self, above: &[PathBuf]) -> Result<Place> {
        let id = SandboxId::random();
        let dir = self.dir.path().join(id.as_str());
        std::fs::create_dir(&dir)?;
        let layers = self.layers(above);
        let limits = Limits { memory_bytes: 8 << 30, pids: 4096, cpu_millis: None, disk_bytes: None };
        let sandbox = Sandbox::create(
            &Spec {
                id,
                changes: dir.clone(),
                from: None,
                dir: dir.clone(),
                layers,
                limits,
                users: Users::All,
                dns: None,
            },
            &self.cgroups,
        )?;
        let output = dir.join("output.log");
        let log = File::options().create(true).append(true).open(&output)?;
        Ok(Place { sandbox, dir, output, null: File::open("/dev/null")?, log, user: self.user.clone() })
    }

    fn layers(&self, above: &[PathBuf]) -> Vec<PathBuf> {
        above.iter().chain(&self.layers).cloned().collect()
    }

    /// Makes a zygote of the program `pid` in `place`, with its files in the first of `layers`. `base`: the zygote that the program was
    /// started from.
    pub fn zygote(&self, place: &Place, pid: i32, layers: &[PathBuf], base: Option<&Zygote>) -> Result<Built> {
        let spec = place.capture_spec(pid, base.map(|base| base.facts.arena))?;
        let mut files = place.sandbox.capture_changes(&layers[0])?;
        let capture = process::capture(&spec, &mut || Ok(files.finish(&[pid])?))?;
        let rootfs = sandbox::detached_rootfs(&self.layers(layers))?;
        let spec = BuildSpec {
            rootfs: rootfs.as_fd(),
            seccomp: &self.seccomp,
            huge_pages: base.is_none(),
            base,
            memory_nodes: &[],
        };
        let zygote = process::build(&capture, &spec)?;
        let pause = capture.pause;
        let described = ProgramState::describe(capture, rootfs.as_fd())?.encode()?;
        Ok(Built { zygote, pause, described })
    }

    /// A zygote like `built`, restored from the description of its program and an image of its memory, as on another node.
    pub fn restore(&self, built: &Built, layers: &[PathBuf]) -> Result<Zygote> {
        let mut state = ProgramState::decode(&built.described)?;
        let reader = checkpoint::image(&state, built.zygote.facts.pid)?;
        let pages: Vec<(u64, u64)> =
            reader.runs()?.iter().map(|run| (run.address(), run.address() + run.bytes())).collect();
        let rootfs = sandbox::detached_rootfs(&self.layers(layers))?;
        let spec = RestoreSpec { rootfs: rootfs.as_fd(), seccomp: &self.seccomp, pages: &pages, memory_nodes: &[] };
        let restored = state.restore(&spec)?;
        if let Some(faults) = restored.faults {
            checkpoint::fill(&reader, faults)?;
        }
        Ok(restored.zygote)
    }

    /// Removes everything, also sandboxes that were forgotten.
    pub fn finish(self) -> Result<()> {
        sandbox::sweep(&self.cgroups, &[self.dir.path().to_owned()], &|_| false)?;
        self.cgroups.remove_all()?;
        Ok(self.dir.close()?)
    }
}

impl Place {
    /// To capture its program, which is process `pid`.
    pub fn capture_spec(&self, pid: i32, earlier_arena: Option<base::id::Arena>) -> Result<CaptureSpec> {
        let file = |file: &File| -> Result<StreamFile> {
            let status = file.metadata()?;
            Ok(StreamFile { dev: status.dev(), ino: status.ino() })
        };
        let streams = vec![(file(&self.null)?, Stream::STDIN), (file(&self.log)?, Stream::STDOUT)];
        Ok(CaptureSpec {
            pid,
            init: Some(self.sandbox.init().pid),
            streams,
            earlier_arena,
            mount_points: Vec::new(),
            volumes: Vec::new(),
            commands: Vec::new(),
            without_program: false,
            started: Vec::new(),
            memory_files: Some(sandbox::SHARED_MEMORY.into()),
        })
    }

    /// Starts a program, as the user of its bench.
    pub fn spawn(&self, argv: &[&str]) -> Result<i32> {
        let argv = argv.iter().map(|arg| (*arg).to_owned()).collect();
        let env = vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into()), ("HOME".into(), "/home/user".into())];
        let command = Command {
            argv,
            env,
            cwd: "/home/user".into(),
            tty: false,
            group: None,
            until_ns: None,
            user: self.user.clone(),
        };
        Ok(self.sandbox.spawn(&command, self.stdio(), None)?)
    }

    fn stdio(&self) -> [std::os::fd::BorrowedFd<'_>; 3] {
        [self.null.as_fd(), self.log.as_fd(), self.log.as_fd()]
    }

    /// Starts a copy; gives its process id.
    pub fn start(&self, zygote: &Zygote, how: How) -> Result<i32> {
        let target = Target {
            init: self.sandbox.init_pidfd(),
            cgroup: self.sandbox.cgroup_fd(),
            streams: self.stdio().to_vec(),
        };
        let (start, mut gate) = (base::id::StartId(1), None);
        match how {
            How::AtOnce => zygote.request_start(start, &target)?,
            How::Stepping => zygote.start_by_stepping(start, &target)?,
            How::Parked(_) => gate = Some(zygote.request_parked(start, &target)?),
        }
        // Some programs spin, and the copies before this one have not ended.
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut pid = 0;
        while Instant::now() < deadline {
            match zygote.next_report()? {
                Some(Report::Forked { pid: forked, .. }) => {
                    pid = forked;
                    if let (How::Parked(time), Some(gate)) = (how, gate.take()) {
                        std::thread::sleep(time);
                        zygote.open(&gate)?;
                    }
                }
                Some(Report::Ready { .. }) => return Ok(pid),
                Some(Report::Failed { step, errno, .. }) => {
                    bail!("{step}: {}", std::io::Error::from_raw_os_error(errno))
                }
                Some(Report::Gone) => bail!("the zygote is gone"),
                None => std::thread::yield_now(),
            }
        }
        bail!("the copy was not ready in time (pid {pid})")
    }

    /// A path inside the sandbox, as the host sees it.
    pub fn inside(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.sandbox.init().pid))
    }

    /// Makes an empty file inside, which root of the sandbox owns: the host's root has no id there.
    pub fn touch(&self, path: &str) -> Result<()> {
        let ids = procfs::IdMaps::of(self.sandbox.init().pid)?;
        let root = ids.user_outside(0).context("the sandbox has no root")?;
        Ok(sys::ids::act_as(root, || std::fs::write(self.inside(path), ""))??)
    }

    /// What the program has printed.
    pub fn printed(&self) -> Result<String> {
        std::fs::read_to_string(&self.output).context("read the output")
    }
}

/// Waits until `done` says so.
pub fn wait_until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !done() {
        if Instant::now() > deadline {
            bail!("{what}: not within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
