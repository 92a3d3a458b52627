//! Volumes of `pando serve`, by plain HTTP.

use std::{
    io::Write,
    net::{Shutdown, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::{node::Node, runner::Case};

use super::serve::{Answer, Server, case, text};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("serve::volumes_outlive_servers_and_sandboxes", || case(outlive)),
        Case::new("serve::what_a_killed_server_leaves_of_volumes_is_swept", || case(sweep)),
        Case::new("serve::copies_get_volumes_that_their_team_has", || case(copies)),
        Case::new("serve::paths_of_volumes_lead_nowhere_else", || case(paths)),
        Case::new("serve::a_broken_or_refused_upload_leaves_the_old_file", || case(uploads)),
    ]
}

/// A volume, and its content.
struct Volume<'a> {
    server: &'a Server,
    id: String,
    name: String,
    token: String,
}

impl<'a> Volume<'a> {
    fn create(server: &'a Server, body: Value) -> Result<Self> {
        Self::of(server, &server.api("POST", "/volumes", Some(body))?.expect(201)?.json()?)
    }

    fn of(server: &'a Server, told: &Value) -> Result<Self> {
        let text = |key| text(told, key).map(str::to_owned);
        Ok(Self { server, id: text("volumeID")?, name: text("name")?, token: text("token")? })
    }

    fn path(&self) -> String {
        format!("/volumes/{}", self.id)
    }

    fn content(&self, method: &str, what: &str, body: Option<&str>) -> Result<Answer> {
        let token = format!("Bearer {}", self.token);
        let headers = [("Authorization", token.as_str()), ("Content-Type", "application/octet-stream")];
        self.server.ask(method, &format!("/volumecontent/{}/{what}", self.id), &headers, body)
    }

    fn read(&self, path: &str) -> Result<String> {
        Ok(self.content("GET", &format!("file?path={path}"), None)?.expect(200)?.1)
    }

    fn write(&self, path: &str, body: &str) -> Result<Answer> {
        self.content("PUT", &format!("file?path={path}&force=true"), Some(body))?.expect(201)
    }

    fn mounted(&self, path: &str) -> Value {
        json!({"volumeMounts": [{"name": self.name, "path": path}]})
    }
}

/// Runs a command in a sandbox to its end.
fn shell(node: &Node, sandbox: &Value, script: &str) -> Result<String> {
    node.ok(&["exec", text(sandbox, "sandboxID")?, "--", "/bin/sh", "-c", script])
}

fn kill(server: &Server, sandbox: &Value) -> Result<()> {
    server.api("DELETE", &format!("/sandboxes/{}", text(sandbox, "sandboxID")?), None)?.expect(204)?;
    Ok(())
}

/// The names of the node's volumes.
fn on_node(node: &Node) -> Result<Vec<String>> {
    let (status, body) = node.api("GET /v1/volumes", b"")?;
    ensure!(status == 200, "{status} {body}");
    let all: Vec<Value> = serde_json::from_str(&body)?;
    all.iter().map(|volume| text(volume, "name").map(str::to_owned)).collect()
}

fn outlive(node: &mut Node) -> Result<()> {
    let server = Server::of(node)?;
    let volume = Volume::create(&server, json!({"name": "data"}))?;
    server.api("POST", "/volumes", Some(json!({"name": "data"})))?.expect(409)?;
    let sandbox = server.create(volume.mounted("/mnt/deep/data"))?;
    shell(node, &sandbox, "echo one > /mnt/deep/data/f")?;
    let other = server.create(volume.mounted("/home/user/data"))?;
    ensure!(shell(node, &other, "cat /home/user/data/f; echo two > /home/user/data/g")?.trim() == "one");
    ensure!(volume.read("/g")? == "two\n");
    let detail = server.api("GET", &format!("/sandboxes/{}", text(&other, "sandboxID")?), None)?.expect(200)?.json()?;
    ensure!(detail["volumeMounts"] == json!([{"name": "data", "path": "/home/user/data"}]), "{detail}");
    for path in ["/", "/proc/x", "/sys", "/dev", "/run", "/etc/hosts", "relative", "/a/../b", "/a/"] {
        let mut body = volume.mounted(path);
        body["templateID"] = json!("plain");
        server.api("POST", "/v2/sandboxes", Some(body))?.expect(400).with_context(|| path.to_owned())?;
    }
    let mounts = json!([{"name": "data", "path": "/a"}, {"name": "data", "path": "/a/b"}]);
    server.api("POST", "/v2/sandboxes", Some(json!({"templateID": "plain", "volumeMounts": mounts})))?.expect(400)?;
    kill(&server, &sandbox)?;
    let held = server.api("DELETE", &volume.path(), None)?.expect(409)?;
    ensure!(held.1.contains("data") && !held.1.contains("vol-"), "{}", held.1);
    node.kill_server()?;
    node.start_server()?;
    let again = Server::of(node)?;
    let told = again.api("GET", &volume.path(), None)?.expect(200)?.json()?;
    let kept = Volume::of(&again, &told)?;
    ensure!(kept.token == volume.token && kept.read("/f")? == "one\n");
    ensure!(shell(node, &other, "cat /home/user/data/g")?.trim() == "two", "the mount is there still");
    again.api("POST", &format!("/sandboxes/{}/pause", text(&other, "sandboxID")?), Some(json!({})))?.expect(204)?;
    again.api("DELETE", &kept.path(), None)?.expect(409)?;
    kill(&again, &other)?;
    again.api("DELETE", &kept.path(), None)?.expect(204)?;
    again.api("DELETE", &kept.path(), None)?.expect(404)?;
    kept.content("GET", "file?path=/f", None)?.expect(401)?;
    ensure!(on_node(node)?.is_empty());
    Ok(())
}

fn sweep(node: &mut Node) -> Result<()> {
    let server = Server::of(node)?;
    let [kept, gone] = ["kept", "gone"].map(|name| Volume::create(&server, json!({"name": name})));
    let (kept, gone) = (kept?, gone?);
    kept.write("/f", "1")?;
    let before = on_node(node)?;
    // A server that is killed between its steps leaves one or the other.
    // So does a lost database leave the others.
    let stay = ["mine", "vol-0123456789ab", "vol-0123456789ab-s0123456789ab", "vol-mine"];
    for name in stay {
        node.ok(&["volume", "create", name])?;
    }
    let row = server.api("POST", &format!("{}/snapshots", kept.path()), Some(json!({"name": "first"})))?.expect(201)?;
    ensure!(row.json()?["name"] == "first");
    let with_first = |name: &&String| node.ok(&["volume", "log", name]).is_ok_and(|log| log.contains("first"));
    let other = before.iter().find(|name| !with_first(name)).context("no volume without a snapshot")?.clone();
    let copy = before.iter().find(|name| **name != other).map(|name| format!("{name}-s0123456789ab"));
    let copy = copy.context("no volume with a snapshot")?;
    node.ok(&["volume", "create", &copy])?;
    node.ok(&["volume", "snapshot", &copy, "then"])?;
    node.ok(&["volume", "rm", &other])?;
    node.kill_server()?;
    node.start_server()?;
    let again = Server::of(node)?;
    let mut names = on_node(node)?;
    names.retain(|name| !before.contains(name));
    names.sort();
    ensure!(names == stay, "others' volumes stay: {names:?}");
    ensure!(!node.ok(&["volume", "ls", "--removed"])?.contains(&copy), "its snapshot is gone, too");
    let listed = again.api("GET", "/volumes", None)?.expect(200)?.json()?;
    let rows = listed.as_array().context("no list")?;
    ensure!(rows.len() == 1 && rows[0]["volumeID"] == kept.id && rows[0]["name"] == "kept", "{listed}");
    again.api("GET", &gone.path(), None)?.expect(404)?;
    let kept = Volume::of(&again, &again.api("GET", &kept.path(), None)?.expect(200)?.json()?)?;
    ensure!(kept.read("/f")? == "1");
    again.api("DELETE", &kept.path(), None)?.expect(204)?;
    for name in stay {
        node.ok(&["volume", "rm", name])?;
    }
    ensure!(node.ok(&["volume", "ls", "--removed"])?.lines().all(|line| !line.contains("vol-")), "with its snapshots");
    Ok(())
}

fn copies(node: &mut Node) -> Result<()> {
    let server = Server::of(node)?;
    let volume = Volume::create(&server, json!({"name": "data"}))?;
    let source = server.create(volume.mounted("/mnt/data"))?;
    shell(node, &source, "echo before > /mnt/data/f")?;
    let forks = format!("/sandboxes/{}/fork", text(&source, "sandboxID")?);
    let forked = server.api("POST", &forks, Some(json!({"count": 2})))?.expect(201)?.json()?;
    volume.write("/f", "after")?;
    for fork in forked.as_array().context("no list")? {
        let sandbox = &fork["sandbox"];
        let id = text(sandbox, "sandboxID").with_context(|| forked.to_string())?;
        let own = format!("data-{id}");
        let detail = server.api("GET", &format!("/sandboxes/{id}"), None)?.expect(200)?.json()?;
        ensure!(detail["volumeMounts"] == json!([{"name": own, "path": "/mnt/data"}]), "{detail}");
        ensure!(shell(node, sandbox, "cat /mnt/data/f; echo own > /mnt/data/f")?.trim() == "before");
        kill(&server, sandbox)?;
        let listed = server.api("GET", "/volumes", None)?.expect(200)?.json()?;
        let told = listed.as_array().context("no list")?.iter().find(|volume| volume["name"] == own.as_str());
        let path = format!("/volumes/{}", text(told.context("the team has no such volume")?, "volumeID")?);
        let copy = Volume::of(&server, &server.api("GET", &path, None)?.expect(200)?.json()?)?;
        ensure!(copy.read("/f")? == "own\n", "it outlives its sandbox");
        server.api("DELETE", &path, None)?.expect(204)?;
    }
    ensure!(volume.read("/f")? == "after");
    kill(&server, &source)?;
    server.api("DELETE", &volume.path(), None)?.expect(204)?;
    ensure!(on_node(node)?.is_empty());
    Ok(())
}

fn paths(node: &mut Node) -> Result<()> {
    let server = Server::of(node)?;
    let volume = Volume::create(&server, json!({"name": "data"}))?;
    let sandbox = server.create(volume.mounted("/mnt/data"))?;
    volume.write("/inside/passwd", "own")?;
    shell(node, &sandbox, "cd /mnt/data && ln -s /etc/passwd abs && ln -s ../../../etc/passwd up && ln -s / top")?;
    shell(node, &sandbox, "cd /mnt/data && ln -s loop loop && mkfifo pipe")?;
    for path in ["/abs", "/up", "/top/etc/passwd", "/../../etc/passwd", "..%2f..%2fetc%2fpasswd", "/inside/%2e%2e/etc"]
    {
        volume.content("GET", &format!("file?path={path}"), None)?.expect(404).with_context(|| path.to_owned())?;
    }
    ensure!(volume.read("/top/inside/passwd")? == "own", "a link to the root leads to the volume's top");
    for (what, status) in
        [("file?path=/loop", 400), ("file?path=/pipe", 400), ("file?path=/inside", 409), ("file", 400)]
    {
        volume.content("GET", what, None)?.expect(status).with_context(|| what.to_owned())?;
    }
    volume.content("DELETE", "path?path=/", None)?.expect(400)?;
    volume.content("DELETE", "path?path=/inside/..", None)?.expect(400)?;
    let link = volume.content("GET", "path?path=/abs", None)?.expect(200)?.json()?;
    ensure!(link["type"] == "symlink" && link["target"] == "/etc/passwd", "{link}");
    // An attacker swaps a directory for a link to the host's, again and again.
    let race = "cd /mnt/data && mkdir -p real/etc && while [ ! -e end ]; do rm -rf x; cp -r real x; rm -rf x; ln -s / x; done; true";
    let node = &*node;
    std::thread::scope(|scope| -> Result<()> {
        let attacker = scope.spawn(|| shell(node, &sandbox, race));
        let raced = (|| {
            let end = Instant::now() + Duration::from_millis(600);
            while Instant::now() < end {
                let answer = volume.content("GET", "file?path=/x/etc/passwd", None)?;
                ensure!(answer.0 == 404 || answer.0 == 409, "{}: {}", answer.0, answer.1);
                volume.content("PUT", "file?path=/x/etc/shadow&force=true", Some("mine"))?;
            }
            Ok(())
        })();
        volume.write("/end", "")?;
        attacker.join().map_err(|_| anyhow::anyhow!("the attacker panicked"))??;
        raced
    })?;
    ensure!(!std::fs::read_to_string("/etc/shadow")?.contains("mine"));
    kill(&server, &sandbox)?;
    server.api("DELETE", &volume.path(), None)?.expect(204)?;
    Ok(())
}

fn uploads(node: &mut Node) -> Result<()> {
    let server = Server::of(node)?;
    let volume = Volume::create(&server, json!({"name": "data", "sizeMB": 2}))?;
    for wrong in [0, 1 << 21] {
        server.api("POST", "/volumes", Some(json!({"name": "other", "sizeMB": wrong})))?.expect(400)?;
    }
    volume.write("/f", "old")?;
    let large = node.state.join("large");
    std::fs::write(&large, vec![b'x'; 3 << 20])?;
    let full = volume.content("PUT", "file?path=/f&force=true", Some(&format!("@{}", large.display())))?.expect(507)?;
    std::fs::remove_file(&large)?;
    ensure!(full.json()?["code"] == "507", "{}", full.1);
    volume.content("PUT", "file?path=/f", Some("new"))?.expect(409)?;
    // It breaks off in the middle, as a client that is killed does.
    let mut client = TcpStream::connect(&server.address)?;
    let head = format!(
        "PUT /volumecontent/{}/file?path=/f&force=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\
         Content-Length: 1000000\r\n\r\nhalf of it",
        volume.id, volume.token
    );
    client.write_all(head.as_bytes())?;
    client.shutdown(Shutdown::Both)?;
    for token in ["", "x", &volume.token[1..]] {
        let stranger = Volume { server: &server, id: volume.id.clone(), name: String::new(), token: token.to_owned() };
        stranger.content("GET", "file?path=/f", None)?.expect(401)?;
        stranger.content("DELETE", "path?path=/f", None)?.expect(401)?;
    }
    let listed = volume.content("GET", "dir?path=/", None)?.expect(200)?.json()?;
    ensure!(volume.read("/f")? == "old" && listed.as_array().is_some_and(|all| all.len() == 1), "{listed}");
    volume.content("GET", "dir?path=/&depth=65", None)?.expect(400)?;
    let mode = json!({"mode": 0o600, "uid": 7}).to_string();
    let token = format!("Bearer {}", volume.token);
    let headers = [("Authorization", token.as_str()), ("Content-Type", "application/json")];
    let path = format!("/volumecontent/{}/path?path=/f", volume.id);
    let set = server.ask("PATCH", &path, &headers, Some(&mode))?.expect(200)?.json()?;
    ensure!((&set["mode"], &set["uid"], &set["gid"]) == (&json!(0o600), &json!(7), &json!(1000)), "{set}");
    server.ask("PATCH", &path, &headers, Some("{\"mode\": 65536}"))?.expect(400)?;
    server.api("DELETE", &volume.path(), None)?.expect(204)?;
    Ok(())
}
