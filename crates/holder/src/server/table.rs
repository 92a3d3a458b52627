//! Which commands there are, and how many there may be.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use base::limits::{
    COMMANDS_PER_NODE_MAX, COMMANDS_PER_SANDBOX_MAX, ENDED_COMMANDS_BYTES_MAX, ENDED_COMMANDS_PER_SANDBOX_MAX,
};

use crate::{
    error::{Error, Refusal},
    held::Held,
};

/// All commands by key, and the clients.
#[derive(Debug, Default)]
pub(crate) struct Table(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    commands: HashMap<String, Arc<Held>>,
    /// Sandboxes in which a command is about to start, by the number of the place.
    reserved: HashMap<u64, String>,
    next: u64,
    clients: usize,
}

/// The place of a command that is about to start. Dropped, it is free again.
#[derive(Debug)]
pub(crate) struct Place {
    table: Arc<Mutex<Inner>>,
    number: u64,
}

/// A client that is connected.
#[derive(Debug)]
pub(crate) struct Present(Arc<Mutex<Inner>>);

impl Table {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }

    pub(crate) fn client(&self) -> Present {
        self.lock().clients += 1;
        Present(Arc::clone(&self.0))
    }

    /// A place for one more command of a sandbox.
    pub(crate) fn reserve(&self, sandbox: &str, key: &str) -> Result<Place, Error> {
        let mut inner = self.lock();
        let too_many = |message: String| Err(Error::Refused { refusal: Refusal::TooMany, message });
        if inner.commands.contains_key(key) {
            return Err(Error::Refused { refusal: Refusal::Invalid, message: format!("there is a command {key}") });
        }
        let running = inner.commands.values().filter(|held| held.record.end().is_none());
        let (mut here, mut all) = (0, 0);
        for of in running.map(|held| &held.meta.sandbox).chain(inner.reserved.values()) {
            all += 1;
            here += usize::from(of == sandbox);
        }
        if here >= COMMANDS_PER_SANDBOX_MAX {
            return too_many(format!("at most {COMMANDS_PER_SANDBOX_MAX} commands run at a time in a sandbox"));
        }
        if all >= COMMANDS_PER_NODE_MAX {
            return too_many(format!("at most {COMMANDS_PER_NODE_MAX} commands run at a time on a node"));
        }
        inner.next += 1;
        let number = inner.next;
        inner.reserved.insert(number, sandbox.to_owned());
        Ok(Place { table: Arc::clone(&self.0), number })
    }

    pub(crate) fn enter(&self, held: &Arc<Held>) {
        self.lock().commands.insert(held.meta.key.clone(), Arc::clone(held));
    }

    pub(crate) fn get(&self, key: &str) -> Option<Arc<Held>> {
        self.lock().commands.get(key).cloned()
    }

    /// As [`Self::get`], for a client.
    pub(crate) fn find(&self, key: &str) -> Result<Arc<Held>, Error> {
        let missing = || Error::Refused { refusal: Refusal::NotFound, message: format!("no command {key} is held") };
        self.get(key).ok_or_else(missing)
    }

    pub(crate) fn remove(&self, key: &str) -> Option<Arc<Held>> {
        self.lock().commands.remove(key)
    }

    /// Commands whose process has begun.
    pub(crate) fn begun(&self) -> Vec<Arc<Held>> {
        self.lock().commands.values().cloned().collect()
    }

    /// Commands of one sandbox, or all.
    pub(crate) fn of(&self, sandbox: Option<&str>) -> Vec<Arc<Held>> {
        let is_asked = |held: &&Arc<Held>| sandbox.is_none_or(|sandbox| held.meta.sandbox == sandbox);
        self.lock().commands.values().filter(is_asked).cloned().collect()
    }

    /// Ended commands that are more than may be kept. One that is not settled stays: a node has to do something about
    /// it.
    pub(crate) fn surplus(&self) -> Vec<String> {
        let inner = self.lock();
        let settled = inner.commands.values().filter(|held| held.record.is_settled());
        let ended = settled.filter_map(|held| {
            let ended_ms = held.record.end()?.ended_ms;
            let ended = Ended { key: held.meta.key.clone(), bytes: held.record.kept(), ended_ms };
            Some((held.meta.sandbox.clone(), ended))
        });
        surplus(ended.collect())
    }

    /// Running and ended.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let inner = self.lock();
        let ended = inner.commands.values().filter(|held| held.record.end().is_some()).count();
        (inner.commands.len() - ended, ended)
    }

    /// Whether it holds nothing and has no client.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_empty() && self.lock().clients == 0
    }

    /// Whether it holds nothing.
    pub(crate) fn is_empty(&self) -> bool {
        let inner = self.lock();
        inner.commands.is_empty() && inner.reserved.is_empty()
    }
}

fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    // Nothing panics in the middle of a change.
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.table).reserved.remove(&self.number);
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        lock(&self.0).clients -= 1;
    }
}

/// Of an ended command, what counts.
#[derive(Debug, Clone)]
struct Ended {
    key: String,
    bytes: u64,
    ended_ms: u64,
}

fn surplus(mut ended: Vec<(String, Ended)>) -> Vec<String> {
    // The newest first.
    ended.sort_by_key(|(_, ended)| std::cmp::Reverse(ended.ended_ms));
    let (mut per_sandbox, mut bytes) = (HashMap::<String, usize>::new(), 0);
    let mut surplus = Vec::new();
    for (sandbox, ended) in ended {
        let count = per_sandbox.entry(sandbox).or_default();
        if *count >= ENDED_COMMANDS_PER_SANDBOX_MAX || bytes + ended.bytes > ENDED_COMMANDS_BYTES_MAX {
            surplus.push(ended.key);
        } else {
            *count += 1;
            bytes += ended.bytes;
        }
    }
    surplus
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(sandbox: &str, key: u64, bytes: u64) -> (String, Ended) {
        (sandbox.to_owned(), Ended { key: key.to_string(), bytes, ended_ms: key })
    }

    #[test]
    fn the_oldest_ends_of_a_sandbox_go_first() {
        let most = ENDED_COMMANDS_PER_SANDBOX_MAX as u64;
        let mut all: Vec<_> = (0..most + 2).map(|key| ended("a", key, 0)).collect();
        all.push(ended("b", 0, 0));
        assert_eq!(surplus(all), ["1", "0"]);
    }

    #[test]
    fn output_of_ended_commands_is_bounded_over_all_sandboxes() {
        let (large, most) = (2 << 20, ENDED_COMMANDS_BYTES_MAX / (2 << 20));
        let all = (0..most + 3).map(|key| ended(&key.to_string(), key, large)).collect();
        assert_eq!(surplus(all), ["2", "1", "0"]);
    }

    #[test]
    fn a_sandbox_has_a_bounded_number_of_commands() {
        let table = Table::default();
        let mut places: Vec<_> =
            (0..COMMANDS_PER_SANDBOX_MAX).map(|key| table.reserve("a", &key.to_string()).unwrap()).collect();
        let refused = table.reserve("a", "one more").unwrap_err();
        assert_eq!(refused.refusal(), Some(Refusal::TooMany));
        assert!(table.reserve("b", "another").is_ok());
        places.pop();
        assert!(table.reserve("a", "one more").is_ok());
    }
}
