//! The connection to SQLite or PostgreSQL, and the schema both share.

use std::{io::ErrorKind, path::Path, str::FromStr, time::Duration};

use sqlx::{
    Any, AnyConnection, AnyPool, AssertSqlSafe, Executor, Row, Transaction,
    any::{AnyConnectOptions, AnyPoolOptions},
};

use super::HeadsError;
use crate::limits;

/// Each entry brings the schema from the version that is its index to the next one. Entries are never changed, only added.
const MIGRATIONS: &[&str] = &[
    include_str!("schema_1.sql"),
    include_str!("schema_2.sql"),
    include_str!("schema_3.sql"),
    include_str!("schema_4.sql"),
];

/// Any number that only this crate uses: two nodes that open a new database migrate it one after the other.
const MIGRATION_LOCK: i64 = 0x50_4e_44_4f_48_45_41_44;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Sqlite,
    Postgres,
}

/// A pool of connections to one database whose schema is the newest.
#[derive(Debug, Clone)]
pub(super) struct Database {
    pool: AnyPool,
    engine: Engine,
}

impl Database {
    /// Opens what `url` names and brings its schema up to date.
    pub(super) async fn open(url: &str) -> Result<Self, HeadsError> {
        sqlx::any::install_default_drivers();
        let engine = match url.split(':').next() {
            Some("sqlite") => Engine::Sqlite,
            Some("postgres" | "postgresql") => Engine::Postgres,
            // The text is not shown: it may hold a password.
            _ => return Err(HeadsError::Url),
        };
        let options = AnyConnectOptions::from_str(url).map_err(database("read the database's address"))?;
        let pool = pool_options(engine).connect_with(options).await.map_err(database("connect to the database"))?;
        let opened = Self { pool, engine };
        opened.migrate().await?;
        Ok(opened)
    }

    /// Opens the SQLite database at `path`, or makes it.
    pub(super) async fn open_file(path: &Path) -> Result<Self, HeadsError> {
        Self::open(&file_url(path)?).await
    }

    /// For reads: what writes begins a transaction, which says how durable it is.
    pub(super) fn pool(&self) -> &AnyPool {
        &self.pool
    }

    /// Begins a transaction that may write, and is on the disk when its commit is answered. SQLite takes its write lock now, so that the
    /// wait for it happens here and nowhere else.
    pub(super) async fn begin(&self) -> Result<Transaction<'static, Any>, HeadsError> {
        self.begin_with("PRAGMA synchronous = FULL; BEGIN IMMEDIATE").await
    }

    /// As [`Database::begin`], for what is of no use after a power cut. SQLite's commit does not wait for the disk then: it outlives all
    /// processes, and a power cut may undo it, unless a durable transaction came after it. PostgreSQL makes no difference: its server may
    /// be started anew while its clients live.
    pub(super) async fn begin_relaxed(&self) -> Result<Transaction<'static, Any>, HeadsError> {
        self.begin_with("PRAGMA synchronous = NORMAL; BEGIN IMMEDIATE").await
    }

    async fn begin_with(&self, sqlite: &'static str) -> Result<Transaction<'static, Any>, HeadsError> {
        let statement = match self.engine {
            Engine::Sqlite => sqlite,
            Engine::Postgres => "BEGIN",
        };
        self.pool.begin_with(statement).await.map_err(database("begin a transaction"))
    }

    /// Now by the database's own clock, in seconds since 1970, as an expression.
    pub(super) fn now(&self) -> &'static str {
        match self.engine {
            Engine::Sqlite => "unixepoch()",
            Engine::Postgres => "CAST(EXTRACT(EPOCH FROM now()) AS BIGINT)",
        }
    }

    async fn migrate(&self) -> Result<(), HeadsError> {
        let failed = || database("migrate the database");
        let mut transaction = self.begin().await?;
        if self.engine == Engine::Postgres {
            let lock = sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(MIGRATION_LOCK);
            lock.execute(&mut *transaction).await.map_err(failed())?;
        }
        let table = "CREATE TABLE IF NOT EXISTS heads_schema (version BIGINT NOT NULL)";
        sqlx::query(table).execute(&mut *transaction).await.map_err(failed())?;
        let rows = sqlx::query("SELECT version FROM heads_schema").fetch_all(&mut *transaction).await;
        let rows = rows.map_err(failed())?;
        let version = match rows.first() {
            Some(row) => row.try_get::<i64, _>(0).map_err(failed())?,
            None => 0,
        };
        let newest = MIGRATIONS.len() as i64;
        if version > newest {
            return Err(HeadsError::NewerSchema { found: version, newest });
        }
        for step in MIGRATIONS.iter().skip(usize::try_from(version).unwrap_or(0)) {
            let text = self.dialect(step);
            transaction.execute(sqlx::raw_sql(text)).await.map_err(failed())?;
        }
        if version == 0 {
            first_rows(&mut transaction, newest).await.map_err(failed())?;
        } else if version < newest {
            let update = sqlx::query("UPDATE heads_schema SET version = $1").bind(newest);
            update.execute(&mut *transaction).await.map_err(failed())?;
        }
        transaction.commit().await.map_err(failed())
    }

    fn dialect(&self, schema: &str) -> AssertSqlSafe<String> {
        let text = match self.engine {
            Engine::Sqlite => "TEXT",
            Engine::Postgres => "TEXT COLLATE \"C\"",
        };
        // The first line of a schema explains the placeholder, in a comment.
        AssertSqlSafe(schema.replace("{TEXT}", text))
    }
}

async fn first_rows(connection: &mut AnyConnection, version: i64) -> Result<(), sqlx::Error> {
    let mut id = [0; 16];
    base::id::fill_random(&mut id);
    let store = sqlx::query("INSERT INTO heads_store (id, generation) VALUES ($1, 0)").bind(base::id::hex(&id));
    store.execute(&mut *connection).await?;
    let schema = sqlx::query("INSERT INTO heads_schema (version) VALUES ($1)").bind(version);
    schema.execute(&mut *connection).await?;
    Ok(())
}

/// The address of an SQLite file. sqlx makes such addresses, too, but leaves '%' as it is.
fn file_url(path: &Path) -> Result<String, HeadsError> {
    let unusable = |source| HeadsError::Path { path: path.to_owned(), source };
    let absolute = std::path::absolute(path).map_err(unusable)?;
    let text = absolute.to_str().ok_or_else(|| unusable(ErrorKind::InvalidFilename.into()))?;
    let mut url = String::from("sqlite://");
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => url.push(byte.into()),
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(url + "?mode=rwc")
}

fn pool_options(engine: Engine) -> AnyPoolOptions {
    let options = AnyPoolOptions::new().acquire_timeout(limits::HEADS_WAIT);
    match engine {
        // SQLite has one writer at a time: a second connection would only wait inside of it, by sleeping.
        Engine::Sqlite => {
            options.max_connections(1).after_connect(|connection, _| Box::pin(prepare_sqlite(connection)))
        }
        Engine::Postgres => options
            .max_connections(limits::HEADS_CONNECTIONS_MAX)
            .after_connect(|connection, _| Box::pin(prepare_postgres(connection))),
    }
}

/// A reader never waits for a writer (`journal_mode`).
async fn prepare_sqlite(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    let wait = format!("PRAGMA busy_timeout = {}", limits::HEADS_WAIT.as_millis());
    connection.execute(AssertSqlSafe(wait)).await?;
    // Turning the log on needs the database alone, and SQLite does not wait for that by itself.
    let mut tries = limits::SQLITE_WAL_TRIES;
    loop {
        match connection.execute("PRAGMA journal_mode = WAL").await {
            Err(error) if tries > 0 && is_busy(&error) => tries -= 1,
            other => return other.map(|_| ()),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Nobody waits for ever for the row lock of a client that hangs.
async fn prepare_postgres(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    let limit = limits::HEADS_WAIT.as_millis();
    let limits = format!("SET statement_timeout = {limit}; SET idle_in_transaction_session_timeout = {limit}");
    connection.execute(sqlx::raw_sql(AssertSqlSafe(limits))).await?;
    Ok(())
}

fn is_busy(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
    // SQLITE_BUSY and its extended codes: the primary code is the low byte.
    code.and_then(|code| code.parse::<u32>().ok()).is_some_and(|code| code & 0xff == 5)
}

/// Puts `operation` beside an error of the database.
pub(super) fn database(operation: &'static str) -> impl FnOnce(sqlx::Error) -> HeadsError {
    move |source| HeadsError::Database { operation, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn synchronous(transaction: &mut Transaction<'static, Any>) -> i64 {
        let row = sqlx::query("PRAGMA synchronous").fetch_one(&mut **transaction).await.unwrap();
        row.try_get(0).unwrap()
    }

    #[tokio::test]
    async fn a_transaction_is_as_durable_as_it_says_whatever_came_before() {
        const NORMAL: i64 = 1;
        const FULL: i64 = 2;
        let folder = tempfile::tempdir().unwrap();
        let database = Database::open_file(&folder.path().join("heads")).await.unwrap();
        for _ in 0..2 {
            let mut durable = database.begin().await.unwrap();
            assert_eq!(synchronous(&mut durable).await, FULL);
            durable.commit().await.unwrap();
            let mut relaxed = database.begin_relaxed().await.unwrap();
            assert_eq!(synchronous(&mut relaxed).await, NORMAL);
            // As when its future is dropped.
            drop(relaxed);
        }
    }
}
