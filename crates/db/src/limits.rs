//! Bounds of this crate, each with its reason.

use std::time::Duration;

/// Longest wait for a connection, a lock or a statement: longer than any statement of ours takes on a busy server,
/// shorter than people wait.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

/// Connections to PostgreSQL from one pool: statements are short, and a server's default is 100 for all of its clients.
pub const POSTGRES_CONNECTIONS_MAX: u32 = 4;

/// Connections of one pool that read an SQLite file: reads do not wait for the writer's disk, and more readers than
/// processors only wait for each other.
pub const SQLITE_READERS_MAX: u32 = 4;

/// Attempts, 50 ms apart, to turn on SQLite's write-ahead log while other processes open the same new database.
pub const SQLITE_WAL_TRIES: u32 = 100;

/// Attempts at a transaction that loses against others: conflicts are rare, and one of any number of rivals always
/// wins.
pub const TRANSACTION_TRIES: u32 = 20;

/// Longest pause between two attempts. The pause begins at a millisecond and doubles.
pub const RETRY_PAUSE_MAX: Duration = Duration::from_millis(200);
