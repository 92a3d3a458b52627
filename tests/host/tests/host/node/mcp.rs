//! `pando mcp`, line by line. The official client drives it in tests/mcp.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::{
    node::{Node, Setting},
    runner::Case,
};

use super::serve::Server;

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::new("mcp::an_agent_creates_uses_and_kills_a_sandbox", agent)]
}

/// A running `pando mcp`.
struct Agent {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    requests: u64,
}

impl Agent {
    fn start(node: &Node, server: &Server) -> Result<Self> {
        let mut command = node.command_of(&["mcp"]);
        command.env("PANDO_URL", format!("http://{}", server.address)).env("PANDO_KEY", &server.key);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = child.stdin.take().zip(child.stdout.take()).context("no pipes")?;
        let mut agent = Self { child, input, output: BufReader::new(output), requests: 0 };
        let client = json!({"name": "test", "version": "1"});
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        let welcome = agent.ask("initialize", &hello)?;
        ensure!(welcome["result"]["serverInfo"]["name"] == "pando", "{welcome}");
        agent.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        Ok(agent)
    }

    fn send(&mut self, message: &Value) -> Result<()> {
        writeln!(self.input, "{message}").context("it reads no more")
    }

    fn ask(&mut self, method: &str, params: &Value) -> Result<Value> {
        self.requests += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.requests, "method": method, "params": params}))?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let answer: Value = serde_json::from_str(&line).with_context(|| format!("{line:?}"))?;
        ensure!(answer["id"] == self.requests, "{answer}");
        Ok(answer)
    }

    /// The result of a tool, or its error as text.
    fn call(&mut self, tool: &str, arguments: Value) -> Result<Value> {
        let answer = self.ask("tools/call", &json!({"name": tool, "arguments": arguments}))?;
        let result = &answer["result"];
        Ok(if result["isError"] == true { &result["content"][0]["text"] } else { &result["structuredContent"] }.clone())
    }

    fn end(mut self) -> Result<()> {
        drop(self.input);
        let status = self.child.wait()?;
        ensure!(status.success(), "{status}");
        Ok(())
    }
}

fn agent() -> Result<()> {
    let node = Node::start_with(Setting { serves: true, ..Setting::default() })?;
    node.ok(&["template", "build", "plain"])?;
    use_tools(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

fn use_tools(node: &Node) -> Result<()> {
    let mut agent = Agent::start(node, &Server::of(node)?)?;
    let made = agent.call("create_sandbox", json!({"template": "plain"}))?;
    let id = &made["sandbox_id"];
    ensure!(id.is_string(), "{made}");
    agent.call("write_file", json!({"sandbox_id": id, "path": "/tmp/a b", "content": "größer"}))?;
    let command = json!({"sandbox_id": id, "command": "cat 'a b'; echo bad >&2; exit 3", "cwd": "/tmp"});
    let ran = agent.call("run_command", command)?;
    let told = json!({"exit_code": 3, "timed_out": false, "stdout": "größer", "stderr": "bad\n"});
    ensure!(ran == told, "{ran}");
    let forked = agent.call("fork_sandbox", json!({"sandbox_id": id}))?;
    let fork = &forked["sandbox_ids"][0];
    let read = agent.call("read_file", json!({"sandbox_id": fork, "path": "/tmp/a b"}))?;
    ensure!(read["content"] == "größer", "{read}");
    for sandbox in [id, fork] {
        ensure!(agent.call("kill_sandbox", json!({"sandbox_id": sandbox}))? == json!({"killed": sandbox}));
    }
    let gone = agent.call("run_command", json!({"sandbox_id": id, "command": "true"}))?;
    ensure!(gone.as_str().is_some_and(|text| text.ends_with("(status 404)")), "{gone}");
    agent.end()
}
