//! The spare: has all that the holder has, and becomes the holder when that one dies. Also how a holder has its spare.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, OwnedFd},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use rustix::stdio::stdin;
use tokio::{sync::Mutex as AsyncMutex, time::Instant};

use crate::{
    Config, Error, Role,
    held::{Held, Streams},
    limits::{RESPAWN_MAX, RESPAWN_MIN},
    message::{self, Link, Telling},
};

/// What a dead holder leaves to its spare.
#[derive(Debug)]
pub(crate) struct Inheritance {
    pub(crate) common: Common,
    pub(crate) commands: Vec<(Streams, OwnedFd)>,
}

/// What the family has, whichever of its processes live.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) lock: OwnedFd,
    pub(crate) listener: OwnedFd,
}

/// The life of a spare: until the holder dies. None: the holder ended orderly, or said nothing.
pub(crate) fn wait() -> Result<Option<Inheritance>, Error> {
    // Not permitted only where there is no such limit.
    let _ = rustix::thread::set_name(c"holder-spare");
    let socket = stdin();
    let (mut common, mut commands) = (None, HashMap::new());
    loop {
        let received = match message::receive::<Telling>(socket) {
            // The kernel closes a process's descriptors when none of its threads does anything any more.
            Ok(None) => break,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
            received => received.map_err(Error::system("hear what is held"))?,
        };
        let Some(message::Received { head, files, body: _ }) = received else { break };
        match head {
            Telling::Common => {
                if let Ok([lock, listener]) = <[OwnedFd; 2]>::try_from(files) {
                    common = Some(Common { lock, listener });
                }
            }
            Telling::Held => {
                if let Err(error) = keep(&mut commands, files) {
                    tracing::error!(error = base::error::chain(&error), "the spare does not have a command");
                }
            }
            Telling::CloseInput { key } => {
                if let Some((streams, _)) = commands.get_mut(&key) {
                    streams.input = None;
                }
            }
            Telling::Forget { key } => drop(commands.remove(&key)),
            Telling::End => return Ok(None),
        }
    }
    Ok(common.map(|common| Inheritance { common, commands: commands.into_values().collect() }))
}

fn keep(commands: &mut HashMap<String, (Streams, OwnedFd)>, mut files: Vec<OwnedFd>) -> Result<(), Error> {
    if files.len() < 2 {
        return Err(Error::Answer);
    }
    let pidfd = files.remove(1);
    let streams = Streams::of(files)?;
    commands.insert(streams.meta.key.clone(), (streams, pidfd));
    Ok(())
}

/// The holder's spare, or the gap until there is one again.
pub(crate) struct SpareSlot {
    link: AsyncMutex<Option<Arc<Link>>>,
    pid: std::sync::atomic::AtomicI32,
}

impl SpareSlot {
    pub(crate) fn new() -> Self {
        Self { link: AsyncMutex::new(None), pid: 0.into() }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Tells the spare. If it is dead, the next one is told all.
    pub(crate) async fn tell(&self, telling: &Telling) {
        if let Some(link) = &*self.link.lock().await {
            let _ = link.send(telling, &[], &[]).await;
        }
    }

    /// Tells the spare of a command.
    pub(crate) async fn tell_of(&self, held: &Held) {
        if let Some(link) = &*self.link.lock().await {
            let _ = held.tell_to(link).await;
        }
    }

    /// Has a spare at all times. Never returns.
    pub(crate) async fn keep(&self, config: &Config, common: &Common, all: impl Fn() -> Vec<Arc<Held>>) {
        let mut pause = Duration::ZERO;
        loop {
            tokio::time::sleep(pause).await;
            let began = Instant::now();
            match self.start(config, common, &all).await {
                Ok((child, link)) => {
                    // It says nothing: this is its end.
                    let _ = link.receive::<Telling>().await;
                    self.bury(child).await;
                    tracing::warn!("the spare of the holder died; another one is started");
                }
                Err(error) => tracing::error!(%error, "cannot start a spare of the holder"),
            }
            let short = began.elapsed() < Duration::from_secs(1);
            pause = if short { (pause * 2).clamp(RESPAWN_MIN, RESPAWN_MAX) } else { Duration::ZERO };
        }
    }

    async fn start(
        &self,
        config: &Config,
        common: &Common,
        all: impl Fn() -> Vec<Arc<Held>>,
    ) -> io::Result<(Child, Arc<Link>)> {
        // Until it has heard all: what is new meanwhile is told after that.
        let mut slot = self.link.lock().await;
        let (ours, theirs) = sys::seqpacket::pair()?;
        // The very program that runs here, whatever lies at its path by now: both sides speak the same language.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("pando").args(&config.arguments).arg(Role::Spare.argument());
        // A signal from a terminal is for the node.
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).process_group(0);
        let child = command.spawn()?;
        self.pid.store(child.id() as i32, std::sync::atomic::Ordering::Relaxed);
        // Closes our copy of its end.
        drop(command);
        let link = Arc::new(Link::new(ours)?);
        let told = async {
            link.send(&Telling::Common, &[], &[common.lock.as_fd(), common.listener.as_fd()]).await?;
            for held in all() {
                held.tell_to(&link).await?;
            }
            io::Result::Ok(())
        };
        if let Err(error) = told.await {
            // It died before it had heard all.
            tracing::warn!(%error, "the spare of the holder does not listen");
        }
        *slot = Some(Arc::clone(&link));
        Ok((child, link))
    }

    async fn bury(&self, mut child: Child) {
        *self.link.lock().await = None;
        self.pid.store(0, std::sync::atomic::Ordering::Relaxed);
        // Not to leave a zombie. Its socket is closed, so it is about to end.
        let _ = tokio::task::spawn_blocking(move || child.wait()).await;
    }
}
