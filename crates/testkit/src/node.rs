//! A node of its own for a case, and the `pando` command as a user would run it.
//!
//! The node runs in a cgroup made for it, so that everything that it ever started is found there, whatever its parent and its
//! name: [`Node::finish`] removes what the user's commands can remove and fails if anything is left. A watchdog outside of the
//! group kills and removes it all when the case, or the whole test program, ends early.

mod cleanup;
mod command;
mod stopped;

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use api::{NodeInfo, RunResponse, Sandbox, SandboxDetail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub use cleanup::Leftovers;
pub use command::{Answer, Running};
pub use stopped::StoppedKeeper;

/// Of Debian's package `libfaketime`; the loader puts the machine's library directory in the place of `$LIB`.
const FAKETIME: &str = "/usr/$LIB/faketime/libfaketimeMT.so.1";

/// A pool of the usual size takes a node two seconds of CPU time to fill and to empty, which few cases need.
const POOL: [&str; 2] = ["--pool", "4"];

/// Longer than any node takes to begin or to end, also where others have the processors.
const SLOW_MACHINE: Duration = Duration::from_secs(60);

/// How a node is set up.
#[derive(Debug, Clone, Default)]
pub struct Setting {
    /// The state directory is on a tmpfs of its own, of this many MiB, mounted in the node's mount namespace only.
    pub state_mib: Option<u32>,
    /// The same on an ext4.
    pub state_ext4_mib: Option<u32>,
    /// The node is in a network namespace of its own: it reaches no service, not even by loopback.
    pub own_network: bool,
    /// The node is in a time namespace whose monotonic and boot-time clocks differ from the machine's by this many seconds.
    pub clocks_ahead_s: Option<i64>,
    /// How wrong its clock is, as `faketime` says it (`+3h`).
    pub clock: Option<&'static str>,
    /// It is `pando serve`, on any free port; its variables are in the file `env` of [`Node::dir`].
    pub serves: bool,
    /// More arguments for `pando node`. Without `--pool` among them, the pool is small.
    pub arguments: Vec<String>,
}

impl Setting {
    /// Whether the state directory is a mount that only the node sees.
    fn has_own_mount(&self) -> bool {
        self.state_mib.is_some() || self.state_ext4_mib.is_some()
    }
}

/// A node under test.
pub struct Node {
    /// Programs and services, visible in sandboxes.
    pub programs: PathBuf,
    /// Its state directory, as the node sees it.
    pub state: PathBuf,
    /// Its socket.
    pub socket: PathBuf,
    setting: Setting,
    server: Option<Child>,
    cleanup: cleanup::Cleanup,
}

/// A node takes a quarter of the disk's room at once, unless told otherwise: several at a time would leave none.
const LAYERS_MAX: [&str; 2] = ["--layers-max", "8G"];

impl Node {
    /// A node that runs.
    pub fn start() -> Result<Self> {
        Self::start_with(Setting::default())
    }

    /// As [`Self::start`], set up otherwise.
    pub fn start_with(setting: Setting) -> Result<Self> {
        let cleanup = cleanup::Cleanup::new()?;
        let dir = cleanup.dir.clone();
        let programs = cleanup.programs.clone();
        place_programs(&dir, &programs)?;
        let (state, socket) = (dir.join("state"), dir.join("node.sock"));
        let mut node = Self { programs, state, socket, setting, server: None, cleanup };
        node.start_server()?;
        Ok(node)
    }

    /// Has the server started with other arguments from now on, as [`Setting::arguments`].
    pub fn set_arguments(&mut self, arguments: &[&str]) {
        self.setting.arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    }

    /// Starts the server, also again after it was killed.
    pub fn start_server(&mut self) -> Result<()> {
        let marks = self.log()?.matches("node ready").count();
        self.begin_server()?;
        self.await_server("ready", |node| Ok(node.log()?.matches("node ready").count() > marks))
    }

    /// Starts the server, and tells it to stop as soon as it listens, which is before it is ready. Its exit status.
    pub fn start_and_stop_server(&mut self) -> Result<Option<i32>> {
        self.begin_server()?;
        self.await_server("listening", |node| Ok(UnixStream::connect(&node.socket).is_ok()))?;
        self.stop_server()
    }

    /// Starts the server from a file that is gone by then, so that it cannot start processes of its own. Its exit status.
    pub fn start_server_of_a_removed_program(&mut self) -> Result<Option<i32>> {
        let remove = "cp \"$1\" \"$1-removed\"\nexec 3< \"$1-removed\"\nrm \"$1-removed\"\nshift\nset -- /proc/self/fd/3 \"$@\"\n";
        self.begin_server_after(remove)?;
        self.await_end()
    }

    fn begin_server(&mut self) -> Result<()> {
        self.begin_server_after("")
    }

    fn begin_server_after(&mut self, script: &str) -> Result<()> {
        ensure!(self.server.is_none(), "the server is there already");
        let log = File::options().create(true).append(true).open(self.log_path())?;
        let mut command = self.server_command(script);
        self.server = Some(command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?);
        Ok(())
    }

    fn await_server(&mut self, what: &str, mut done: impl FnMut(&Self) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + SLOW_MACHINE;
        while !done(self)? {
            let ended = self.server.as_mut().and_then(|server| server.try_wait().transpose()).transpose()?;
            if let Some(status) = ended {
                self.server = None;
                bail!("the node ended with {status}:\n{}", self.log()?);
            }
            ensure!(Instant::now() < deadline, "the node is not {what} in time:\n{}", self.log()?);
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The node, started by a shell that runs `more` before.
    fn server_command(&self, more: &str) -> Command {
        // The shell joins the group before the node exists, and mounts what only the node must see.
        let mut script = format!("echo $$ > {}/cgroup.procs\n", self.cleanup.group.display());
        if let Some(mib) = self.setting.state_mib {
            let state = self.state.display();
            script += &format!("mkdir -p {state}\nmount -t tmpfs -o size={mib}m,mode=700 pando-test {state}\n");
        }
        if let Some(mib) = self.setting.state_ext4_mib {
            let (state, image) = (self.state.display(), self.cleanup.dir.join("state.img"));
            let image = image.display();
            script += &format!("mkdir -p {state}\ntruncate -s {mib}M {image}\nmkfs.ext4 -q {image}\n");
            script += &format!("mount -o loop {image} {state}\n");
        }
        script += more;
        script += "exec \"$@\"\n";
        let own = [("--mount", self.setting.has_own_mount()), ("--net", self.setting.own_network)];
        let own = own.iter().filter(|(_, wanted)| *wanted).map(|(flag, _)| flag);
        let mut command = Command::new("unshare");
        if let Some(ahead) = self.setting.clocks_ahead_s.map(|ahead| ahead.to_string()) {
            command.args(["--time", "--monotonic", &ahead, "--boottime", &ahead]);
        }
        command.args(own).args(["sh", "-euc", &script, "sh"]).arg(self.binary()).arg("--socket");
        command.arg(&self.socket).arg(if self.setting.serves { "serve" } else { "node" });
        command.arg("--state").arg(&self.state).args(&self.setting.arguments);
        if self.setting.state_ext4_mib.is_none() && !self.setting.arguments.iter().any(|found| found == LAYERS_MAX[0]) {
            command.args(LAYERS_MAX);
        }
        if self.setting.serves {
            command.args(["--listen", "127.0.0.1:0", "--env-file"]).arg(self.env_file());
        }
        if !self.setting.arguments.iter().any(|argument| argument == "--pool") {
            command.args(POOL);
        }
        if let Some(wrong) = self.setting.clock {
            command.env("LD_PRELOAD", FAKETIME).env("FAKETIME", wrong).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        command
    }

    fn binary(&self) -> PathBuf {
        self.cleanup.dir.join("pando")
    }

    /// Where `pando serve` leaves the variables of SDKs.
    pub fn env_file(&self) -> PathBuf {
        self.cleanup.dir.join("env")
    }

    fn log_path(&self) -> PathBuf {
        self.cleanup.dir.join("node.log")
    }

    /// A directory of this case on the host, hidden in sandboxes.
    pub fn dir(&self) -> &Path {
        &self.cleanup.dir
    }

    /// What the node has logged.
    pub fn log(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(self.log_path()).unwrap_or_default()).into_owned())
    }

    /// The server's process id.
    pub fn server_pid(&self) -> Result<i32> {
        Ok(self.server.as_ref().context("the server is not there")?.id() as i32)
    }

    /// Sends SIGKILL to the server and waits until it is gone.
    pub fn kill_server(&mut self) -> Result<()> {
        let mut server = self.server.take().context("the server is not there")?;
        server.kill()?;
        server.wait()?;
        Ok(())
    }

    /// Stops the server orderly; gives its exit code.
    pub fn stop_server(&mut self) -> Result<Option<i32>> {
        let server = self.server.as_ref().context("the server is not there")?;
        kill_process(Pid::from_child(server), Signal::TERM)?;
        self.await_end()
    }

    fn await_end(&mut self) -> Result<Option<i32>> {
        let mut server = self.server.take().context("the server is not there")?;
        let deadline = Instant::now() + SLOW_MACHINE;
        loop {
            if let Some(status) = server.try_wait()? {
                return Ok(status.code());
            }
            if Instant::now() > deadline {
                self.server = Some(server);
                bail!("the node does not end:\n{}", self.log()?);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Runs a `pando` command to its end.
    pub fn pando(&self, arguments: &[&str]) -> Result<Answer> {
        self.begin(arguments)?.end()
    }

    /// As [`Self::pando`], with something to read from standard input.
    pub fn pando_with_input(&self, arguments: &[&str], input: &[u8]) -> Result<Answer> {
        Running::begin(self.command(&self.socket, arguments), input)?.end()
    }

    /// As [`Self::pando`], with another socket.
    pub fn pando_at(&self, socket: &Path, arguments: &[&str]) -> Result<Answer> {
        Running::begin(self.command(socket, arguments), &[])?.end()
    }

    /// As [`Self::pando`]; fails unless it exits with 0. Gives what it printed.
    pub fn ok(&self, arguments: &[&str]) -> Result<String> {
        let answer = self.pando(arguments)?;
        ensure!(answer.code == 0, "`pando {}`: {answer}", arguments.join(" "));
        Ok(answer.stdout)
    }

    /// As [`Self::ok`], for a command that prints JSON.
    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.ok(arguments)?;
        serde_json::from_str(&text).with_context(|| format!("`pando {}` printed {text:?}", arguments.join(" ")))
    }

    /// A `pando` command of this node, to be started by the caller.
    pub fn command_of(&self, arguments: &[&str]) -> Command {
        self.command(&self.socket, arguments)
    }

    fn command(&self, socket: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.binary());
        command.arg("--socket").arg(socket).args(arguments);
        command
    }

    /// Starts a `pando` command.
    pub fn begin(&self, arguments: &[&str]) -> Result<Running> {
        Running::begin(self.command_of(arguments), &[])
    }

    /// As [`Self::begin`], with an input that stays open until [`Running::release`].
    pub fn hold(&self, arguments: &[&str]) -> Result<Running> {
        Running::begin_held(self.command_of(arguments))
    }

    /// Builds a template of the python service `examples/geo.py`, with more `arguments` for it.
    pub fn build_geo(&self, name: &str, arguments: &[&str]) -> Result<()> {
        let service = self.program("geo.py");
        let mut command = vec!["template", "build", name, "--port", "8080", "--", "/usr/bin/python3", &service];
        command.extend(arguments);
        self.ok(&command).map(drop)
    }

    /// The path of a program in `programs`.
    pub fn program(&self, name: &str) -> String {
        self.programs.join(name).display().to_string()
    }

    /// `pando create TEMPLATE -n COUNT`, all of them started.
    pub fn run(&self, template: &str, count: usize) -> Result<Vec<Sandbox>> {
        let response: RunResponse =
            serde_json::from_value(self.json(&["create", template, "-n", &count.to_string(), "--json"])?)?;
        ensure!(response.failures.is_empty() && response.sandboxes.len() == count, "not all started: {response:?}");
        Ok(response.sandboxes)
    }

    /// `pando ls --json`.
    pub fn ps(&self) -> Result<Vec<Sandbox>> {
        Ok(serde_json::from_value(self.json(&["ls", "--json"])?)?)
    }

    /// `pando inspect ID --json`.
    pub fn inspect(&self, id: &str) -> Result<SandboxDetail> {
        Ok(serde_json::from_value(self.json(&["inspect", id, "--json"])?)?)
    }

    /// What a shell command prints inside a sandbox.
    pub fn shell(&self, id: &str, command: &str) -> Result<String> {
        self.ok(&["exec", id, "--", "/bin/sh", "-c", command])
    }

    /// One request to the service in a sandbox: `GET /state`, `POST /write?key=a&value=b`.
    pub fn ask(&self, id: &str, request: &str) -> Result<Value> {
        let text = format!("{request} HTTP/1.1\r\nHost: service\r\nConnection: close\r\n\r\n");
        let answer = self.pando_with_input(&["connect", id, "8080"], text.as_bytes())?;
        ensure!(answer.code == 0, "`pando connect {id} 8080`: {answer}");
        let (head, body) = answer.stdout.split_once("\r\n\r\n").with_context(|| format!("no answer: {answer}"))?;
        ensure!(head.starts_with("HTTP/1.1 200"), "{request} in {id}: {head}");
        Ok(serde_json::from_str(body)?)
    }

    /// One request to the node itself; gives the status line's number and the body.
    pub fn api(&self, request: &str, body: &[u8]) -> Result<(u16, String)> {
        let mut stream = UnixStream::connect(&self.socket)?;
        // On a machine with other work the last of some hundred starts are answered after half a minute.
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        let head = format!(
            "{request} HTTP/1.1\r\nHost: node\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        // A node that has refused the head may hang up on the body.
        let _ = stream.write_all(body);
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|number| number.parse().ok());
        let status = status.with_context(|| format!("no HTTP answer to {request}: {answer:?}, {read:?}"))?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok((status, body.to_owned()))
    }

    /// What the node says about itself.
    pub fn info(&self) -> Result<NodeInfo> {
        let (status, body) = self.api("GET /v1/node", b"")?;
        ensure!(status == 200, "GET /v1/node: {status} {body}");
        Ok(serde_json::from_str(&body)?)
    }

    /// What of the node is there now, beside server, keeper and what they are known to keep.
    pub fn leftovers(&self) -> Result<Leftovers> {
        cleanup::leftovers(self)
    }

    /// Fails unless, within some seconds, only the server, the keeper, zygotes and blank sandboxes are left.
    pub fn expect_only_itself(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let leftovers = self.leftovers()?;
            if leftovers.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "left behind: {leftovers:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Fails if processes or groups of a stopped node are left.
    pub fn expect_stopped(&self) -> Result<()> {
        self.cleanup.expect_no_process()
    }

    /// Removes everything with the user's commands, stops the node, and fails if anything is left.
    pub fn finish(mut self) -> Result<()> {
        self.finish_commands().with_context(|| format!("log of the node:\n{}", self.log_tail()))?;
        self.cleanup.expect_nothing(&self.state, &self.socket, self.setting.has_own_mount())
    }

    fn finish_commands(&mut self) -> Result<()> {
        self.ok(&["kill", "--all", "--force"])?;
        self.expect_only_itself()?;
        for template in self.json(&["template", "ls", "--json"])?.as_array().context("no list")? {
            self.ok(&["template", "rm", template["name"].as_str().context("no name")?])?;
        }
        self.expect_only_itself()?;
        let code = self.stop_server()?;
        ensure!(code == Some(0), "the node ended with {code:?}");
        Ok(())
    }

    /// The end of the node's log.
    pub fn log_tail(&self) -> String {
        let log = self.log().unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// Copies what the cases run: the binary of this moment (another build may replace it), test programs, services and probes.
fn place_programs(dir: &Path, programs: &Path) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let binary = std::env::var_os("PANDO_BINARY").map_or_else(|| root.join("target/debug/pando"), PathBuf::from);
    // A debug build has well over 100 MB. A link also keeps it in the page cache from one case to the next.
    let place = dir.join("pando");
    fs::hard_link(&binary, &place)
        .or_else(|_| fs::copy(&binary, &place).map(drop))
        .with_context(|| format!("{}: build it first", binary.display()))?;
    for folder in ["target/programs", "examples", "examples/node", "tests/host/probes"] {
        let entries = fs::read_dir(root.join(folder)).with_context(|| format!("{folder}: run `make programs`"))?;
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                fs::copy(entry.path(), programs.join(entry.file_name()))?;
            }
        }
    }
    let service = root.join("target/examples/geo-go");
    fs::copy(&service, programs.join("geo-go")).context("target/examples/geo-go: run `make examples`")?;
    Ok(())
}
