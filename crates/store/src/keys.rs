//! Keys: a realm's data keys, each wrapped by a master key that never leaves its [`KeyProvider`].
//!
//! A data key is 32 random bytes and lies, wrapped, in the object `realms/REALM/keys/KEY/MASTER`: one object for each master key it
//! is wrapped by. Losing the master keys is losing the data.

use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{
    id::{KeyId, Realm, unhex},
    kind,
    object::{ObjectError, Objects},
};

mod master;

pub use master::MasterKeys;

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum KeyError {
    #[error("master key {master:?} is not among the known ones ({known}): add it to the master keys")]
    UnknownMaster { master: String, known: String },
    #[error("realm {realm} has no data key {key}")]
    UnknownKey { realm: Realm, key: KeyId },
    #[error(
        "the wrapped data key does not open with master key {master:?}: it is damaged, or the master key is another one of that name"
    )]
    Unwrap { master: String },
    #[error(
        "the wrapped data key {object} is damaged: bring this object back from a copy, as what it seals cannot be read without it"
    )]
    Damaged { object: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the master keys in {place} are not usable: {rule}")]
    MasterKeys { place: String, rule: String },
    #[error("the data keys of realm {realm} are out of reach")]
    Objects { realm: Realm, source: ObjectError },
}

/// Who holds the master keys: a file, the environment, a key management service.
#[async_trait]
pub trait KeyProvider: Send + Sync {
    /// The master key that wraps new data keys. A name as a realm's.
    fn current(&self) -> &str;

    /// `secret`, sealed by the current master key and bound to `context`.
    async fn wrap(&self, context: &[u8], secret: &[u8; 32]) -> Result<Vec<u8>, KeyError>;

    /// What was wrapped by `master` with the same context.
    async fn unwrap(&self, master: &str, context: &[u8], wrapped: &[u8]) -> Result<Zeroizing<[u8; 32]>, KeyError>;
}

/// A data key of a realm.
pub struct DataKey {
    id: KeyId,
    /// Which of the realm's keys is the newest.
    sequence: u32,
    secret: Zeroizing<[u8; 32]>,
}

impl DataKey {
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn new(id: KeyId, sequence: u32, secret: [u8; 32]) -> Self {
        Self { id, sequence, secret: Zeroizing::new(secret) }
    }

    /// Its identifier, which each chunk that it seals carries.
    pub fn id(&self) -> KeyId {
        self.id
    }

    pub(crate) fn secret(&self) -> &[u8; 32] {
        &self.secret
    }
}

/// The object that holds a wrapped key: this as JSON, framed.
#[derive(Serialize, Deserialize)]
struct Wrapped {
    sequence: u32,
    wrapped: String,
}

/// What [`RealmKeys::rewrap`] has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrapped {
    /// The current master key, which alone opens all data keys now.
    pub master: String,
    /// Data keys of the realm.
    pub keys: u64,
    /// Those that it did not wrap before.
    pub wrapped: u64,
}

/// The data keys of one realm.
pub struct RealmKeys {
    realm: Realm,
    objects: Objects,
    provider: Arc<dyn KeyProvider>,
    known: RwLock<HashMap<KeyId, Arc<DataKey>>>,
    /// Whether these are all that there were at some time: the newest of them may seal then.
    all_known: AtomicBool,
    /// Held while keys are read or made, so that many who want one cause it once.
    obtaining: tokio::sync::Mutex<()>,
}

impl RealmKeys {
    /// The keys of `realm`; nothing is read before a key is needed.
    pub fn new(objects: Objects, provider: Arc<dyn KeyProvider>, realm: Realm) -> Self {
        let (known, all_known, obtaining) = (RwLock::default(), AtomicBool::new(false), tokio::sync::Mutex::default());
        Self { realm, objects, provider, known, all_known, obtaining }
    }

    /// Whose keys these are.
    pub fn realm(&self) -> &Realm {
        &self.realm
    }

    /// The key that seals new segments. The first one of a realm is made here. Two nodes that make it at once make two; both are good.
    pub async fn current(&self) -> Result<Arc<DataKey>, KeyError> {
        if let Some(newest) = self.newest() {
            return Ok(newest);
        }
        let _only = self.obtaining.lock().await;
        if let Some(newest) = self.newest() {
            return Ok(newest);
        }
        self.load().await?;
        match self.newest() {
            Some(newest) => Ok(newest),
            None => self.add(0).await,
        }
    }

    /// Reads the keys that there are, unless some are known: whoever will need one need not wait for the object store then.
    pub async fn preload(&self) -> Result<(), KeyError> {
        let _only = self.obtaining.lock().await;
        if self.newest().is_some() { Ok(()) } else { self.load().await }
    }

    /// The key with this identifier, also if another node has made it since. What is wrong with other keys does not matter.
    pub async fn get(&self, id: KeyId) -> Result<Arc<DataKey>, KeyError> {
        if let Some(key) = self.known(id) {
            return Ok(key);
        }
        let _only = self.obtaining.lock().await;
        if let Some(key) = self.known(id) {
            return Ok(key);
        }
        let key = match self.read(id).await {
            Err(error) if is_gone(&error) => self.read(id).await?,
            read => read?,
        };
        Ok(self.remember(key))
    }

    /// Its wrapping is gone, if another node wraps it anew, between the list and the look at it.
    async fn read(&self, id: KeyId) -> Result<DataKey, KeyError> {
        let masters = self.wrappings().await?.remove(&id).unwrap_or_default();
        self.unwrap_any(id, &masters).await
    }

    /// Makes a new data key, which seals what is written from now on. (Another node goes on with the key that it knows until it
    /// starts again.) The earlier keys stay: what they sealed is not written again.
    pub async fn rotate(&self) -> Result<Arc<DataKey>, KeyError> {
        let _only = self.obtaining.lock().await;
        self.load().await?;
        let next = self.newest().map_or(0, |newest| newest.sequence + 1);
        self.add(next).await
    }

    /// Wraps every data key by the current master key and removes the wrappings by others. Let every node know the new master key
    /// before, and forget the old one after. It may fail half way: every key opens all the same, and repeating it does the rest.
    pub async fn rewrap(&self) -> Result<Rewrapped, KeyError> {
        let current = self.provider.current();
        let mut done = Rewrapped { master: current.to_owned(), keys: 0, wrapped: 0 };
        for (id, masters) in self.wrappings().await? {
            let others: Vec<&String> = masters.iter().filter(|master| *master != current).collect();
            let key = if others.len() < masters.len() {
                // What it is wrapped by has to open before the others go.
                self.unwrap(id, current).await?
            } else {
                let key = self.unwrap_any(id, &masters).await?;
                self.store(&key).await?;
                self.unwrap(id, current).await?;
                done.wrapped += 1;
                key
            };
            for master in &others {
                self.objects.delete(&self.object(id, master)).await.map_err(|source| self.unreachable(source))?;
            }
            if !others.is_empty() {
                // Another node, whose current master key is another one, may have removed this wrapping at the same time.
                self.store(&key).await?;
            }
            done.keys += 1;
        }
        Ok(done)
    }

    /// The key with this identifier, if it was read before: asks nobody.
    pub fn known(&self, id: KeyId) -> Option<Arc<DataKey>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// None: there is none, or nobody knows yet.
    fn newest(&self) -> Option<Arc<DataKey>> {
        if !self.all_known.load(Ordering::Acquire) {
            return None;
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.values().max_by_key(|key| (key.sequence, key.id)).cloned()
    }

    fn remember(&self, key: DataKey) -> Arc<DataKey> {
        let key = Arc::new(key);
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(key.id, key.clone());
        key
    }

    async fn add(&self, sequence: u32) -> Result<Arc<DataKey>, KeyError> {
        let mut secret = Zeroizing::new([0; 32]);
        base::id::fill_random(&mut secret[..]);
        let key = DataKey { id: KeyId::random(), sequence, secret };
        self.store(&key).await?;
        Ok(self.remember(key))
    }

    async fn load(&self) -> Result<(), KeyError> {
        for (id, masters) in self.wrappings().await? {
            if self.known(id).is_none() {
                let key = match self.unwrap_any(id, &masters).await {
                    Err(error) if is_gone(&error) => self.read(id).await?,
                    read => read?,
                };
                self.remember(key);
            }
        }
        self.all_known.store(true, Ordering::Release);
        Ok(())
    }

    /// Which data keys there are, and by which master keys each is wrapped.
    async fn wrappings(&self) -> Result<HashMap<KeyId, Vec<String>>, KeyError> {
        let folder = format!("realms/{}/keys", self.realm);
        let mut found: HashMap<KeyId, Vec<String>> = HashMap::new();
        for meta in self.objects.list(&folder).await.map_err(|source| self.unreachable(source))? {
            let Some((id, master)) = meta.key[folder.len()..].trim_start_matches('/').split_once('/') else { continue };
            if let Ok(id) = id.parse() {
                found.entry(id).or_default().push(master.to_owned());
            }
        }
        Ok(found)
    }

    /// The key, by the first of its master keys that opens it; the current one first.
    async fn unwrap_any(&self, id: KeyId, masters: &[String]) -> Result<DataKey, KeyError> {
        let mut masters: Vec<&String> = masters.iter().collect();
        masters.sort_by_key(|master| *master != self.provider.current());
        let mut failure = KeyError::UnknownKey { realm: self.realm.clone(), key: id };
        for master in masters {
            match self.unwrap(id, master).await {
                Ok(key) => return Ok(key),
                Err(gone) if is_gone(&gone) => failure = gone,
                // It may be the one that opens it.
                Err(unreachable @ KeyError::Objects { .. }) => return Err(unreachable),
                // A wrapping that is damaged says more than one that is not for us.
                Err(error) if matches!(failure, KeyError::UnknownKey { .. } | KeyError::UnknownMaster { .. }) => {
                    failure = error;
                }
                Err(_) => {}
            }
        }
        Err(failure)
    }

    async fn unwrap(&self, id: KeyId, master: &str) -> Result<DataKey, KeyError> {
        let object = self.object(id, master);
        let damaged = |source| KeyError::Damaged { object: object.clone(), source };
        let bytes = self.objects.get(&object, 1 << 10).await.map_err(|source| self.unreachable(source))?;
        let (sequence, wrapped) = parse_wrapped(&bytes).map_err(damaged)?;
        let context = self.context(id, sequence, master);
        let secret = self.provider.unwrap(master, &context, &wrapped).await?;
        Ok(DataKey { id, sequence, secret })
    }

    async fn store(&self, key: &DataKey) -> Result<(), KeyError> {
        let master = self.provider.current();
        let wrapped = self.provider.wrap(&self.context(key.id, key.sequence, master), &key.secret).await?;
        let record = Wrapped { sequence: key.sequence, wrapped: base::id::hex(&wrapped) };
        let json = serde_json::to_vec(&record).expect("a number and a text are JSON");
        let framed = base::frame::encode(kind::WRAPPED_KEY, 1, &json).expect("it has a hundred bytes");
        match self.objects.put(&self.object(key.id, master), framed.into()).await {
            // Another node is wrapping the same keys.
            Ok(()) | Err(ObjectError::AlreadyExists { .. }) => Ok(()),
            Err(source) => Err(self.unreachable(source)),
        }
    }

    fn object(&self, id: KeyId, master: &str) -> String {
        format!("realms/{}/keys/{id}/{master}", self.realm)
    }

    /// What a wrapping is bound to: nobody can pass one key off as another, as a newer one, or as another realm's.
    fn context(&self, id: KeyId, sequence: u32, master: &str) -> Vec<u8> {
        format!("pando data key 1 {} {id} {sequence} {master}", self.realm).into_bytes()
    }

    fn unreachable(&self, source: ObjectError) -> KeyError {
        KeyError::Objects { realm: self.realm.clone(), source }
    }
}

fn is_gone(error: &KeyError) -> bool {
    matches!(error, KeyError::Objects { source: ObjectError::NotFound { .. }, .. })
}

/// Sequence number and ciphertext in the object of a wrapped key.
pub(crate) fn parse_wrapped(object: &[u8]) -> Result<(u32, Vec<u8>), Box<dyn std::error::Error + Send + Sync>> {
    let (_, json) = base::frame::decode(object, kind::WRAPPED_KEY, 1)?;
    let record: Wrapped = serde_json::from_slice(json)?;
    let mut wrapped = vec![0; record.wrapped.len() / 2];
    match unhex(&record.wrapped, &mut wrapped) {
        true => Ok((record.sequence, wrapped)),
        false => Err("its wrapped key is not hexadecimal".into()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_truncation_and_every_bit_flip_of_a_wrapped_key_is_refused() {
        let golden = include_bytes!("../tests/golden/wrapped-key-v1.bin");
        assert_eq!(super::parse_wrapped(golden).unwrap().1.len(), 12 + 32 + 16);
        for length in 0..golden.len() {
            assert!(super::parse_wrapped(&golden[..length]).is_err(), "cut to {length}");
        }
        let mut flipped = *golden;
        for bit in 0..golden.len() * 8 {
            flipped[bit / 8] ^= 1 << (bit % 8);
            // Version 0 means what 1 does.
            assert!(super::parse_wrapped(&flipped).is_err() || bit == 48, "bit {bit}");
            flipped[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
