//! The worker's side of the guardian: what is held, told to it as it changes; and another guardian when it has died.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    process::Child,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use crate::{
    Config, Role,
    error::chain,
    failure::{Failure, Result},
    held::{Held, Mount, Shared},
    limits::HOLDERS_BYTES_MAX,
    message::{self, Source, Telling},
    process::{self, Pace},
};

/// See the module. Clones share it.
#[derive(Clone)]
pub(crate) struct Link {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    socket: OwnedFd,
    held: Held,
    /// The guardian shall end, too.
    ended: bool,
}

impl Link {
    /// Watches the guardian from here on. Also gives the sockets that clients come to.
    pub(crate) fn new(config: &Config, socket: OwnedFd, held: Held) -> io::Result<(Self, OwnedFd, OwnedFd)> {
        let Shared { http, control, .. } = &held.shared;
        let (http, control) = (http.try_clone()?, control.try_clone()?);
        let link = Self { inner: Arc::new(Mutex::new(Inner { socket, held, ended: false })) };
        let (ours, config) = (link.clone(), config.clone());
        thread::Builder::new().name("guardian-watch".to_owned()).spawn(move || ours.watch(&config))?;
        Ok((link, http, control))
    }

    /// What is mounted.
    pub(crate) fn sources(&self) -> Vec<Source> {
        self.lock().held.mounts.keys().cloned().collect()
    }

    /// Descriptors of a mount: its tree and its devices.
    pub(crate) fn descriptors(&self, source: &Source) -> Option<io::Result<(OwnedFd, Vec<OwnedFd>)>> {
        let inner = self.lock();
        let mount = inner.held.mounts.get(source)?;
        let devices = || mount.devices.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>();
        Some(mount.tree.try_clone().and_then(|tree| Ok((tree, devices()?))))
    }

    /// Has the guardian keep a mount, which nobody holds yet.
    pub(crate) fn keep(&self, source: &Source, tree: OwnedFd, devices: Vec<OwnedFd>) {
        let mut inner = self.lock();
        let mount = Mount { holders: Vec::new(), tree, devices };
        inner.tell(|socket| mount.tell(socket, source));
        inner.held.mounts.insert(source.clone(), mount);
    }

    /// Nobody keeps the mount any more.
    pub(crate) fn unmount(&self, source: &Source) {
        let mut inner = self.lock();
        if inner.held.mounts.remove(source).is_some() {
            inner.tell(|socket| message::send(socket, &Telling::Unmount { source: source.clone() }, &[]));
        }
    }

    /// Who holds a mount.
    pub(crate) fn holders(&self, source: &Source) -> Vec<String> {
        self.lock().held.mounts.get(source).map_or_else(Vec::new, |mount| mount.holders.clone())
    }

    /// Everybody who holds anything, each once.
    pub(crate) fn all_holders(&self) -> Vec<String> {
        let mut all: Vec<String> = self.lock().held.mounts.values().flat_map(|mount| mount.holders.clone()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// `holder` holds the mount from now on; it counts once.
    pub(crate) fn add_holder(&self, source: &Source, holder: &str) -> Result<()> {
        let mut inner = self.lock();
        let mount = inner.held.mounts.get_mut(source).ok_or(Failure::Interrupted)?;
        if mount.holders.iter().any(|known| known == holder) {
            return Ok(());
        }
        // With quotes and a comma.
        let bytes: usize = mount.holders.iter().map(|known| known.len() + 3).sum();
        if bytes + holder.len() + 3 > HOLDERS_BYTES_MAX {
            return Err(Failure::TooManyHolders { volume: source.volume.clone() });
        }
        mount.holders.push(holder.to_owned());
        inner.tell_holders(source);
        Ok(())
    }

    /// `holder` holds nothing any more.
    pub(crate) fn remove_holder(&self, holder: &str) {
        let mut inner = self.lock();
        let mut changed = Vec::new();
        for (source, mount) in &mut inner.held.mounts {
            let before = mount.holders.len();
            mount.holders.retain(|known| known != holder);
            if mount.holders.len() < before {
                changed.push(source.clone());
            }
        }
        changed.iter().for_each(|source| inner.tell_holders(source));
    }

    /// Tells the guardian to end with this worker.
    pub(crate) fn end(&self) {
        let mut inner = self.lock();
        inner.ended = true;
        inner.tell(|socket| message::send(socket, &Telling::End, &[]));
    }

    /// Waits for the guardian's end, and starts another one, again and again.
    fn watch(&self, config: &Config) {
        let mut child: Option<Child> = None;
        let mut pace = Pace::default();
        // A guardian says nothing once it has said all: whatever comes is its end.
        while let Ok(socket) = self.socket() {
            let _ = message::receive::<Telling>(&socket);
            if let Some(mut dead) = child.take() {
                // Not to leave a zombie.
                let _ = dead.wait();
            }
            thread::sleep(pace.pause());
            pace.started();
            let started = self.lock().start_guardian(config);
            match started {
                Ok(None) => return,
                Ok(Some(new)) => child = Some(new),
                Err(error) => tracing::error!(error = chain(&error), "cannot start another guardian of volumes"),
            }
        }
    }

    fn socket(&self) -> io::Result<OwnedFd> {
        self.lock().socket.try_clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// A guardian that has died is not told: the next one is told all.
    fn tell(&self, send: impl FnOnce(&OwnedFd) -> io::Result<()>) {
        if let Err(error) = send(&self.socket) {
            tracing::debug!(error = chain(&error), "the guardian does not listen");
        }
    }

    fn tell_holders(&self, source: &Source) {
        let Some(mount) = self.held.mounts.get(source) else { return };
        let telling = Telling::Holders { source: source.clone(), holders: mount.holders.clone() };
        self.tell(|socket| message::send(socket.as_fd(), &telling, &[]));
    }

    /// None if no guardian is wanted any more.
    fn start_guardian(&mut self, config: &Config) -> io::Result<Option<Child>> {
        if self.ended {
            return Ok(None);
        }
        tracing::warn!(mounts = self.held.mounts.len(), "the guardian of volumes died; another one takes its place");
        let (child, socket) = process::start(config, Role::Heir)?;
        self.held.tell(&socket)?;
        self.socket = socket;
        Ok(Some(child))
    }
}
