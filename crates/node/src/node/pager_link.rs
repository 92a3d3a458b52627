//! The pages of restored zygotes and their copies: served by the pager, a family of processes that outlives this node.
//!
//! The node has one run from its beginning, which would be a quarter of a first restore otherwise. A later node finds it by its socket: copies that still lack
//! pages depend on it.

use std::{
    fs::File,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use pager::{Client, Serve};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sandbox::{Cgroups, Service};
use tokio::sync::{Mutex as AsyncMutex, Semaphore};

use super::bounded;
use crate::{
    config::Config,
    error::{Context, Result, Storing},
};

/// How long a pager may take to come up.
const START_MAX: Duration = Duration::from_secs(10);
const START_TICK: Duration = Duration::from_millis(2);
/// How often it is asked whether a program has all its pages.
const FILL_TICK: Duration = Duration::from_millis(20);
/// How long it may take to notice that the last process that lacks pages has ended.
pub(super) const STOP_MAX: Duration = Duration::from_secs(5);
/// How often in a row it may give no answer.
const FAILURES_MAX: u32 = 3;
/// Who may ask it at a time whether memory has arrived: fewer than clients can be connected.
const ASKING_AT_ONCE: usize = 16;
/// How long a fork waits for the pages that its source still lacks.
const FILL_MAX: Duration = Duration::from_secs(600);

/// A zygote that is to be served.
pub(super) struct Served {
    /// Under which its image is known to the pager.
    pub(super) name: String,
    /// Encoded [`checkpoint::PageImageRoots`].
    pub(super) image: Vec<u8>,
    pub(super) pid: i32,
    /// Its mappings whose pages arrive by fault.
    pub(super) ranges: Vec<(u64, u64)>,
}

/// The way to the pager.
pub(super) struct PagerLink {
    socket: PathBuf,
    command: Vec<String>,
    cgroups: Arc<Cgroups>,
    /// Most bytes of memory that it may take.
    memory_bytes: u64,
    /// Held while a pager is looked for or started: of two that start at once the second would take the first one's socket away.
    reaching: Arc<AsyncMutex<()>>,
    /// Who may ask it how far it is.
    asking: Semaphore,
}

impl PagerLink {
    pub(super) fn new(config: &Config, cgroups: Arc<Cgroups>) -> Self {
        Self {
            socket: crate::pager_socket(&config.state_dir),
            command: config.pager_command.clone(),
            cgroups,
            memory_bytes: config.pager_memory,
            reaching: Arc::default(),
            asking: Semaphore::new(ASKING_AT_ONCE),
        }
    }

    /// Where it listens.
    pub(super) fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    /// Has a pager run. The connection is for [`PagerLink::serve`].
    pub(super) async fn reach(&self) -> Result<Client> {
        let only = Arc::clone(&self.reaching).lock_owned().await;
        let (socket, command) = (self.socket(), self.command.clone());
        let group = bounded::group(&self.cgroups, Service::Pager, self.memory_bytes);
        let reach = move || {
            // Until it has come up, also if nobody waits for it any more: whoever ends it finds it then.
            let _only = only;
            connect_or_start(&socket, &command, group)
        };
        tokio::task::spawn_blocking(reach).await.doing("reach the pager").flatten()
    }

    /// Has a pager run before anybody needs one: none ends as long as somebody is connected. Should it be killed, whoever needs it next starts another.
    /// One that an earlier node has left is let end when nobody lacks pages any more: it has that node's settings.
    pub(super) async fn keep(&self) {
        let socket = self.socket();
        let found = tokio::task::spawn_blocking(move || Client::find(&socket)).await;
        if !matches!(found, Ok(Ok(None))) {
            return;
        }
        match self.reach().await {
            Ok(_connected) => std::future::pending().await,
            Err(error) => tracing::warn!(error = crate::chain(&error), "there is no pager yet"),
        }
    }

    /// Has the pager serve a zygote and all that is forked from it.
    pub(super) async fn serve(&self, served: Served, faults: OwnedFd, mut client: Client) -> Result<()> {
        let serve = move || {
            let pid = Pid::from_raw(served.pid).ok_or("it has no pid").storing("serve the zygote's memory")?;
            let pidfd = pidfd_open(pid, PidfdFlags::empty()).doing("watch the zygote")?;
            let ranges: Vec<_> = served.ranges.iter().map(|&(start, end)| start..end).collect();
            let serve = Serve {
                name: &served.name,
                uffd: faults.as_fd(),
                pid: served.pid,
                pidfd: pidfd.as_fd(),
                ranges: &ranges,
                image: &served.image,
                parked: true,
            };
            client.serve(&serve).storing("serve the zygote's memory")
        };
        tokio::task::spawn_blocking(serve).await.doing("serve the zygote's memory").flatten()
    }

    /// Waits until no process of an image lacks pages: what is not there yet would be missing in a fork. Copies are not filled otherwise.
    pub(super) async fn wait_filled(&self, image: &str) -> Result<()> {
        let deadline = Instant::now() + FILL_MAX;
        let mut failures = 0;
        loop {
            match self.is_filled(image).await {
                Ok(true) => return Ok(()),
                // One of its processes may have been killed, and another take its place.
                Err(error) if failures == FAILURES_MAX => return Err(error),
                Err(_) => failures += 1,
                Ok(false) => failures = 0,
            }
            if Instant::now() > deadline {
                return Err(format!("it did not arrive within {} s", FILL_MAX.as_secs()))
                    .storing("wait for its memory");
            }
            tokio::time::sleep(FILL_TICK).await;
        }
    }

    /// What the pager does and did; none if there is none, or it does not answer.
    pub(super) async fn status(&self) -> Option<pager::Status> {
        let socket = self.socket();
        let ask = move || Client::find(&socket)?.map(|mut client| client.status()).transpose();
        match tokio::task::spawn_blocking(ask).await.ok()? {
            Ok(status) => status,
            Err(error) => {
                tracing::debug!(error = crate::chain(&error), "the pager does not tell its status");
                None
            }
        }
    }

    /// Without a pager nothing is missing: it ends only when nobody lacks pages. If all of it was killed before, captures see that.
    async fn is_filled(&self, image: &str) -> Result<bool> {
        // It is never closed.
        let _turn = self.asking.acquire().await;
        let (socket, image) = (self.socket(), image.to_owned());
        let ask = move || {
            let Some(mut client) = Client::find(&socket)? else { return Ok(true) };
            client.hurry(&image)?;
            let served = client.status()?.images;
            Ok(served.iter().all(|served| served.name != image || served.processes == 0))
        };
        let asked: std::result::Result<_, pager::Error> =
            tokio::task::spawn_blocking(ask).await.doing("ask the pager")?;
        asked.storing("ask the pager")
    }

    /// Ends the pager unless somebody depends on it. Zygotes that have just ended may do so for a moment: then `patience` is longer.
    pub(super) async fn stop(&self, patience: Duration) {
        let _only = self.reaching.lock().await;
        let socket = self.socket();
        let stop = move || {
            let deadline = Instant::now() + patience;
            loop {
                // If nobody listens, none is there.
                let stopped =
                    Client::find(&socket).and_then(|found| found.map_or(Ok(()), |mut client| client.shutdown()));
                match stopped {
                    Err(_) if Instant::now() < deadline => std::thread::sleep(FILL_TICK),
                    stopped => return stopped,
                }
            }
        };
        if let Ok(Err(error)) = tokio::task::spawn_blocking(stop).await {
            tracing::info!(reason = crate::chain(&error), "the pager stays");
        }
    }
}

fn connect_or_start(socket: &Path, command: &[String], group: Option<File>) -> Result<Client> {
    // One that cannot be reached has what others depend on, and its socket.
    if let Some(client) = Client::find(socket).storing("reach the pager")? {
        return Ok(client);
    }
    let Some((program, arguments)) = command.split_first() else {
        return Err("there is no command for it").storing("start the pager");
    };
    let mut command = Command::new(program);
    command.args(arguments).args(group.is_some().then_some("--join"));
    // Ctrl-C in the node's terminal is for the node.
    command.stdin(group.map_or_else(Stdio::null, Stdio::from)).stdout(Stdio::null()).process_group(0);
    let mut child = command.spawn().doing("start the pager")?;
    let deadline = Instant::now() + START_MAX;
    let client = loop {
        match Client::connect(socket) {
            Ok(client) => break client,
            Err(error) if Instant::now() > deadline => return Err(error).storing("reach the pager"),
            Err(_) => std::thread::sleep(START_TICK),
        }
        if let Some(status) = child.try_wait().doing("start the pager")? {
            return Err(format!("it ended at once: {status}; the log says why")).storing("start the pager");
        }
    };
    // It ends by itself some day, and is reaped then.
    std::thread::spawn(move || child.wait());
    Ok(client)
}
