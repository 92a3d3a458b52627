//! What a user of E2B's SDK waits for: the real SDK against a private server, beside the same SDK against a stub.

mod load;
mod memory;
mod sdk;
mod stub;

use std::{
    ffi::OsString,
    fs::File,
    io::{Read, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::{
    ApiArgs,
    node::PrivateNode,
    report::{Goal, Report, at, duration, median, progress},
};
use load::Load;
use sdk::{Measured, Plan};
use stub::{LISTED, Stub};

/// How much is measured.
#[derive(Debug, Clone, Copy)]
struct Extent {
    rounds: u32,
    bursts: u32,
    large_bytes: u64,
    load: Duration,
}

const LONG: Extent = Extent { rounds: 100, bursts: 5, large_bytes: 1 << 30, load: Duration::from_secs(3) };
const SHORT: Extent = Extent { rounds: 20, bursts: 2, large_bytes: 128 << 20, load: Duration::from_secs(1) };

const AT_ONCE: u32 = 50;
/// Between bursts, while the pool is filled again.
const REST: Duration = Duration::from_secs(3);
/// What a plain copy moves at a time.
const COPY_BYTES: usize = 1 << 20;
/// How long the templates that come with a server may take.
const TEMPLATES_WAIT: Duration = Duration::from_secs(120);

/// What users may expect, of issue 28.
mod target {
    pub(super) const CREATE_MS: f64 = 10.0;
    pub(super) const CREATE_P99_MS: f64 = 40.0;
    pub(super) const AT_ONCE_MS: f64 = 300.0;
    pub(super) const RUN_MS: f64 = 8.0;
    pub(super) const SMALL_FILE_MS: f64 = 4.0;
    /// Of the rate of a plain copy.
    pub(super) const LARGE_FILE: f64 = 0.5;
    /// "Flat".
    pub(super) const GROWTH_MIB: f64 = 16.0;
    pub(super) const REQUESTS: f64 = 500.0;
    pub(super) const IDLE_MIB: f64 = 60.0;
}

/// Both sides of a comparison.
struct Both {
    stub: Measured,
    ours: Measured,
}

pub(super) async fn measure(args: &ApiArgs) -> Result<Report> {
    let (python, version) = sdk::find(args.python.as_deref()).await?;
    let extent = if args.quick { SHORT } else { LONG };
    let mut report = Report::of(&format!("e2b {version} for Python, {}", if args.tls { "TLS" } else { "plain HTTP" }));
    if cfg!(debug_assertions) {
        report.about("build", "debug: the server's figures are those of `make build` only in part");
    }
    let files = Files::make(extent.large_bytes)?;
    let plan = Plan {
        rounds: args.rounds.unwrap_or(extent.rounds),
        at_once: AT_ONCE,
        bursts: extent.bursts,
        rest_s: REST.as_secs_f64(),
        source: files.source(),
        target: files.dir.join("target"),
    };
    progress("a plain copy");
    let copied = files.copy()?;
    let stub = Stub::start(extent.large_bytes).await?;
    progress("the SDK with the stub");
    let with_stub = Plan { rest_s: 0.0, ..plan.clone() };
    let key = format!("e2b_{}", "0".repeat(40));
    let of_stub = sdk::measure(&python, &with_stub, &sdk::plainly(stub.address(), &key), None).await?;
    let server = Server::start(args).await?;
    let idle = memory::resident(server.node.pid()?)?;
    progress("the SDK with the server");
    let of_server = sdk::measure(&python, &plan, &server.variables(args), Some(server.node.pid()?)).await?;
    // The disk may have been busy with something else at either time.
    let copied = copied.min(files.copy()?);
    progress("lists and looks");
    let loads = server.loads(&stub, extent.load).await?;
    server.node.stop().await?;
    let both = Both { stub: of_stub, ours: of_server };
    both.fill(&mut report, copied)?;
    for (what, ours, of_stub) in loads {
        let case = format!("{what}, per second of one processor");
        let stub = Some(of_stub.per_second);
        report.goal(Goal::at_least(case, "/s", stub, ours.per_cpu_second.unwrap_or_default(), target::REQUESTS));
        report.fact(what, format!("{:.0} per second with the client on the same processors", ours.per_second));
    }
    report.goal(Goal::at_most("memory of the idle server", "MiB", None, mib(idle), target::IDLE_MIB));
    Ok(report)
}

impl Both {
    /// `copied`: the time of a plain copy of the large file.
    fn fill(&self, report: &mut Report, copied: Duration) -> Result<()> {
        for (case, title) in CASES {
            let of_stub = self.stub.times(case)?.to_vec();
            let beside = format!("stub: {}", duration(median(&of_stub)));
            report.add(title, self.ours.times(case)?.to_vec(), beside);
        }
        report.add("plain copy of that file", vec![copied], "read and written, 1 MiB at a time; the faster of two");
        let mut time = |case: &str, title: &str, percent, target| -> Result<()> {
            let (stub, ours) = (self.stub.times(case)?, self.ours.times(case)?);
            report.goal(Goal::at_most(title, "ms", Some(ms(stub, percent)), ms(ours, percent), target));
            Ok(())
        };
        time("create", "create, p50", 50, target::CREATE_MS)?;
        time("create", "create, p99", 99, target::CREATE_P99_MS)?;
        time("creates_at_once", "50 creates at once", 50, target::AT_ONCE_MS)?;
        time("run", "commands.run(\"true\"), p50", 50, target::RUN_MS)?;
        time("write", "write of 4 KiB, p50", 50, target::SMALL_FILE_MS)?;
        time("read", "read of 4 KiB, p50", 50, target::SMALL_FILE_MS)?;
        for (case, title) in [("up", "large file up"), ("down", "large file down")] {
            let rate = |times: &[Duration]| copied.as_secs_f64() / median(times).as_secs_f64().max(1e-9);
            let (stub, ours) = (rate(self.stub.times(case)?), rate(self.ours.times(case)?));
            let rated = format!("{title}, of a plain copy's rate");
            report.goal(Goal::at_least(rated, "", Some(stub), ours, target::LARGE_FILE));
            let growth = self.ours.growth(case).context("nothing looked at the server's memory")?;
            let grown = format!("{title}, growth of the server's memory");
            report.goal(Goal::at_most(grown, "MiB", None, mib(growth), target::GROWTH_MIB));
        }
        Ok(())
    }
}

const CASES: [(&str, &str); 7] = [
    ("create", "Sandbox.create()"),
    ("creates_at_once", "50 at once, until the last"),
    ("run", "commands.run(\"true\")"),
    ("write", "files.write, 4 KiB"),
    ("read", "files.read, 4 KiB"),
    ("up", "files.write, large file"),
    ("down", "files.read, large file, streamed"),
];

fn ms(times: &[Duration], percent: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    at(&sorted, percent).as_secs_f64() * 1000.0
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The large file on this machine, removed when dropped.
struct Files {
    dir: PathBuf,
}

impl Files {
    fn make(bytes: u64) -> Result<Self> {
        let files = Self { dir: base::scratch::make("bench-api")? };
        let mut file = File::create(files.source())?;
        // No zeros: nothing on the way may leave them out.
        let block: Vec<u8> = (0..COPY_BYTES as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for _ in 0..bytes / COPY_BYTES as u64 {
            file.write_all(&block).context("no room for the large file")?;
        }
        // What is still to be written would slow down what comes next.
        file.sync_all()?;
        Ok(files)
    }

    fn source(&self) -> PathBuf {
        self.dir.join("source")
    }

    /// How long a plain copy takes.
    fn copy(&self) -> Result<Duration> {
        let target = self.dir.join("copy");
        let began = Instant::now();
        let (mut from, mut to) = (File::open(self.source())?, File::create(&target)?);
        let mut block = vec![0; COPY_BYTES];
        loop {
            let read = from.read(&mut block)?;
            if read == 0 {
                break;
            }
            to.write_all(&block[..read])?;
        }
        let took = began.elapsed();
        to.sync_all()?;
        std::fs::remove_file(&target)?;
        Ok(took)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            tracing::warn!(dir = %self.dir.display(), %error, "the files of the bench stay behind");
        }
    }
}

/// A private `pando serve`.
struct Server {
    node: PrivateNode,
    address: SocketAddr,
    key: String,
    told: Vec<(String, String)>,
}

impl Server {
    async fn start(args: &ApiArgs) -> Result<Self> {
        progress("starting a private server");
        let mut more: Vec<OsString> = ["--listen", "127.0.0.1:0"].map(Into::into).into();
        more.extend(args.base.iter().flat_map(|base| ["--base".into(), base.as_os_str().to_owned()]));
        let (node, env_file) = PrivateNode::serve(&more).await?;
        if args.base.is_none() {
            node.build("base", Vec::new()).await?;
        } else {
            node.await_templates(&["base", "python", "node"], TEMPLATES_WAIT).await?;
        }
        let told = variables(&env_file)?;
        let value = |name: &str| told.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let place = value("E2B_DOMAIN").or_else(|| value("E2B_API_URL")).context("the server names no address")?;
        let port =
            place.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).context("an address without a port")?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let key = value("E2B_API_KEY").context("the server names no key")?.to_owned();
        ensure!(
            !args.tls || value("E2B_DOMAIN").is_some(),
            "--tls: names do not resolve here: `make setup` mends that"
        );
        node.settle().await?;
        node.rest().await?;
        Ok(Self { node, address, key, told })
    }

    fn variables(&self, args: &ApiArgs) -> Vec<(String, String)> {
        if args.tls { self.told.clone() } else { sdk::plainly(self.address, &self.key) }
    }

    /// What the server and the stub answer of lists, and of looks at one sandbox.
    async fn loads(&self, stub: &Stub, span: Duration) -> Result<Vec<(&'static str, Load, Load)>> {
        let mut last = None;
        for _ in 0..LISTED {
            last = Some(self.create().await?);
        }
        let one = format!("/sandboxes/{}", last.context("no sandbox")?);
        let mut loads = Vec::new();
        for (what, path) in [("lists of ten", "/v2/sandboxes"), ("looks at one", one.as_str())] {
            let ours = load::run(self.address, &self.key, path, span, Some(self.node.pid()?)).await?;
            let of_stub = load::run(stub.address(), &self.key, path, span, None).await?;
            loads.push((what, ours, of_stub));
        }
        Ok(loads)
    }

    async fn create(&self) -> Result<String> {
        load::create(self.address, &self.key).await
    }
}

/// The lines of `--env-file`.
fn variables(file: &Path) -> Result<Vec<(String, String)>> {
    let text = std::fs::read_to_string(file)?;
    let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    Ok(text.lines().filter_map(pair).collect())
}
