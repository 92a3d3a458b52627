//! The table of open volumes.
//!
//! ```text
//!   absent ──open──► opening ──► open ──idle──► closing ──► absent
//!                                 ▲                │ the store is away
//!                                 └────────────────┘
//! ```
//!
//! Each source has a slot, and whoever opens or closes it has the slot's lock meanwhile: there is never more than one of a volume. A task of
//! its own does it, so that a client that goes away leaves nothing half done.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use base::id::VolumeName;
use tokio::{
    sync::{Mutex as AsyncMutex, OwnedMutexGuard},
    time::{sleep, timeout},
};
use volume::{Origin, Volume, VolumeError, Volumes};

use super::{link::Link, making::Makings, meter::Meters, opened::Opened, work::Work};
use crate::{
    Options,
    error::chain,
    failure::{Failure, Result},
    limits::{ADOPTION_PAUSE, CONFIRM_MAX, SLOT_WAIT_MAX},
    message::{Source, State},
};

type Slot = AsyncMutex<Option<Arc<Opened>>>;
/// Alone with one source.
pub(crate) type Held = OwnedMutexGuard<Option<Arc<Opened>>>;

/// See the module.
pub(crate) struct Table {
    pub(crate) volumes: Volumes,
    pub(crate) link: Link,
    pub(crate) work: Work,
    pub(crate) meters: Meters,
    pub(crate) makings: Makings,
    options: Options,
    realm: String,
    slots: Mutex<HashMap<Source, Arc<Slot>>>,
    last_use: Mutex<Instant>,
}

impl Table {
    pub(crate) fn new(volumes: Volumes, link: Link, options: Options, realm: String) -> Arc<Self> {
        let (work, meters, makings, slots) = (Work::new(), Meters::default(), Makings::new(), Mutex::default());
        let last_use = Mutex::new(Instant::now());
        Arc::new(Self { volumes, link, work, meters, makings, options, realm, slots, last_use })
    }

    /// Whose volumes they are.
    pub(crate) fn realm(&self) -> &str {
        &self.realm
    }

    /// Somebody asks for something.
    pub(crate) fn touch(&self) {
        *self.last_use.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// The volume or snapshot, open. It stays so while the answer is there. What another node has taken over meanwhile is of the past: it
    /// is opened anew, unless somebody has it mounted, who is to see errors and not another state.
    pub(crate) async fn open(self: &Arc<Self>, source: &Source) -> Result<Arc<Opened>> {
        self.open_for(source, Purpose::Write).await
    }

    /// As [`Table::open`], without taking the volume away from another node that writes it: what that has committed is opened then.
    pub(crate) async fn open_to_read(self: &Arc<Self>, source: &Source) -> Result<Arc<Opened>> {
        if !source.is_current() {
            return self.open(source).await;
        }
        let followed = Source::followed(source.volume.clone());
        let here = self.open_unless_elsewhere(source, Purpose::Read);
        let here = match self.opened(&followed) {
            // It is as good as it was if the heads are away.
            Some(_) => timeout(CONFIRM_MAX, here).await.unwrap_or(Ok(None)),
            None => here.await,
        };
        match here {
            Ok(Some(opened)) => Ok(opened),
            Ok(None) => self.open(&followed).await,
            Err(error) if error.may_pass() => self.opened(&followed).ok_or(error),
            Err(error) => Err(error),
        }
    }

    /// As [`Table::open`]; none if another node writes the volume, or was the last that did.
    pub(crate) async fn open_unless_elsewhere(
        self: &Arc<Self>,
        source: &Source,
        purpose: Purpose,
    ) -> Result<Option<Arc<Opened>>> {
        match self.open_for(source, purpose).await {
            // The latter: just now.
            Err(Failure::Volume(VolumeError::Elsewhere { .. } | VolumeError::Fenced { .. })) => Ok(None),
            opened => opened.map(Some),
        }
    }

    async fn open_for(self: &Arc<Self>, source: &Source, purpose: Purpose) -> Result<Arc<Opened>> {
        let mut held = self.hold(source).await?;
        if let Some(opened) = held.clone() {
            opened.touch();
            // Nobody else has to wait for the answer.
            drop(held);
            let is_held = || !self.link.holders(source).is_empty();
            if source.is_followed() {
                match self.follow(&opened).await {
                    Err(error) if !error.may_pass() && is_held() => return Err(error),
                    Err(error) if !error.may_pass() => {}
                    Ok(()) | Err(_) => return Ok(opened),
                }
            } else if !self.is_past(&opened).await {
                return Ok(opened);
            } else if is_held() {
                return match purpose {
                    Purpose::Read => Err(VolumeError::Elsewhere { name: source.volume.to_string() }.into()),
                    Purpose::Write | Purpose::Name => Ok(opened),
                };
            }
            held = self.hold(source).await?;
            if let Some(now) = held.as_ref().filter(|now| !Arc::ptr_eq(now, &opened)) {
                return Ok(now.clone());
            }
        }
        let (table, source) = (self.clone(), source.clone());
        let opening = tokio::spawn(async move {
            table.discard_held(&mut held).await?;
            let opened = table.open_held(&source, Opening::Anew(purpose)).await?;
            *held = Some(opened.clone());
            Ok(opened)
        });
        opening.await.map_err(|_| Failure::Interrupted)?
    }

    /// Goes on with what another node has committed. If that takes long it stays what it is, and goes on later. One after the other, before any thread
    /// is taken for it.
    async fn follow(&self, opened: &Arc<Opened>) -> Result<()> {
        let follow = async {
            let alone = opened.following.clone().lock_owned().await;
            let opened = opened.clone();
            let follow = move || {
                let _alone = alone;
                opened.follow()
            };
            self.work.run_follow(follow).await
        };
        timeout(CONFIRM_MAX, follow).await.unwrap_or(Ok(()))
    }

    /// Whether another node writes it now. One that cannot be asked changes nothing.
    async fn is_past(&self, opened: &Opened) -> bool {
        match timeout(CONFIRM_MAX, opened.volume().confirm()).await {
            Ok(Err(error)) => !Failure::from(error).may_pass(),
            Ok(Ok(())) | Err(_) => false,
        }
    }

    /// Ends what the slot has as it is.
    async fn discard_held(&self, held: &mut Held) -> Result<()> {
        let Some(opened) = held.take() else { return Ok(()) };
        let (link, volume) = (self.link.clone(), opened.source.volume.clone());
        match Arc::try_unwrap(opened) {
            Ok(opened) => {
                let discard = move || {
                    // Nobody will see it here any more, but it was promised to be in the log.
                    let _ = opened.engine().sync();
                    opened.meter.add(opened.engine().traffic());
                    opened.discard(&link);
                    Ok(())
                };
                self.work.run_whole(discard).await
            }
            // Somebody reads it, and will not for long.
            Err(used) => {
                **held = Some(used);
                Err(Failure::Closing { volume })
            }
        }
    }

    /// What is open now. Does not wait.
    pub(crate) fn opened(&self, source: &Source) -> Option<Arc<Opened>> {
        let slot = self.slots().get(source).cloned()?;
        slot.try_lock().ok()?.clone()
    }

    /// Keeps others from opening and closing it.
    pub(crate) async fn hold(&self, source: &Source) -> Result<Held> {
        let slot = self.slots().entry(source.clone()).or_default().clone();
        let held = timeout(SLOT_WAIT_MAX, slot.lock_owned()).await;
        held.map_err(|_| Failure::Closing { volume: source.volume.clone() })
    }

    /// Removes a volume, whose snapshots stay, or a snapshot. What is open of it is ended as it is.
    pub(crate) async fn remove(self: &Arc<Self>, source: Source) -> Result<()> {
        let mut held = self.hold(&source).await?;
        let mut holders = self.link.holders(&source);
        if source.is_current() {
            holders.extend(self.link.holders(&Source::followed(source.volume.clone())));
            // Who has it since before another node took it over, and its own copy, holds both.
            holders.sort_unstable();
            holders.dedup();
        }
        if !holders.is_empty() {
            return Err(Failure::Held { what: source, holders });
        }
        let table = self.clone();
        let removing = tokio::spawn(async move {
            let opened = held.take();
            let (link, volumes, origin) = (table.link.clone(), table.volumes.clone(), origin(&source));
            let forgotten = source.is_current().then(|| source.volume.clone());
            let remove = move || {
                match opened.map(Arc::into_inner) {
                    Some(Some(opened)) => opened.discard(&link),
                    // Somebody reads it still, and it ends with that.
                    Some(None) => link.unmount(&source),
                    None => {}
                }
                Ok(volumes.remove(&origin)?)
            };
            table.work.run_whole(remove).await?;
            if let Some(volume) = forgotten {
                table.meters.forget(&volume);
            }
            Ok(())
        });
        removing.await.map_err(|_| Failure::Interrupted)?
    }

    /// Goes on with what an earlier worker had mounted; programs wait until this succeeds. To be called before anybody else asks for
    /// anything: opened in another way, a volume would lose what only the kernel knows of it.
    pub(crate) fn adopt_all(self: &Arc<Self>) {
        for source in self.link.sources() {
            let slot = self.slots().entry(source.clone()).or_default().clone();
            let Ok(held) = slot.try_lock_owned() else { continue };
            let table = self.clone();
            tokio::spawn(async move { table.adopt(&source, held).await });
        }
    }

    async fn adopt(&self, source: &Source, mut held: Held) {
        loop {
            let error = match self.open_held(source, Opening::Adopted).await {
                Ok(opened) => {
                    *held = Some(opened);
                    return tracing::info!(%source, "goes on with a mount");
                }
                Err(error) => error,
            };
            if !error.may_pass() {
                tracing::error!(%source, error = chain(&error), "a mount is given up: programs that use it get errors");
                return self.link.unmount(source);
            }
            tracing::warn!(%source, error = chain(&error), "programs that use the mount wait");
            sleep(ADOPTION_PAUSE).await;
        }
    }

    /// With the slot held.
    async fn open_held(&self, source: &Source, opening: Opening) -> Result<Arc<Opened>> {
        let (volumes, link, source) = (self.volumes.clone(), self.link.clone(), source.clone());
        let (meter, options) = (self.meters.of(&source.volume), self.options.clone());
        let open = move || {
            let volume = open_volume(&volumes, &source, opening)?;
            let opened = Opened::new(source, volume, meter, &options)?;
            if let Opening::Adopted = opening {
                opened.adopt(&link)?;
            }
            Ok(Arc::new(opened))
        };
        self.work.run_whole(open).await
    }

    /// The volumes that are written here.
    pub(crate) fn open_volumes(&self) -> Vec<VolumeName> {
        let slots = self.slots();
        slots.keys().filter(|source| source.is_current()).map(|source| source.volume.clone()).collect()
    }

    /// Begins to close what nobody uses, keeps what is only read from being collected, and goes on with what other nodes write. Does not wait.
    pub(crate) fn close_idle(self: &Arc<Self>) {
        let slots: Vec<_> = self.slots().iter().map(|(source, slot)| (source.clone(), slot.clone())).collect();
        for (source, slot) in slots {
            let Ok(mut held) = slot.try_lock_owned() else { continue };
            let Some(opened) = &*held else { continue };
            let (table, opened) = (self.clone(), opened.clone());
            if opened.last_use().elapsed() > self.options.idle_close && self.link.holders(&source).is_empty() {
                drop(opened);
                tokio::spawn(async move { table.close_held(&mut held).await });
            } else if opened.wants_renewal() {
                tokio::spawn(async move { table.work.run_whole(move || opened.renew()).await });
            } else if opened.wants_to_follow() {
                // It has said what went wrong.
                tokio::spawn(async move { drop(table.follow(&opened).await) });
            } else if opened.wants_confirmation() {
                // If another node writes it, changes are refused from here on.
                tokio::spawn(async move { table.is_past(&opened).await });
            }
        }
        // Nobody has, or waits for, a slot that only the map has.
        self.slots().retain(|_, slot| Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|held| held.is_some()));
    }

    /// Commits and closes everything that is not mounted, and commits the rest.
    pub(crate) async fn close_all(&self) {
        let sources: Vec<Source> = self.slots().keys().cloned().collect();
        for source in sources {
            let Ok(mut held) = self.hold(&source).await else { continue };
            match &*held {
                Some(opened) if !self.link.holders(&source).is_empty() => {
                    let opened = opened.clone();
                    // If this fails it has said so, and the log has what is not in the store.
                    let _ = self
                        .work
                        .run_whole(move || {
                            opened.save();
                            Ok(())
                        })
                        .await;
                }
                Some(_) => self.close_held(&mut held).await,
                None => {}
            }
        }
    }

    /// Closes what the slot has, unless somebody uses it.
    async fn close_held(&self, held: &mut Held) {
        let Some(opened) = held.take() else { return };
        match Arc::try_unwrap(opened) {
            Err(used) => **held = Some(used),
            Ok(opened) => {
                let link = self.link.clone();
                if let Ok(Some(opened)) = self.work.run_whole(move || Ok(opened.close(&link))).await {
                    opened.touch();
                    **held = Some(Arc::new(opened));
                }
            }
        }
    }

    /// Whether nothing is open and nobody has asked for anything for some time.
    pub(crate) fn is_idle(&self) -> bool {
        let last_use = *self.last_use.lock().unwrap_or_else(PoisonError::into_inner);
        last_use.elapsed() > self.options.idle_exit && self.slots().is_empty() && self.link.sources().is_empty()
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<Source, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a volume is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To change it: it is taken over.
    Write,
    /// To read it.
    Read,
    /// To name or copy its state. What is mounted here is meant, whether or not it is of the past: whoever works in it has to hear.
    Name,
}

#[derive(Debug, Clone, Copy)]
enum Opening {
    Anew(Purpose),
    /// It is, unless another node has become it meanwhile.
    Adopted,
}

fn open_volume(volumes: &Volumes, source: &Source, opening: Opening) -> Result<Volume, VolumeError> {
    let name = source.volume.as_str();
    match (&source.state, opening) {
        (State::Current, Opening::Anew(Purpose::Write)) => volumes.open(name),
        (State::Current, Opening::Anew(Purpose::Read | Purpose::Name)) => volumes.open_unless_elsewhere(name),
        (State::Current, Opening::Adopted) => volumes.adopt(name),
        (State::Followed, Opening::Anew(_)) => volumes.open_to_follow(name),
        (State::Followed, Opening::Adopted) => volumes.adopt_to_follow(name),
        (State::Snapshot(_), _) => volumes.open_to_read(&origin(source)),
    }
}

/// Its name in the store.
pub(crate) fn origin(source: &Source) -> Origin {
    let volume = source.volume.to_string();
    match &source.state {
        State::Current | State::Followed => Origin::Volume(volume),
        State::Snapshot(snapshot) => Origin::Snapshot { volume, snapshot: snapshot.to_string() },
    }
}
