//! Runs the real SDK in a process of its own, and collects what it has measured.

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

use super::memory::Peak;

const CLIENT: &str = include_str!("client.py");
/// Where `scripts/sdk.sh` installs the newest SDK, seen from a checkout.
const IN_CHECKOUT: &str = "target/sdk/new/bin/python";
const VERSION: &str = "import importlib.metadata; print(importlib.metadata.version('e2b'))";

/// What the client is to do.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Plan {
    pub(super) rounds: u32,
    /// Creates at once, and how often.
    pub(super) at_once: u32,
    pub(super) bursts: u32,
    /// Between bursts, in seconds.
    pub(super) rest_s: f64,
    /// The file that is uploaded.
    pub(super) source: PathBuf,
    /// The file that is downloaded.
    pub(super) target: PathBuf,
}

/// Times of one client, by case.
pub(super) struct Measured {
    times: HashMap<String, Vec<Duration>>,
    /// By how much the server's memory grew, in bytes.
    growth: HashMap<String, u64>,
}

/// A line of the client.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Line {
    Begins { begin: String },
    Case { case: String, us: Vec<u64> },
}

impl Measured {
    pub(super) fn times(&self, case: &str) -> Result<&[Duration]> {
        self.times.get(case).map(Vec::as_slice).with_context(|| format!("the client measured no {case}"))
    }

    pub(super) fn growth(&self, case: &str) -> Option<u64> {
        self.growth.get(case).copied()
    }
}

/// A Python that has the SDK, and the SDK's version.
pub(super) async fn find(wanted: Option<&Path>) -> Result<(PathBuf, String)> {
    let places = wanted.map_or_else(|| vec![PathBuf::from(IN_CHECKOUT), "python3".into()], |one| vec![one.to_owned()]);
    for python in places {
        let asked = Command::new(&python).args(["-c", VERSION]).stderr(Stdio::null()).output().await;
        if let Some(output) = asked.ok().filter(|output| output.status.success()) {
            return Ok((python, String::from_utf8_lossy(&output.stdout).trim().to_owned()));
        }
    }
    bail!("no Python here has the package e2b: run `pip install e2b` and name its Python with --python PATH")
}

/// Measures one server, whose memory is looked at meanwhile.
pub(super) async fn measure(
    python: &Path,
    plan: &Plan,
    variables: &[(String, String)],
    server: Option<i32>,
) -> Result<Measured> {
    let peak = server.map(Peak::of).transpose()?;
    let mut command = Command::new(python);
    command.args(["-c", CLIENT, &serde_json::to_string(plan)?]).stdin(Stdio::null()).stdout(Stdio::piped());
    // Variables of another server must not lead there.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("E2B_")) {
        command.env_remove(name);
    }
    command.envs(variables.iter().map(|(name, value)| (name, value))).kill_on_drop(true);
    let mut client = command.spawn().with_context(|| format!("cannot run {}", python.display()))?;
    let mut lines = BufReader::new(client.stdout.take().context("no output")?).lines();
    let mut measured = Measured { times: HashMap::new(), growth: HashMap::new() };
    let mut begun: Option<(String, u64)> = None;
    while let Some(line) = lines.next_line().await? {
        let line = serde_json::from_str(&line).with_context(|| format!("the client said {line:?}"))?;
        match (line, &peak) {
            (Line::Begins { begin }, Some(peak)) => begun = Some((begin, peak.restart()?)),
            (Line::Begins { .. }, None) => {}
            (Line::Case { case, us }, peak) => {
                let before = begun.take_if(|(begin, _)| *begin == case).map(|(_, before)| before);
                if let Some((before, peak)) = before.zip(peak.as_ref()) {
                    measured.growth.insert(case.clone(), peak.most().saturating_sub(before));
                }
                measured.times.insert(case, us.into_iter().map(Duration::from_micros).collect());
            }
        }
    }
    let status = client.wait().await?;
    ensure!(status.success(), "the client failed with {status}: what it said is above");
    Ok(measured)
}

/// The variables that lead the SDK to a server by plain HTTP.
pub(super) fn plainly(address: SocketAddr, key: &str) -> Vec<(String, String)> {
    let url = format!("http://{address}");
    let named = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    vec![named("E2B_API_KEY", key), named("E2B_API_URL", &url), named("E2B_SANDBOX_URL", &url)]
}
