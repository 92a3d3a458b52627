//! Commands in sandboxes: what they may be given, and when they end.

use anyhow::{Context, Result, ensure};
use pando_host_tests::{node::Node, runner::Case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("commands::long_arguments_run_up_to_the_limits_of_linux", || case(long)),
        Case::new("commands::hostile_commands_are_refused_and_end_no_process", || case(hostile)),
    ]
}

fn case(body: fn(&Node) -> Result<()>) -> Result<()> {
    let node = Node::start()?;
    body(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

/// A sandbox of a program that only waits.
fn sandbox(node: &Node) -> Result<String> {
    build_sleep(node, "sleeper")?;
    Ok(node.run("sleeper", 1)?[0].id.to_string())
}

fn build_sleep(node: &Node, name: &str) -> Result<()> {
    node.ok(&["template", "build", name, "--ready", "true", "--", "/bin/sleep", "1000000"]).map(drop)
}

fn long(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    let count = |given: &[String]| -> Result<String> {
        let count = ["exec", &id, "--", "/bin/sh", "-c", "for a; do n=$((n+${#a})); done; echo $# $n", "sh"];
        let all: Vec<&str> = count.into_iter().chain(given.iter().map(String::as_str)).collect();
        node.ok(&all)
    };
    // Characters that JSON makes six times as long.
    for text in ["x", "\u{1}"] {
        let given: Vec<String> = (0..1600).map(|_| text.repeat(1000)).collect();
        ensure!(count(&given)? == "1600 1600000\n", "1.6 MB of {text:?}");
    }
    ensure!(count(&["y".repeat(131_071)])? == "1 131071\n", "the longest argument");
    let script = format!("test ${{#V}} = 131069 && echo {}", "z".repeat(100_000));
    let variable = format!("V={}", "v".repeat(131_069));
    let answer = node.ok(&["exec", "--env", &variable, &id, "--", "/bin/sh", "-c", &script])?;
    ensure!(answer.trim_end() == "z".repeat(100_000), "the longest variable: {answer}");
    let long = format!("{script}; exec sleep 1000000");
    node.ok(&[
        "template",
        "build",
        "long",
        "--ready",
        &format!("true {}", "z".repeat(100_000)),
        "--",
        "/bin/sh",
        "-c",
        &long,
    ])?;
    let other = node.run("long", 1)?[0].id.to_string();
    ensure!(node.shell(&other, "echo here")? == "here\n", "a sandbox of a long command");
    ensure!(node.info()?.keeper_restarts == 0, "the keeper did not survive");
    node.ok(&["rm", &id, &other]).map(drop)
}

/// Requests that nothing in the node may die of; the template of another program has to be there as before.
fn hostile(node: &Node) -> Result<()> {
    let id = sandbox(node)?;
    let keeper = node.info()?.keeper_pid;
    let exec = format!("POST /v1/sandboxes/{id}/exec");
    let many = serde_json::Value::from(vec![["A", "b"]; 300_000]);
    let tiny = serde_json::Value::from(vec![""; 1_000_000]);
    let bodies = [
        serde_json::json!({"command": []}),
        serde_json::json!({"command": ["echo", "a\u{0}b"]}),
        serde_json::json!({"command": ["ec\u{0}ho"]}),
        serde_json::json!({"command": ["true"], "env": [["A\u{0}", "b"]]}),
        serde_json::json!({"command": ["true"], "env": [["A", "b\u{0}"]]}),
        serde_json::json!({"command": ["true"], "env": [["", "b"]]}),
        serde_json::json!({"command": ["true"], "env": [["A=B", "b"]]}),
        serde_json::json!({"command": ["true"], "env": (0..300_000).map(|n| [format!("A{n}"), String::new()]).collect::<Vec<_>>()}),
        serde_json::json!({"command": ["true"], "env": [["A", "b".repeat(131_070)]]}),
        serde_json::json!({"command": ["true", "x".repeat(131_072)]}),
        serde_json::json!({"command": vec!["x".repeat(100_000); 25]}),
        serde_json::json!({"command": tiny}),
        serde_json::json!({"command": ["x".repeat(5_000)]}),
        serde_json::json!({"command": ["true"], "cwd": format!("/{}", "x".repeat(5_000))}),
        serde_json::json!({"command": ["true"], "cwd": "/\u{0}"}),
        serde_json::json!({"command": ["true"], "cwd": "relative"}),
    ];
    for body in &bodies {
        refused(node, &exec, body.to_string().as_bytes())?;
    }
    // A lone half of a surrogate pair, a byte that is no UTF-8, a number that is none of a terminal's.
    refused(node, &exec, br#"{"command": ["\ud800"]}"#)?;
    refused(node, &exec, b"{\"command\": [\"\xff\"]}")?;
    refused(node, &exec, br#"{"command": ["true"], "terminal": {"rows": 65536, "columns": -1}}"#)?;
    // The last one of each name counts, so this is one variable.
    let (status, _) =
        upgrade(node, &exec, serde_json::json!({"command": ["true"], "env": many}).to_string().as_bytes())?;
    ensure!(status == 101 || status == 400, "many variables of one name: {status}");
    for (what, change) in templates() {
        let mut spec = serde_json::json!({"name": "x", "image": "host", "command": ["/bin/true"], "cwd": "/", "ready": "listening", "ready_timeout_ms": 500});
        let fields = spec.as_object_mut().context("no object")?;
        fields.extend(change.as_object().context("no object")?.clone());
        let (status, answer) = node.api("POST /v1/templates", spec.to_string().as_bytes())?;
        ensure!(status == 400, "a template with {what}: {status} {answer}");
    }
    let answer = node.pando(&["exec", &id, "--", ""])?;
    ensure!(answer.code == 127, "a program without a name: {answer}");
    let info = node.info()?;
    ensure!(info.keeper_pid == keeper && info.keeper_restarts == 0, "the keeper did not survive: {info:?}");
    ensure!(!node.ok(&["template", "ls"])?.contains("lost"), "a zygote was lost");
    ensure!(node.shell(&id, "echo here")? == "here\n", "the sandbox");
    node.ok(&["rm", &id]).map(drop)
}

fn templates() -> Vec<(&'static str, serde_json::Value)> {
    vec![
        ("a zero byte in its command", serde_json::json!({"command": ["a\u{0}b"]})),
        ("an argument that is too long", serde_json::json!({"command": ["/bin/true", "x".repeat(131_072)]})),
        ("a command that is too long", serde_json::json!({"command": vec!["x".repeat(100_000); 25]})),
        ("a variable without a name", serde_json::json!({"env": [["", "a"]]})),
        ("a directory that is too long", serde_json::json!({"cwd": format!("/{}", "x".repeat(5_000))})),
        ("an image that is too long", serde_json::json!({"image": format!("/{}", "x".repeat(5_000))})),
        ("a zero byte in its image", serde_json::json!({"image": "/a\u{0}b"})),
        ("an empty ready command", serde_json::json!({"ready": {"command": []}})),
        ("a zero byte in its ready command", serde_json::json!({"ready": {"command": ["a\u{0}b"]}})),
        ("a ready file that is too long", serde_json::json!({"ready": {"file": format!("/{}", "x".repeat(5_000))}})),
        ("a zero byte in its ready file", serde_json::json!({"ready": {"file": "/a\u{0}b"}})),
        ("port 0", serde_json::json!({"ready": {"port": 0}})),
        (
            "more processes than there are numbers",
            serde_json::json!({"limits": {"memory_bytes": 1_000_000_000, "pids": u64::MAX, "cpu_millis": null}}),
        ),
        (
            "more memory than there can be",
            serde_json::json!({"limits": {"memory_bytes": u64::MAX, "pids": 10, "cpu_millis": null}}),
        ),
        (
            "more processors than there can be",
            serde_json::json!({"limits": {"memory_bytes": 1_000_000_000, "pids": 10, "cpu_millis": u32::MAX}}),
        ),
    ]
}

fn refused(node: &Node, request: &str, body: &[u8]) -> Result<()> {
    let (status, answer) = upgrade(node, request, body)?;
    let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
    ensure!(status == 400, "{request} with {} bytes {shown}: {status} {answer}", body.len());
    let answer: api::ErrorBody = serde_json::from_str(&answer).with_context(|| format!("{shown}: {answer:?}"))?;
    ensure!(
        !answer.error.message.is_empty() && answer.error.message.len() < 1_000,
        "{shown}: {}",
        answer.error.message
    );
    Ok(())
}

/// As `Node::api`, for a request whose connection is to become a command's streams; it hangs up.
fn upgrade(node: &Node, request: &str, body: &[u8]) -> Result<(u16, String)> {
    node.api(&format!("{request} HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: pando-exec\r\nX-Rest:"), body)
}
