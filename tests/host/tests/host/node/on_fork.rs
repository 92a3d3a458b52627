//! What a template has run in each copy before the copy goes on.

use std::{
    collections::BTreeSet,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use testkit::{node::Node, runner::Case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("on_fork::copies_draw_numbers_of_their_own", || case(own_numbers)),
        Case::new("on_fork::one_that_fails_leaves_no_sandbox", || case(fails)),
    ]
}

fn case(body: fn(&Node) -> Result<()>) -> Result<()> {
    let node = Node::start()?;
    body(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

/// Two processes with the same numbers. Each draws one when it is told so.
const LOTTERY: &str = r#"
import os, random, signal, sys, time
random.seed(1)
if len(sys.argv) > 1:
    signal.signal(signal.SIGURG, lambda *_: random.seed())
child = os.fork()
if child:
    open('/tmp/ready', 'w').close()
while not os.path.exists('/tmp/go'): time.sleep(0.01)
name = '/tmp/drawn-' + ('parent' if child else 'child')
open(name + '.new', 'w').write(str(random.random()))
os.rename(name + '.new', name)
time.sleep(1000000)
"#;

fn build(node: &Node, name: &str, on_fork: Option<&str>) -> Result<()> {
    let options = on_fork.map_or(Vec::new(), |command| vec!["--on-fork", command]);
    let program = ["--ready-file", "/tmp/ready", "--", "/usr/bin/python3", "-c", LOTTERY];
    let mark: &[&str] = if on_fork.is_some() { &["reseeds"] } else { &[] };
    node.ok(&[&["template", "build", name], &options[..], &program, mark].concat()).map(drop)
}

fn drawn(node: &Node, ids: &[String]) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for id in ids {
        node.shell(id, "touch /tmp/go")?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while node.shell(id, "test -e /tmp/drawn-parent -a -e /tmp/drawn-child").is_err() {
            ensure!(Instant::now() < deadline, "{id} draws nothing");
            sleep(Duration::from_millis(20));
        }
        for which in ["parent", "child"] {
            all.push(node.shell(id, &format!("cat /tmp/drawn-{which}"))?);
        }
    }
    Ok(all)
}

fn started(node: &Node, template: &str) -> Result<Vec<String>> {
    Ok(node.run(template, 3)?.into_iter().map(|sandbox| sandbox.id.to_string()).collect())
}

fn forked(node: &Node, id: &str) -> Result<Vec<String>> {
    let response = node.json(&["fork", id, "-n", "2", "--json"])?;
    let copies = response["sandboxes"].as_array().context("no copies")?;
    copies.iter().map(|copy| Ok(copy["id"].as_str().context("no id")?.to_owned())).collect()
}

fn own_numbers(node: &Node) -> Result<()> {
    build(node, "same", None)?;
    let same: BTreeSet<String> = drawn(node, &started(node, "same")?)?.into_iter().collect();
    // Python itself gives a child another seed.
    ensure!(same.len() == 2, "what is not told draws others: {same:?}");
    build(node, "own", Some("hostname > /tmp/forked; kill -s URG -- -1"))?;
    let mut all = started(node, "own")?;
    let source = all[0].clone();
    node.ok(&["checkpoint", &source, "--name", "kept"])?;
    all.extend(forked(node, &source)?);
    // When copies are forked ahead, too.
    sleep(Duration::from_secs(1));
    all.extend(started(node, "own")?);
    all.extend(started(node, "kept")?);
    node.ok(&["pause", &source])?;
    all.extend(forked(node, &source)?);
    node.ok(&["resume", &source])?;
    let numbers = drawn(node, &all)?;
    let different: BTreeSet<&String> = numbers.iter().collect();
    ensure!(different.len() == 2 * all.len() && !numbers.iter().any(|number| same.contains(number)), "{numbers:?}");
    for id in &all {
        let said = node.shell(id, "cat /tmp/forked")?;
        ensure!(said.trim() == id, "{id}: it ran as {said}");
    }
    node.ok(&["checkpoint", "rm", "kept"]).map(drop)
}

fn fails(node: &Node) -> Result<()> {
    build(node, "wrong", Some("echo no luck; exit 3"))?;
    let answer = node.pando(&["create", "wrong"])?;
    ensure!(answer.code != 0 && answer.stderr.contains("on_fork") && answer.stderr.contains("no luck"), "{answer}");
    ensure!(node.ps()?.is_empty(), "a sandbox is left");
    let printed = node.ok(&["template", "inspect", "wrong"])?;
    ensure!(printed.contains("in copies  /bin/sh -c echo no luck; exit 3"), "{printed}");
    Ok(())
}
