//! Keys that were found valid a moment ago.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use base::{
    id::KeyId,
    limits::{KEY_BELIEVED, KEYS_REMEMBERED_MAX},
};

use crate::{Caller, Time};

/// Callers by the hashes of their keys.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    callers: HashMap<String, (Caller, Time)>,
    /// Counts revocations. A caller that was read from the database before one is not remembered after it.
    epoch: u64,
}

impl Cache {
    fn lock(&self) -> MutexGuard<'_, Known> {
        // No operation leaves it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    pub(super) fn get(&self, hash: &str, now: Time) -> Option<Caller> {
        let known = self.lock();
        let (caller, found) = known.callers.get(hash)?;
        // A clock that was set back must not let a key live for ever.
        (*found <= now && now.since(*found) < KEY_BELIEVED).then(|| caller.clone())
    }

    pub(super) fn put(&self, hash: String, caller: Caller, now: Time, epoch: u64) {
        let mut known = self.lock();
        if known.epoch != epoch {
            return;
        }
        if known.callers.len() >= KEYS_REMEMBERED_MAX {
            known.callers.clear();
        }
        known.callers.insert(hash, (caller, now));
    }

    pub(super) fn forget(&self, id: &KeyId) {
        let mut known = self.lock();
        known.epoch += 1;
        known.callers.retain(|_, (caller, _)| caller.key != *id);
    }
}

#[cfg(test)]
mod tests {
    use base::id::TeamId;

    use super::*;

    #[test]
    fn a_key_revoked_while_it_was_looked_up_is_not_remembered() {
        let (cache, now) = (Cache::default(), Time::from_ms(1));
        let caller = Caller { team: TeamId::random(), key: KeyId::random(), scopes: Default::default() };
        let epoch = cache.epoch();
        cache.forget(&caller.key);
        cache.put("hash".to_owned(), caller.clone(), now, epoch);
        assert_eq!(cache.get("hash", now), None);
        cache.put("hash".to_owned(), caller.clone(), now, cache.epoch());
        assert_eq!(cache.get("hash", now), Some(caller));
        assert_eq!(cache.get("hash", now + KEY_BELIEVED), None);
        assert_eq!(cache.get("hash", Time::from_ms(0)), None);
    }
}
