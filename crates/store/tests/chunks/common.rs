//! What the tests of the store share. Every scenario takes a location, so that it runs over a directory and over a real S3 service.

use std::{path::Path, sync::Arc, time::Duration};

use store::{
    Store,
    cache::Cache,
    keys::{MasterKeys, RealmKeys},
    object::{Location, Objects, RequestOptions},
};

/// Pauses of a millisecond instead of fifty.
pub(crate) fn quick() -> RequestOptions {
    RequestOptions { backoff: Duration::from_millis(1), ..RequestOptions::default() }
}

pub(crate) fn directory(path: &Path) -> Location {
    Location::Directory(path.to_owned())
}

pub(crate) fn open(location: &Location) -> Objects {
    Objects::open(location, quick()).unwrap()
}

pub(crate) fn masters() -> Arc<MasterKeys> {
    Arc::new(MasterKeys::parse(&format!("test:{}", "0123456789abcdef".repeat(4)), "the test").unwrap())
}

pub(crate) fn keys(objects: &Objects, realm: &str) -> RealmKeys {
    RealmKeys::new(objects.clone(), masters(), realm.parse().unwrap())
}

pub(crate) fn store(objects: &Objects, cache: Option<Arc<Cache>>) -> Store {
    Store::new(objects.clone(), keys(objects, "test"), cache, None)
}

/// Repeatable bytes that do not compress and differ with `seed`.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

/// The bytes of all files below `folder`.
pub(crate) fn all_bytes(folder: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        bytes.extend(if path.is_dir() { all_bytes(&path) } else { std::fs::read(&path).unwrap() });
    }
    bytes
}

pub(crate) fn contains(bytes: &[u8], canary: &[u8]) -> bool {
    bytes.windows(canary.len()).any(|window| window == canary)
}
