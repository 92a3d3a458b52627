//! Heads as rows of the database, and numbers and ids as its columns.

use std::{str::FromStr, time::SystemTime};

use sqlx::{Row, any::AnyRow};

use super::{Head, HeadName, HeadsError, database};
use crate::id::Realm;

pub(super) fn parse(realm: &Realm, row: &AnyRow) -> Result<Head, HeadsError> {
    let failed = || database("read a head's row");
    let name: String = row.try_get(0).map_err(failed())?;
    let manifest: String = row.try_get(1).map_err(failed())?;
    let generation = row.try_get(2).map_err(failed())?;
    let (updated_ms, note) = (row.try_get(3).map_err(failed())?, row.try_get(4).map_err(failed())?);
    head(realm, &parsed(name, "head's name")?, &manifest, generation, updated_ms, note)
}

pub(super) fn head(
    realm: &Realm,
    name: &HeadName,
    manifest: &str,
    generation: i64,
    updated_ms: i64,
    note: String,
) -> Result<Head, HeadsError> {
    let manifest = parsed(manifest.to_owned(), "manifest id")?;
    let unsigned = |value: i64| {
        u64::try_from(value).map_err(|_| HeadsError::Damaged { expected: "positive number", value: value.to_string() })
    };
    let (generation, updated_ms) = (unsigned(generation)?, unsigned(updated_ms)?);
    Ok(Head { realm: realm.clone(), name: name.clone(), manifest, generation, updated_ms, note })
}

pub(super) fn parsed<T: FromStr>(value: String, expected: &'static str) -> Result<T, HeadsError> {
    value.parse().map_err(|_| HeadsError::Damaged { expected, value })
}

/// SQL has no unsigned numbers. Generations count from one, and milliseconds from 1970, so that the sign is never reached.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
