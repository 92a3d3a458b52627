//! One volume, or one snapshot, that is open here.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use api::volume::OpenVolume;
use fuse::{Served, clone_tree, mount, set_read_ahead};
use tokio::sync::Mutex as AsyncMutex;
use volume::{Committer, Engine, Forget, Health, Ino, Volume};

use super::{link::Link, meter::Meter, remounts};
use crate::{
    Access, BoxError, Options,
    error::chain,
    failure::{Failure, Result},
    limits::{CONFIRM_COMMITS, CONFIRM_PAUSE_MAX, FOLLOW_PAUSE, RENEWAL},
    message::Source,
};

/// See the module. Whoever uses it has an `Arc` of it; the table has one more.
pub(crate) struct Opened {
    pub(crate) source: Source,
    pub(crate) meter: Arc<Meter>,
    volume: Arc<Volume>,
    /// None: it is only read.
    committer: Option<Committer>,
    served: Mutex<Option<Arc<Served>>>,
    last_use: Mutex<Instant>,
    renewed: Mutex<Instant>,
    followed: Mutex<Instant>,
    confirmed: Mutex<Instant>,
    confirm_pause: Duration,
    /// What was forgotten at the last step: an answer that was on its way to the kernel meanwhile may have brought it back.
    forgotten: Mutex<Option<Forget>>,
    /// Held by who follows.
    pub(crate) following: Arc<AsyncMutex<()>>,
}

impl Opened {
    pub(crate) fn new(source: Source, volume: Volume, meter: Arc<Meter>, options: &Options) -> Result<Self> {
        let volume = Arc::new(volume);
        let start = || Committer::start(volume.clone(), options.commit_pause).map_err(|_| Failure::Interrupted);
        let committer = source.is_current().then(start).transpose()?;
        let [last_use, renewed, followed, confirmed] = [(); 4].map(|()| Mutex::new(Instant::now()));
        let confirm_pause = (CONFIRM_COMMITS * options.commit_pause).min(CONFIRM_PAUSE_MAX);
        let (served, forgotten, following) = Default::default();
        Ok(Self {
            source,
            meter,
            volume,
            committer,
            served,
            last_use,
            renewed,
            followed,
            confirmed,
            confirm_pause,
            forgotten,
            following,
        })
    }

    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.volume.engine()
    }

    pub(crate) fn touch(&self) {
        *lock(&self.last_use) = Instant::now();
    }

    pub(crate) fn last_use(&self) -> Instant {
        *lock(&self.last_use)
    }

    /// A new mount of it for `holder`, attached nowhere. Blocks.
    pub(crate) fn attach(&self, link: &Link, holder: &str, access: Access) -> Result<OwnedFd> {
        let mut served = lock(&self.served);
        if served.is_none() {
            *served = Some(Arc::new(self.serve(link).map_err(|source| self.unmountable(source))?));
        }
        let (tree, devices) = link
            .descriptors(&self.source)
            .ok_or(Failure::Interrupted)?
            .map_err(|error| self.unmountable(error.into()))?;
        let device = devices.first().ok_or_else(|| self.unmountable("it has no device".into()))?;
        remounts::keep_writable(&self.source, tree.as_fd()).map_err(|error| self.unmountable(error.into()))?;
        let access = match access {
            Access::ReadWrite if self.source.is_current() => fuse::Access::ReadWrite,
            Access::ReadWrite | Access::ReadOnly => fuse::Access::ReadOnly,
        };
        let name = self.source.to_string();
        let clone = clone_tree(&name, device.as_fd(), tree.as_fd(), access);
        let clone = clone.map_err(|error| self.unmountable(error.into()))?;
        link.add_holder(&self.source, holder)?;
        Ok(clone)
    }

    fn serve(&self, link: &Link) -> Result<Served, BoxError> {
        let mount = mount(&self.source.to_string())?;
        let served = Served::start(self.volume.clone(), mount.device.try_clone()?, self.fuse_options())?;
        if let Err(error) = set_read_ahead(mount.tree.as_fd()) {
            tracing::debug!(error = chain(&error), "the kernel reads ahead less than it could");
        }
        link.keep(&self.source, mount.tree, vec![mount.device]);
        Ok(served)
    }

    /// Goes on with the mount that an earlier worker served. Blocks.
    pub(crate) fn adopt(&self, link: &Link) -> Result<()> {
        let adopt = || {
            let (_, devices) = link.descriptors(&self.source).ok_or("it is not mounted")??;
            let device = devices.into_iter().next().ok_or("it has no device")?;
            Ok::<_, BoxError>(Served::adopt(self.volume.clone(), device, self.fuse_options())?)
        };
        *lock(&self.served) = Some(Arc::new(adopt().map_err(|source| self.unmountable(source))?));
        if self.source.is_followed() || self.volume.was_restored() {
            // What the kernel knows may be of an older commit, or of before the restore.
            self.forget_all();
        }
        Ok(())
    }

    fn fuse_options(&self) -> fuse::Options {
        fuse::Options { changes_by_itself: self.source.is_followed(), ..fuse::Options::default() }
    }

    fn unmountable(&self, source: BoxError) -> Failure {
        Failure::Mount { volume: self.source.volume.clone(), source }
    }

    /// What is to be told of it.
    pub(crate) fn describe(&self, holders: Vec<String>) -> OpenVolume {
        let Health { committed, failures, failure } = self.volume.health();
        let followed = self.source.is_followed();
        let because = || match &failure {
            _ if followed => "another node writes it, and what is committed there is seen here".to_owned(),
            Some(failure) => failure.clone(),
            None => "the log on this node's disk cannot be written".to_owned(),
        };
        OpenVolume {
            holders,
            dirty_bytes: self.engine().dirty_bytes().unwrap_or(0),
            last_commit_age_ms: committed.elapsed().as_millis() as u64,
            store_failures: failures,
            followed,
            read_only: self.engine().is_read_only().then(because),
            store_failure: failure,
        }
    }

    /// Whether what it keeps of the store should be prolonged.
    pub(crate) fn wants_renewal(&self) -> bool {
        !self.source.is_current() && lock(&self.renewed).elapsed() > RENEWAL
    }

    /// Prolongs it. Blocks.
    pub(crate) fn renew(&self) -> Result<()> {
        *lock(&self.renewed) = Instant::now();
        Ok(self.volume.renew()?)
    }

    /// Whether there may be something new to see of what another node writes.
    pub(crate) fn wants_to_follow(&self) -> bool {
        self.source.is_followed() && self.following.try_lock().is_ok() && lock(&self.followed).elapsed() > FOLLOW_PAUSE
    }

    /// Whether it is time to look whether another node has taken the volume over. Commits find out by themselves, but a volume in which nothing
    /// changes has none. True once for each time.
    pub(crate) fn wants_confirmation(&self) -> bool {
        let mut confirmed = lock(&self.confirmed);
        let wants = self.source.is_current() && !self.is_lost() && confirmed.elapsed() > self.confirm_pause;
        if wants {
            *confirmed = Instant::now();
        }
        wants
    }

    /// Goes on with what another node has committed. If that cannot be had, it stays as it is, and says so where it is described. For one at a time.
    /// Blocks.
    pub(crate) fn follow(&self) -> Result<()> {
        let failed_before = self.volume.health().failure.is_some();
        let followed = self.volume.follow();
        *lock(&self.followed) = Instant::now();
        if let Err(error) = &followed
            && !failed_before
        {
            tracing::warn!(source = %self.source, error = chain(error), "what another node writes is not seen");
        }
        let now = followed?;
        let again = std::mem::replace(&mut *lock(&self.forgotten), now.clone());
        let served = lock(&self.served).clone();
        if let Some(served) = served {
            [again, now].iter().flatten().for_each(|what| forget(&served, what));
        }
        Ok(())
    }

    /// The kernel forgets what it knows of these names, of the directories that they are in, and of these inodes. Blocks.
    pub(crate) fn forget(&self, names: &[(Ino, &[u8])], inodes: &[Ino]) {
        let served = lock(&self.served).clone();
        if let Some(served) = served {
            for (directory, name) in names {
                served.forget_entry(*directory, name);
                served.forget_inode(*directory);
            }
            inodes.iter().for_each(|ino| served.forget_inode(*ino));
        }
    }

    /// The kernel forgets what a restore has changed. Blocks.
    pub(crate) fn forget_restored(&self, what: &Forget) {
        let served = lock(&self.served).clone();
        if let Some(served) = served {
            // First: who looks a name up from here on gets what is true now. What was made while the restore ran has no name in a list.
            served.forget_names();
            forget(&served, what);
        }
    }

    /// The kernel forgets all that it knows. Blocks.
    pub(crate) fn forget_all(&self) {
        let served = lock(&self.served).clone();
        if let Some(served) = served {
            served.forget_all();
        }
    }

    /// Commits and closes it. Gives it back if the store is away: it is as good as it was. Blocks for as long as a program works in a mount of
    /// it although nobody holds it.
    pub(crate) fn close(self, link: &Link) -> Option<Self> {
        if let Err(error) = self.volume.commit()
            && !self.is_lost()
        {
            tracing::warn!(source = %self.source, error = chain(&error), "a volume that nobody uses cannot be committed now");
            return Some(self);
        }
        link.unmount(&self.source);
        let served = self.served.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(Err(error)) = served.and_then(Arc::into_inner).map(Served::wait) {
            tracing::warn!(source = %self.source, error = chain(&error), "a mount ended badly");
        }
        drop(self.committer);
        self.meter.add(self.volume.engine().traffic());
        // What was written since the commit, if the store has gone away since: it is in the log then.
        let closed = self.volume.engine().sync().map_err(BoxError::from).and_then(|()| Ok(self.volume.close()?));
        if let Err(error) = closed {
            tracing::warn!(source = %self.source, error = chain(&*error), "a volume was closed without a commit");
        }
        sys::heap::return_unused();
        None
    }

    /// Ends it as it is, before it is removed. Blocks as [`Opened::close`].
    pub(crate) fn discard(self, link: &Link) {
        link.unmount(&self.source);
        let served = self.served.into_inner().unwrap_or_else(PoisonError::into_inner);
        // It is over in any case.
        let _ = served.and_then(Arc::into_inner).map(Served::wait);
    }

    /// Commits it. If that cannot be done, what is not in the store is in the log. Blocks.
    pub(crate) fn save(&self) {
        if self.is_lost() {
            return;
        }
        if let Err(error) = self.volume.commit() {
            tracing::warn!(source = %self.source, error = chain(&error), "a volume is left without a commit");
            // The log says itself if it cannot.
            let _ = self.engine().sync();
        }
    }

    /// Whether nothing that is in memory can be committed any more.
    fn is_lost(&self) -> bool {
        !self.source.is_current() || self.engine().is_read_only()
    }
}

fn forget(served: &Served, what: &Forget) {
    match what {
        // Data before the names by which it is found.
        Forget::These { names, inodes } => {
            inodes.iter().for_each(|ino| served.forget_inode(*ino));
            names.iter().for_each(|(directory, name)| served.forget_entry(*directory, name));
        }
        Forget::All => served.forget_all(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
