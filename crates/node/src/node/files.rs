//! File work in sandboxes: which hand works where, and when it ends.
//!
//! ```text
//! files(id, user) --admitted--> slot of the sandbox --usable--> the user's hand
//!                                  \--none, killed, late--> the keeper starts one; the old one ends with its last request
//! pause, removal --> slot: no more requests, changes are done or interrupted, the process has ended
//! ```
//!
//! A pause first makes the sandbox's phase *pausing* and then takes the slot. A start of a hand looks at the phase while it holds the slot. So
//! either the pause ends that hand, or the start is denied.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use base::{
    budget::Budget,
    id::SandboxId,
    limits::{HAND_IDLE_S, HAND_USERS_MAX, WATCH_BYTES_NODE_MAX, WATCH_BYTES_SANDBOX_MAX},
};
use hands::{Hand, Shares};
use keeper::{
    Ended, Spawned,
    protocol::{Call, StartHand},
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sandbox::{ProcessIdentity, User};
use tokio::{
    sync::{OwnedMutexGuard, OwnedRwLockWriteGuard, RwLock, watch},
    time::{Instant, timeout_at},
};

use super::{Node, lifecycle::Operation};
use crate::error::{Context, Error, Result, chain};

/// How often a hand is looked at that has nothing to do.
const IDLE_CHECK: Duration = Duration::from_secs(5);

/// How long a pause waits for file work that is under way.
pub(super) const SETTLE_MAX: Duration = Duration::from_secs(5);

/// How long a hand may take to end after its socket. It removes broken uploads meanwhile.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// How long a killed hand may take to end. One that waits for a volume that hangs takes longer.
const END_MAX: Duration = Duration::from_secs(3);

/// A hand that was started.
struct Held {
    hand: Arc<Hand>,
    process: ProcessIdentity,
    /// True from its end on.
    ended: watch::Receiver<bool>,
}

/// The hands of one sandbox.
#[derive(Default)]
struct Place {
    current: HashMap<User, Held>,
    /// Those that take no more requests, until they have ended.
    retired: Vec<Held>,
}

impl Place {
    /// Forgets those that have ended.
    fn prune(&mut self) {
        let unusable = self.current.extract_if(|_, held| !held.hand.is_usable());
        self.retired.extend(unusable.map(|(_, held)| held));
        self.retired.retain(|held| !*held.ended.borrow());
    }

    fn is_empty(&self) -> bool {
        self.current.is_empty() && self.retired.is_empty()
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Held> {
        self.current.values_mut().chain(&mut self.retired)
    }

    /// Makes room for one more hand that takes requests, by ending one that has none. Gives whether there is room.
    fn make_room(&mut self) -> bool {
        if self.current.len() < HAND_USERS_MAX {
            return true;
        }
        let idle = self.current.iter().find(|(_, held)| held.hand.idle_for().is_some()).map(|(user, _)| user.clone());
        let Some(held) = idle.and_then(|user| self.current.remove(&user)) else { return false };
        held.hand.close();
        self.retired.push(held);
        true
    }
}

type Slot = Arc<tokio::sync::Mutex<Place>>;

/// All hands of the node.
pub(super) struct Hands {
    slots: Mutex<HashMap<SandboxId, Slot>>,
    /// Outlive the hands, for a capture that holds changes.
    shares: Mutex<HashMap<SandboxId, Kept>>,
    events: Arc<Budget>,
}

/// What all hands of a sandbox share, as long as one of them needs it.
struct Kept {
    gate: Weak<RwLock<()>>,
    events: Weak<Budget>,
}

impl Default for Hands {
    fn default() -> Self {
        Self { slots: Mutex::default(), shares: Mutex::default(), events: Budget::new(WATCH_BYTES_NODE_MAX) }
    }
}

/// Changes of a sandbox's files are held until this is dropped.
pub(super) struct HeldChanges {
    _shares: Shares,
    /// None if a change did not come to its end in time.
    _gate: Option<OwnedRwLockWriteGuard<()>>,
}

impl Hands {
    fn shares(&self, id: &SandboxId) -> Shares {
        let mut all = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = all.get(id).and_then(|kept| kept.gate.upgrade().zip(kept.events.upgrade()));
        let (gate, events) = kept.unwrap_or_else(|| (Arc::default(), self.events.part(WATCH_BYTES_SANDBOX_MAX)));
        all.retain(|_, kept| kept.gate.strong_count() > 0);
        all.insert(id.clone(), Kept { gate: Arc::downgrade(&gate), events: Arc::downgrade(&events) });
        Shares { gate, events }
    }

    fn slot(&self, id: &SandboxId) -> Slot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(slots.entry(id.clone()).or_default())
    }

    /// Forgets an empty slot that nothing else waits for.
    fn tidy(&self, id: &SandboxId, place: OwnedMutexGuard<Place>) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = |slot: &Slot| Arc::strong_count(slot) <= 2;
        if place.is_empty() && slots.get(id).is_some_and(unused) {
            slots.remove(id);
        }
    }
}

impl Node {
    /// The hand that works on a sandbox's files as `user`, the default user if none is named. Ask for it again before each piece of work: it ends when it is idle.
    ///
    /// The sandbox must not be paused. Its program may have ended, and it may be frozen.
    #[tracing::instrument(skip_all, fields(sandbox = %id))]
    pub async fn files(self: &Arc<Self>, id: &SandboxId, user: Option<&str>) -> Result<Arc<Hand>> {
        self.admits(id, Operation::Files)?;
        let account = self.account(id, user).await?;
        self.hand_of(id, &account.ids).await
    }

    pub(super) async fn hand_of(self: &Arc<Self>, id: &SandboxId, user: &User) -> Result<Arc<Hand>> {
        let mut place = self.hands.slot(id).lock_owned().await;
        // Again: what ends hands changes the phase first, and takes the slot then.
        self.admits(id, Operation::Files)?;
        place.prune();
        if let Some(held) = place.current.get(user) {
            held.hand.touch();
            return Ok(Arc::clone(&held.hand));
        }
        if !place.make_room() {
            return Err(Error::TooManyUsers { max: HAND_USERS_MAX });
        }
        match self.start_hand(id, user).await {
            Ok(held) => {
                let hand = Arc::clone(&held.hand);
                place.current.insert(user.clone(), held);
                Ok(hand)
            }
            Err(error) => {
                self.hands.tidy(id, place);
                Err(error)
            }
        }
    }

    async fn start_hand(self: &Arc<Self>, id: &SandboxId, user: &User) -> Result<Held> {
        let init = self.state().sandbox(id)?.init;
        let (ours, theirs) = sys::seqpacket::pair().doing("make the socket of a file server")?;
        let keeper = self.keepers.get(StartHand::ACTION).await?;
        let started =
            keeper.call(StartHand { sandbox: id.clone(), user: user.clone() }, [&theirs]).await.map_err(Error::from);
        let Spawned { process, ended, .. } = match started {
            Err(Error::Keeper { .. }) if !init.is_alive() => {
                return Err(Error::NotRunning { id: id.clone(), state: model::SandboxState::Lost });
            }
            started => started?,
        };
        let hand = Hand::start(ours, self.hands.shares(id)).doing("watch the socket of a file server")?;
        let (end, has_ended) = watch::channel(false);
        tokio::spawn(Arc::clone(self).tend(id.clone(), Arc::downgrade(&hand), ended, end));
        Ok(Held { hand, process, ended: has_ended })
    }

    /// Ends a hand that is idle, and forgets one that has ended.
    async fn tend(self: Arc<Self>, id: SandboxId, hand: Weak<Hand>, mut ended: Ended, end: watch::Sender<bool>) {
        loop {
            tokio::select! {
                // An error: its keeper is gone, and it with it.
                _ = &mut ended => break,
                () = tokio::time::sleep(IDLE_CHECK) => {}
            }
            // One that takes no more requests ends with the last of those that it has.
            let is_done = |hand: &Arc<Hand>| {
                let idle = hand.idle_for();
                idle.is_some_and(|idle| idle.as_secs() >= HAND_IDLE_S || !hand.is_usable())
            };
            if let Some(hand) = hand.upgrade().filter(is_done) {
                hand.close();
            }
        }
        end.send_replace(true);
        let mut place = self.hands.slot(&id).lock_owned().await;
        place.prune();
        self.hands.tidy(&id, place);
    }

    /// Holds changes of a sandbox's files for a capture: those under way are done, and none begins. One that takes longer than
    /// [`SETTLE_MAX`] goes on, and may be in the capture in part.
    pub(super) async fn hold_changes(&self, id: &SandboxId) -> HeldChanges {
        let shares = self.hands.shares(id);
        let gate = tokio::time::timeout(SETTLE_MAX, Arc::clone(&shares.gate).write_owned()).await;
        if gate.is_err() {
            tracing::info!(sandbox = %id, "a change of files goes on while the sandbox is captured");
        }
        HeldChanges { _shares: shares, _gate: gate.ok() }
    }

    /// Ends all file work in a sandbox: when this returns, nothing of it changes a file any more. Changes that are under way may take
    /// `patience`; then they fail. An error means that a process does not end.
    pub(super) async fn end_hands(&self, id: &SandboxId, patience: Duration) -> Result<()> {
        let mut place = self.hands.slot(id).lock_owned().await;
        let until = Instant::now() + patience;
        for held in place.all() {
            let rest = until.saturating_duration_since(Instant::now());
            if !held.hand.settle(rest).await {
                tracing::info!(sandbox = %id, "file work is interrupted");
            }
            held.hand.close();
        }
        let (leave, end) = (Instant::now() + LEAVE_MAX, Instant::now() + LEAVE_MAX + END_MAX);
        let mut stuck = false;
        for held in place.all() {
            if timeout_at(leave, held.ended.wait_for(|ended| *ended)).await.is_err() {
                kill(held.process);
                stuck |= timeout_at(end, held.ended.wait_for(|ended| *ended)).await.is_err();
            }
        }
        place.prune();
        self.hands.tidy(id, place);
        let deadline_ms = (LEAVE_MAX + END_MAX).as_millis() as u64;
        if stuck { Err(Error::Deadline { action: "end the work on its files", deadline_ms }) } else { Ok(()) }
    }

    /// As [`Self::end_hands`], at once. The keeper kills what is left.
    pub(super) async fn drop_hands(&self, id: &SandboxId) {
        if let Err(error) = self.end_hands(id, Duration::ZERO).await {
            tracing::warn!(sandbox = %id, error = chain(&error), "a file server is left to the keeper");
        }
    }
}

fn kill(process: ProcessIdentity) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    // Identity after the pidfd: the number may be another process's by then.
    if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
        && process.is_alive()
    {
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
    }
}
