//! A registry of a case's own: Docker's, by TLS, with an authority of its own. And a front that spoils its answers.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::Value;

const PUSH: &str = include_str!("registry/push.py");
const FRONT: &str = include_str!("registry/front.py");

/// Who may pull and push where a login is wanted: user, password, and the line of htpasswd(1) for both.
pub const LOGIN: (&str, &str) = ("me", "sesame");
const HTPASSWD: &str = "me:$2b$04$abcdefghijklmnopqrstuuinwY/tkBVrn3xrxQI/TgnMHhkvl85RW\n";

/// How long it may take to come up on a busy machine.
const START_MAX: Duration = Duration::from_secs(15);

/// Starts the server and ends it when standard input ends.
const SUPERVISE: &str = r#"exec 3<&0; "$@" </dev/null 3<&- & cat <&3 >/dev/null; kill -KILL $!; wait $!"#;

/// Who may use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// All, by TLS.
    Anybody,
    /// With [`LOGIN`], by TLS.
    Login,
    /// All, without TLS.
    Plain,
}

/// The registry. It ends when it is dropped, and with the case.
pub struct Registry {
    _server: Supervised,
    directory: tempfile::TempDir,
    access: Access,
    port: u16,
}

/// A process that ends with its standard input.
struct Supervised {
    child: Child,
    _input: Option<ChildStdin>,
}

impl Supervised {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).spawn()?;
        Ok(Self { _input: child.stdin.take(), child })
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        drop(self._input.take());
        let _ = self.child.wait();
    }
}

impl Registry {
    /// An empty one.
    pub fn start(access: Access) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("pando-registry").tempdir_in("/var/tmp")?;
        certify(directory.path())?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let of = |name: &str| directory.path().join(name).display().to_string();
        let tls = match access {
            Access::Plain => String::new(),
            Access::Anybody | Access::Login => {
                format!("  tls:\n    certificate: {}\n    key: {}\n", of("certificate.pem"), of("key.pem"))
            }
        };
        let auth = match access {
            Access::Login => format!("auth:\n  htpasswd:\n    realm: test\n    path: {}\n", of("htpasswd")),
            Access::Anybody | Access::Plain => String::new(),
        };
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{port}\n  secret: test\n{tls}{auth}",
            of("data")
        );
        fs::write(of("config.yml"), config)?;
        fs::write(of("htpasswd"), HTPASSWD)?;
        let log = fs::File::create(of("log"))?;
        let mut server = Command::new("/bin/sh");
        server.args(["-c", SUPERVISE, "sh"]).arg(find()?).arg("serve").arg(of("config.yml"));
        let server = Supervised::start(server.stdout(log.try_clone()?).stderr(log))?;
        let registry = Self { _server: server, directory, access, port };
        registry.wait_ready()?;
        Ok(registry)
    }

    fn wait_ready(&self) -> Result<()> {
        let deadline = Instant::now() + START_MAX;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            ensure!(Instant::now() < deadline, "the registry does not come up: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// `HOST:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The file with the authority of it and of its fronts.
    pub fn authority(&self) -> PathBuf {
        self.directory.path().join("authority.pem")
    }

    /// Pushes an image. See `push.py` for `source` and `options`, and what is returned.
    pub fn push(&self, repository: &str, tag: &str, source: &Path, options: &Value) -> Result<Value> {
        let (scheme, authority) = match self.access {
            Access::Plain => ("http", String::new()),
            Access::Anybody | Access::Login => ("https", self.authority().display().to_string()),
        };
        let login = if self.access == Access::Login { format!("{}:{}", LOGIN.0, LOGIN.1) } else { String::new() };
        let url = format!("{scheme}://{}", self.address());
        let mut push = Command::new("python3");
        push.args(["-c", PUSH, &url, &authority, &login, repository, tag]).arg(source).arg(options.to_string());
        let pushed = push.output()?;
        ensure!(pushed.status.success(), "push: {}{}", String::from_utf8_lossy(&pushed.stderr), self.log());
        Ok(serde_json::from_slice(&pushed.stdout)?)
    }

    /// Paths of GET requests that it has answered, with the statuses.
    pub fn requests(&self) -> Vec<String> {
        let log = self.log();
        let asked = log.lines().filter_map(|line| line.split_once("\"GET ")?.1.split_once(" HTTP/"));
        asked.map(|(path, rest)| format!("{path} {}", rest.split(' ').nth(1).unwrap_or_default())).collect()
    }

    /// A front of it, which must be without TLS.
    pub fn front(&self) -> Result<Front> {
        ensure!(self.access == Access::Plain, "a front speaks to a registry without TLS");
        let (directory, own) = (self.directory.path(), tempfile::tempdir_in(self.directory.path())?);
        let (control, log) = (own.path().join("control"), own.path().join("log"));
        fs::write(&control, "{}")?;
        fs::write(&log, "")?;
        let mut front = Command::new("python3");
        front.args(["-c", FRONT]).arg(directory.join("certificate.pem")).arg(directory.join("key.pem"));
        front.arg(format!("http://{}", self.address())).arg(&control).arg(&log);
        let mut server = Supervised::start(front.stdout(Stdio::piped()).stderr(Stdio::null()))?;
        let mut line = String::new();
        BufReader::new(server.child.stdout.take().context("it has an output")?).read_line(&mut line)?;
        let port = line.trim().parse().context("the front does not come up")?;
        Ok(Front { _server: server, _own: own, control, log, port })
    }
}

/// See `front.py`.
pub struct Front {
    _server: Supervised,
    _own: tempfile::TempDir,
    control: PathBuf,
    log: PathBuf,
    port: u16,
}

impl Front {
    /// `HOST:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// What it spoils from now on.
    pub fn spoil(&self, how: &Value) -> Result<()> {
        let new = self.control.with_extension("new");
        fs::write(&new, how.to_string())?;
        Ok(fs::rename(&new, &self.control)?)
    }

    /// Its requests for blobs that it has answered so far, and forgets them.
    pub fn blobs(&self) -> Result<Vec<Request>> {
        let text = fs::read_to_string(&self.log)?;
        fs::write(&self.log, "")?;
        let blobs = text.lines().filter(|line| line.contains("/blobs/"));
        blobs.map(|line| Request::parse(line).with_context(|| format!("{line:?} is no request"))).collect()
    }
}

/// What a front was asked for, and has sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// What was asked for.
    pub path: String,
    /// The first byte that was asked for.
    pub from: u64,
    /// Whether it had an authorization.
    pub is_secret: bool,
    /// How it was answered.
    pub status: u16,
    /// Bytes of the answer that were sent.
    pub bytes: u64,
}

impl Request {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let path = words.next()?.to_owned();
        let range = words.next()?.strip_prefix("bytes=").map_or("0", |range| range.trim_end_matches('-'));
        let (from, is_secret) = (range.parse().ok()?, words.next()? == "secret");
        Some(Self { path, from, is_secret, status: words.next()?.parse().ok()?, bytes: words.next()?.parse().ok()? })
    }
}

/// An authority, and a certificate of it for the loopback.
fn certify(directory: &Path) -> Result<()> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // Another name than the certificate's, which else seems to be its own authority.
    params.distinguished_name.push(DnType::CommonName, "authority of a test");
    let own = KeyPair::generate()?;
    fs::write(directory.join("authority.pem"), params.self_signed(&own)?.pem())?;
    let authority = Issuer::new(params, own);
    let key = KeyPair::generate()?;
    let names = ["127.0.0.1", "localhost"].map(str::to_owned);
    let certificate = CertificateParams::new(names)?.signed_by(&key, &authority)?;
    fs::write(directory.join("certificate.pem"), certificate.pem())?;
    fs::write(directory.join("key.pem"), key.serialize_pem())?;
    Ok(())
}

fn find() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("docker-registry")).find(|file| file.exists());
    found.context("docker-registry is missing: install the package docker-registry (scripts/setup.sh does)")
}
