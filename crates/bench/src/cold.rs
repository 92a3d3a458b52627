//! The comparison: the same program started as a plain process of the host, without any sandbox.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    task::JoinSet,
};

use super::{node::exchange, program};

/// A cold start may take this long; many at once share the processors.
const ANSWER_WAIT: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(1);

/// A plain process that has answered.
pub(super) struct Plain {
    /// Killed when dropped.
    process: Child,
    /// From its spawn to its first answer.
    pub(super) answered: Duration,
}

impl Plain {
    /// Starts the program and waits for its first answer.
    pub(super) async fn start() -> Result<Self> {
        let port = free_port()?;
        let argv = program::geo(0, port);
        let began = Instant::now();
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let process = command.spawn().with_context(|| format!("cannot start {}", argv[0]))?;
        loop {
            if let Ok(mut connection) = TcpStream::connect(("127.0.0.1", port)).await {
                exchange(&mut connection).await?;
                return Ok(Self { process, answered: began.elapsed() });
            }
            ensure!(began.elapsed() < ANSWER_WAIT, "a cold start did not answer within {ANSWER_WAIT:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    pub(super) fn pid(&self) -> Result<i32> {
        Ok(self.process.id().context("the cold program has ended")? as i32)
    }

    /// Resident memory, in bytes.
    pub(super) fn resident_bytes(&self) -> Result<u64> {
        super::proc::bytes_of(&format!("/proc/{}/status", self.pid()?), "VmRSS:")
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        Ok(self.process.kill().await?)
    }
}

/// Starts `count` at once; gives the time of each.
pub(super) async fn at_once(count: u32) -> Result<Vec<Duration>> {
    let mut starts = JoinSet::new();
    for _ in 0..count {
        starts.spawn(Plain::start());
    }
    let mut running = Vec::new();
    while let Some(plain) = starts.join_next().await {
        running.push(plain??);
    }
    let times = running.iter().map(|plain| plain.answered).collect();
    for plain in running {
        plain.stop().await?;
    }
    Ok(times)
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
