//! Turns of one kind of work, shared out among volumes: however many of one volume are waited for, another one has its turn.
//!
//! A volume gets one more turn as long as it has fewer than are free. So one volume alone has half of them at most, two have a third each, and so on:
//! whoever comes next always finds a free one, until there are as many busy volumes as turns. Among those that may go on the first goes first.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use base::id::VolumeName;
use tokio::sync::oneshot;

/// See the module. Clones share it.
#[derive(Clone)]
pub(crate) struct Turns(Arc<Mutex<State>>);

struct State {
    free: usize,
    /// How many each volume has; those with none are not in it.
    of: HashMap<VolumeName, usize>,
    waiting: VecDeque<(VolumeName, oneshot::Sender<Turn>)>,
}

/// A turn. It ends when this is dropped.
pub(crate) struct Turn {
    turns: Turns,
    volume: VolumeName,
}

impl Turns {
    pub(crate) fn new(most: usize) -> Self {
        let state = State { free: most, of: HashMap::new(), waiting: VecDeque::new() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Waits for a turn of `volume`, in the order of these calls. None when the runtime ends.
    pub(crate) fn take(&self, volume: &VolumeName) -> impl Future<Output = Option<Turn>> + use<> {
        let mut state = self.lock();
        let taken = if state.take(volume) {
            Ok(self.turn(volume))
        } else {
            let (sender, turn) = oneshot::channel();
            state.waiting.push_back((volume.clone(), sender));
            Err(turn)
        };
        drop(state);
        async {
            match taken {
                Ok(turn) => Some(turn),
                Err(turn) => turn.await.ok(),
            }
        }
    }

    fn turn(&self, volume: &VolumeName) -> Turn {
        Turn { turns: self.clone(), volume: volume.clone() }
    }

    /// A turn of `volume` has ended: others may have theirs.
    fn end(&self, volume: &VolumeName) {
        let mut granted = Vec::new();
        {
            let mut state = self.lock();
            state.give_back(volume);
            while let Some(next) = state.next() {
                granted.push(next);
            }
        }
        // Without the lock: a turn that is not wanted any more ends at once.
        for (volume, sender) in granted {
            let _ = sender.send(self.turn(&volume));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn may_take(&self, volume: &VolumeName) -> bool {
        self.of.get(volume).copied().unwrap_or(0) < self.free
    }

    fn take(&mut self, volume: &VolumeName) -> bool {
        let may = self.may_take(volume);
        if may {
            self.free -= 1;
            *self.of.entry(volume.clone()).or_default() += 1;
        }
        may
    }

    fn give_back(&mut self, volume: &VolumeName) {
        self.free += 1;
        if let Some(has) = self.of.get_mut(volume) {
            *has -= 1;
            if *has == 0 {
                self.of.remove(volume);
            }
        }
    }

    /// The first that waits and may go on, with its turn.
    fn next(&mut self) -> Option<(VolumeName, oneshot::Sender<Turn>)> {
        self.waiting.retain(|(_, sender)| !sender.is_closed());
        let at = self.waiting.iter().position(|(volume, _)| self.may_take(volume))?;
        let next = self.waiting.remove(at)?;
        self.take(&next.0).then_some(next)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.end(&self.volume);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn volume(name: &str) -> VolumeName {
        name.parse().unwrap()
    }

    /// As many turns as there are to be had at once.
    fn all(turns: &Turns, name: &str) -> Vec<Turn> {
        std::iter::from_fn(|| turns.take(&volume(name)).now_or_never().flatten()).collect()
    }

    #[test]
    fn a_volume_that_takes_all_it_can_leaves_turns_for_others() {
        let turns = Turns::new(64);
        let first = all(&turns, "a");
        let second = all(&turns, "b");
        assert_eq!((first.len(), second.len()), (32, 16));
        // Blocked for ever, as those before: there is always one more.
        let more: Vec<_> = (0..4).map(|number| all(&turns, &format!("more-{number}"))).collect();
        assert_eq!(more.iter().map(Vec::len).collect::<Vec<_>>(), [8, 4, 2, 1]);
        drop((first, second, more));
        assert_eq!(all(&turns, "a").len(), 32);
    }

    #[test]
    fn one_that_waits_goes_on_before_the_rest_of_a_busy_volume() {
        let turns = Turns::new(2);
        let mut busy = all(&turns, "busy");
        assert_eq!(busy.len(), 1);
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(turns.take(&volume("busy")))).collect();
        assert!(waiting.iter_mut().all(|waiting| waiting.now_or_never().is_none()));
        let quiet = turns.take(&volume("quiet")).now_or_never().flatten();
        assert!(quiet.is_some(), "a hundred of another volume wait before it");
        let mut again = Box::pin(turns.take(&volume("quiet")));
        assert!((&mut again).now_or_never().is_none());
        drop(quiet);
        // The quiet one has none now, and one is free. The busy one has one, as many as are free.
        assert!((&mut again).now_or_never().flatten().is_some());
        busy.clear();
        assert!((&mut waiting[0]).now_or_never().flatten().is_some());
    }

    #[test]
    fn a_turn_that_is_not_wanted_any_more_goes_to_the_next() {
        let turns = Turns::new(2);
        let busy = all(&turns, "a");
        let mut given_up = Box::pin(turns.take(&volume("a")));
        let mut kept = Box::pin(turns.take(&volume("a")));
        assert!((&mut given_up).now_or_never().is_none() && (&mut kept).now_or_never().is_none());
        drop(given_up);
        drop(busy);
        assert!(kept.now_or_never().flatten().is_some());
        assert_eq!(all(&turns, "a").len(), 1);
    }
}
