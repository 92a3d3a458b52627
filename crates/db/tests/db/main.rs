//! Migrations and transactions on a real SQLite and a real PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

// The server that the store's tests start.
#[path = "../../../store/tests/heads/postgres.rs"]
mod postgres;

use std::{
    os::unix::fs::PermissionsExt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use db::{Database, DbError, Fields, Schema, failed, retry};
use sqlx::{Any, AssertSqlSafe, Executor, Transaction};

use crate::postgres::Postgres;

const FIRST: &str = "CREATE TABLE things (name {TEXT} NOT NULL PRIMARY KEY, count BIGINT NOT NULL);";
const SECOND: &str = "INSERT INTO things (name, count) VALUES ('a', 0), ('b', 0);";
const ROWS: &str = "INSERT INTO things (name, count) VALUES ('{RANDOM}', 7);";
const OLD: Schema = Schema { name: "test", migrations: &[FIRST], first_rows: "" };
const NEW: Schema = Schema { name: "test", migrations: &[FIRST, SECOND], first_rows: ROWS };
const OTHER: Schema =
    Schema { name: "test", migrations: &["CREATE TABLE others (name {TEXT});", SECOND], first_rows: "" };

struct Place {
    url: String,
    _directory: Option<tempfile::TempDir>,
    _server: Option<Arc<Postgres>>,
}

async fn places() -> [Place; 2] {
    let directory = tempfile::Builder::new().prefix("pando-db").tempdir().unwrap();
    let url = format!("sqlite://{}", directory.path().join("test.db").display());
    let sqlite = Place { url, _directory: Some(directory), _server: None };
    let server = Postgres::shared();
    let postgres = Place { url: server.new_database().await, _directory: None, _server: Some(server) };
    [sqlite, postgres]
}

async fn count(database: &Database, name: &str) -> i64 {
    let row = sqlx::query("SELECT count FROM things WHERE name = $1").bind(name).fetch_one(database.pool()).await;
    row.unwrap().number("count").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_migration_is_applied_once_however_many_open_the_database() {
    for place in places().await {
        Database::open(&place.url, &OLD).await.unwrap().close().await;
        let opens = (0..6).map(|_| Database::open(&place.url, &NEW));
        for opened in futures::future::join_all(opens).await {
            assert_eq!(count(&opened.unwrap(), "a").await, 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_new_database_gets_its_first_rows_once() {
    for place in places().await {
        let opens = (0..4).map(|_| Database::open(&place.url, &NEW));
        for opened in futures::future::join_all(opens).await {
            let select = sqlx::query("SELECT name FROM things WHERE count = 7");
            let rows = select.fetch_all(opened.unwrap().pool()).await.unwrap();
            assert_eq!((rows.len(), rows[0].text("name").unwrap().len()), (1, 32));
        }
    }
}

#[tokio::test]
async fn a_newer_or_other_schema_is_refused_and_not_changed() {
    for place in places().await {
        Database::open(&place.url, &NEW).await.unwrap().close().await;
        let newer = Database::open(&place.url, &OLD).await.unwrap_err();
        assert!(matches!(newer, DbError::NewerSchema { found: 2, newest: 1, .. }), "{newer}");
        assert!(newer.to_string().contains("use a newer program"), "{newer}");
        let other = Database::open(&place.url, &OTHER).await.unwrap_err();
        assert!(matches!(other, DbError::OtherSchema { version: 1, .. }), "{other}");
        Database::open(&place.url, &NEW).await.unwrap();
    }
}

#[tokio::test]
async fn a_migration_that_fails_changes_nothing() {
    const BROKEN: Schema = Schema {
        name: "test",
        migrations: &[FIRST, "DELETE FROM things; INSERT INTO nowhere (x) VALUES (1);"],
        first_rows: "",
    };
    for place in places().await {
        Database::open(&place.url, &OLD).await.unwrap().close().await;
        assert!(Database::open(&place.url, &BROKEN).await.is_err());
        let opened = Database::open(&place.url, &NEW).await.unwrap();
        assert_eq!(count(&opened, "b").await, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_of_several_servers_wait_for_each_other() {
    for place in places().await {
        let databases =
            [Database::open(&place.url, &NEW).await.unwrap(), Database::open(&place.url, &NEW).await.unwrap()];
        let work = (0..4).map(|number| {
            let database = databases[number % 2].clone();
            tokio::spawn(async move {
                for _ in 0..5 {
                    retry(|| add(&database)).await.unwrap();
                }
            })
        });
        futures::future::join_all(work).await.into_iter().for_each(|done| done.unwrap());
        assert_eq!(count(&databases[0], "a").await, 20);
    }
}

async fn add(database: &Database) -> Result<(), DbError> {
    let mut transaction = database.begin_relaxed().await?;
    let update = sqlx::query("UPDATE things SET count = count + 1 WHERE name = 'a'");
    update.execute(&mut *transaction).await.map_err(failed("add"))?;
    transaction.commit().await.map_err(failed("add"))
}

#[tokio::test]
async fn a_transaction_that_lost_is_repeated_and_one_that_failed_is_not() {
    let [_sqlite, postgres] = places().await;
    let database = Database::open(&postgres.url, &NEW).await.unwrap();
    for (code, expected) in [("40001", 3), ("40P01", 3), ("23505", 1)] {
        let attempts = AtomicU32::new(0);
        let attempt = || async {
            let number = attempts.fetch_add(1, Ordering::Relaxed);
            let mut transaction = database.begin().await?;
            if number < 2 {
                let raise = format!("DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '{code}'; END $$");
                let raise = sqlx::raw_sql(AssertSqlSafe(raise));
                transaction.execute(raise).await.map_err(failed("lose"))?;
            }
            transaction.commit().await.map_err(failed("win"))
        };
        assert_eq!(retry(attempt).await.is_ok(), expected == 3, "{code}");
        assert_eq!(attempts.into_inner(), expected, "{code}");
    }
}

async fn synchronous(transaction: &mut Transaction<'static, Any>) -> i64 {
    sqlx::query("PRAGMA synchronous").fetch_one(&mut **transaction).await.unwrap().number("synchronous").unwrap()
}

#[tokio::test]
async fn a_transaction_is_as_durable_as_it_says_whatever_came_before() {
    const NORMAL: i64 = 1;
    const FULL: i64 = 2;
    let folder = tempfile::tempdir().unwrap();
    let database = Database::open_file(&folder.path().join("test.db"), &NEW).await.unwrap();
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

#[tokio::test]
async fn a_file_is_its_owners_alone_and_may_have_any_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test ?a=b#c %20 \u{e4}.db");
    let database = Database::open_file(&path, &NEW).await.unwrap();
    let held = database.begin().await.unwrap();
    // A reader does not wait for the writer.
    tokio::time::timeout(Duration::from_secs(5), count(&database, "a")).await.unwrap();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
        assert!(entry.file_name().to_str().unwrap().starts_with("test ?a=b#c %20 \u{e4}.db"), "{entry:?}");
    }
    drop(held);
}

#[tokio::test]
async fn an_address_of_another_kind_is_refused_without_showing_it() {
    let error = Database::open("mysql://root:secret@host/x", &NEW).await.unwrap_err();
    assert!(matches!(error, DbError::Url) && !error.to_string().contains("secret"), "{error}");
}
