//! One team with the names and tokens of another, and strangers with neither.

use anyhow::{Result, ensure};
use serde_json::json;
use testkit::node::Node;

use super::{Target, text, until};
use crate::node::serve::Server;

pub(super) fn names_and_tokens(node: &mut Node) -> Result<()> {
    let state = node.state.display().to_string();
    let key = node.ok(&["key", "create", "--state", &state, "--team", "other", "test"])?;
    let target = Target::new(node)?;
    let other = Server { key: key.trim().to_owned(), ..Server::of(target.node)? };
    let own = other.create(json!({"timeout": 600}))?;
    routes(&target, &other)?;
    tokens(&target, &other, &own)?;
    // Nothing happened to it.
    ensure!(target.shell("cat /home/user/kept 2>/dev/null; true")?.is_empty(), "the other team wrote a file");
    let seen = target.server.api("GET", &format!("/sandboxes/{}", target.id()?), None)?.expect(200)?.json()?;
    ensure!(seen["state"] == "running", "{seen}");
    other.api("DELETE", &format!("/sandboxes/{}", text(&own, "sandboxID")?), None)?.expect(204)?;
    target.end()
}

/// Every route of the control plane that names something.
fn routes(target: &Target<'_>, other: &Server) -> Result<()> {
    let id = target.id()?;
    let snapshot = target.server.api("POST", &format!("/sandboxes/{id}/snapshots"), Some(json!({"name": "mine"})))?;
    let snapshot = snapshot.expect(201)?.json()?;
    let name = text(&snapshot, "snapshotID")?;
    let in_path = name.replace('/', "%2F");
    for (method, path, body) in [
        ("GET", format!("/sandboxes/{id}"), None),
        ("DELETE", format!("/sandboxes/{id}"), None),
        ("POST", format!("/sandboxes/{id}/connect"), Some(json!({"timeout": 1}))),
        ("POST", format!("/v2/sandboxes/{id}/connect"), Some(json!({"timeout": 1}))),
        ("POST", format!("/sandboxes/{id}/resume"), Some(json!({"timeout": 1}))),
        ("POST", format!("/sandboxes/{id}/timeout"), Some(json!({"timeout": 1}))),
        ("POST", format!("/sandboxes/{id}/refreshes"), Some(json!({"duration": 1}))),
        ("POST", format!("/sandboxes/{id}/pause"), Some(json!({}))),
        ("POST", format!("/sandboxes/{id}/fork"), Some(json!({"count": 1}))),
        ("POST", format!("/sandboxes/{id}/snapshots"), Some(json!({}))),
        ("GET", format!("/sandboxes/{id}/metrics"), None),
        ("GET", format!("/sandboxes/{id}/logs"), None),
        ("GET", format!("/v2/sandboxes/{id}/logs"), None),
        ("PUT", format!("/sandboxes/{id}/network"), Some(json!({}))),
        ("POST", "/v2/sandboxes".to_owned(), Some(json!({"templateID": name}))),
        ("DELETE", format!("/templates/{in_path}"), None),
        ("GET", format!("/templates/{in_path}/tags"), None),
        ("POST", "/templates/tags".to_owned(), Some(json!({"target": name, "tags": ["x"]}))),
        ("DELETE", "/templates/tags".to_owned(), Some(json!({"name": name, "tags": ["x"]}))),
    ] {
        let answer = other.api(method, &path, body)?;
        ensure!((400..=404).contains(&answer.0), "{method} {path}: {} {}", answer.0, answer.1);
        let own_word = answer.1.contains("envdAccessToken") || answer.1.contains("\"state\"");
        ensure!(!own_word, "{method} {path} tells something: {}", answer.1);
    }
    for path in ["/v2/sandboxes", "/sandboxes", "/snapshots", &format!("/sandboxes/metrics?sandbox_ids={id}")] {
        let answer = other.api("GET", path, None)?.expect(200)?;
        ensure!(!answer.1.contains(id), "{path} tells of it: {}", answer.1);
    }
    target.server.api("DELETE", &format!("/templates/{in_path}"), None)?.expect(204)?;
    Ok(())
}

/// The tokens of one sandbox at another one, and keys where tokens are asked for.
fn tokens(target: &Target<'_>, other: &Server, own: &serde_json::Value) -> Result<()> {
    let (theirs, id) = (text(own, "envdAccessToken")?, target.id()?);
    let host = format!("49983-{id}.{}", target.server.domain);
    let upper = target.token()?.to_ascii_uppercase();
    for token in [theirs, &other.key, &target.server.key, &upper, &format!("{} ", &target.token()?[1..]), "null", "0"] {
        for (method, path) in [
            ("GET", "/files?path=/etc/hostname"),
            ("POST", "/files?path=/home/user/kept"),
            ("POST", "/files/compose"),
            ("GET", "/envs"),
            ("GET", "/metrics"),
            ("POST", "/process.Process/List"),
            ("POST", "/process.Process/Start"),
            ("POST", "/filesystem.Filesystem/Remove"),
        ] {
            let headers = [("Host", host.as_str()), ("X-Access-Token", token), ("Content-Type", "application/json")];
            let body = (method == "POST").then_some("{\"path\": \"/home/user\"}");
            let answer = target.server.ask(method, path, &headers, body)?;
            ensure!(answer.0 == 401, "{method} {path} with {token:.10}: {} {}", answer.0, answer.1);
        }
    }
    // A cookie, a query and another header are no token.
    let own_token = target.token()?;
    let path = format!("/envs?x-access-token={own_token}&access_token={own_token}");
    let cookie = format!("x-access-token={own_token}");
    let bearer = format!("Bearer {own_token}");
    let headers = [("Host", host.as_str()), ("Cookie", cookie.as_str()), ("Authorization", bearer.as_str())];
    target.server.ask("GET", &path, &headers, None)?.expect(401)?;
    // A sandbox's token is no key, and a sandbox's host is no way to the API.
    let token_as_key = Server { key: target.token()?.to_owned(), ..Server::of(target.node)? };
    token_as_key.api("GET", "/v2/sandboxes", None)?.expect(401)?;
    let headers = [("Host", host.as_str()), ("X-API-Key", target.server.key.as_str())];
    ensure!(target.server.ask("GET", "/v2/sandboxes", &headers, None)?.0 >= 400, "the API at a sandbox's host");
    Ok(())
}

pub(super) fn strangers(node: &mut Node) -> Result<()> {
    let target = Target::new(node)?;
    let server = &target.server;
    let closed = json!({"autoResume": {"enabled": true}, "network": {"allowPublicTraffic": false}});
    let sandbox = server.create(closed)?;
    let (id, token) = (text(&sandbox, "sandboxID")?, text(&sandbox, "envdAccessToken")?);
    let path = format!("/sandboxes/{id}");
    let state =
        || -> Result<String> { Ok(text(&server.api("GET", &path, None)?.expect(200)?.json()?, "state")?.to_owned()) };
    server.api("POST", &format!("{path}/pause"), Some(json!({})))?.expect(204)?;
    for wrong in ["", "x", target.token()?] {
        for path in ["/health", "/files?path=/etc/hostname&signature=v1_x", "/envs"] {
            server.inside(&sandbox, "GET", path, wrong, None)?.expect(502)?;
        }
        let host = format!("8000-{id}.{}", server.domain);
        let headers = [("Host", host.as_str()), ("E2b-Traffic-Access-Token", wrong)];
        server.ask("GET", "/", &headers, None)?.expect(403)?;
    }
    ensure!(state()? == "paused", "a stranger woke it");
    let woken = server.inside(&sandbox, "GET", "/envs", token, None)?;
    woken.expect(200)?;
    until("it runs", || Ok(state()? == "running"))?;
    server.api("DELETE", &path, None)?.expect(204)?;
    target.end()
}
