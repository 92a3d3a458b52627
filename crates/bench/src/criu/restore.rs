//! One dump, many restores.

mod archive;

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    process::{Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper, waitpid},
    thread::UnshareFlags,
};

use super::{POLL, Watch, criu_command, last_errors};
use crate::program;
pub(super) use archive::Archived;

/// The program is started cold once, maybe on a busy machine.
const START_WAIT: Duration = Duration::from_secs(120);
/// A dump or a restore that takes longer does not end by itself.
const CRIU_WAIT: Duration = Duration::from_secs(30);
const VERIFY_WAIT: Duration = Duration::from_secs(60);
const END_WAIT: Duration = Duration::from_secs(10);
/// The name is CRIU's.
const PAGES_SOCKET: &str = "lazy-pages.socket";
/// What CRIU wants of a process: a session of its own, and nothing open that belongs to the caller of the bench.
const SHED: &str = "import os, sys; os.closerange(3, 65536); os.setsid(); os.execv(sys.argv[1], sys.argv[1:])";

/// One restore, from its begin.
pub(super) struct Restored {
    /// Until the command returned.
    pub(super) returned: Duration,
    /// Until the program had answered its first request.
    pub(super) answered: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Eager,
    Lazy,
}

/// Measures on the calling thread, which must end afterwards: it does not leave its mount namespace.
pub(super) fn measure(criu: PathBuf, rounds: u32, archives: bool, watch: Watch) -> Result<super::Measured> {
    enter_private_run().context("cannot make a private /run; does this run as root?")?;
    // A restored program loses its parent when CRIU returns; this process has to reap it, or its pid is never free again.
    let _reaper = Reaper::new()?;
    let images = Images::new("images")?;
    let program = Program::start(&watch)?;
    let bench = Bench { criu, images, program, watch };
    let dump = bench.dump()?;
    let synced = bench.images.sync()?;
    let images_bytes = bench.images.bytes()?;
    let (mut eager, mut lazy) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        for (kind, times) in [(Kind::Eager, &mut eager), (Kind::Lazy, &mut lazy)] {
            // The first one warms caches, and shows that what is measured is a whole program.
            let restored = bench.restore(kind, round == 0).with_context(|| format!("{kind:?} restore {round}"))?;
            if round > 0 {
                times.push(restored);
            }
        }
    }
    let archives = if archives { bench.archives()? } else { Vec::new() };
    Ok(super::Measured { eager, lazy, dump, synced, images_bytes, archives })
}

#[allow(deprecated, reason = "deprecated for CLONE_FILES only, which is not used")]
fn enter_private_run() -> rustix::io::Result<()> {
    rustix::thread::unshare(UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("tmpfs", "/run", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, None)
}

/// Fields are dropped in this order: the program ends before its images go.
struct Bench {
    program: Program,
    images: Images,
    criu: PathBuf,
    watch: Watch,
}

impl Bench {
    /// The program ends with it.
    fn dump(&self) -> Result<Duration> {
        let mut command = criu_command(&self.criu, "dump", &self.images.dir, "dump.log");
        command.args(["--tree", &self.program.pid.as_raw_nonzero().to_string()]);
        // The default lock takes the host's firewall rules, and this program has no other client.
        command.args(["--network-lock", "skip", "--tcp-close", "--manage-cgroups=ignore"]);
        let began = Instant::now();
        let mut tool = Tool::start(command)?;
        self.watch.until(CRIU_WAIT, "criu dump", || tool.succeeded(&self.images.dir.join("dump.log")))?;
        let dump = began.elapsed();
        self.program.reap()?;
        Ok(dump)
    }

    /// Restores, waits for the first answer, ends the program again.
    fn restore(&self, kind: Kind, verify: bool) -> Result<Restored> {
        let pages = (kind == Kind::Lazy).then(|| self.serve_pages()).transpose()?;
        let mut command = criu_command(&self.criu, "restore", &self.images.dir, "restore.log");
        command.args(["--restore-detached", "--tcp-close", "--manage-cgroups=ignore"]);
        if pages.is_some() {
            command.arg("--lazy-pages");
        }
        let log = self.images.dir.join("restore.log");
        let (mut returned, mut answered) = (None, None);
        let mut question = Question::new(self.program.port, "/health");
        let began = Instant::now();
        let mut tool = Tool::start(command)?;
        let restored = self.watch.until(CRIU_WAIT, "criu restore and an answer", || {
            if returned.is_none() {
                returned = tool.succeeded(&log)?.map(|()| began.elapsed());
            }
            if answered.is_none() {
                answered = question.poll()?.map(|_| began.elapsed());
            }
            Ok(returned.zip(answered).map(|(returned, answered)| Restored { returned, answered }))
        })?;
        if verify {
            self.verify()?;
        }
        // Before the pages' server: without it the kernel hands out zeros for what has not arrived.
        self.program.end()?;
        drop(pages);
        Ok(restored)
    }

    /// The program's own check of all its memory.
    fn verify(&self) -> Result<()> {
        let mut question = Question::new(self.program.port, "/verify");
        let answer = self.watch.until(VERIFY_WAIT, "the program's check of its memory", || question.poll())?;
        ensure!(answer.contains(r#""intact": true"#), "the restored memory is damaged: {answer}");
        Ok(())
    }

    /// Starts the server that a lazy restore gets its memory from; it listens when this returns.
    fn serve_pages(&self) -> Result<Tool> {
        let socket = self.images.dir.join(PAGES_SOCKET);
        if let Err(error) = fs::remove_file(&socket) {
            ensure!(error.kind() == ErrorKind::NotFound, "cannot remove {}: {error}", socket.display());
        }
        let mut tool = Tool::start(criu_command(&self.criu, "lazy-pages", &self.images.dir, "pages.log"))?;
        let log = self.images.dir.join("pages.log");
        self.watch.until(CRIU_WAIT, "the start of criu lazy-pages", || {
            ensure!(tool.succeeded(&log)?.is_none(), "criu lazy-pages ended at once");
            Ok(socket.exists().then_some(()))
        })?;
        // It binds the socket, then listens; nothing outside tells the two apart.
        std::thread::sleep(POLL * 20);
        Ok(tool)
    }
}

/// A process group of CRIU, wrappers included. Killed when dropped.
struct Tool(Child);

impl Tool {
    fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Ctrl-C in the terminal is for the measurement, which then ends this in order.
        command.process_group(0);
        let process = command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self(process))
    }

    /// Whether it has ended; an error if it has failed.
    fn succeeded(&mut self, log: &Path) -> Result<Option<()>> {
        let Some(status) = self.0.try_wait()? else { return Ok(None) };
        ensure!(status.success(), "{status}: {}", last_errors(log));
        Ok(Some(()))
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            // It has not been reaped, so the number is still its own.
            if let Some(group) = Pid::from_raw(self.0.id() as i32) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = Watch::default().until(END_WAIT, "the end of criu", || Ok(self.0.try_wait()?));
        }
    }
}

/// The measured program. Its pid is the same after each restore; in between the number is nobody's. Killed when dropped.
struct Program {
    pid: Pid,
    port: u16,
}

impl Program {
    /// Starts it and waits for its first answer.
    fn start(watch: &Watch) -> Result<Self> {
        let port = free_port().context("no free port")?;
        let argv = program::geo(0, port);
        let mut command = Command::new(&argv[0]);
        command.args(["-c", SHED]).args(&argv).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn().with_context(|| format!("cannot start {}", argv[0]))?;
        let pid = Pid::from_raw(process.id() as i32).context("a process without a pid")?;
        let program = Self { pid, port };
        let mut question = Question::new(port, "/health");
        watch.until(START_WAIT, "the start of the program", || {
            ensure!(process.try_wait()?.is_none(), "the program ended at once");
            question.poll()
        })?;
        Ok(program)
    }

    /// Whether the pid belongs to a child of ours. It may be free, or belong to another process.
    fn is_ours(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero())).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, fields)| fields.split(' ').nth(1)?.parse().ok());
        parent == Some(getpid().as_raw_nonzero().get())
    }

    fn end(&self) -> Result<()> {
        ensure!(self.is_ours(), "the restored program is gone");
        kill_process(self.pid, Signal::KILL)?;
        self.reap()
    }

    fn reap(&self) -> Result<()> {
        Watch::default()
            .until(END_WAIT, "the end of the program", || Ok(waitpid(Some(self.pid), WaitOptions::NOHANG)?))?;
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.is_ours()
            && let Err(error) = self.end()
        {
            tracing::warn!(pid = %self.pid, %error, "cannot end the program that CRIU restored");
        }
    }
}

/// Below the range from which the kernel takes the ports of outgoing connections: the port must stay free between restores, and
/// a connection to it must not come from it.
fn free_port() -> Option<u16> {
    (20_000..32_000).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
}

/// One HTTP request, asked as soon as the program listens.
struct Question {
    port: u16,
    path: &'static str,
    connection: Option<TcpStream>,
    answer: Vec<u8>,
}

impl Question {
    fn new(port: u16, path: &'static str) -> Self {
        Self { port, path, connection: None, answer: Vec::new() }
    }

    /// Does not block. Gives the whole answer once it is there.
    fn poll(&mut self) -> Result<Option<String>> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => {
                let Ok(mut connection) = TcpStream::connect(("127.0.0.1", self.port)) else { return Ok(None) };
                connection.set_nonblocking(true)?;
                write!(connection, "GET {} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n", self.path)?;
                self.connection.insert(connection)
            }
        };
        match connection.read_to_end(&mut self.answer) {
            Ok(_) => {
                let answer = String::from_utf8_lossy(&self.answer).into_owned();
                ensure!(answer.starts_with("HTTP/1.1 200"), "unexpected answer: {answer}");
                Ok(Some(answer))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).context("the program hung up"),
        }
    }
}

/// A directory of the dump, or of archives of it. Removed when dropped.
struct Images {
    dir: PathBuf,
}

impl Images {
    fn new(what: &str) -> Result<Self> {
        Ok(Self { dir: base::scratch::make(&format!("bench-criu-{what}"))? })
    }

    /// Until they outlive the machine; CRIU leaves them in the page cache.
    fn sync(&self) -> Result<Duration> {
        let began = Instant::now();
        for entry in fs::read_dir(&self.dir)? {
            fs::File::open(entry?.path())?.sync_all()?;
        }
        fs::File::open(&self.dir)?.sync_all()?;
        Ok(began.elapsed())
    }

    fn bytes(&self) -> Result<u64> {
        let entries = fs::read_dir(&self.dir)?;
        entries.map(|entry| Ok(entry?.metadata()?.len())).sum()
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            tracing::warn!(dir = %self.dir.display(), %error, "cannot remove the images of CRIU");
        }
    }
}

/// This process as the one that orphans below it fall to, for the time of the measurement.
struct Reaper;

impl Reaper {
    fn new() -> Result<Self> {
        set_child_subreaper(Some(getpid())).context("cannot become the reaper of restored programs")?;
        Ok(Self)
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        let _ = set_child_subreaper(None);
    }
}
