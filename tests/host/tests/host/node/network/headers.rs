//! Headers that requests get on their way: they arrive, and no sandbox sees them.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use testkit::{node::Node, runner::Case};

use super::internet::{start, with_internet};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("network::headers_arrive_and_are_nowhere_in_the_sandbox", || with_internet(&[], arrive)),
        Case::new("network::headers_go_only_to_the_host_of_the_rule", || with_internet(&[], only_there)),
        Case::new("network::headers_go_with_forks_pauses_and_nodes", || with_internet(&[], kept)),
    ]
}

/// The value of the header: no file and no answer may have it.
const VALUE: &str = "Bearer s3cret-of-the-case";

fn with_rule(node: &Node, more: &[&str]) -> Result<String> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), format!("{VALUE}\n"))?;
    let rule = |domain: &str| format!("{domain}:X-Key={}", file.path().display());
    let rules = [rule("example.test"), rule("bad.test")];
    start(node, &[&["--header", &rules[0], "--header", &rules[1]], more].concat())
}

/// That one of the host's answers is this.
fn told(node: &Node, id: &str, command: &str, expected: &str) -> Result<()> {
    let said = node.shell(id, command)?;
    ensure!(said.trim() == expected, "{command}: {said:?} instead of {expected:?}");
    Ok(())
}

fn arrive(node: &mut Node) -> Result<()> {
    let id = with_rule(node, &["--no-internet", "--allow", "example.test"])?;
    let expected = format!("1.1.1.1 example.test {VALUE} 0");
    // Their own checks of certificates, by what the system trusts.
    told(node, &id, "curl -sS https://example.test/", &expected)?;
    told(node, &id, "curl -sS -H 'x-key: mine' https://example.test/", &expected)?;
    let python = "import urllib.request as u; print(u.urlopen('https://example.test/').read().decode())";
    told(node, &id, &format!("python3 -c \"{python}\""), &expected)?;
    let body =
        "head -c 300000 /dev/zero | tr '\\0' x | curl -sS --data-binary @- https://example.test/ | tr -d X | wc -c";
    told(node, &id, body, "0")?;
    let upgrade = r"
import socket, ssl
s = ssl.create_default_context().wrap_socket(socket.create_connection(('example.test', 443)), server_hostname='example.test')
s.sendall(b'GET / HTTP/1.1\r\nHost: example.test\r\nConnection: upgrade\r\nUpgrade: shout\r\n\r\n')
f = s.makefile('rb'); status = f.readline().split()[1].decode()
while f.readline().strip(): pass
s.sendall(b'hello\n'); print(status, f.readline().decode())";
    let said = node.ok(&["exec", &id, "--", "python3", "-c", upgrade])?;
    ensure!(said.trim() == format!("101 {VALUE} HELLO"), "{said}");
    // Where it could have stayed.
    let shown =
        [node.ok(&["network", &id])?, node.ok(&["network", &id, "--json"])?, node.ok(&["inspect", &id, "--json"])?];
    ensure!(shown[0].contains("example.test:X-Key") && shown[1].contains("***"), "{shown:?}");
    ensure!(!shown.concat().contains("s3cret") && !node.log()?.contains("s3cret"), "it is shown");
    ensure!(!holds(&node.state)?, "a file of the node has it");
    let search = "grep -rlsI s3cret-of-the-[c]ase /home /etc /usr/local /run /tmp /proc/self/environ 2>/dev/null; env | grep s3cret; true";
    told(node, &id, search, "")
}

/// Whether a small file below a directory has the value.
fn holds(dir: &Path) -> Result<bool> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        // What files sandboxes have the case looks for in the sandbox.
        let is_searched = kind.is_dir() && entry.file_name() != "changes" && entry.file_name() != "merged";
        // The router is a namespace.
        let is_it = kind.is_file()
            && entry.file_name() != "router"
            && entry.metadata()?.len() < 1 << 20
            && std::fs::read(entry.path())?.windows(6).any(|window| window == b"s3cret");
        if is_it || is_searched && holds(&entry.path())? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn only_there(node: &mut Node) -> Result<()> {
    let id = with_rule(node, &[])?;
    told(node, &id, "curl -sS https://example.test/", &format!("1.1.1.1 example.test {VALUE} 0"))?;
    // The address of another host counts for nothing, and neither does one of that name that a sandbox says.
    told(
        node,
        &id,
        "curl -sS --resolve example.test:443:1.1.2.2 https://example.test/",
        &format!("1.1.1.1 example.test {VALUE} 0"),
    )?;
    let other = "curl -s -o /dev/null -w '%{http_code}' -H 'Host: other.test' https://example.test/";
    told(node, &id, other, "421")?;
    told(node, &id, "curl -sk https://other.test/", "1.1.2.2 other.test - 0")?;
    told(node, &id, "curl -sk https://1.1.1.1/", "1.1.1.1 1.1.1.1 - 0")?;
    told(node, &id, "curl -s http://example.test:8080/", "1.1.1.1 example.test:8080 - 0")?;
    told(node, &id, "curl -s -o /dev/null -w '%{http_code}' -X TRACE https://example.test/", "405")?;
    // A host whose certificate is of another name.
    told(node, &id, "curl -s -o /dev/null -w '%{http_code}' https://bad.test/", "502")?;
    // A rule allows nothing.
    let closed = with_rule(node, &["--no-internet"])?;
    told(node, &closed, "curl -s --resolve example.test:443:1.1.1.1 https://example.test/; echo $?", "35")?;
    let wrong = node.pando(&["create", "idle", "--header", "example.test:Host=/etc/hostname"])?;
    ensure!(wrong.code == 2 && wrong.stderr.contains("cannot be set"), "{wrong}");
    Ok(())
}

fn kept(node: &mut Node) -> Result<()> {
    let id = with_rule(node, &["--no-internet", "--allow", "example.test"])?;
    let check = |node: &Node, id: &str, what: &str| {
        told(node, id, "curl -sS https://example.test/", &format!("1.1.1.1 example.test {VALUE} 0"))
            .context(what.to_owned())
    };
    check(node, &id, "the first")?;
    let forked = node.json(&["fork", &id, "--files-only", "--json"])?;
    check(node, forked["sandboxes"][0]["id"].as_str().context("no fork")?, "a fork")?;
    node.kill_server()?;
    node.start_server()?;
    check(node, &id, "after a killed node")?;
    node.ok(&["pause", &id, "--files-only"])?;
    ensure!(!holds(&node.state)?, "a file of the node has it");
    node.ok(&["resume", &id])?;
    check(node, &id, "a resume")?;
    node.ok(&["network", &id, "--no-internet", "--allow", "example.test"])?;
    told(node, &id, "curl -sk https://example.test/", "1.1.1.1 example.test - 0")
}
