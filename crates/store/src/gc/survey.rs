//! What lies in the store for a realm.

use std::time::SystemTime;

use bytes::Bytes;

use crate::{
    Store,
    id::{ManifestId, Realm, SegmentId},
    object::{Meta, ObjectError},
};

/// An object of a realm.
pub(super) struct Listed {
    pub(super) meta: Meta,
    pub(super) kind: Kind,
}

/// What an object is, by its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Manifest(ManifestId),
    Segment(SegmentId),
    /// A wrapped data key, never garbage.
    Key,
    /// Left by a collector that was killed while it looked at the time.
    Probe,
    Unknown,
}

/// All objects of the store's realm.
pub(super) async fn list(store: &Store) -> Result<Vec<Listed>, ObjectError> {
    let metas = store.objects().list(&format!("realms/{}", store.realm())).await?;
    Ok(metas.into_iter().map(|meta| Listed { kind: kind_of(store.realm(), &meta.key), meta }).collect())
}

/// What time it is by the store's clock, which is the one that says when objects were written: when an object is written now.
pub(super) async fn now(store: &Store) -> Result<SystemTime, ObjectError> {
    let mut id = [0; 16];
    base::id::fill_random(&mut id);
    let key = format!("realms/{}/gc/{}", store.realm(), base::id::hex(&id));
    store.objects().put(&key, Bytes::from_static(b"what time is it?")).await?;
    let now = store.objects().head(&key).await.map(|meta| meta.modified);
    store.objects().delete(&key).await?;
    now
}

fn kind_of(realm: &Realm, key: &str) -> Kind {
    let below = key.strip_prefix("realms/").and_then(|rest| rest.strip_prefix(realm.as_str()));
    match below.and_then(|rest| rest.strip_prefix('/')).and_then(|rest| rest.split_once('/')) {
        Some(("segments", id)) => id.parse().map_or(Kind::Unknown, Kind::Segment),
        Some(("manifests", id)) => id.parse().map_or(Kind::Unknown, Kind::Manifest),
        Some(("keys", _)) => Kind::Key,
        Some(("gc", _)) => Kind::Probe,
        _ => Kind::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_this_program_writes_has_a_kind_that_can_be_garbage() {
        let realm = "default".parse().unwrap();
        let id = "0123456789abcdef".repeat(2);
        let kind = |key: &str| kind_of(&realm, key);
        assert_eq!(kind(&format!("realms/default/segments/{id}")), Kind::Segment(id.parse().unwrap()));
        assert_eq!(kind(&format!("realms/default/manifests/{id}")), Kind::Manifest(id.parse().unwrap()));
        assert_eq!(kind("realms/default/keys/0011/test"), Kind::Key);
        for key in
            ["x", "realms/default", "realms/default2/segments/0", "realms/default/segments/x", "realms/default/new/x"]
        {
            assert_eq!(kind(key), Kind::Unknown, "{key}");
        }
        assert_eq!(kind(&format!("realms/other/segments/{id}")), Kind::Unknown);
    }
}
