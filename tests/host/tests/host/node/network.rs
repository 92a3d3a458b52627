//! Networks of sandboxes. The case makes an internet and private networks out of namespaces.

mod domains;
mod headers;
mod internet;

use std::{
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use testkit::{node::Node, runner::Case};

use self::internet::{ask, start, with_internet};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = of_addresses();
    cases.extend(domains::cases());
    cases.extend(headers::cases());
    cases
}

fn of_addresses() -> Vec<Case> {
    vec![
        Case::new("network::sandboxes_reach_the_internet_and_nothing_else", || with_internet(&[], reach)),
        Case::new("network::a_policy_holds_from_the_start_and_changes_at_once", || with_internet(&[], policies)),
        Case::new("network::a_policy_goes_with_forks_pauses_and_nodes", || with_internet(&[], kept)),
        Case::new("network::operators_open_and_close_networks", || {
            with_internet(&["--network-allow", "10.20.0.0/24", "--network-deny", "1.1.1.0/24"], opened)
        }),
        Case::new("network::names_are_asked_of_the_servers_of_the_policy", || with_internet(&[], names)),
        Case::new("network::many_connections_are_bounded_for_each_sandbox", || with_internet(&[], bomb)),
        Case::new("network::a_router_that_is_half_there_is_made_anew", || with_internet(&["--pool", "0"], half)),
        Case::new("network::none_is_loopback_alone", || with_internet(&["--network", "none"], none)),
    ]
}

fn reach(node: &mut Node) -> Result<()> {
    let (one, other) = (start(node, &[])?, start(node, &[])?);
    let found = ask(
        node,
        &one,
        &["http:1.1.1.1", "udp:1.1.2.2:9000", "name:example.test", "http:example.test", "name:inside.test"],
    )?;
    ensure!(found == ["8.8.8.1", "ping", "1.1.1.1", "8.8.8.1", "10.20.0.8"], "{found:?}");
    // Errors come back at once.
    let began = Instant::now();
    let found = ask(
        node,
        &one,
        &[
            "udp:1.1.1.1:9",
            "http:1.1.1.1:81",
            "http:10.20.0.8",
            "http:169.254.169.254",
            "http:inside.test",
            "udp:10.20.0.8:9000",
        ],
    )?;
    let refused = "ConnectionRefusedError";
    ensure!(found == [refused, refused, "OSError", "OSError", "OSError", "OSError"], "{found:?}");
    ensure!(began.elapsed() < Duration::from_secs(5), "errors came after {:?}", began.elapsed());
    // The node's host, by each of its addresses; the router; other sandboxes.
    let listening = std::net::TcpListener::bind("0.0.0.0:7777")?;
    for address in ["8.8.8.1", "198.18.0.1", "198.18.0.2", "169.254.0.1", "127.0.0.1"] {
        let found = ask(node, &one, &[&format!("http:{address}:7777")])?;
        ensure!(found != [""] && found[0].ends_with("Error"), "{address}: {found:?}");
    }
    listening.set_nonblocking(true)?;
    ensure!(listening.accept().is_err(), "a connection came to the host");
    node.shell(
        &other,
        "python3 -m http.server 8000 >/dev/null 2>&1 & until curl -s 127.0.0.1:8000 >/dev/null; do sleep .05; done",
    )?;
    for number in 3..9 {
        let found = ask(node, &one, &[&format!("http:198.18.0.{number}:8000")])?;
        ensure!(found[0].ends_with("Error"), "{number}: {found:?}");
    }
    // The same address inside everywhere, IPv4 alone, and names from the router.
    for id in [&one, &other] {
        let shown =
            node.shell(id, "ip -br addr show eth0; cat /etc/resolv.conf; cat /proc/net/if_inet6 | grep eth0 || true")?;
        ensure!(
            shown.split_whitespace().eq(["eth0@if2", "UP", "169.254.0.2/30", "nameserver", "169.254.0.1"])
                || shown.contains("169.254.0.2/30"),
            "{shown}"
        );
        ensure!(!shown.contains("fe80"), "{shown}");
    }
    Ok(())
}

fn policies(node: &mut Node) -> Result<()> {
    let closed = start(node, &["--no-internet"])?;
    let all = ["http:1.1.1.1", "http:1.1.2.2", "name:example.test"];
    let expected = |node: &Node, id: &str, wanted: [&str; 3]| -> Result<()> {
        let found = ask(node, id, &all)?;
        ensure!(found == wanted, "{found:?} instead of {wanted:?}");
        Ok(())
    };
    expected(node, &closed, ["OSError", "OSError", "gaierror"])?;
    let one_only = start(node, &["--no-internet", "--allow", "1.1.1.1"])?;
    expected(node, &one_only, ["8.8.8.1", "OSError", "1.1.1.1"])?;
    let but_one = start(node, &["--deny", "1.1.0.0/16", "--allow", "1.1.2.0/24"])?;
    expected(node, &but_one, ["OSError", "8.8.8.1", "1.1.1.1"])?;
    // What no policy opens.
    let wide = start(node, &["--allow", "0.0.0.0/0"])?;
    let found = ask(node, &wide, &["http:10.20.0.8", "http:8.8.8.1:22", "http:198.18.0.1"])?;
    ensure!(found.iter().all(|found| found.ends_with("Error")), "{found:?}");
    // A change, and what flows.
    let id = start(node, &[])?;
    node.shell(&id, "curl -sN http://1.1.1.1/stream -o /tmp/stream & sleep .3; test -s /tmp/stream")?;
    let size = || -> Result<u64> { Ok(node.shell(&id, "stat -c %s /tmp/stream")?.trim().parse()?) };
    let shown = node.ok(&["network", &id, "--deny", "1.1.1.1"])?;
    ensure!(shown.contains("deny       1.1.1.1/32"), "{shown}");
    let before = size()?;
    std::thread::sleep(Duration::from_millis(500));
    ensure!(size()? == before, "{before} bytes, then {}", size()?);
    expected(node, &id, ["OSError", "8.8.8.1", "1.1.1.1"])?;
    node.ok(&["network", &id, "--open"])?;
    expected(node, &id, ["8.8.8.1", "8.8.8.1", "1.1.1.1"])?;
    let wrong = node.pando(&["network", &id, "--deny", "1.1.1.1/33"])?;
    ensure!(wrong.code == 2 && wrong.stderr.contains("10.0.0.0/8"), "{wrong}");
    Ok(())
}

fn kept(node: &mut Node) -> Result<()> {
    let id = start(node, &["--no-internet", "--allow", "1.1.1.1"])?;
    let check = |node: &Node, id: &str, what: &str| -> Result<()> {
        let found = ask(node, id, &["http:1.1.1.1", "http:1.1.2.2"])?;
        ensure!(found == ["8.8.8.1", "OSError"], "{what}: {found:?}");
        Ok(())
    };
    let forked = node.json(&["fork", &id, "--files-only", "--json"])?;
    let fork = forked["sandboxes"][0]["id"].as_str().context("no fork")?.to_owned();
    check(node, &fork, "a fork")?;
    let open = start(node, &[])?;
    for round in ["a killed node", "a stopped node"] {
        if round.contains("killed") {
            node.kill_server()?;
        } else {
            node.stop_server()?;
        }
        // Nothing needs the node.
        node.start_server()?;
        check(node, &id, round)?;
        let found = ask(node, &open, &["http:1.1.2.2", "name:example.test"])?;
        ensure!(found == ["8.8.8.1", "1.1.1.1"], "{round}: {found:?}");
        let new = start(node, &[])?;
        let found = ask(node, &new, &["http:1.1.2.2"])?;
        ensure!(found == ["8.8.8.1"], "a new one after {round}: {found:?}");
    }
    node.ok(&["pause", &id, "--files-only"])?;
    node.ok(&["resume", &id])?;
    check(node, &id, "a resume")
}

fn opened(node: &mut Node) -> Result<()> {
    let id = start(node, &[])?;
    let found = ask(node, &id, &["http:10.20.0.8", "http:1.1.2.2", "http:1.1.1.1", "http:169.254.169.254"])?;
    ensure!(found == ["8.8.8.1", "8.8.8.1", "OSError", "OSError"], "{found:?}");
    let closed = start(node, &["--deny", "10.0.0.0/8", "--allow", "1.1.1.1"])?;
    let found = ask(node, &closed, &["http:10.20.0.8", "http:1.1.1.1"])?;
    ensure!(found == ["OSError", "OSError"], "{found:?}");
    Ok(())
}

fn names(node: &mut Node) -> Result<()> {
    let (usual, own) = (start(node, &[])?, start(node, &["--dns", "9.9.9.9"])?);
    for server in ["10.20.0.8", "8.8.8.1", "127.0.0.1", "::1"] {
        let refused = node.pando(&["create", "idle", "--dns", server])?;
        ensure!(refused.code == 2 && refused.stderr.contains("is not for sandboxes"), "{server}: {refused}");
    }
    for (id, expected) in [(&usual, "8.8.8.8"), (&own, "9.9.9.9")] {
        let found = ask(node, id, &["name:server.test"])?;
        ensure!(found == [expected], "{found:?}");
    }
    // By TCP, as long answers come.
    let query = r"
import socket, struct
q = b'\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x04test\0\0\x01\0\x01'
s = socket.create_connection(('169.254.0.1', 53), 3); s.sendall(struct.pack('>H', len(q)) + q)
r = s.makefile('rb').read(2 + len(q) + 16); print(socket.inet_ntoa(r[-4:]))
for wrong in [b'', b'\0\x01x', b'\xff\xff' + b'\0' * 65535, struct.pack('>H', len(q)) + b'\0' * len(q)]:
    s = socket.create_connection(('169.254.0.1', 53), 3); s.sendall(wrong); s.shutdown(1); s.recv(1)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for wrong in [b'', b'x', bytes(12), q[:20], b'\xff' * 4096]: u.sendto(wrong, ('169.254.0.1', 53))
print(socket.gethostbyname('example.test'))";
    let answer = node.ok(&["exec", &usual, "--", "python3", "-c", query])?;
    ensure!(answer == "1.1.1.1\n1.1.1.1\n", "{answer}");
    Ok(())
}

fn bomb(node: &mut Node) -> Result<()> {
    let (one, other) = (start(node, &[])?, start(node, &[])?);
    let bomb = "
import errno, resource, socket
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
kept = []
for n in range(6000):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('1.1.1.1', 10000 + n)); s.send(b'x')
    if len(kept) < most - 100: kept.append(s)
print('sent')";
    ensure!(node.ok(&["exec", &one, "--", "python3", "-c", bomb])?.contains("sent"), "it could not");
    let tracked: u32 = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count")?.trim().parse()?;
    ensure!((1_000..4_500).contains(&tracked), "the host tracks {tracked} connections");
    let found = ask(node, &one, &["http:1.1.1.1"])?;
    ensure!(found == ["TimeoutError"], "the one that has too many: {found:?}");
    let found = ask(node, &other, &["http:1.1.1.1", "name:example.test"])?;
    ensure!(found == ["8.8.8.1", "1.1.1.1"], "a neighbour: {found:?}");
    Ok(())
}

/// A node was killed while it made the router, or an administrator has taken the link away.
fn half(node: &mut Node) -> Result<()> {
    node.kill_server()?;
    let links = Command::new("sh").args(["-c", "ip -o link | grep -o ' pd[0-9a-f]*'"]).output()?;
    let link = String::from_utf8_lossy(&links.stdout).trim().to_owned();
    ensure!(link.starts_with("pd"), "there is no link {link:?}");
    // There is no pool, whose sandboxes end with their keeper at some time; only without any has the router none.
    let router = format!("--net={}", node.state.join("router").display());
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let links = Command::new("nsenter").args([&router, "ip", "-o", "link"]).output()?;
        ensure!(links.status.success(), "{}", String::from_utf8_lossy(&links.stderr));
        // Its own loopback, and the way to the host.
        if links.stdout.iter().filter(|byte| **byte == b'\n').count() <= 2 {
            break;
        }
        ensure!(Instant::now() < deadline, "links stay: {}", String::from_utf8_lossy(&links.stdout));
        std::thread::sleep(Duration::from_millis(20));
    }
    ensure!(Command::new("ip").args(["link", "del", &link]).status()?.success(), "it stays");
    node.start_server()?;
    let id = start(node, &[])?;
    ensure!(ask(node, &id, &["http:1.1.1.1"])? == ["8.8.8.1"], "it reaches nothing");
    Ok(())
}

fn none(node: &mut Node) -> Result<()> {
    let id = start(node, &[])?;
    ensure!(node.shell(&id, "ls /sys/class/net")?.trim() == "lo", "there is a link");
    let answer = node.pando(&["create", "idle", "--allow", "1.1.1.1"])?;
    ensure!(answer.code != 0 && answer.stderr.contains("no network"), "{answer}");
    let closed = start(node, &["--no-internet"])?;
    ensure!(ask(node, &closed, &["http:1.1.1.1"])? == ["OSError"], "it reaches something");
    Ok(())
}
