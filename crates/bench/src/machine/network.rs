//! What traffic of a sandbox takes, beside that of a namespace with a plain veth.
//!
//! ```text
//! plain ─────────────┐
//! behind ── between ─┤ host (forwards, has the node) ── far (8.8.8.8)
//! sandbox ── router ─┘
//! ```
//!
//! `between` forwards without a rule: what is lost there is lost to one hop more, and not to rules. All of them are network namespaces made for this: nothing of the machine's own network is touched.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use api::NetworkPolicy;
use base::id::SandboxId;

use crate::{
    node::PrivateNode,
    program,
    report::{Goal, Report, median, progress, times},
};

const WIRE: &str = include_str!("wire.py");
/// An address of the internet: sandboxes reach no private ones.
const FAR: &str = "8.8.8.8";

/// $1: the host's namespace, then far, plain, between, behind; each the pid of a process in it.
const LINKS: &str = "
on() { pid=$1; shift; nsenter --net=/proc/$pid/ns/net \"$@\"; }
pair() { on $1 ip link add $2 type veth peer name eth0 netns $3; on $1 ip link set $2 up; on $3 ip link set eth0 up; on $3 ip link set lo up; }
on $1 ip link set lo up
pair $1 far $2
pair $1 plain $3
on $1 ip addr add 8.8.8.1/24 dev far
on $1 ip route add default via 8.8.8.8
on $2 ip addr add 8.8.8.8/24 dev eth0
on $1 ip addr add 9.9.9.1/24 dev plain
on $3 ip addr add 9.9.9.9/24 dev eth0
on $3 ip route add default via 9.9.9.1
on $2 ip route add default via 8.8.8.1
pair $1 between $4
pair $4 behind $5
on $1 ip addr add 9.9.8.1/24 dev between
on $4 ip addr add 9.9.8.2/24 dev eth0
on $4 ip route add default via 9.9.8.1
on $4 ip addr add 9.9.7.1/24 dev behind
on $5 ip addr add 9.9.7.9/24 dev eth0
on $5 ip route add default via 9.9.7.1
on $1 ip route add 9.9.7.0/24 via 9.9.8.2
for forwards in $1 $4; do on $forwards sysctl -q net.ipv4.ip_forward=1; done
";

/// How much is sent.
#[derive(Debug, Clone, Copy)]
struct Extent {
    mib: u32,
    pings: u32,
    rounds: u32,
}

const LONG: Extent = Extent { mib: 2_048, pings: 5_000, rounds: 9 };
const SHORT: Extent = Extent { mib: 256, pings: 1_000, rounds: 5 };

/// Entries of the long policy.
const ENTRIES: u32 = 1_000;

/// A namespace with a process in it, which keeps it.
struct Namespace(Child);

impl Namespace {
    fn new() -> Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo; exec sleep infinity"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().context("cannot make a namespace")?;
        let said = process.stdout.take().context("no output")?;
        let namespace = Self(process);
        // It is in its namespace when it says something.
        ensure!(BufReader::new(said).lines().next().is_some(), "unshare failed: does this run as root?");
        Ok(namespace)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// A program in it.
    fn command(&self, program: &[String]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.pid())).args(program).stdin(Stdio::null());
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All of them, and the program at the far end.
struct World {
    host: Namespace,
    plain: Namespace,
    behind: Namespace,
    _others: [Namespace; 3],
}

impl World {
    fn new() -> Result<Self> {
        let new = Namespace::new;
        let [host, far, plain, between, behind] = [new()?, new()?, new()?, new()?, new()?];
        let pids = [&host, &far, &plain, &between, &behind].map(Namespace::pid);
        let made = Command::new("sh").args(["-euc", LINKS, "sh"]).args(&pids).output()?;
        ensure!(made.status.success(), "cannot link namespaces: {}", String::from_utf8_lossy(&made.stderr));
        let mut server = far.command(&program::python(WIRE, &["far", FAR]));
        let mut server = Namespace(server.stdout(Stdio::piped()).spawn()?);
        let said = BufReader::new(server.0.stdout.take().context("no output")?).lines().next();
        ensure!(said.is_some(), "the far end failed");
        Ok(Self { host, plain, behind, _others: [far, between, server] })
    }

    /// From one of the namespaces without rules.
    fn ask(from: &Namespace, what: &str, number: u32) -> Result<Duration> {
        let program = program::python(WIRE, &["once", FAR, what, &number.to_string()]);
        let done = from.command(&program).output()?;
        let micros = String::from_utf8_lossy(&done.stdout).trim().parse();
        Ok(Duration::from_micros(micros.with_context(|| String::from_utf8_lossy(&done.stderr).into_owned())?))
    }
}

/// Denies networks that are not next to each other, and not that of the far end.
fn long_policy() -> Result<NetworkPolicy> {
    let net = |n: u32| format!("20.{}.{}.0/24", n / 100, n % 100 * 2).parse();
    let deny = (0..ENTRIES).map(net).collect::<Result<_, String>>().map_err(anyhow::Error::msg)?;
    Ok(NetworkPolicy { deny, ..NetworkPolicy::default() })
}

pub(super) async fn measure(quick: bool, report: &mut Report) -> Result<()> {
    let extent = if quick { SHORT } else { LONG };
    progress("five namespaces, and a private node in one of them");
    let world = World::new()?;
    let asked = ["--network", "on", "--dns", FAR].map(Into::into);
    let node = PrivateNode::start_within(world.host.0.id(), &asked).await?;
    let measured = compare(&world, &node, extent, report).await;
    node.stop().await?;
    measured
}

async fn compare(world: &World, node: &PrivateNode, extent: Extent, report: &mut Report) -> Result<()> {
    node.build("wire", program::python(WIRE, &["near", &program::PORT.to_string(), FAR])).await?;
    node.rest().await?;
    let (short, _) = node.start_one("wire").await?;
    let (long, _) = node.start_with_policy("wire", long_policy()?).await?;
    let sandboxes = [("default policy", &short.id), ("1,000 entries", &long.id)];
    for (what, number, unit) in
        [("send", extent.mib, "MiB"), ("receive", extent.mib, "MiB"), ("ping", extent.pings, "times")]
    {
        progress(&format!("{what} {number} {unit}"));
        one(world, node, (what, number), (extent.rounds, &sandboxes), report).await?;
    }
    node.remove_all().await
}

/// In turn, so that all of them see the same machine.
async fn one(
    world: &World,
    node: &PrivateNode,
    (what, number): (&str, u32),
    (rounds, sandboxes): (u32, &[(&str, &SandboxId); 2]),
    report: &mut Report,
) -> Result<()> {
    let (mut plain, mut behind, mut own) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
    // The first round warms up.
    for round in 0..=rounds {
        let took = World::ask(&world.plain, what, number)?;
        let took_behind = World::ask(&world.behind, what, number)?;
        let mut theirs = Vec::new();
        for (_, id) in sandboxes {
            theirs.push(node.ask(id, &format!("{what}/{number}")).await?);
        }
        if round > 0 {
            plain.push(took);
            behind.push(took_behind);
            own.iter_mut().zip(theirs).for_each(|(all, took)| all.push(took));
        }
    }
    let rate = |took: Duration| format!("{:.2} GiB/s", f64::from(number) / 1_024.0 / took.as_secs_f64());
    let is_ping = what == "ping";
    let beside = |took: Duration| if is_ping { String::new() } else { rate(took) };
    let floor = median(&plain);
    report.add(format!("network: {what}, plain veth"), plain, beside(floor));
    let took = median(&behind);
    report.add(format!("network: {what}, one hop more, no rules"), behind, beside(took));
    for ((policy, _), times_of) in sandboxes.iter().zip(own) {
        let took = median(&times_of);
        report.add(format!("network: {what}, sandbox, {policy}"), times_of, beside(took));
        let goal = match is_ping {
            true => Goal::at_most(format!("network: latency, {policy}"), "x", None, times(took, floor), 1.2),
            false => {
                Goal::at_least(format!("network: throughput, {what}, {policy}"), "x", None, times(floor, took), 0.8)
            }
        };
        report.goal(goal);
    }
    Ok(())
}
