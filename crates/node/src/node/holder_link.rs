//! The way to the processes that hold commands. They outlive this node, and a later node finds them by their socket.

use std::{
    collections::{HashMap, HashSet},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use holder::{Client, Refusal};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::{
    sync::{Mutex as AsyncMutex, Notify},
    task::AbortHandle,
};

use crate::{
    config::Config,
    error::{CommandError, Context, Error, Result},
};

/// How long a holder may take to come up.
const START_MAX: Duration = Duration::from_secs(10);
const START_TICK: Duration = Duration::from_millis(2);
/// How long the processes may take to end when they are told to.
const STOP_MAX: Duration = Duration::from_secs(2);

/// The way to the holder.
pub(super) struct HolderLink {
    client: Client,
    command: Vec<String>,
    /// Held while a holder is looked for or started.
    reaching: AsyncMutex<()>,
    /// A holder was started.
    pub(super) started: Notify,
    /// Commands of this node that have a control group and are not held yet.
    starting: Mutex<HashSet<String>>,
    /// The time limits of commands that run.
    timers: Mutex<HashMap<String, AbortHandle>>,
    /// Turns of those who end commands or see to their groups, by command.
    turns: Mutex<HashMap<String, Arc<AsyncMutex<()>>>>,
}

impl HolderLink {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            client: Client::new(&crate::holder_folder(&config.state_dir)),
            command: config.holder_command.clone(),
            reaching: AsyncMutex::default(),
            started: Notify::new(),
            starting: Mutex::default(),
            timers: Mutex::default(),
            turns: Mutex::default(),
        }
    }

    /// Keeps the timer of a command until its end.
    pub(super) fn set_timer(&self, key: &str, timer: AbortHandle) {
        lock(&self.timers).insert(key.to_owned(), timer);
    }

    /// The command has ended.
    pub(super) fn drop_timer(&self, key: &str) {
        let timer = lock(&self.timers).remove(key);
        if let Some(timer) = timer {
            timer.abort();
        }
    }

    /// The holder, which may not be there.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Starts a holder if there is none.
    pub(super) async fn reach(&self) -> Result<()> {
        let _only = self.reaching.lock().await;
        if !self.client.is_there().await {
            self.start().await?;
            self.started.notify_one();
        }
        Ok(())
    }

    async fn start(&self) -> Result<()> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(std::io::Error::from(std::io::ErrorKind::InvalidInput)).doing("start the holder of commands");
        };
        let mut command = Command::new(program);
        // Ctrl-C in the node's terminal is for the node.
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        let mut child = command.spawn().doing("start the holder of commands")?;
        let deadline = Instant::now() + START_MAX;
        while !self.client.is_there().await {
            if let Some(status) = child.try_wait().doing("start the holder of commands")? {
                let ended = std::io::Error::other(format!("it ended at once: {status}; the log says why"));
                return Err(ended).doing("start the holder of commands");
            }
            if Instant::now() > deadline {
                return Err(std::io::Error::from(std::io::ErrorKind::TimedOut)).doing("start the holder of commands");
            }
            tokio::time::sleep(START_TICK).await;
        }
        // It ends by itself some day, and is reaped then.
        std::thread::spawn(move || child.wait());
        Ok(())
    }

    /// Ends the processes, unless they hold commands.
    pub(super) async fn stop(&self) {
        let Ok(family) = self.client.family().await else { return };
        let open = |pid| pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok();
        let processes: Vec<_> = [family.holder, family.spare].into_iter().filter_map(open).collect();
        if self.client.shut_down().await.is_err() {
            return tracing::info!("the holder of commands stays");
        }
        let ended = async {
            for process in processes {
                if let Ok(process) = keeper::descriptor::watched(process) {
                    let _ = process.readable().await;
                }
            }
        };
        let _ = tokio::time::timeout(STOP_MAX, ended).await;
    }

    /// Notes that a command is being started, until the guard is dropped.
    pub(super) fn begin_start(self: &Arc<Self>, key: &str) -> StartGuard {
        lock(&self.starting).insert(key.to_owned());
        StartGuard { link: Arc::clone(self), key: key.to_owned() }
    }

    pub(super) fn is_starting(&self, key: &str) -> bool {
        lock(&self.starting).contains(key)
    }

    /// The turn of one who ends a command or sees to its group.
    pub(super) fn turn(&self, key: &str) -> Arc<AsyncMutex<()>> {
        let mut turns = lock(&self.turns);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(key.to_owned()).or_default())
    }
}

/// A command that is being started.
pub(super) struct StartGuard {
    link: Arc<HolderLink>,
    key: String,
}

impl Drop for StartGuard {
    fn drop(&mut self) {
        lock(&self.link.starting).remove(&self.key);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics in the middle of a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A failure of the holder, as the node has it.
pub(super) fn failed(action: &'static str) -> impl FnOnce(holder::Error) -> Error {
    move |source| match (source.refusal(), source) {
        (Some(Refusal::Ended), _) => CommandError::Ended.into(),
        (Some(Refusal::NoTerminal), _) => CommandError::NoTerminal.into(),
        (Some(Refusal::NoInput), holder::Error::Refused { message, .. }) => CommandError::NoInput { message }.into(),
        (Some(Refusal::TooMany), holder::Error::Refused { message, .. }) => CommandError::TooMany { message }.into(),
        (_, source) => CommandError::Holder { action, source }.into(),
    }
}
