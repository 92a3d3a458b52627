//! Connections to SQLite or PostgreSQL.

use std::{fs::OpenOptions, io::ErrorKind, os::unix::fs::OpenOptionsExt, path::Path, str::FromStr, time::Duration};

use sqlx::{
    Any, AnyConnection, AnyPool, AssertSqlSafe, Executor, Transaction,
    any::{AnyConnectOptions, AnyPoolOptions},
};

use crate::{DbError, Schema, failed, limits};

/// Which database it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// A file, of processes of one machine.
    Sqlite,
    /// A server.
    Postgres,
}

/// A pool of connections to one database whose schema is the newest. A clone is the same pool.
#[derive(Debug, Clone)]
pub struct Database {
    writer: AnyPool,
    reader: AnyPool,
    engine: Engine,
}

impl Database {
    /// Opens what `url` names (`postgres://user@host/database` or `sqlite:///path`) and brings `schema` up to date. An
    /// SQLite file that is not there is made, unless the address has parameters that say otherwise (`?mode=rw`).
    pub async fn open(url: &str, schema: &Schema) -> Result<Self, DbError> {
        sqlx::any::install_default_drivers();
        let engine = match url.split(':').next() {
            Some("sqlite") => Engine::Sqlite,
            Some("postgres" | "postgresql") => Engine::Postgres,
            // The text is not shown: it may hold a password.
            _ => return Err(DbError::Url),
        };
        let made = engine == Engine::Sqlite && !url.contains('?');
        let url = format!("{url}{}", if made { "?mode=rwc" } else { "" });
        let options = AnyConnectOptions::from_str(&url).map_err(failed("read the database's address"))?;
        let writer = writers(engine).connect_with(options.clone()).await.map_err(failed("connect to the database"))?;
        let reader = match engine {
            Engine::Sqlite => sqlite(limits::SQLITE_READERS_MAX).connect_lazy_with(options),
            Engine::Postgres => writer.clone(),
        };
        let opened = Self { writer, reader, engine };
        crate::migrate::migrate(&opened, schema).await?;
        Ok(opened)
    }

    /// Opens the SQLite database at `path`, or makes it for its owner alone. Several processes may use one.
    pub async fn open_file(path: &Path, schema: &Schema) -> Result<Self, DbError> {
        let unusable = |source| DbError::Path { path: path.to_owned(), source };
        // SQLite gives its log the mode that the file has.
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        match made {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(unusable(error)),
        }
        Self::open(&file_url(path)?, schema).await
    }

    /// Which database it is.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// For reads: what writes begins a transaction, which says how durable it is.
    pub fn pool(&self) -> &AnyPool {
        &self.reader
    }

    /// Begins a transaction that may write, and is on the disk when its commit is answered. SQLite takes its write lock
    /// now, so the wait for it happens here and nowhere else.
    pub async fn begin(&self) -> Result<Transaction<'static, Any>, DbError> {
        self.begin_with("PRAGMA synchronous = FULL; BEGIN IMMEDIATE").await
    }

    /// As [`Database::begin`], for what is of no use after a power cut. SQLite's commit then does not wait for the
    /// disk: the change outlives all processes, and a power cut may undo it, unless a durable transaction came after
    /// it. PostgreSQL makes no difference, because its server may restart while its clients live.
    pub async fn begin_relaxed(&self) -> Result<Transaction<'static, Any>, DbError> {
        self.begin_with("PRAGMA synchronous = NORMAL; BEGIN IMMEDIATE").await
    }

    async fn begin_with(&self, sqlite: &'static str) -> Result<Transaction<'static, Any>, DbError> {
        let statement = match self.engine {
            Engine::Sqlite => sqlite,
            Engine::Postgres => "BEGIN",
        };
        self.writer.begin_with(statement).await.map_err(failed("begin a transaction"))
    }

    /// Now by the database's own clock, in seconds since 1970, as an expression.
    pub fn now(&self) -> &'static str {
        match self.engine {
            Engine::Sqlite => "unixepoch()",
            Engine::Postgres => "CAST(EXTRACT(EPOCH FROM now()) AS BIGINT)",
        }
    }

    /// The end of a `SELECT` that locks its rows until the transaction ends.
    pub fn for_update(&self) -> &'static str {
        match self.engine {
            Engine::Sqlite => "",
            Engine::Postgres => " FOR UPDATE",
        }
    }

    /// Closes all connections. SQLite then moves its log into the file.
    pub async fn close(&self) {
        self.reader.close().await;
        self.writer.close().await;
    }
}

/// The address of an SQLite file. sqlx makes such addresses, too, but leaves '%' as it is.
fn file_url(path: &Path) -> Result<String, DbError> {
    let unusable = |source| DbError::Path { path: path.to_owned(), source };
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

fn writers(engine: Engine) -> AnyPoolOptions {
    match engine {
        // SQLite has one writer at a time: a second connection would only wait inside of it, by sleeping.
        Engine::Sqlite => sqlite(1),
        Engine::Postgres => AnyPoolOptions::new()
            .acquire_timeout(limits::WAIT_MAX)
            .max_connections(limits::POSTGRES_CONNECTIONS_MAX)
            .after_connect(|connection, _| Box::pin(prepare_postgres(connection))),
    }
}

fn sqlite(connections: u32) -> AnyPoolOptions {
    AnyPoolOptions::new()
        .acquire_timeout(limits::WAIT_MAX)
        .max_connections(connections)
        .after_connect(|connection, _| Box::pin(prepare_sqlite(connection)))
}

/// Makes a reader never wait for a writer (`journal_mode`).
async fn prepare_sqlite(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    let wait = format!("PRAGMA busy_timeout = {}", limits::WAIT_MAX.as_millis());
    connection.execute(AssertSqlSafe(wait)).await?;
    // Turning the log on needs the database alone, and SQLite does not wait for that by itself.
    let mut tries = limits::SQLITE_WAL_TRIES;
    loop {
        match connection.execute("PRAGMA journal_mode = WAL").await {
            Err(error) if tries > 0 && crate::retry::is_busy(&error) => tries -= 1,
            other => return other.map(|_| ()),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Bounds the wait for the row lock of a client that hangs.
async fn prepare_postgres(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    let limit = limits::WAIT_MAX.as_millis();
    let limits = format!("SET statement_timeout = {limit}; SET idle_in_transaction_session_timeout = {limit}");
    connection.execute(sqlx::raw_sql(AssertSqlSafe(limits))).await?;
    Ok(())
}
