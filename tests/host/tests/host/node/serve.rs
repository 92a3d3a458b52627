//! `pando serve`, by plain HTTP as any client would speak it. The SDKs have a suite of their own: tests/sdk.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use testkit::{
    node::{Node, Setting},
    runner::Case,
};

use super::checkpoint::kill;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("serve::a_killed_server_loses_no_sandbox_token_or_timeout", || case(restart)),
        Case::new("serve::a_start_that_a_kill_broke_off_leaves_no_sandbox", || case(broken_off)),
        Case::new("serve::lost_templates_come_back_by_themselves", || case(warm)),
        Case::new("serve::two_teams_see_nothing_of_each_other", || case(teams)),
        Case::new("serve::files_need_the_token_or_a_signature", || case(files)),
        Case::new("serve::a_port_is_reached_by_its_host_name", || case(ports)),
        Case::new("serve::traffic_wakes_a_paused_sandbox_if_it_may", || case(wakes)),
        Case::new("serve::a_pause_of_the_node_is_noted", || case(paused_by_node)),
        Case::new("serve::a_removed_snapshot_leaves_nothing_on_the_node", || case(removed_snapshot)),
        Case::new("serve::a_paused_sandbox_is_killed_although_its_data_is_damaged", || case(damaged)),
        Case::new("serve::a_read_key_gets_no_token", || case(read_key)),
        Case::new("serve::a_sandbox_ends_when_its_time_is_up", || case(timeout)),
        Case::new("serve::bad_requests_get_a_status_and_a_json_body", || case(refused)),
    ]
}

pub(super) fn case(body: fn(&mut Node) -> Result<()>) -> Result<()> {
    let mut node = Node::start_with(Setting { serves: true, ..Setting::default() })?;
    node.ok(&["template", "build", "plain"])?;
    body(&mut node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

/// How the server is reached.
pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) domain: String,
    pub(crate) key: String,
}

/// An answer: status and body.
pub(super) struct Answer(pub(super) u16, pub(super) String);

impl Answer {
    pub(super) fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.1).with_context(|| format!("{}: {}", self.0, self.1))
    }

    pub(super) fn expect(self, status: u16) -> Result<Self> {
        ensure!(self.0 == status, "expected {status}, got {}: {}", self.0, self.1);
        Ok(self)
    }
}

impl Server {
    /// Of a server that has just been started.
    pub(crate) fn of(node: &Node) -> Result<Self> {
        let deadline = Instant::now() + Duration::from_secs(20);
        let text = loop {
            let marks = node.log()?.matches("ready for clients").count();
            let starts = node.log()?.matches("node ready").count();
            if marks == starts && node.env_file().exists() {
                break std::fs::read_to_string(node.env_file())?;
            }
            ensure!(Instant::now() < deadline, "it takes no requests:\n{}", node.log()?);
            std::thread::sleep(Duration::from_millis(10));
        };
        let key = text.lines().find_map(|line| line.strip_prefix("E2B_API_KEY=")).context("no key")?;
        let log = node.log()?;
        let ready = log.lines().rev().find(|line| line.contains("ready for clients")).context("no address")?;
        let field = |name: &str| ready.split(name).nth(1).and_then(|rest| rest.split_whitespace().next());
        let (address, domain) = (field("address=").context("no address")?, field("domain=").context("no domain")?);
        Ok(Self { address: address.to_owned(), domain: domain.to_owned(), key: key.to_owned() })
    }

    pub(super) fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> Result<Answer> {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "30", "-X", method, "-w", "\n%{http_code}"]);
        curl.arg(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            curl.args(["-H", &format!("{name}: {value}")]);
        }
        if let Some(body) = body {
            curl.args(["--data-binary", body]);
        }
        let output = curl.output().context("curl is missing")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').with_context(|| format!("{output:?}"))?;
        Ok(Answer(status.parse()?, body.to_owned()))
    }

    /// A request to the control plane.
    pub(super) fn api(&self, method: &str, path: &str, body: Option<Value>) -> Result<Answer> {
        let headers = [("X-API-Key", self.key.as_str()), ("Content-Type", "application/json")];
        self.ask(method, path, &headers, body.map(|body| body.to_string()).as_deref())
    }

    pub(super) fn create(&self, more: Value) -> Result<Value> {
        let mut body = json!({"templateID": "plain"});
        if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
            body.extend(more.clone());
        }
        self.api("POST", "/v2/sandboxes", Some(body))?.expect(201)?.json()
    }

    /// A request to the services inside a sandbox, by its host name.
    pub(super) fn inside(
        &self,
        sandbox: &Value,
        method: &str,
        path: &str,
        token: &str,
        body: Option<&str>,
    ) -> Result<Answer> {
        let id = text(sandbox, "sandboxID")?;
        let host = format!("49983-{id}.{}", self.domain);
        let headers = [("Host", host.as_str()), ("X-Access-Token", token), ("Content-Type", "application/json")];
        self.ask(method, path, &headers, body)
    }
}

pub(super) fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key].as_str().with_context(|| format!("no {key}: {value}"))
}

fn restart(node: &mut Node) -> Result<()> {
    let server = Server::of(node)?;
    let sandbox = server.create(json!({"timeout": 600, "metadata": {"a": "b"}}))?;
    let (id, token) = (text(&sandbox, "sandboxID")?, text(&sandbox, "envdAccessToken")?);
    let write = |server: &Server, path: &str| -> Result<Answer> {
        let host = format!("49983-{id}.{}", server.domain);
        let headers =
            [("Host", host.as_str()), ("X-Access-Token", token), ("Content-Type", "application/octet-stream")];
        server.ask("POST", path, &headers, Some("kept"))?.expect(200)
    };
    write(&server, "/files?path=a.txt")?;
    let before = server.api("GET", &format!("/sandboxes/{id}"), None)?.expect(200)?.json()?;
    node.kill_server()?;
    node.start_server()?;
    let again = Server::of(node)?;
    ensure!(again.key == server.key, "the key of this machine stays");
    let after = again.api("GET", &format!("/sandboxes/{id}"), None)?.expect(200)?.json()?;
    ensure!(before["endAt"] == after["endAt"] && after["metadata"]["a"] == "b", "{before} {after}");
    ensure!(after["state"] == "running" && after["envdAccessToken"] == token, "{after}");
    ensure!(again.inside(&sandbox, "GET", "/files?path=a.txt", token, None)?.expect(200)?.1 == "kept");
    again.api("DELETE", &format!("/sandboxes/{id}"), None)?.expect(204)?;
    again.api("DELETE", &format!("/sandboxes/{id}"), None)?.expect(404)?;
    Ok(())
}

/// Waits until room is reserved, and lets nothing write to the database until standard input ends.
const LOCK: &str = r#"
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=10)
while not database.execute("SELECT COUNT(*) FROM reservations").fetchone()[0]:
    time.sleep(0.01)
database.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"#;

/// Kills the server while a request waits for the database that `lock` holds. The request gets no answer.
pub(super) fn kill_unanswered(
    node: &mut Node,
    mut lock: Child,
    asking: ScopedJoinHandle<'_, Result<Answer>>,
) -> Result<()> {
    ensure!(!asking.is_finished(), "it was noted although the database was locked");
    node.kill_server()?;
    drop(lock.stdin.take());
    ensure!(lock.wait()?.success());
    let answer = asking.join().map_err(|_| anyhow::anyhow!("it panicked"))?;
    ensure!(answer.is_err() || answer.is_ok_and(|answer| answer.0 == 0), "an answer of a dead server");
    Ok(())
}

/// The server dies when the node has started a sandbox and the database does not know it.
fn broken_off(node: &mut Node) -> Result<()> {
    node.ok(&["template", "build", "sleeper", "--ready", "true", "--", "/bin/sleep", "1000000"])?;
    let server = Server::of(node)?;
    let headers =
        [("X-API-Key", server.key.as_str()), ("Content-Type", "application/json"), ("Idempotency-Key", "once")];
    let create = || server.ask("POST", "/v2/sandboxes", &headers, Some(r#"{"templateID": "sleeper"}"#));
    let mut lock = Command::new("python3");
    lock.args(["-c", LOCK]).arg(node.state.join("control.db")).stdin(Stdio::piped()).stdout(Stdio::piped());
    thread::scope(|scope| -> Result<()> {
        let keeper = node.stop_keeper()?;
        let mut lock = lock.spawn().context("python3 is missing")?;
        let creating = scope.spawn(create);
        let said = BufReader::new(lock.stdout.take().context("no output")?).lines().next();
        drop(keeper);
        ensure!(said.context("it is not locked")?? == "locked");
        let deadline = Instant::now() + Duration::from_secs(20);
        while node.ps()?.is_empty() {
            ensure!(Instant::now() < deadline, "nothing was started");
            thread::sleep(Duration::from_millis(10));
        }
        kill_unanswered(node, lock, creating)
    })?;
    node.start_server()?;
    let again = Server::of(node)?;
    ensure!(node.ps()?.is_empty(), "a sandbox that no team has is left: {:?}", node.ps()?);
    // The request may be repeated at once.
    let create = again.ask("POST", "/v2/sandboxes", &headers, Some(r#"{"templateID": "sleeper"}"#))?;
    let made = create.expect(201)?.json()?;
    let state = node.state.display().to_string();
    let servers: Value = serde_json::from_str(&node.ok(&["server", "ls", "--state", &state, "--json"])?)?;
    ensure!(servers[0]["name"] == node.info()?.id && servers[0]["running"] == 1, "{servers}");
    let refused = node.pando(&["server", "rm", "--state", &state, text(&servers[0], "name")?])?;
    ensure!(refused.code != 0 && refused.stderr.contains("still runs"), "{refused}");
    again.api("DELETE", &format!("/sandboxes/{}", text(&made, "sandboxID")?), None)?.expect(204)?;
    Ok(())
}

fn warm(node: &mut Node) -> Result<()> {
    node.ok(&["template", "build", "sleeper", "--ready", "true", "--", "/bin/sleep", "1000000"])?;
    let is_ready = |node: &Node| -> Result<bool> {
        Ok(node.json(&["template", "inspect", "sleeper", "--json"])?["state"] == "ready")
    };
    let comes_back = |node: &Node, times: usize| -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while node.log()?.matches("a lost template is ready again").count() < times || !is_ready(node)? {
            ensure!(Instant::now() < deadline, "it does not come back:\n{}", node.log()?);
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    };
    ensure!(is_ready(node)?);
    node.kill_server()?;
    node.start_server()?;
    comes_back(node, 1)?;
    kill(node.info()?.keeper_pid.context("no keeper")? as i32)?;
    comes_back(node, 2)
}

fn teams(node: &mut Node) -> Result<()> {
    let server = Server::of(node)?;
    let state = node.state.display().to_string();
    let key = node.ok(&["key", "create", "--state", &state, "--team", "other", "test"])?;
    let other = Server { key: key.trim().to_owned(), ..Server::of(node)? };
    let sandbox = server.create(json!({}))?;
    let id = text(&sandbox, "sandboxID")?;
    let path = format!("/sandboxes/{id}");
    other.api("GET", &path, None)?.expect(404)?;
    other.api("DELETE", &path, None)?.expect(404)?;
    other.api("POST", &format!("{path}/timeout"), Some(json!({"timeout": 0})))?.expect(404)?;
    other.api("POST", &format!("/v2{path}/connect"), Some(json!({})))?.expect(404)?;
    ensure!(other.api("GET", "/v2/sandboxes", None)?.expect(200)?.json()? == json!([]));
    ensure!(
        server.api("GET", "/v2/sandboxes", None)?.expect(200)?.json()?.as_array().is_some_and(|all| all.len() == 1)
    );
    let keys: Value = serde_json::from_str(&node.ok(&["key", "ls", "--state", &state, "--team", "other", "--json"])?)?;
    node.ok(&["key", "revoke", "--state", &state, "--team", "other", text(&keys[0], "id")?])?;
    let deadline = Instant::now() + Duration::from_secs(30);
    while other.api("GET", "/v2/sandboxes", None)?.0 != 401 {
        ensure!(Instant::now() < deadline, "a revoked key is still good");
        std::thread::sleep(Duration::from_millis(200));
    }
    server.api("DELETE", &path, None)?.expect(204)?;
    Ok(())
}

fn files(node: &mut Node) -> Result<()> {
    let server = Server::of(node)?;
    let sandbox = server.create(json!({}))?;
    let token = text(&sandbox, "envdAccessToken")?;
    for wrong in ["", "x", &token[1..]] {
        server.inside(&sandbox, "GET", "/files?path=/etc/hostname", wrong, None)?.expect(401)?;
        server.inside(&sandbox, "POST", "/process.Process/List", wrong, Some("{}"))?.expect(401)?;
    }
    server.inside(&sandbox, "GET", "/files?path=/etc/hostname&signature=v1_x", token, None)?.expect(401)?;
    server.inside(&sandbox, "GET", "/files?path=/etc/hostname", token, None)?.expect(200)?;
    server.inside(&sandbox, "GET", "/files?path=/dev/zero", token, None)?.expect(400)?;
    server.inside(&sandbox, "GET", "/files?path=/nowhere", token, None)?.expect(404)?;
    let list = server.inside(&sandbox, "POST", "/process.Process/List", token, Some("{}"))?.expect(200)?;
    ensure!(list.json()? == json!({}), "{}", list.1);
    server.inside(&sandbox, "GET", "/health", "", None)?.expect(204)?;
    server.api("DELETE", &format!("/sandboxes/{}", text(&sandbox, "sandboxID")?), None)?.expect(204)?;
    let gone = server.inside(&sandbox, "GET", "/health", token, None)?.expect(502)?.json()?;
    ensure!(text(&gone, "message")?.contains("was not found"), "{gone}");
    Ok(())
}

fn ports(node: &mut Node) -> Result<()> {
    let server = Server::of(node)?;
    let sandbox = server.create(json!({}))?;
    let id = text(&sandbox, "sandboxID")?;
    let host = format!("8000-{id}.{}", server.domain);
    let closed = server.ask("GET", "/", &[("Host", &host)], None)?.expect(502)?.json()?;
    ensure!(text(&closed, "message")?.contains("port is not open"), "{closed}");
    let serve = "mkdir -p /tmp/w; echo hello > /tmp/w/f; cd /tmp/w; exec python3 -m http.server --bind 127.0.0.1 8000";
    let command = json!({"command": ["/bin/sh", "-c", serve]}).to_string();
    let (status, answer) = node.api(&format!("POST /v1/sandboxes/{id}/commands"), command.as_bytes())?;
    ensure!(status == 200, "{status} {answer}");
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let answer = server.ask("GET", "/f", &[("Host", &host)], None)?;
        match answer.0 {
            200 if answer.1.trim() == "hello" => break,
            502 if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(50)),
            other => bail!("{other}: {}", answer.1),
        }
    }
    server.api("DELETE", &format!("/sandboxes/{id}"), None)?.expect(204)?;
    Ok(())
}

fn damaged(node: &mut Node) -> Result<()> {
    let server = Server::of(node)?;
    for damage in [|path: &Path| std::fs::remove_file(path), |path: &Path| std::fs::write(path, "damaged")] {
        let sandbox = server.create(json!({}))?;
        let path = format!("/sandboxes/{}", text(&sandbox, "sandboxID")?);
        let before = objects(&node.state.join("store"))?;
        server.api("POST", &format!("{path}/pause"), Some(json!({})))?.expect(204)?;
        let of_it: Vec<_> = objects(&node.state.join("store"))?.difference(&before).cloned().collect();
        ensure!(!of_it.is_empty(), "a pause stores something");
        for object in &of_it {
            damage(object).with_context(|| object.display().to_string())?;
        }
        let failed = server.api("POST", &format!("/v2{path}/connect"), Some(json!({"timeout": 60})))?;
        ensure!(failed.0 >= 500, "it goes on: {} {}", failed.0, failed.1);
        server.api("DELETE", &path, None)?.expect(204)?;
        server.api("GET", &path, None)?.expect(404)?;
        ensure!(server.api("GET", "/v2/sandboxes", None)?.expect(200)?.1 == "[]", "it is listed");
    }
    Ok(())
}

/// The files of a store, without its databases.
fn objects(directory: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(objects(&entry.path())?);
        } else if !entry.file_name().to_string_lossy().contains(".db") {
            found.insert(entry.path());
        }
    }
    Ok(found)
}

fn removed_snapshot(node: &mut Node) -> Result<()> {
    let server = Server::of(node)?;
    let restored = |node: &Node| -> Result<bool> { Ok(node.ok(&["template", "ls"])?.contains("snapshot-")) };
    let source = server.create(json!({}))?;
    let source = text(&source, "sandboxID")?;
    for used in [false, true] {
        let made =
            server.api("POST", &format!("/sandboxes/{source}/snapshots"), Some(json!({})))?.expect(201)?.json()?;
        let snapshot = text(&made, "snapshotID")?;
        let copy = server.create(json!({"templateID": snapshot}))?;
        let copy = format!("/sandboxes/{}", text(&copy, "sandboxID")?);
        ensure!(restored(node)?, "it was restored");
        if !used {
            server.api("DELETE", &copy, None)?.expect(204)?;
        }
        server.api("DELETE", &format!("/templates/{}", snapshot.replace('/', "%2F")), None)?.expect(204)?;
        ensure!(node.ok(&["checkpoint", "ls"]).is_ok_and(|listed| !listed.contains("snapshot-")), "its head is gone");
        if used {
            // Its sandbox runs on. The next server has nothing else of it.
            ensure!(restored(node)?, "it is in use");
            server.api("DELETE", &copy, None)?.expect(204)?;
            node.kill_server()?;
            node.start_server()?;
            Server::of(node)?;
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while restored(node)? {
            ensure!(Instant::now() < deadline, "the template stays");
            thread::sleep(Duration::from_millis(50));
        }
    }
    server_end(&Server::of(node)?, source)
}

fn server_end(server: &Server, id: &str) -> Result<()> {
    server.api("DELETE", &format!("/sandboxes/{id}"), None)?.expect(204).map(drop)
}

/// By its socket, as when a pause ends later than the request that began it.
fn paused_by_node(node: &mut Node) -> Result<()> {
    let server = Server::of(node)?;
    // Its time would end it: the pause must count.
    let sandbox = server.create(json!({"timeout": 4}))?;
    let id = sandbox["sandboxID"].as_str().context("no id")?;
    node.ok(&["pause", id])?;
    let path = format!("/sandboxes/{id}");
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.api("GET", &path, None)?.expect(200)?.json()?["state"] != "paused" {
        ensure!(Instant::now() < deadline, "the server takes it for running");
        thread::sleep(Duration::from_millis(100));
    }
    let again = server.api("POST", &format!("/v2{path}/connect"), Some(json!({"timeout": 60})))?.expect(201)?;
    ensure!(again.json()?["sandboxID"] == id, "{}", again.1);
    server.api("DELETE", &path, None)?.expect(204).map(drop)
}

fn wakes(node: &mut Node) -> Result<()> {
    let server = Server::of(node)?;
    for (wakes, status) in [(true, 204), (false, 502)] {
        let sandbox = server.create(json!({"autoResume": {"enabled": wakes}}))?;
        let (id, token) = (text(&sandbox, "sandboxID")?, text(&sandbox, "envdAccessToken")?);
        server.api("POST", &format!("/sandboxes/{id}/pause"), Some(json!({})))?.expect(204)?;
        server.inside(&sandbox, "GET", "/health", token, None)?.expect(status)?;
        let state = server.api("GET", &format!("/sandboxes/{id}"), None)?.expect(200)?.json()?;
        ensure!(state["state"] == if wakes { "running" } else { "paused" }, "{state}");
        server.api("DELETE", &format!("/sandboxes/{id}"), None)?.expect(204)?;
    }
    Ok(())
}

fn read_key(node: &mut Node) -> Result<()> {
    let server = Server::of(node)?;
    let state = node.state.display().to_string();
    let key = node.ok(&["key", "create", "--state", &state, "--read-only", "looks"])?;
    let reader = Server { key: key.trim().to_owned(), ..Server::of(node)? };
    let sandbox = server.create(json!({}))?;
    let path = format!("/sandboxes/{}", text(&sandbox, "sandboxID")?);
    let seen = reader.api("GET", &path, None)?.expect(200)?.json()?;
    ensure!(seen.get("envdAccessToken").is_none(), "{seen}");
    reader.api("DELETE", &path, None)?.expect(403)?;
    server.api("DELETE", &path, None)?.expect(204)?;
    Ok(())
}

fn timeout(node: &mut Node) -> Result<()> {
    let server = Server::of(node)?;
    let sandbox = server.create(json!({"timeout": 1}))?;
    let path = format!("/sandboxes/{}", text(&sandbox, "sandboxID")?);
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.api("GET", &path, None)?.0 == 200 {
        ensure!(Instant::now() < deadline, "it lives on");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn refused(node: &mut Node) -> Result<()> {
    let server = Server::of(node)?;
    for (method, path, body, status) in [
        ("POST", "/v2/sandboxes", Some(json!({"templateID": "nowhere"})), 404),
        ("POST", "/v2/sandboxes", Some(json!({"templateID": "plain", "timeout": -1})), 400),
        ("POST", "/v2/sandboxes", Some(json!({"templateID": "plain", "mcp": {"a": {}}})), 400),
        (
            "POST",
            "/v2/sandboxes",
            Some(json!({"templateID": "plain", "volumeMounts": [{"name": "a", "path": "/b"}]})),
            400,
        ),
        ("POST", "/v2/sandboxes", Some(json!({})), 400),
        ("GET", "/v2/sandboxes?limit=0", None, 400),
        ("GET", "/v2/sandboxes?limit=x", None, 400),
        ("GET", "/v2/sandboxes?state=asleep", None, 400),
        ("GET", "/sandboxes/nothing", None, 404),
        ("GET", "/nowhere", None, 404),
    ] {
        let answer = server.api(method, path, body)?.expect(status).with_context(|| format!("{method} {path}"))?;
        let error = answer.json()?;
        ensure!(error["code"] == status && error["message"].is_string(), "{method} {path}: {error}");
    }
    let stranger = Server { key: format!("e2b_{}", "0".repeat(40)), ..Server::of(node)? };
    stranger.api("GET", "/v2/sandboxes", None)?.expect(401)?;
    let old =
        [("X-API-Key", server.key.as_str()), ("lang", "python"), ("package_version", "1.9.0"), ("publisher", "e2b")];
    let told = server.ask("GET", "/v2/sandboxes", &old, None)?.expect(400)?;
    ensure!(told.1.contains("not supported"), "{}", told.1);
    Ok(())
}
