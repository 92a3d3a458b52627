//! The tables of heads, leases and peers, on SQLite or PostgreSQL.

use db::{DbError, Schema};

use super::HeadsError;

/// What this crate has in the database.
pub(super) const SCHEMA: Schema = Schema {
    name: "heads",
    migrations: &[
        include_str!("schema_1.sql"),
        include_str!("schema_2.sql"),
        include_str!("schema_3.sql"),
        include_str!("schema_4.sql"),
    ],
    first_rows: "INSERT INTO heads_store (id, generation) VALUES ('{RANDOM}', 0)",
};

/// Puts `operation` beside an error of the database.
pub(super) fn database(operation: &'static str) -> impl FnOnce(sqlx::Error) -> HeadsError {
    move |source| HeadsError::Database(DbError::Database { operation, source })
}
