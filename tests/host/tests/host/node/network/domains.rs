//! Policies by domain: what the egress proxy lets through, and what it refuses.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::{node::Node, runner::Case};

use super::internet::{ask, start, with_internet};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("network::domains_are_reached_by_tls_and_http_and_nothing_else_is", || with_internet(&[], domains)),
        Case::new("network::forged_names_reach_only_the_host_of_that_name", || with_internet(&[], forged)),
        Case::new("network::names_that_point_inside_are_refused", || with_internet(&[], inside)),
        Case::new("network::a_change_cuts_connections_with_domains", || with_internet(&[], changes)),
        Case::new("network::domains_go_with_forks_pauses_and_nodes", || with_internet(&[], kept)),
        Case::new("network::many_connections_with_domains_leave_others_theirs", || with_internet(&[], bomb)),
        Case::new("network::bandwidth_bounds_what_is_sent_and_got", || with_internet(&[], bandwidth)),
        Case::new("network::ports_bound_what_is_allowed_and_denied", || with_internet(&[], ports)),
    ]
}

/// Prints what each server told: its address, the host, a header, requests before; or why it told nothing.
///
/// An argument is `KIND,SNI,HOST,ADDRESS,PORT`. SNI and HOST may be empty: there is none. ADDRESS may be a name.
const TALK: &str = r#"
import http.client, socket, ssl, sys
context = ssl._create_unverified_context()
def talk(kind, sni, host, address, port):
    s = None
    try:
        s = socket.create_connection((address, int(port)), 3)
        if kind == 'tls': s = context.wrap_socket(s, server_hostname=sni or None)
        s.sendall(('GET / HTTP/1.1\r\n' + (f'Host: {host}\r\n' if host else '') + '\r\n').encode())
        answer = http.client.HTTPResponse(s); answer.begin()
        return answer.read().decode().strip() if answer.status == 200 else str(answer.status)
    except (OSError, http.client.HTTPException) as error: return type(error).__name__
for argument in sys.argv[1:]: print(talk(*argument.split(',')))
"#;

fn talk(node: &Node, id: &str, talks: &[&str]) -> Result<Vec<String>> {
    let command = [&["exec", id, "--", "python3", "-c", TALK], talks].concat();
    Ok(node.ok(&command)?.lines().map(str::to_owned).collect())
}

fn expect(node: &Node, id: &str, talks: &[(&str, &str)]) -> Result<()> {
    let asked: Vec<&str> = talks.iter().map(|(asked, _)| *asked).collect();
    let found = talk(node, id, &asked)?;
    let wanted: Vec<&str> = talks.iter().map(|(_, wanted)| *wanted).collect();
    ensure!(found == wanted, "{asked:?} gave {found:?} instead of {wanted:?}");
    Ok(())
}

/// What a client says of the alert with which a name is refused.
const REFUSED: &str = "SSLError";

fn domains(node: &mut Node) -> Result<()> {
    let id = start(node, &["--no-internet", "--allow", "example.test", "--allow", "*.example.test:8443"])?;
    expect(
        node,
        &id,
        &[
            ("tls,example.test,example.test,example.test,443", "1.1.1.1 example.test - 0"),
            ("tls,EXAMPLE.test,example.test,1.1.1.1,443", "1.1.1.1 example.test - 0"),
            ("tls,b.a.example.test,x,b.a.example.test,8443", "1.1.2.2 x - 0"),
            // Other names, and names at other ports.
            ("tls,other.test,other.test,1.1.2.2,443", REFUSED),
            ("tls,a.example.test,x,1.1.2.2,443", REFUSED),
            ("tls,example.test,x,1.1.1.1,8443", REFUSED),
            ("tls,,example.test,1.1.1.1,443", REFUSED),
            // Nothing but TLS and HTTP, and no other port.
            ("http,,example.test,1.1.1.1,8080", "OSError"),
            ("tls,example.test,example.test,1.1.1.1,9443", "OSError"),
        ],
    )?;
    // DNS says nothing of other names.
    let found = ask(node, &id, &["name:example.test", "name:a.example.test", "name:other.test", "udp:1.1.2.2:9000"])?;
    ensure!(found == ["1.1.1.1", "1.1.2.2", "gaierror", "OSError"], "{found:?}");
    let shown = node.ok(&["network", &id])?;
    ensure!(shown.contains("*.example.test:8443"), "{shown}");
    let plain = node.shell(&id, "curl -s http://example.test/ -w ' %{http_code}'; curl -s -o /dev/null -w ' %{http_code}' -H 'Host: other.test' http://example.test/")?;
    ensure!(plain.ends_with(" 200 403"), "{plain}");
    let wrong = node.pando(&["create", "idle", "--allow", "example.test"])?;
    ensure!(wrong.code == 2 && wrong.stderr.contains("nothing else is denied"), "{wrong}");
    Ok(())
}

fn forged(node: &mut Node) -> Result<()> {
    let id = start(node, &["--no-internet", "--allow", "example.test", "--allow", "example.test:8080"])?;
    expect(
        node,
        &id,
        &[
            // Whatever address a sandbox chooses: the node asks for the one of the name.
            ("tls,example.test,example.test,1.1.2.2,443", "1.1.1.1 example.test - 0"),
            ("http,,example.test,1.1.2.2,8080", "1.1.1.1 example.test - 0"),
            ("http,,other.test,1.1.1.1,8080", "403"),
            ("http,,,1.1.1.1,8080", "400"),
            ("http,,1.1.1.1,1.1.1.1,8080", "400"),
        ],
    )?;
    // Each request of a connection is judged.
    let kept = r"
import http.client
c = http.client.HTTPConnection('example.test', 8080, timeout=3)
def ask(host, method='GET', body=None):
    c.request(method, '/', body, headers={'Host': host}); answer = c.getresponse(); text = answer.read().decode().strip()
    return text if answer.status == 200 else answer.status
print(ask('example.test'), '|', ask('EXAMPLE.test:8080'), '|', ask('example.test', 'POST', 'x' * 100000) == 'X' * 100000, '|', ask('other.test'))";
    let said = node.ok(&["exec", &id, "--", "python3", "-c", kept])?;
    ensure!(said.trim() == "1.1.1.1 example.test - 0 | 1.1.1.1 EXAMPLE.test:8080 - 1 | True | 403", "{said}");
    // What is neither, and what says nothing for long, is closed.
    let rest = r"
import socket
for first in [b'SSH-2.0-x\r\n', b'\x16\x03\x01\xff\xff' + b'\0' * 40000, b'\x16' * 3000, b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n']:
    s = socket.create_connection(('1.1.1.1', 443), 3)
    try: s.sendall(first); s.shutdown(1); print(len(s.makefile('rb').read()) < 200)
    except OSError: print(True)
s = socket.create_connection(('1.1.1.1', 443), 3); s.settimeout(14)
try: print(s.recv(1) == b'')
except ConnectionError: print(True)
try: socket.create_connection(('169.254.0.1', 8443), 3); print('the proxy itself')
except OSError: print(True)";
    let said = node.ok(&["exec", &id, "--", "python3", "-c", rest])?;
    ensure!(said.split_whitespace().eq(["True"; 6]), "{said}");
    Ok(())
}

fn inside(node: &mut Node) -> Result<()> {
    let names = ["inside.test", "node.test", "meta.test", "loop.test", "absent.test"];
    let allow: Vec<&str> = names.iter().flat_map(|name| ["--allow", name]).collect();
    let id = start(node, &[&["--no-internet", "--allow", "example.test"], &allow[..]].concat())?;
    let listening = std::net::TcpListener::bind("0.0.0.0:443")?;
    listening.set_nonblocking(true)?;
    for name in names {
        let found = talk(node, &id, &[&format!("tls,{name},{name},1.1.1.1,443"), &format!("http,,{name},1.1.1.1,80")])?;
        let status = if name == "node.test" || name == "absent.test" { "502" } else { "403" };
        ensure!(found[0].ends_with("Error") && found[1] == status, "{name}: {found:?}");
    }
    ensure!(listening.accept().is_err(), "a connection came to the host");
    expect(node, &id, &[("tls,example.test,example.test,example.test,443", "1.1.1.1 example.test - 0")])
}

fn changes(node: &mut Node) -> Result<()> {
    let id = start(node, &["--no-internet", "--allow", "example.test", "--allow", "other.test"])?;
    let stream = "for n in example other; do curl -skN https://$n.test/stream -o /tmp/$n & done; sleep .5; test -s /tmp/example -a -s /tmp/other";
    node.shell(&id, stream)?;
    let size = |name: &str| -> Result<u64> { Ok(node.shell(&id, &format!("stat -c %s /tmp/{name}"))?.trim().parse()?) };
    node.ok(&["network", &id, "--no-internet", "--allow", "other.test"])?;
    std::thread::sleep(Duration::from_millis(300));
    let before = (size("example")?, size("other")?);
    std::thread::sleep(Duration::from_millis(500));
    let after = (size("example")?, size("other")?);
    ensure!(before.0 == after.0 && before.1 < after.1, "{before:?}, then {after:?}");
    expect(
        node,
        &id,
        &[("tls,example.test,x,1.1.1.1,443", REFUSED), ("tls,other.test,x,1.1.2.2,443", "1.1.2.2 x - 0")],
    )?;
    node.ok(&["network", &id, "--no-internet"])?;
    std::thread::sleep(Duration::from_millis(300));
    let before = size("other")?;
    std::thread::sleep(Duration::from_millis(500));
    ensure!(size("other")? == before, "it goes on");
    expect(node, &id, &[("tls,other.test,x,1.1.2.2,443", "OSError")])?;
    node.ok(&["network", &id, "--open"])?;
    expect(node, &id, &[("tls,other.test,x,1.1.2.2,443", "1.1.2.2 x - 0")])
}

fn kept(node: &mut Node) -> Result<()> {
    let id = start(node, &["--no-internet", "--allow", "example.test"])?;
    let check = |node: &Node, id: &str, what: &str| -> Result<()> {
        let talks =
            [("tls,example.test,x,example.test,443", "1.1.1.1 x - 0"), ("tls,other.test,x,1.1.2.2,443", REFUSED)];
        expect(node, id, &talks).context(what.to_owned())
    };
    check(node, &id, "the first")?;
    let forked = node.json(&["fork", &id, "--files-only", "--json"])?;
    let fork = forked["sandboxes"][0]["id"].as_str().context("no fork")?.to_owned();
    check(node, &fork, "a fork")?;
    node.kill_server()?;
    node.start_server()?;
    check(node, &id, "after a killed node")?;
    node.ok(&["pause", &id, "--files-only"])?;
    node.ok(&["resume", &id])?;
    check(node, &id, "a resume")
}

fn bomb(node: &mut Node) -> Result<()> {
    let policy = ["--no-internet", "--allow", "example.test"];
    let (one, other) = (start(node, &policy)?, start(node, &policy)?);
    let bomb = "
import resource, socket, time
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]; resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
kept, ended = [], 0
for n in range(450):
    s = socket.socket(); s.settimeout(1)
    try: s.connect(('1.1.1.1', 443)); kept.append(s)
    except OSError: ended += 1
time.sleep(.5)
for s in kept:
    s.setblocking(False)
    try: ended += s.recv(1) == b''
    except BlockingIOError: pass
    except OSError: ended += 1
print(450 - ended, flush=True); time.sleep(6)";
    let bombing = node.begin(&["exec", &one, "--", "python3", "-c", bomb])?;
    let said = bombing.first_line()?;
    let held: u32 = said.parse().with_context(|| said.clone())?;
    ensure!((1..=256).contains(&held), "it holds {held} connections");
    let began = std::time::Instant::now();
    expect(node, &other, &[("tls,example.test,x,example.test,443", "1.1.1.1 x - 0")])?;
    ensure!(began.elapsed() < Duration::from_secs(5), "a neighbour waited for {:?}", began.elapsed());
    bombing.signal(rustix::process::Signal::KILL)?;
    bombing.end()?;
    Ok(())
}

fn ports(node: &mut Node) -> Result<()> {
    let id = start(
        node,
        &["--no-internet", "--allow", "1.1.0.0/16:8080", "--allow", "1.1.2.2:9000", "--allow", "8.8.8.8:53"],
    )?;
    expect(
        node,
        &id,
        &[
            ("http,,x,1.1.1.1,8080", "1.1.1.1 x - 0"),
            ("http,,x,1.1.1.1,80", "OSError"),
            ("http,,x,8.8.8.8,8080", "OSError"),
        ],
    )?;
    let found = ask(node, &id, &["udp:1.1.2.2:9000", "udp:1.1.2.2:9001", "name:example.test"])?;
    ensure!(found == ["ping", "OSError", "1.1.1.1"], "{found:?}");
    node.ok(&["network", &id, "--deny", "0.0.0.0/0:8080", "--allow", "1.1.2.0/24:8080"])?;
    expect(
        node,
        &id,
        &[
            ("http,,x,1.1.1.1,8080", "OSError"),
            ("http,,x,1.1.2.2,8080", "1.1.2.2 x - 0"),
            ("tls,x.test,x,1.1.1.1,443", "1.1.1.1 x - 0"),
        ],
    )?;
    let shown = node.ok(&["network", &id])?;
    ensure!(shown.contains("0.0.0.0/0:8080") && shown.contains("1.1.2.0/24:8080"), "{shown}");
    Ok(())
}

/// Of the direct way and of that through the proxy.
fn bandwidth(node: &mut Node) -> Result<()> {
    const TIMES: &str = r"
import http.client, sys, time
for port in sys.argv[1:]:
    c = http.client.HTTPConnection('example.test', int(port), timeout=30); began = time.time()
    c.request('POST', '/', 'x' * 2000000); answer = c.getresponse().read()
    print(time.time() - began if len(answer) == 2000000 else 'short')";
    let policy = ["--no-internet", "--allow", "example.test:8080", "--allow", "8.8.8.8:53"];
    let (slow, usual) = (start(node, &[&policy[..], &["--bandwidth", "1M"]].concat())?, start(node, &policy)?);
    let times = |id: &str| -> Result<Vec<f64>> {
        let said = node.ok(&["exec", id, "--", "python3", "-c", TIMES, "8080"])?;
        said.lines().map(|line| line.parse().context(said.clone())).collect()
    };
    let (slow_s, usual_s) = (times(&slow)?[0], times(&usual)?[0]);
    // 2 MB there and as many back; those of the first second take no time.
    ensure!((1.2..12.0).contains(&slow_s) && usual_s < 1.5, "{slow_s} s, and without a limit {usual_s} s");
    node.ok(&[
        "network",
        &slow,
        "--no-internet",
        "--allow",
        "1.1.1.1:8080",
        "--allow",
        "8.8.8.8:53",
        "--bandwidth",
        "1M",
    ])?;
    let direct_s = times(&slow)?[0];
    ensure!((1.2..12.0).contains(&direct_s), "{direct_s} s without the proxy");
    let wrong = node.pando(&["create", "idle", "--bandwidth", "1K"])?;
    ensure!(wrong.code == 2 && wrong.stderr.contains("64 KiB"), "{wrong}");
    Ok(())
}
