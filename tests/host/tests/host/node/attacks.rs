//! Attacks on a server from its two sides at once: by clients, and by programs in sandboxes.
//!
//! Each case does several things to one server, and ends with a server that answers, in the memory that it had.

mod files;
mod links;
mod memory;
mod streams;
mod teams;
mod wire;

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::{node::Node, runner::Case};

use super::serve::{self, Server, text};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("attacks::paths_and_special_files_answer_at_once", || serve::case(files::paths_and_kinds)),
        Case::new("attacks::an_upload_that_breaks_off_or_does_not_fit_changes_nothing", || serve::case(files::uploads)),
        Case::new("attacks::swapped_links_show_nothing_of_the_host", || serve::case(links::swapped)),
        Case::new("attacks::bodies_that_unfold_take_no_memory", || serve::case(memory::bodies)),
        Case::new("attacks::a_team_gets_nothing_by_the_names_of_another", || serve::case(teams::names_and_tokens)),
        Case::new("attacks::a_stranger_wakes_no_paused_sandbox", || serve::case(teams::strangers)),
        Case::new("attacks::idle_streams_hold_up_nothing", || serve::case(streams::idle)),
    ]
}

/// A sandbox under attack.
struct Target<'a> {
    node: &'a Node,
    server: Server,
    sandbox: Value,
}

impl<'a> Target<'a> {
    fn new(node: &'a Node) -> Result<Self> {
        let server = Server::of(node)?;
        let sandbox = server.create(json!({"timeout": 600}))?;
        Ok(Self { node, server, sandbox })
    }

    fn id(&self) -> Result<&str> {
        text(&self.sandbox, "sandboxID")
    }

    fn token(&self) -> Result<&str> {
        text(&self.sandbox, "envdAccessToken")
    }

    fn shell(&self, command: &str) -> Result<String> {
        self.node.shell(self.id()?, command)
    }

    /// The head of a request to the services in the sandbox.
    fn head(&self, method: &str, path: &str, headers: &str) -> Result<String> {
        let (id, token, domain) = (self.id()?, self.token()?, &self.server.domain);
        Ok(format!(
            "{method} {path} HTTP/1.1\r\nhost: 49983-{id}.{domain}\r\nx-access-token: {token}\r\n\
             connection: close\r\n{headers}\r\n"
        ))
    }

    /// Status and body of a request to the services in the sandbox, which is answered within seconds.
    fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Result<(u16, String)> {
        let head = self.head(method, path, &format!("{headers}content-length: {}\r\n", body.len()))?;
        let began = Instant::now();
        let answer = wire::exchange(&self.server.address, &[head.as_bytes(), body].concat())?;
        ensure!(began.elapsed() < wire::SOON, "{method} {path} took {:?}", began.elapsed());
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("{method} {path}: no answer: {answer:.200}"))?;
        Ok((status, wire::body(&answer)))
    }

    fn put(&self, path: &str, body: &[u8]) -> Result<(u16, String)> {
        self.ask("POST", &format!("/files?path={path}"), "content-type: application/octet-stream\r\n", body)
    }

    fn get(&self, path: &str) -> Result<(u16, String)> {
        self.ask("GET", &format!("/files?path={path}"), "", b"")
    }

    /// Removes the sandbox. The server must have gone on.
    fn end(self) -> Result<()> {
        self.server.api("DELETE", &format!("/sandboxes/{}", self.id()?), None)?.expect(204)?;
        let restarts = self.node.info()?.keeper_restarts;
        ensure!(restarts == 0, "the keeper was started again {restarts} times");
        Ok(())
    }
}

/// Most memory that the server has had, in bytes.
fn highest_memory(node: &Node) -> Result<usize> {
    let status = fs::read_to_string(format!("/proc/{}/status", node.server_pid()?))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<usize>()? << 10)
}

/// Begins to count [`highest_memory`] anew. Returns what the server has now.
fn count_memory(node: &Node) -> Result<usize> {
    fs::write(format!("/proc/{}/clear_refs", node.server_pid()?), "5")?;
    highest_memory(node)
}

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds()? {
        ensure!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
