//! What a node tells of itself: metrics that any scraper reads, and log lines that name the request.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use testkit::{
    node::{Node, Setting},
    runner::Case,
};

use super::volumes::build_scribe;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("telemetry::metrics_count_what_was_done", || case(&[], counted)),
        Case::new("telemetry::log_lines_name_the_request", || case(&[], named)),
        Case::new("telemetry::json_log_lines_name_the_request", || case(&["--log-format", "json"], named_in_json)),
    ]
}

fn case(arguments: &[&str], body: fn(&Node) -> Result<()>) -> Result<()> {
    let arguments = arguments.iter().chain(&["--pool", "4"]).map(|argument| (*argument).to_owned()).collect();
    let node = Node::start_with(Setting { arguments, ..Setting::default() })?;
    build_scribe(&node)?;
    body(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.ok(&["kill", "--all", "--force"])?;
    node.finish()
}

/// The answer to a request with more headers: its head and its body.
fn send(node: &Node, request: &str, headers: &str, body: &str) -> Result<(String, String)> {
    let mut stream = UnixStream::connect(&node.socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let length = body.len();
    write!(
        stream,
        "{request} HTTP/1.1\r\nHost: node\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("no HTTP answer: {answer:?}"))?;
    Ok((head.to_owned(), body.to_owned()))
}

/// A scrape: values by name and labels.
struct Scraped(BTreeMap<String, f64>);

impl Scraped {
    fn of(node: &Node) -> Result<Self> {
        let (head, body) = send(node, "GET /v1/metrics", "", "")?;
        ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
        ensure!(head.to_lowercase().contains("content-type: text/plain; version=0.0.4"), "{head}");
        let body = if head.to_lowercase().contains("transfer-encoding: chunked") { unchunked(&body)? } else { body };
        Ok(Self(parse(&body)?))
    }

    fn value(&self, series: &str) -> f64 {
        self.0.get(series).copied().unwrap_or(0.0)
    }

    fn sum(&self, name: &str) -> f64 {
        self.0.iter().filter(|(series, _)| series.split('{').next() == Some(name)).map(|(_, value)| value).sum()
    }

    fn names(&self, text: &str) -> bool {
        self.0.keys().any(|series| series.contains(text))
    }
}

fn unchunked(mut body: &str) -> Result<String> {
    let mut whole = String::new();
    loop {
        let (length, rest) = body.split_once("\r\n").context("a chunk has no length")?;
        let length = usize::from_str_radix(length, 16)?;
        if length == 0 {
            return Ok(whole);
        }
        whole += &rest[..length];
        body = &rest[length + 2..];
    }
}

/// Reads the text format 0.0.4, and refuses what the format does not allow: families twice or apart, samples without a type, wrong names,
/// labels or numbers, histograms that do not add up.
fn parse(text: &str) -> Result<BTreeMap<String, f64>> {
    ensure!(text.ends_with('\n'), "the last line has no end");
    let (mut values, mut families) = (BTreeMap::new(), BTreeSet::new());
    let (mut family, mut helped) = (None::<(String, String)>, None::<String>);
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').with_context(|| format!("no help: {line}"))?;
            ensure!(!words.is_empty() && families.insert(name.to_owned()), "twice: {line}");
            helped = Some(name.to_owned());
        } else if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, kind) = typed.split_once(' ').with_context(|| format!("no type: {line}"))?;
            ensure!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            ensure!(helped.as_deref() == Some(name), "not below its help: {line}");
            family = Some((name.to_owned(), kind.to_owned()));
        } else {
            let (series, value) = line.rsplit_once(' ').with_context(|| format!("no sample: {line}"))?;
            let name = check_series(series).with_context(|| line.to_owned())?;
            let (of, kind) = family.as_ref().with_context(|| format!("before any type: {line}"))?;
            let suffix = name.strip_prefix(of.as_str()).with_context(|| format!("below {of}: {line}"))?;
            let allowed: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            ensure!(allowed.contains(&suffix), "below {of}: {line}");
            let value: f64 = value.parse().with_context(|| line.to_owned())?;
            ensure!(value >= 0.0 && values.insert(series.to_owned(), value).is_none(), "twice or negative: {line}");
        }
    }
    for (series, count) in values.iter().filter(|(series, _)| series.contains("_bucket{")) {
        let (of, bound) = series.rsplit_once(",le=").with_context(|| format!("no bound: {series}"))?;
        let all = values.get(&format!("{}}}", of.replace("_bucket{", "_count{")));
        let all = all.with_context(|| format!("no count: {series}"))?;
        ensure!(count == all || (count < all && bound != "\"+Inf\"}"), "{series} {count}");
    }
    Ok(values)
}

/// The name of a series whose labels are well-formed.
fn check_series(series: &str) -> Result<&str> {
    let is_name = |text: &str| !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'_'));
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}').context("the labels have no end")?),
        None => (series, ""),
    };
    ensure!(is_name(name), "{name:?} is no name");
    for label in labels.split(',').filter(|label| !label.is_empty()) {
        let (key, value) = label.split_once('=').context("a label has no value")?;
        let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).context("not quoted")?;
        ensure!(is_name(key) && !value.contains(['"', '\\']), "{label}");
    }
    Ok(name)
}

fn counted(node: &Node) -> Result<()> {
    let before = Scraped::of(node)?;
    ensure!(before.value("pando_template_builds_total{result=\"ok\"}") == 1.0, "one template");
    ensure!(!before.names("pando_volume_") && !before.names("sandbox=\""), "no volumes and no sandboxes yet");
    let id = node.run("scribe", 1)?[0].id.to_string();
    let labels = format!("{{sandbox=\"{id}\",template=\"scribe\"}}");
    node.json(&["fork", &id, "--json"])?;
    node.shell(&id, "true")?;
    let gone = "mkdir /tmp/gone; cd /tmp/gone; rmdir /tmp/gone; exec sleep 1000";
    let refused = ["template", "build", "lost", "--ready", "sleep 0.1", "--", "/bin/sh", "-c", gone];
    ensure!(node.pando(&refused)?.code == 5, "it is refused");
    node.ok(&["volume", "create", "ws"])?;

    // On cgroup v1 the memory is counted as soon as the limits are bound.
    let deadline = Instant::now() + Duration::from_secs(10);
    let after = loop {
        let after = Scraped::of(node)?;
        if after.value(&format!("pando_sandbox_memory_bytes{labels}")) > 0.0 {
            break after;
        }
        ensure!(Instant::now() < deadline, "memory of {id} is not counted: {:?}", after.0);
        std::thread::sleep(Duration::from_millis(50));
    };
    let processes = after.value(&format!("pando_sandbox_processes{labels}"));
    ensure!((2.0..=5.0).contains(&processes), "{processes} processes: pid 1, the program, and what serves it");
    ensure!(after.value(&format!("pando_sandbox_memory_limit_bytes{labels}")) >= 1e6, "{:?}", after.0);
    for (series, count) in [
        ("pando_starts_total{kind=\"fork\",result=\"ok\"}", 1.0),
        ("pando_captures_total{purpose=\"fork\",result=\"ok\"}", 1.0),
        ("pando_capture_pause_seconds_count{purpose=\"fork\"}", 1.0),
        ("pando_template_builds_total{result=\"failed\"}", 1.0),
        ("pando_refusals_total{reason=\"deleted_directory\"}", 1.0),
        ("pando_request_failures_total{kind=\"cannot_fork\"}", 1.0),
        ("pando_commands_total{result=\"ok\"}", 1.0),
        ("pando_sandboxes{state=\"running\"}", 2.0),
        ("pando_templates{state=\"ready\"}", 1.0),
        ("pando_keeper_restarts_total", 0.0),
    ] {
        ensure!(after.value(series) == count, "{series} is not {count}: {:?}", after.0);
    }
    ensure!(after.sum("pando_starts_total") - before.sum("pando_starts_total") == 2.0, "{:?}", after.0);
    ensure!(after.sum("pando_start_seconds_count") == after.sum("pando_starts_total"), "{:?}", after.0);
    ensure!(after.sum("pando_start_seconds_sum") > 0.0, "starts take time");

    node.ok(&["pause", &id])?;
    let paused = Scraped::of(node)?;
    ensure!(!paused.names(&id), "a paused sandbox uses nothing: {:?}", paused.0);
    ensure!(paused.value("pando_sandboxes{state=\"paused\"}") == 1.0, "{:?}", paused.0);
    ensure!(paused.value("pando_captures_total{purpose=\"pause\",result=\"ok\"}") == 1.0, "{:?}", paused.0);
    ensure!(paused.sum("pando_store_requests_total") > after.sum("pando_store_requests_total"), "{:?}", paused.0);
    node.ok(&["resume", &id])?;
    let resumed = Scraped::of(node)?;
    ensure!(resumed.value("pando_starts_total{kind=\"resume\",result=\"ok\"}") == 1.0, "{:?}", resumed.0);
    ensure!(resumed.names(&id), "{:?}", resumed.0);
    node.ok(&["kill", &id])?;
    ensure!(!Scraped::of(node)?.names(&id), "it was removed");
    node.ok(&["volume", "rm", "ws"]).map(drop)
}

const LACKS_A_VOLUME: &str = r#"{"count":1,"volumes":[{"volume":"missing","path":"/workspace"}]}"#;

/// Has a start fail, and gives the line of the log that says so.
fn failed_start(node: &Node, id: &str) -> Result<String> {
    let header = format!("X-Request-Id: {id}\r\n");
    let (head, body) = send(node, "POST /v1/templates/scribe/run", &header, LACKS_A_VOLUME)?;
    ensure!(body.contains("missing"), "{head} {body}");
    ensure!(head.to_lowercase().contains(&format!("x-request-id: {id}")), "{head}");
    let log = node.log()?;
    let line = log.lines().find(|line| line.contains("a start failed")).context("no start failed")?;
    Ok(line.to_owned())
}

fn named(node: &Node) -> Result<()> {
    let line = failed_start(node, "client-7.a_b")?;
    ensure!(line.contains("client-7.a_b") && line.contains("scribe") && line.contains("sandbox=s"), "{line}");
    // What a log could not hold is not taken.
    let (head, _) = send(node, "GET /v1/node", "X-Request-Id: a b\r\n", "")?;
    let chosen = head.lines().find_map(|line| line.strip_prefix("x-request-id: ")).context(head.clone())?;
    ensure!(chosen.len() == 12 && chosen.bytes().all(|byte| byte.is_ascii_hexdigit()), "{head}");
    Ok(())
}

fn named_in_json(node: &Node) -> Result<()> {
    let line: serde_json::Value = serde_json::from_str(&failed_start(node, "client-8")?)?;
    let spans = line["spans"].as_array().context("no spans")?;
    ensure!(spans.iter().any(|span| span["request"] == "client-8"), "{line}");
    ensure!(spans.iter().any(|span| span["template"] == "scribe"), "{line}");
    Ok(())
}
