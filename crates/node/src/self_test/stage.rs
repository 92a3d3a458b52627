//! Sandboxes for the probes, and the programs in them. Everything goes with the stage, also what an earlier one that was killed has left.

use std::{
    error::Error,
    fs::{self, File, Permissions},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{FileExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use base::id::{Arena, SandboxId};
use process::{BuildSpec, CaptureSpec, Report, Stream, StreamFile, Target, Zygote};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FlockOperation, flock},
    process::{Pid, WaitOptions, getpid, set_child_subreaper, wait, waitpid},
};
use sandbox::{CgroupSummary, Cgroups, Command, Limits, Sandbox, Spec, User, Users};
use sys::probe;

use crate::error::Context;

/// What cannot be tried says why.
pub(super) type Trial<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Longest wait for anything. A busy host takes a hundredth of it, an emulated one a third.
const PATIENCE: Duration = Duration::from_secs(30);
/// Where sandboxes see the probe.
const PROGRAM: &str = "probe";
const GIB: u64 = 1 << 30;

/// A place for probes.
pub(super) struct Stage {
    dir: PathBuf,
    cgroups: Cgroups,
    layers: Vec<PathBuf>,
    seccomp: Vec<u64>,
    sandboxes: Vec<Sandbox>,
    snapshots: usize,
    /// One self-test at a time in a directory.
    _lock: File,
}

/// A program that runs in a sandbox of the stage.
pub(super) struct Copy {
    /// Its index in [`Stage::sandboxes`].
    sandbox: usize,
    pid: i32,
    memory: File,
    streams: [File; 2],
    arena: Option<Arena>,
    /// The layers of changes below its own.
    below: Vec<PathBuf>,
}

/// A zygote, and the layer of what its program had changed.
pub(super) struct Warm {
    zygote: Zygote,
    layers: Vec<PathBuf>,
}

/// Directory of the layers above those of programs.
const BASES: &str = "bases";

impl Stage {
    pub(super) fn open(dir: &Path, group: &str) -> Trial<Self> {
        let lock = patiently("another self-test does not end", || lock(dir))?;
        // Zygotes are children of nobody else then, and are reaped here.
        set_child_subreaper(Some(getpid()))?;
        let cgroups = Cgroups::open(group)?;
        sandbox::sweep(&cgroups, &[dir.to_owned()], &|_| false)?;
        let (bases, program) = (dir.join(BASES), dir.join("program"));
        for old in [&bases, &program] {
            sandbox::remove_directory(old)?;
        }
        fs::create_dir_all(&program)?;
        fs::create_dir_all(&bases)?;
        let base = sandbox::prepare_base_layer(&bases, std::slice::from_ref(&program))?;
        fs::write(program.join(PROGRAM), probe::program())?;
        fs::set_permissions(program.join(PROGRAM), Permissions::from_mode(0o755))?;
        let seccomp = sandbox::seccomp_program()?;
        let (dir, layers) = (dir.to_owned(), vec![base, program]);
        Ok(Self { dir, cgroups, layers, seccomp, sandboxes: Vec::new(), snapshots: 0, _lock: lock })
    }

    /// Which limits hold on this host.
    pub(super) fn limits(&self) -> &CgroupSummary {
        self.cgroups.summary()
    }

    /// The probe, started in a sandbox of its own, when it is ready.
    pub(super) fn source(&mut self, argument: &str) -> Trial<Copy> {
        self.start(argument, Limits { memory_bytes: GIB, pids: 64, cpu_millis: None, disk_bytes: None })
    }

    /// As [`Self::source`], with limits that hold when this returns.
    pub(super) fn limited(&mut self, argument: &str, pids: u64, memory_bytes: u64) -> Trial<Copy> {
        let program = self.start(argument, Limits { memory_bytes, pids, cpu_millis: None, disk_bytes: None })?;
        self.sandboxes[program.sandbox].bind_limits()?;
        Ok(program)
    }

    fn start(&mut self, argument: &str, limits: Limits) -> Trial<Copy> {
        let (sandbox, streams) = self.place(&[], limits)?;
        let argv = [format!("/{PROGRAM}"), argument.to_owned()];
        let command = Command {
            argv: argv.to_vec(),
            env: Vec::new(),
            cwd: "/".to_owned(),
            tty: false,
            group: None,
            until_ns: None,
            user: User::PROGRAM,
        };
        let pid = self.sandboxes[sandbox].spawn(&command, stdio(&streams), None)?;
        let program = Copy { sandbox, pid, memory: memory(pid)?, streams, arena: None, below: Vec::new() };
        program.wait_for(probe::HOLDS)?;
        Ok(program)
    }

    /// A blank sandbox, and files for the streams of its program.
    fn place(&mut self, above: &[PathBuf], limits: Limits) -> Trial<(usize, [File; 2])> {
        let id = SandboxId::random();
        let dir = self.dir.join(id.as_str());
        fs::create_dir(&dir)?;
        let layers = above.iter().chain(&self.layers).cloned().collect();
        let streams = [File::open("/dev/null")?, File::create(dir.join("output"))?];
        self.sandboxes.push(Sandbox::create(
            &Spec { id, changes: dir.clone(), from: None, dir, layers, limits, users: Users::All, dns: None },
            &self.cgroups,
        )?);
        Ok((self.sandboxes.len() - 1, streams))
    }

    /// A zygote of a program, which goes on.
    pub(super) fn zygote(&mut self, program: &Copy, base: Option<&Warm>) -> Trial<Warm> {
        let file = |file: &File| -> Trial<StreamFile> {
            let status = file.metadata()?;
            Ok(StreamFile { dev: status.dev(), ino: status.ino() })
        };
        let [input, output] = &program.streams;
        let spec = CaptureSpec {
            init: None,
            pid: program.pid,
            streams: vec![(file(input)?, Stream::STDIN), (file(output)?, Stream::STDOUT)],
            earlier_arena: program.arena,
            mount_points: Vec::new(),
            volumes: Vec::new(),
            commands: Vec::new(),
            without_program: false,
            started: Vec::new(),
            memory_files: Some(sandbox::SHARED_MEMORY.into()),
        };
        self.snapshots += 1;
        let layer = self.dir.join(format!("changes-{}", self.snapshots));
        let mut files = self.sandboxes[program.sandbox].capture_changes(&layer)?;
        let capture = process::capture(&spec, &mut || Ok(files.finish(&[program.pid])?))?;
        let layers: Vec<PathBuf> = std::iter::once(layer).chain(program.below.iter().cloned()).collect();
        let all: Vec<PathBuf> = layers.iter().chain(&self.layers).cloned().collect();
        let rootfs = sandbox::detached_rootfs(&all)?;
        let spec = BuildSpec {
            rootfs: rootfs.as_fd(),
            seccomp: &self.seccomp,
            huge_pages: false,
            base: base.map(|warm| &warm.zygote),
            memory_nodes: &[],
        };
        Ok(Warm { zygote: process::build(&capture, &spec)?, layers })
    }

    /// A copy from a zygote, in a sandbox of its own.
    pub(super) fn copy(&mut self, warm: &Warm) -> Trial<Copy> {
        let limits = Limits { memory_bytes: GIB, pids: 64, cpu_millis: None, disk_bytes: None };
        let (sandbox, streams) = self.place(&warm.layers, limits)?;
        let place = &self.sandboxes[sandbox];
        let target = Target { init: place.init_pidfd(), cgroup: place.cgroup_fd(), streams: stdio(&streams).to_vec() };
        warm.zygote.request_start(base::id::StartId(1), &target)?;
        let mut pid = None;
        let ready = |pid: &mut Option<i32>| match warm.zygote.next_report()? {
            Some(Report::Forked { pid: forked, .. }) => {
                *pid = Some(forked);
                Ok(None)
            }
            Some(Report::Ready { .. }) => Ok(*pid),
            Some(Report::Failed { step, errno, .. }) => {
                Err(format!("{step}: {}", io::Error::from_raw_os_error(errno)).into())
            }
            Some(Report::Gone) => Err("the zygote has ended".into()),
            None => Ok(None),
        };
        let pid = patiently("a copy is not ready", || ready(&mut pid))?;
        let (arena, below) = (Some(warm.zygote.facts.arena), warm.layers.clone());
        Ok(Copy { sandbox, pid, memory: memory(pid)?, streams, arena, below })
    }

    /// Ends all programs and sandboxes; zygotes must have been dropped.
    pub(super) fn clear(&mut self) -> Trial<()> {
        // One that stays does not keep the others.
        let mut cleared = Ok(());
        for sandbox in self.sandboxes.drain(..) {
            let ended = end(sandbox);
            cleared = cleared.and(ended);
        }
        for n in 1..=std::mem::take(&mut self.snapshots) {
            let removed = sandbox::remove_directory(&self.dir.join(format!("changes-{n}")));
            cleared = cleared.and(removed.map_err(Into::into));
        }
        cleared
    }

    /// Removes everything.
    pub(super) fn close(mut self) -> Trial<()> {
        let cleared = self.clear();
        // First: what could not be cleared would not end.
        let swept = sandbox::sweep(&self.cgroups, &[self.dir.clone()], &|_| false).map(drop);
        let reaped = finally("a process does not end", || Ok(reap().then_some(())));
        let layers = self.layers.iter().map(|layer| sandbox::remove_directory(layer)).fold(Ok(()), Result::and);
        let removed = self.cgroups.remove_all();
        let _ = fs::remove_file(self.dir.join("lock"));
        // The parent does this too, unless it was killed.
        let _ = fs::remove_dir(self.dir.join(BASES)).and_then(|()| fs::remove_dir(&self.dir));
        cleared?;
        swept?;
        reaped?;
        layers?;
        Ok(removed?)
    }
}

impl Copy {
    /// A word of its memory; fails for a guard page.
    pub(super) fn word(&self, address: u64) -> Trial<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, address)?;
        Ok(u64::from_le_bytes(bytes))
    }

    pub(super) fn write(&self, address: u64, word: u64) -> Trial<()> {
        self.write_bytes(&word.to_le_bytes(), address)
    }

    fn read(&self, bytes: &mut [u8], address: u64) -> Trial<()> {
        Ok(self.memory.read_exact_at(bytes, address).doing("read the memory of a probe")?)
    }

    fn write_bytes(&self, bytes: &[u8], address: u64) -> Trial<()> {
        Ok(self.memory.write_all_at(bytes, address).doing("write to the memory of a probe")?)
    }

    fn progress(&self) -> Trial<u32> {
        let mut bytes = [0; 4];
        self.read(&mut bytes, probe::PROGRESS)?;
        Ok(u32::from_le_bytes(bytes))
    }

    pub(super) fn go(&self) -> Trial<()> {
        self.write_bytes(&1u32.to_le_bytes(), probe::GO)
    }

    pub(super) fn wait_for(&self, progress: u32) -> Trial<()> {
        patiently("the probe does not go on", || Ok((self.progress()? == progress).then_some(())))
    }

    /// Whether it is killed before it gets there. Its memory cannot be read any more then.
    pub(super) fn ends_or(&self, progress: u32) -> Trial<bool> {
        let pid = Pid::from_raw(self.pid).ok_or("no process")?;
        patiently("the probe neither ends nor goes on", || {
            if waitpid(Some(pid), WaitOptions::NOHANG)?.is_some() {
                return Ok(Some(true));
            }
            Ok(self.progress().is_ok_and(|now| now == progress).then_some(false))
        })
    }

    /// Lets it go; what its registers held.
    pub(super) fn held(&self) -> Trial<Vec<u8>> {
        self.go()?;
        self.wait_for(probe::DONE)?;
        let mut held = vec![0; probe::pattern().len()];
        self.read(&mut held, probe::HELD)?;
        Ok(held)
    }
}

/// The lock of the directory, unless another one has it, who removes both in the end.
fn lock(dir: &Path) -> Trial<Option<File>> {
    let path = dir.join("lock");
    fs::create_dir_all(dir)?;
    let lock = File::create(&path)?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(None);
    }
    let same = fs::metadata(&path).is_ok_and(|found| lock.metadata().is_ok_and(|held| held.ino() == found.ino()));
    Ok(same.then_some(lock))
}

fn memory(pid: i32) -> Trial<File> {
    Ok(File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?)
}

fn stdio(streams: &[File; 2]) -> [BorrowedFd<'_>; 3] {
    [streams[0].as_fd(), streams[1].as_fd(), streams[1].as_fd()]
}

fn end(sandbox: Sandbox) -> Trial<()> {
    sandbox.kill()?;
    finally("a sandbox does not end", || {
        reap();
        Ok(sandbox.has_ended()?.then_some(()))
    })?;
    let dir = sandbox.dir().to_owned();
    sandbox.destroy()?;
    Ok(sandbox::remove_directory(&dir)?)
}

/// Reaps what has ended; whether no child is left.
fn reap() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

/// Whether the parent has ended, or wants this process to: it holds the other end of standard input.
pub(super) fn is_abandoned() -> bool {
    let stdin = io::stdin();
    let mut ends = [PollFd::new(&stdin, PollFlags::empty())];
    poll(&mut ends, Some(&Timespec::default())).is_ok_and(|_| ends[0].revents().contains(PollFlags::HUP))
}

/// Tries until there is a value, or the parent has gone.
fn patiently<T>(what: &str, mut attempt: impl FnMut() -> Trial<Option<T>>) -> Trial<T> {
    finally(what, || match attempt()? {
        None if is_abandoned() => Err("the self-test was interrupted".into()),
        tried => Ok(tried),
    })
}

/// Tries until there is a value.
fn finally<T>(what: &str, mut attempt: impl FnMut() -> Trial<Option<T>>) -> Trial<T> {
    let began = Instant::now();
    loop {
        if let Some(value) = attempt()? {
            return Ok(value);
        }
        if began.elapsed() > PATIENCE {
            return Err(format!("{what} within {} s", PATIENCE.as_secs()).into());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}
