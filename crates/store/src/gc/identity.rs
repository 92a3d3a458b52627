//! Which database holds the heads of an object store: a collector with the wrong heads would take everything for garbage.

use base::frame;
use bytes::Bytes;

use super::GcError;
use crate::{
    heads::Heads,
    kind,
    object::{ObjectError, Objects},
};

const KEY: &str = "store-id";
const VERSION: u16 = 1;
const BYTES_MAX: u64 = 256;

/// Binds an object store to the database of its heads; refused if it is bound to another. Whoever opens both calls this first.
pub async fn bind(heads: &Heads, objects: &Objects) -> Result<(), GcError> {
    let unbound = match check(heads, objects).await {
        Err(GcError::Unbound) => store_id(heads).await?,
        other => return other,
    };
    let framed = frame::encode(kind::STORE_ID, VERSION, unbound.as_bytes());
    let framed = framed.map_err(|source| GcError::DamagedIdentity { source })?;
    match objects.put(KEY, framed.into()).await {
        // Another node was quicker: with the same database, it is to be hoped.
        Err(ObjectError::AlreadyExists { .. }) => check(heads, objects).await,
        other => other.map_err(|source| GcError::Identity { source }),
    }
}

/// Is the object store bound to this database?
pub(super) async fn check(heads: &Heads, objects: &Objects) -> Result<(), GcError> {
    let expected = store_id(heads).await?;
    let framed: Bytes = match objects.get(KEY, BYTES_MAX).await {
        Err(ObjectError::NotFound { .. }) => return Err(GcError::Unbound),
        other => other.map_err(|source| GcError::Identity { source })?,
    };
    let decoded = frame::decode(&framed, kind::STORE_ID, VERSION);
    let (_, found) = decoded.map_err(|source| GcError::DamagedIdentity { source })?;
    if found == expected.as_bytes() {
        return Ok(());
    }
    Err(GcError::OtherStore { expected, found: String::from_utf8_lossy(found).into_owned() })
}

async fn store_id(heads: &Heads) -> Result<String, GcError> {
    heads.store_id().await.map_err(|source| GcError::Heads { source })
}
