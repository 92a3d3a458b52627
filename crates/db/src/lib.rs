//! SQLite and PostgreSQL behind one interface.
//!
//! [`Database`] is a pool of connections whose schema is the newest. Statements are written once and run on both:
//!
//! - Parameters are `$1`, `$2`, numbers are `BIGINT`, flags are 0 and 1, times are milliseconds since 1970.
//! - A schema says `{TEXT}` for text. Both databases then compare and sort by bytes.
//! - Sums are `CAST(... AS BIGINT)`, because PostgreSQL sums to a type of its own.
//! - What reads a row and then decides on it adds [`Database::for_update`]. SQLite has one writer and needs no
//!   such lock.
//!
//! A statement that writes is inside a transaction of [`Database::begin`] or [`Database::begin_relaxed`]. [`retry`]
//! repeats a transaction that lost against another one.

mod database;
pub mod limits;
mod migrate;
mod retry;
mod rows;

use std::path::PathBuf;

pub use self::{
    database::{Database, Engine},
    migrate::Schema,
    retry::{Transient, retry},
    rows::Fields,
};

/// Why the database did not do what it was asked. A transaction that fails has changed nothing, except perhaps if its
/// commit failed: the answer may have been lost.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // of the fields: the messages say it
pub enum DbError {
    /// The address names no database that this crate can open.
    #[error("the database's address must begin with sqlite: or postgres:")]
    Url,
    /// The path names no file of a database.
    #[error("{path:?} cannot be a database's path")]
    Path { path: PathBuf, source: std::io::Error },
    /// A newer program has changed the schema.
    #[error("the {schema} database has schema version {found}, this program knows up to {newest}: use a newer program")]
    NewerSchema { schema: &'static str, found: i64, newest: i64 },
    /// An earlier migration was not the one that this program has.
    #[error(
        "version {version} of the {schema} database was made by another migration than this program's: \
        it belongs to a build that was never released, so restore a backup or begin with a new database"
    )]
    OtherSchema { schema: &'static str, version: i64 },
    /// A row does not hold what this program writes.
    #[error("the database holds {value:?} where a {expected} should be")]
    Damaged { expected: &'static str, value: String },
    /// The database refused or cannot be reached.
    #[error("cannot {operation}")]
    Database { operation: &'static str, source: sqlx::Error },
}

/// Puts `operation` beside an error of the database.
pub fn failed(operation: &'static str) -> impl FnOnce(sqlx::Error) -> DbError {
    move |source| DbError::Database { operation, source }
}
