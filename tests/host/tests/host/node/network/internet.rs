//! An internet and private networks, made of namespaces.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use testkit::node::Node;

use super::super::shared::arguments;

/// The other side; it says by itself what it answers.
const INTERNET: &str = include_str!("internet.py");

/// The file of the authority that signs for the hosts of the internet.
const AUTHORITY: &str = "authority.pem";

/// The links and addresses of both sides. The host's own address outside is 8.8.8.1.
const LINKS: &str = "
ip link add ext0 type veth peer name eth0 netns $1
ip addr add 8.8.8.1/24 dev ext0
ip link set ext0 up
ip route add default via 8.8.8.8
inside() { nsenter --net=/proc/$pid/ns/net ip \"$@\"; }
pid=$1
inside link set lo up
inside addr add 8.8.8.8/24 dev eth0
for address in 1.1.1.1 1.1.2.2 9.9.9.9 10.20.0.8 169.254.169.254; do inside addr add $address/32 dev lo; done
inside link set eth0 up
";

/// Makes an authority, which no system knows, and a certificate for the hosts of the internet. The files of the latter, and of its key.
fn certify(dir: &Path) -> Result<[PathBuf; 2]> {
    let (mut of_authority, key) = (CertificateParams::default(), KeyPair::generate()?);
    of_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = of_authority.self_signed(&key)?;
    std::fs::write(dir.join(AUTHORITY), root.pem())?;
    let issuer = Issuer::new(of_authority, key);
    let names = ["example.test", "other.test", "*.example.test", "*.a.example.test"].map(str::to_owned);
    let key = KeyPair::generate()?;
    let leaf = CertificateParams::new(names)?.signed_by(&key, &issuer)?;
    let files = ["host.pem", "host.key"].map(|name| dir.join(name));
    std::fs::write(&files[0], leaf.pem())?;
    std::fs::write(&files[1], key.serialize_pem())?;
    Ok(files)
}

/// The internet, in a namespace of its own.
pub(super) struct Internet {
    process: Child,
    files: tempfile::TempDir,
}

impl Internet {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let files = certify(dir.path())?;
        let python = ["--net", "sh", "-c", "echo $$; read go; exec python3 -c \"$@\"", "sh", INTERNET];
        let mut command = Command::new("unshare");
        let mut process = command.args(python).args(files).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut said = BufReader::new(process.stdout.take().context("no output")?).lines();
        let mut line = || said.next().context("the internet ended")?.context("the internet says nothing");
        let pid = line()?;
        let made = Command::new("sh").args(["-euc", LINKS, "sh", &pid]).output()?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        process.stdin.as_mut().context("no input")?.write_all(b"go\n")?;
        ensure!(line()? == "ready", "the internet is not ready");
        Ok(Self { process, files: dir })
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = Command::new("ip").args(["link", "del", "ext0"]).output();
    }
}

pub(super) fn with_internet(more: &[&str], body: fn(&mut Node) -> Result<()>) -> Result<()> {
    let internet = Internet::new()?;
    let authority = internet.files.path().join(AUTHORITY);
    let authority = authority.to_str().context("an odd path")?;
    let asked = ["--network", "on", "--dns", "8.8.8.8", "--egress-ca", authority];
    let all: Vec<&str> = if more.contains(&"--network") { more.to_vec() } else { [&asked[..], more].concat() };
    let mut node = Node::start_with(arguments(&all))?;
    node.ok(&["template", "build", "idle"])?;
    body(&mut node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

/// Prints what came of it, or why nothing did.
const ASK: &str = r#"
import socket, sys
def ask(target):
    kind, _, where = target.partition(':')
    host, _, port = where.partition(':')
    try:
        if kind == 'http':
            s = socket.create_connection((host, int(port or 80)), 2); s.sendall(b'GET / HTTP/1.0\r\n\r\n')
            return s.makefile('rb').read().rpartition(b'\n')[2].decode()
        if kind == 'udp':
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2); s.connect((host, int(port)))
            s.send(b'ping'); return s.recv(9).decode()
        return socket.gethostbyname(where)
    except OSError as error: return type(error).__name__
print(*[ask(target) for target in sys.argv[1:]])
"#;

pub(super) fn ask(node: &Node, id: &str, targets: &[&str]) -> Result<Vec<String>> {
    let command = [&["exec", id, "--", "python3", "-c", ASK], targets].concat();
    Ok(node.ok(&command)?.split_whitespace().map(str::to_owned).collect())
}

pub(super) fn start(node: &Node, more: &[&str]) -> Result<String> {
    let id = node.ok(&[&["create", "idle", "-q"], more].concat())?;
    Ok(id.trim().to_owned())
}
