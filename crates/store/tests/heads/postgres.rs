//! A PostgreSQL server of this test program's own, on a socket in a temporary directory. It ends with the last test that uses it, and
//! also when the tests are killed.

use std::{
    io::Read,
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use sqlx::Connection;

/// Who runs the server when the tests are run by root, which PostgreSQL refuses.
const NOBODY: u32 = 65534;

/// Starts the server and ends it when standard input ends, which it does when the tests end in whatever way.
const SUPERVISE: &str = r#""$@" </dev/null 3<&- & cat <&3 >/dev/null; kill -QUIT $!; wait $!"#;

static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());

pub(crate) struct Postgres {
    supervisor: Child,
    directory: tempfile::TempDir,
    databases: AtomicU32,
}

impl Postgres {
    /// The server that runs already, or a new one.
    pub(crate) fn shared() -> Arc<Self> {
        let mut shared = SHARED.lock().unwrap();
        if let Some(running) = shared.upgrade() {
            return running;
        }
        let started = Arc::new(Self::start());
        *shared = Arc::downgrade(&started);
        started
    }

    fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("pando-postgres").tempdir().unwrap();
        let path = directory.path();
        let root = rustix::process::geteuid().is_root();
        if root {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let data = path.join("data");
        let mut initdb = command(&find("initdb"), root);
        initdb.args(["--no-sync", "-A", "trust", "-U", "pando", "-E", "UTF8", "--locale=C.UTF-8", "-D"]).arg(&data);
        let made = initdb.current_dir(path).output().unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let mut server = command(Path::new("/bin/sh"), root);
        server.args(["-c", &format!("exec 3<&0; {SUPERVISE}"), "sh"]).arg(find("postgres"));
        // No fsync: these tests are about what the database decides, not about power cuts.
        server.args(["-F", "-c", "listen_addresses=", "-k"]).arg(path).arg("-D").arg(&data);
        server.current_dir(path).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let supervisor = server.spawn().unwrap();
        Self { supervisor, directory, databases: AtomicU32::new(0) }
    }

    /// The address of a new, empty database.
    pub(crate) async fn new_database(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let mut connection = self.connect().await;
        let create = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
        sqlx::raw_sql(create).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        self.url(&name)
    }

    async fn connect(&self) -> sqlx::PgConnection {
        let mut last = None;
        for _ in 0..300 {
            match sqlx::PgConnection::connect(&self.url("postgres")).await {
                Ok(connection) => return connection,
                Err(error) => last = Some(error),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("postgres does not answer: {last:?}");
    }

    fn url(&self, database: &str) -> String {
        format!("postgres://pando@localhost/{database}?host={}", self.directory.path().display())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.supervisor.stdin.take());
        let mut log = String::new();
        if let Some(mut stderr) = self.supervisor.stderr.take() {
            // Also waits for the end of all of the server's processes.
            stderr.read_to_string(&mut log).ok();
        }
        self.supervisor.wait().ok();
        let panics = log.lines().filter(|line| line.contains("PANIC") || line.contains("deadlock"));
        let panics: Vec<_> = panics.collect();
        assert!(panics.is_empty() || std::thread::panicking(), "the server's log has {panics:?}");
    }
}

fn command(program: &Path, root: bool) -> Command {
    let mut command = Command::new(program);
    if root {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// Debian keeps the server's programs out of the path.
fn find(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let folders = std::env::split_paths(&path).chain(versions.map(|version| version.path().join("bin")));
    let found = folders.map(|folder| folder.join(program)).find(|file| file.exists());
    found.unwrap_or_else(|| panic!("{program} is missing: install the package postgresql (scripts/setup.sh does)"))
}
