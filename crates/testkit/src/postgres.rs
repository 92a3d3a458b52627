//! A PostgreSQL server of a case's own, on a socket in a temporary directory and on a port of the loopback. It ends with the case, and with the test program.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

/// Who runs it: PostgreSQL refuses root.
const NOBODY: u32 = 65534;

/// Starts the server and ends it when standard input ends.
const SUPERVISE: &str = r#"exec 3<&0; "$@" </dev/null 3<&- & cat <&3 >/dev/null; kill -QUIT $!; wait $!"#;

/// How long it may take to come up on a busy machine.
const START_MAX: Duration = Duration::from_secs(30);

/// The server.
pub struct Postgres {
    supervisor: Child,
    directory: tempfile::TempDir,
    port: u16,
}

impl Postgres {
    /// A new one, with one empty database.
    pub fn start() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("pando-postgres").tempdir_in("/var/tmp")?;
        let path = directory.path();
        chown(path, Some(NOBODY), Some(NOBODY))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
        let data = path.join("data");
        let mut initdb = as_nobody(&find("initdb")?, path);
        initdb.args(["--no-sync", "-A", "trust", "-U", "pando", "-E", "UTF8", "--locale=C.UTF-8", "-D"]).arg(&data);
        let made = initdb.output()?;
        ensure!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let mut server = as_nobody(Path::new("/bin/sh"), path);
        server.args(["-c", SUPERVISE, "sh"]).arg(find("postgres")?);
        // The kernel gives it to no other process soon.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        server
            .args(["-F", "-c", "listen_addresses=127.0.0.1", "-p", &port.to_string(), "-k"])
            .arg(path)
            .arg("-D")
            .arg(&data);
        let supervisor = server.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let server = Self { supervisor, directory, port };
        server.wait_ready()?;
        Ok(server)
    }

    /// The address of its database, for `pando node --database`.
    pub fn url(&self) -> String {
        format!("postgres://pando@localhost:{}/postgres?host={}", self.port, self.directory.path().display())
    }

    /// `HOST:PORT` of it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn wait_ready(&self) -> Result<()> {
        let deadline = Instant::now() + START_MAX;
        let ready = || -> Result<bool> {
            let mut ask = Command::new(find("pg_isready")?);
            ask.args(["-q", "-p", &self.port.to_string(), "-h"]).arg(self.directory.path());
            Ok(ask.status()?.success())
        };
        while !ready()? {
            ensure!(Instant::now() < deadline, "PostgreSQL does not come up");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.supervisor.stdin.take());
        let _ = self.supervisor.wait();
    }
}

fn as_nobody(program: &Path, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.uid(NOBODY).gid(NOBODY).current_dir(directory);
    command
}

/// Debian keeps the server's programs out of the path.
fn find(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let folders = std::env::split_paths(&path).chain(versions.map(|version| version.path().join("bin")));
    let found = folders.map(|folder| folder.join(program)).find(|file| file.exists());
    found.with_context(|| format!("{program} is missing: install the package postgresql (scripts/setup.sh does)"))
}
