//! Migrations: forward only, each applied once, each checked by its digest.
//!
//! ```text
//!   table NAME_schema: one row, the version        table NAME_migrations: (version, SHA-256 of the migration's text)
//! ```
//!
//! All migrations of one opening are one transaction. Two servers that open a new database migrate it one after the
//! other.

use base::id::hex;
use ring::digest::{SHA256, digest};
use sqlx::{AnyConnection, AssertSqlSafe, Executor};

use crate::{Database, DbError, Engine, Fields, failed};

/// The tables of one user of a database.
#[derive(Debug, Clone, Copy)]
pub struct Schema {
    /// Begins the names of the two tables that this crate keeps for it. A plain word.
    pub name: &'static str,
    /// Each entry brings the schema from the version that is its index to the next one. Entries are never changed, only
    /// added.
    pub migrations: &'static [&'static str],
    /// Statements for a new database, after its migrations, or nothing. `{RANDOM}` in them is 32 random hexadecimal
    /// digits.
    pub first_rows: &'static str,
}

/// Brings `schema` up to date.
pub(crate) async fn migrate(database: &Database, schema: &Schema) -> Result<(), DbError> {
    let failed = || failed("migrate the database");
    let mut transaction = database.begin().await?;
    if database.engine() == Engine::Postgres {
        let lock = sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(lock_number(schema.name));
        lock.execute(&mut *transaction).await.map_err(failed())?;
    }
    let version = version(&mut transaction, schema.name).await?;
    let newest = schema.migrations.len() as i64;
    if version > newest {
        return Err(DbError::NewerSchema { schema: schema.name, found: version, newest });
    }
    check(&mut transaction, schema).await?;
    for (step, number) in schema.migrations.iter().zip(1..) {
        if number > version {
            let text = dialect(database.engine(), step);
            transaction.execute(sqlx::raw_sql(AssertSqlSafe(text))).await.map_err(failed())?;
        }
        note(&mut transaction, schema.name, number, step).await.map_err(failed())?;
    }
    if version == 0 && !schema.first_rows.is_empty() {
        let mut random = [0; 16];
        base::id::fill_random(&mut random);
        let rows = AssertSqlSafe(schema.first_rows.replace("{RANDOM}", &hex(&random)));
        transaction.execute(sqlx::raw_sql(rows)).await.map_err(failed())?;
    }
    if version < newest {
        let update = format!("UPDATE {}_schema SET version = $1", schema.name);
        sqlx::query(AssertSqlSafe(update)).bind(newest).execute(&mut *transaction).await.map_err(failed())?;
    }
    transaction.commit().await.map_err(failed())
}

/// The version that the database has. Makes the two tables if there are none.
async fn version(connection: &mut AnyConnection, name: &str) -> Result<i64, DbError> {
    let failed = || failed("read the schema's version");
    let tables = format!(
        "CREATE TABLE IF NOT EXISTS {name}_schema (version BIGINT NOT NULL);
        CREATE TABLE IF NOT EXISTS {name}_migrations (version BIGINT NOT NULL PRIMARY KEY, digest TEXT NOT NULL)"
    );
    connection.execute(sqlx::raw_sql(AssertSqlSafe(tables))).await.map_err(failed())?;
    let select = format!("SELECT version FROM {name}_schema");
    let rows = sqlx::query(AssertSqlSafe(select)).fetch_all(&mut *connection).await.map_err(failed())?;
    if let Some(row) = rows.first() {
        return row.number("version");
    }
    let insert = format!("INSERT INTO {name}_schema (version) VALUES (0)");
    sqlx::query(AssertSqlSafe(insert)).execute(connection).await.map_err(failed())?;
    Ok(0)
}

/// Refuses a database whose earlier migrations were others than ours.
async fn check(connection: &mut AnyConnection, schema: &Schema) -> Result<(), DbError> {
    let select = format!("SELECT version, digest FROM {}_migrations ORDER BY version", schema.name);
    let rows = sqlx::query(AssertSqlSafe(select)).fetch_all(connection).await;
    for row in rows.map_err(failed("read the schema's migrations"))? {
        let version = row.number("version")?;
        let ours = usize::try_from(version - 1).ok().and_then(|index| schema.migrations.get(index));
        if ours.is_none_or(|text| digest_of(text) != row.text("digest").unwrap_or_default()) {
            return Err(DbError::OtherSchema { schema: schema.name, version });
        }
    }
    Ok(())
}

async fn note(connection: &mut AnyConnection, name: &str, version: i64, text: &str) -> Result<(), sqlx::Error> {
    let insert =
        format!("INSERT INTO {name}_migrations (version, digest) VALUES ($1, $2) ON CONFLICT (version) DO NOTHING");
    let insert = sqlx::query(AssertSqlSafe(insert)).bind(version).bind(digest_of(text));
    insert.execute(connection).await.map(|_| ())
}

fn digest_of(text: &str) -> String {
    hex(digest(&SHA256, text.as_bytes()).as_ref())
}

/// A number that only users of this schema lock.
fn lock_number(name: &str) -> i64 {
    let digest = digest(&SHA256, format!("pando migration of {name}").as_bytes());
    let first = digest.as_ref().first_chunk::<8>().copied().unwrap_or_default();
    i64::from_be_bytes(first)
}

fn dialect(engine: Engine, schema: &str) -> String {
    let text = match engine {
        Engine::Sqlite => "TEXT",
        Engine::Postgres => "TEXT COLLATE \"C\"",
    };
    // The first line of a schema explains the placeholder, in a comment.
    schema.replace("{TEXT}", text)
}
