//! Whatever comes over the node's socket, and however many at once, the node goes on.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use testkit::{
    node::{Node, Setting},
    runner::Case,
};

const CLIENTS: usize = 50;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("requests::garbage_is_refused_and_the_node_goes_on", || case(garbage)),
        Case::new("requests::wrong_requests_are_answered_with_what_is_wrong", || case(wrong)),
        Case::new("requests::fifty_clients_at_once", || case(many)),
        Case::new("requests::connections_that_say_nothing_do_not_keep_others_out", || case(silent)),
    ]
}

fn case(body: fn(&Node) -> Result<()>) -> Result<()> {
    let node = Node::start_with(Setting { arguments: vec!["--pool".into(), "8".into()], ..Setting::default() })?;
    node.build_geo("geo", &["--nidx", "2"])?;
    // The first command brings the connection to the holder of commands, which stays.
    let id = node.run("geo", 1)?[0].id.to_string();
    node.shell(&id, "true")?;
    node.ok(&["kill", &id])?;
    let before = descriptors_at_rest(&node, usize::MAX)?;
    body(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.ok(&["kill", "--all"])?;
    descriptors_at_rest(&node, before)?;
    node.finish()
}

/// The server's descriptors once the pool is full: it holds some for each blank sandbox.
pub(super) fn descriptors_at_rest(node: &Node, most: usize) -> Result<usize> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let pool = node.info()?.pool;
        let found = descriptors(node)?;
        if pool.ready == pool.limit && pool.bare == pool.limit && found.len() <= most {
            return Ok(found.len());
        }
        ensure!(
            Instant::now() < deadline,
            "the server has {} descriptors, before {most}: {found:#?}; {pool:?}",
            found.len()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What the server's descriptors are, without those of the database: when several requests read at once, its pool opens
/// up to three connections more, of two descriptors each, and keeps them for ten minutes.
pub(super) fn descriptors(node: &Node) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{}/fd", node.server_pid()?))? {
        // One that is gone by now is none.
        let Ok(target) = std::fs::read_link(entry?.path()) else { continue };
        let target = target.display().to_string();
        if ![".db", ".db-wal", ".db-shm"].iter().any(|end| target.ends_with(end)) {
            found.push(target);
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn send(node: &Node, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut stream = UnixStream::connect(&node.socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    // The node may hang up at the first wrong byte.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Ok(answer)
}

fn garbage(node: &Node) -> Result<()> {
    let keeper = node.info()?.keeper_pid;
    for length in [1, 100, 10_000, 1 << 20] {
        let mut bytes = vec![0; length];
        base::id::fill_random(&mut bytes);
        send(node, &bytes)?;
        send(
            node,
            &[b"POST /v1/templates HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\r\n", bytes.as_slice()]
                .concat(),
        )?;
        send(node, &[b"GET /v1/", bytes.as_slice()].concat())?;
    }
    send(node, b"GET / HTTP/1.1\r\n")?;
    send(node, &[b"GET /v1/node HTTP/1.1\r\nX: ", vec![b'x'; 4 << 20].as_slice(), b"\r\n\r\n"].concat())?;
    send(node, b"POST /v1/templates HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n")?;
    send(node, b"POST /v1/templates/geo/run HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9999999999\r\n\r\n{")?;
    let info = node.info()?;
    ensure!(info.keeper_pid == keeper && info.keeper_restarts == 0, "the keeper did not survive: {info:?}");
    node.run("geo", 1)?;
    Ok(())
}

fn wrong(node: &Node) -> Result<()> {
    let id = node.run("geo", 1)?[0].id.to_string();
    let run = "POST /v1/templates/geo/run";
    let huge = format!("{{\"count\": 1, \"pad\": \"{}\"}}", "x".repeat(1 << 20));
    let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for (request, body, status) in [
        (run, "", 400),
        (run, "{", 400),
        (run, "[]", 400),
        (run, "{\"count\": -1}", 400),
        (run, "{\"count\": 1e99}", 400),
        (run, "{\"count\": \"1\"}", 400),
        (run, "{\"count\": 0}", 400),
        (run, "{\"count\": 4294967295}", 400),
        (run, "{\"count\": 1, \"interpreter\": \"other\"}", 400),
        (run, huge.as_str(), 400),
        (run, nested.as_str(), 400),
        ("POST /v1/templates/..%2f..%2fetc/run", "{\"count\": 1}", 400),
        ("POST /v1/templates/nosuch/run", "{\"count\": 1}", 404),
        ("GET /v1/sandboxes/%00", "", 400),
        ("GET /v1/sandboxes/s000000000000", "", 404),
        ("GET /v1/nothing", "", 400),
        ("GET /", "", 400),
        (
            "POST /v1/templates",
            "{\"name\": \"../x\", \"image\": \"host\", \"command\": [\"/bin/true\"], \"cwd\": \"/\", \"ready\": \"listening\", \"ready_timeout_ms\": 1}",
            400,
        ),
        (
            "POST /v1/templates",
            "{\"name\": \"x\", \"image\": \"./relative\", \"command\": [\"/bin/true\"], \"cwd\": \"/\", \"ready\": \"listening\", \"ready_timeout_ms\": 1}",
            400,
        ),
        (
            "POST /v1/templates",
            "{\"name\": \"x\", \"image\": \"host\", \"command\": [\"/bin/true\"], \"cwd\": \"tmp\", \"ready\": \"listening\", \"ready_timeout_ms\": 1}",
            400,
        ),
        (
            "POST /v1/templates",
            "{\"name\": \"x\", \"image\": \"host\", \"command\": [\"/bin/true\"], \"cwd\": \"/\", \"ready\": \"listening\", \"ready_timeout_ms\": 0}",
            400,
        ),
    ] {
        let (found, answer) = node.api(request, body.as_bytes())?;
        let shown: String = body.chars().take(60).collect();
        ensure!(found == status, "{request} with {shown:?}: {found} {answer}");
        let answer: api::ErrorBody = serde_json::from_str(&answer).with_context(|| format!("{request}: {answer:?}"))?;
        ensure!(!answer.error.message.is_empty(), "{request}");
    }
    let (status, _) = node.api("PUT /v1/node", b"")?;
    ensure!(status == 405, "PUT /v1/node: {status}");
    // An exec without the upgrade, and one with a very long command line.
    let exec = format!("POST /v1/sandboxes/{id}/exec");
    for body in [
        "{\"command\": [\"/bin/true\"]}".to_owned(),
        "{\"command\": []}".to_owned(),
        format!("{{\"command\": [\"/bin/true\", \"{}\"]}}", "x".repeat(200 << 10)),
    ] {
        let (status, answer) = node.api(&exec, body.as_bytes())?;
        ensure!(status == 400, "exec without an upgrade: {status} {answer}");
    }
    let answer = node.pando(&["exec", &id, "--", "/bin/echo", &"x".repeat(120 << 10)])?;
    ensure!(answer.code == 0 || !answer.stderr.is_empty(), "{} {}", answer.code, answer.stderr);
    node.run("geo", 1)?;
    ensure!(node.info()?.keeper_restarts == 0, "the keeper did not survive");
    Ok(())
}

fn many(node: &Node) -> Result<()> {
    let clients = (0..CLIENTS).map(|_| node.begin(&["create", "geo", "--json"])).collect::<Result<Vec<_>>>()?;
    let mut ids = Vec::new();
    for client in clients {
        let answer = client.end()?;
        ensure!(answer.code == 0, "one of {CLIENTS} runs: {answer}");
        let response: api::RunResponse = serde_json::from_str(&answer.stdout)?;
        ids.extend(response.sandboxes.into_iter().map(|sandbox| sandbox.id.to_string()));
    }
    ensure!(ids.iter().collect::<std::collections::BTreeSet<_>>().len() == CLIENTS, "{ids:?}");
    let mut clients = Vec::new();
    for (number, id) in ids.iter().enumerate() {
        clients.push(match number % 5 {
            0 => node.begin(&["exec", id, "--", "/bin/hostname"])?,
            1 => node.begin(&["fork", id])?,
            2 => node.begin(&["inspect", id])?,
            3 => node.begin(&["kill", id])?,
            _ => node.begin(&["logs", id])?,
        });
    }
    for client in clients {
        let answer = client.end()?;
        ensure!(answer.code == 0, "{answer}");
    }
    let running = node.ps()?;
    ensure!(running.len() == CLIENTS, "{} sandboxes", running.len());
    for sandbox in running {
        node.ask(sandbox.id.as_str(), "GET /health")?;
    }
    // The same removal by all of them: each succeeds or finds it gone.
    let clients = (0..10).map(|_| node.begin(&["kill", "--all"])).collect::<Result<Vec<_>>>()?;
    for client in clients {
        let answer = client.end()?;
        ensure!(answer.code == 0, "{answer}");
    }
    ensure!(node.ps()?.is_empty(), "sandboxes are left after rm --all");
    Ok(())
}

fn silent(node: &Node) -> Result<()> {
    let mut open = Vec::new();
    for number in 0..300 {
        let mut stream = UnixStream::connect(&node.socket).with_context(|| format!("connection {number}"))?;
        if number % 2 == 0 {
            stream.write_all(b"POST /v1/templates/geo/run HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{")?;
        }
        open.push(stream);
    }
    let answer = node.pando(&["create", "geo"])?;
    ensure!(answer.code == 0, "{answer}");
    Ok(())
}
