//! Live fork: what was before it is in the copies, what comes later is each one's own, and the source goes on.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::{node::Node, runner::Case};

use super::files_only::begin_unforkable;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("live_fork::memory_and_files_are_of_one_moment_and_separate_later", || case(values_and_files)),
        Case::new("live_fork::a_fork_of_a_fork_has_the_values_of_both", || case(fork_of_a_fork)),
        Case::new("live_fork::a_file_that_is_written_all_the_time_has_no_gap", diary),
        Case::new("live_fork::the_tree_shows_who_was_forked_from_whom", || case(tree)),
        Case::new("live_fork::two_sandboxes_are_compared", || case(compared)),
        Case::new("live_fork::a_copy_tells_what_is_its_own", || case(own)),
        Case::new("live_fork::copies_outlive_their_source", || case(source_removed)),
        Case::new("live_fork::a_command_that_cannot_be_forked_is_refused_with_the_reason", || case(unforkable)),
    ]
}

fn case(body: fn(&Node) -> Result<()>) -> Result<()> {
    let node = Node::start()?;
    node.build_geo("geo", &["--nidx", "4"])?;
    body(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

fn fork(node: &Node, id: &str, count: usize) -> Result<Vec<String>> {
    let response = node.json(&["fork", id, "-n", &count.to_string(), "--json"])?;
    let copies = response["sandboxes"].as_array().context("no copies")?;
    ensure!(copies.len() == count, "{response}");
    ensure!(response["pause_us"].as_u64().is_some_and(|pause| pause > 0), "{response}");
    let ids = copies.iter().map(|copy| Ok(copy["id"].as_str().context("no id")?.to_owned()));
    ensure!(copies.iter().all(|copy| copy["parent"] == *id), "another parent: {response}");
    ids.collect()
}

fn compared(node: &Node) -> Result<()> {
    let source = start(node)?;
    node.shell(
        &source,
        "mkdir -p /tmp/both /tmp/gone/below; cd /tmp/both; echo 1 > same; echo 2 > text; echo 3 > mode",
    )?;
    let copies = fork(node, &source, 2)?;
    node.shell(
        &copies[0],
        "cd /tmp/both; echo 4 > text; chmod 600 mode; rm -r /tmp/gone; touch same; mkdir -p new/below",
    )?;
    node.ok(&["exec", "-d", &copies[0], "--", "/bin/sleep", "1000000"])?;
    let expected = "M /tmp/both/mode  mode\n+ /tmp/both/new/\nM /tmp/both/text  content\n- /tmp/gone/\n";
    for other in [&source, &copies[1]] {
        let printed = node.ok(&["diff", other, &copies[0]])?;
        let (files, processes) = printed.split_at(expected.len().min(printed.len()));
        ensure!(
            files == expected && processes.starts_with("+ process ") && processes.ends_with("(sleep)\n"),
            "{printed}"
        );
    }
    let nothing = node.ok(&["diff", &source, &copies[1]])?;
    ensure!(nothing.is_empty(), "{nothing}");
    let found = node.json(&["diff", &copies[0], &source, "--json"])?;
    ensure!(found["files"][1]["change"] == "removed" && found["files"][1]["directory"] == true, "{found}");
    node.ok(&["pause", &copies[1]])?;
    let answer = node.pando(&["diff", &source, &copies[1]])?;
    ensure!(answer.code != 0 && answer.stderr.contains("paused"), "{answer}");
    Ok(())
}

fn own(node: &Node) -> Result<()> {
    let source = start(node)?;
    let copy = fork(node, &source, 1)?.remove(0);
    let of = |id: &str| node.json(&["inspect", id, "--uniqueness", "--json"]);
    let detail = |all: &Value, relation: &str, what: &str| -> Result<String> {
        let mut aspects = all["aspects"].as_array().context("no aspects")?.iter();
        let found = aspects.find(|aspect| aspect["relation"] == relation && aspect["what"] == what);
        let found = found.with_context(|| format!("no {relation} {what}: {all}"))?;
        Ok(found["detail"].as_str().context("no text")?.to_owned())
    };
    let (one, other) = (of(&source)?, of(&copy)?);
    ensure!(one["origin"] == "template geo" && other["origin"] == format!("sandbox {source}"), "{one} {other}");
    for (what, file) in [
        ("host name", "/proc/sys/kernel/hostname"),
        ("machine id", "/etc/machine-id"),
        ("boot id", "/proc/sys/kernel/random/boot_id"),
        ("generation", "/run/pando/generation"),
    ] {
        let here = detail(&other, "own", what)?;
        ensure!(here != detail(&one, "own", what)?, "both have the {what} {here}");
        ensure!(node.shell(&copy, &format!("cat {file}"))?.trim_end() == here, "{what}: {here}");
    }
    ensure!(detail(&other, "copied", "random numbers")?.contains("generators"), "{other}");
    let shown = node.ok(&["inspect", &copy, "--uniqueness"])?;
    ensure!(shown.contains(&format!("forked of sandbox {source}")) && shown.contains("shared  memory"), "{shown}");
    Ok(())
}

fn start(node: &Node) -> Result<String> {
    Ok(node.run("geo", 1)?[0].id.to_string())
}

fn values_and_files(node: &Node) -> Result<()> {
    let source = start(node)?;
    for n in 0..20 {
        node.ask(&source, &format!("POST /write?key=before{n}&value={n}"))?;
    }
    node.shell(
        &source,
        "echo before > /tmp/note; echo before > /home/user/note; mkdir /tmp/folder; echo x > /tmp/folder/x",
    )?;
    let before = node.ask(&source, "GET /state")?;
    let copies = fork(node, &source, 3)?;
    node.ask(&source, "POST /write?key=after&value=source")?;
    node.shell(&source, "echo source >> /tmp/note; rm -r /tmp/folder")?;
    for id in &copies {
        let state = node.ask(id, "GET /state")?;
        ensure!(state["values"] == before["values"] && state["writes"] == 20, "{id}: {state}");
        ensure!(state["digest"] == before["digest"] && state["threads"] == before["threads"], "{id}: {state}");
        ensure!(state["hostname"] == *id.as_str(), "{id}: {state}");
        ensure!(node.ask(id, "GET /verify")?["intact"] == true, "{id} is not intact");
        let read = "cat /tmp/note /home/user/note /tmp/folder/x";
        let files = node.shell(id, read)?;
        ensure!(files == "before\nbefore\nx\n", "{id}: {files:?}");
        node.ask(id, &format!("POST /write?key=own&value={id}"))?;
        node.shell(id, &format!("echo {id} >> /tmp/note; echo {id} >> /home/user/note"))?;
    }
    for id in &copies {
        let state = node.ask(id, "GET /state")?;
        ensure!(state["values"]["own"] == *id.as_str() && state["values"]["after"].is_null(), "{id}: {state}");
        let files = node.shell(id, "cat /tmp/note /home/user/note")?;
        ensure!(files == format!("before\n{id}\nbefore\n{id}\n"), "{id}: {files:?}");
    }
    let state = node.ask(&source, "GET /state")?;
    ensure!(state["values"]["own"].is_null() && state["writes"] == 21, "the source: {state}");
    ensure!(
        node.shell(&source, "cat /tmp/note /home/user/note; ls /tmp")? == "before\nsource\nbefore\nnote\n",
        "files"
    );
    let later = start(node)?;
    ensure!(node.ask(&later, "GET /state")?["writes"] == 0, "a later start from the template sees the fork's values");
    Ok(())
}

fn fork_of_a_fork(node: &Node) -> Result<()> {
    let mut id = start(node)?;
    let first = id.clone();
    for generation in 0..4 {
        node.ask(&id, &format!("POST /write?key=g{generation}&value={id}"))?;
        node.shell(&id, &format!("echo {generation} >> /tmp/generations"))?;
        id = fork(node, &id, 1)?.remove(0);
        let state = node.ask(&id, "GET /state")?;
        ensure!(state["writes"] == generation + 1, "generation {generation}: {state}");
        ensure!(node.ask(&id, "GET /verify")?["intact"] == true, "generation {generation} is not intact");
        let lines = node.shell(&id, "wc -l < /tmp/generations")?;
        ensure!(lines.trim() == (generation + 1).to_string(), "generation {generation}: {lines:?} lines");
    }
    ensure!(node.ask(&first, "GET /state")?["writes"] == 1, "the first one has a later value");
    Ok(())
}

fn source_removed(node: &Node) -> Result<()> {
    let source = start(node)?;
    node.shell(&source, "echo before > /tmp/note")?;
    let copies = fork(node, &source, 2)?;
    node.ok(&["kill", &source])?;
    for id in &copies {
        ensure!(node.shell(id, "cat /tmp/note")? == "before\n", "a file of the removed source");
        node.ask(id, "GET /verify")?;
    }
    node.ok(&["kill", &copies[0]])?;
    ensure!(node.shell(&copies[1], "cat /tmp/note")? == "before\n", "a file of the removed source");
    Ok(())
}

fn tree(node: &Node) -> Result<()> {
    let root = start(node)?;
    let [one, two, three] = fork(node, &root, 3)?.try_into().map_err(|_| anyhow::anyhow!("not three"))?;
    let leaf = fork(node, &one, 1)?.remove(0);
    let alone = start(node)?;
    node.ok(&["kill", &root])?;
    node.ok(&["pause", &two])?;
    let shown = node.ok(&["tree", &leaf])?;
    let lines: Vec<&str> = shown.lines().collect();
    ensure!(lines.len() == 5 && lines[0].starts_with(&format!("{root}  geo  removed")), "{shown}");
    let below = lines.iter().position(|line| line.contains(&one)).map(|at| lines[at + 1]);
    ensure!(below.is_some_and(|line| line.contains("└─") && line.contains(&leaf)), "{shown}");
    ensure!(shown.contains("paused, forked"), "{shown}");
    ensure!(!shown.contains(&alone), "another tree: {shown}");
    let all = node.json(&["tree", "--json"])?;
    let of = |id: &str| all.as_array().and_then(|all| all.iter().find(|one| one["id"] == *id).cloned());
    ensure!(of(&alone).is_some_and(|alone| alone["parent"].is_null()), "{all}");
    ensure!(of(&root).is_some_and(|root| root["state"].is_null() && root["gone_ms"].is_u64()), "{all}");
    // One of three is kept, with its own copy.
    let mut siblings = vec![two.clone(), three.clone()];
    siblings.sort_unstable();
    let mut listed: Vec<String> = node.ok(&["pick", &one, "--dry-run"])?.lines().map(str::to_owned).collect();
    listed.sort_unstable();
    ensure!(listed == siblings && node.ps()?.len() == 5, "{listed:?}");
    let picked = node.json(&["pick", &one, "--json"])?;
    ensure!(
        picked["kept"] == *one.as_str() && picked["removed"].as_array().is_some_and(|all| all.len() == 2),
        "{picked}"
    );
    let mut left: Vec<String> = node.ps()?.iter().map(|one| one.id.to_string()).collect();
    left.sort_unstable();
    let mut expected = vec![one.clone(), leaf.clone(), alone.clone()];
    expected.sort_unstable();
    ensure!(left == expected, "{left:?}");
    let answer = node.pando(&["pick", &alone])?;
    ensure!(answer.code == 2 && answer.stderr.contains("was not forked"), "{answer}");
    // With its last descendant, an ancestor is forgotten.
    node.ok(&["kill", &one, &leaf])?;
    ensure!(node.json(&["tree", "--json"])?.as_array().is_some_and(|all| all.len() == 1), "{all}");
    Ok(())
}

fn unforkable(node: &Node) -> Result<()> {
    let source = start(node)?;
    let exec = begin_unforkable(node, &source)?;
    let answer = node.pando(&["fork", &source])?;
    ensure!(answer.code == 5 && answer.stderr.contains("(python3)") && answer.stderr.contains("a pipe"), "{answer}");
    let examined = node.pando(&["doctor", "--sandbox", &source, "--json"])?;
    let found: serde_json::Value = serde_json::from_str(&examined.stdout)?;
    let reason = &found["refusals"][0]["reason"];
    ensure!(examined.code == 5 && found["refusals"][0]["kind"] == "unknown_descriptor", "{examined}");
    ensure!(reason.as_str().is_some_and(|reason| answer.stderr.contains(reason)), "{reason}, but the fork: {answer}");
    exec.signal(rustix::process::Signal::INT)?;
    ensure!(exec.end()?.code == 130, "exit code of an interrupted exec");
    let gone = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while node.inspect(&source)?.processes.len() > 2 {
        ensure!(std::time::Instant::now() < gone, "the command of an interrupted exec runs on");
    }
    node.ok(&["doctor", "--sandbox", &source])?;
    fork(node, &source, 1).map(drop)
}

fn diary() -> Result<()> {
    let node = Node::start()?;
    diary_on(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

fn diary_on(node: &Node) -> Result<()> {
    let program = node.program("diary.py");
    node.ok(&["template", "build", "diary", "--ready-file", "/home/user/diary", "--", "/usr/bin/python3", &program])?;
    let source = node.run("diary", 1)?[0].id.to_string();
    node.shell(&source, "rm /home/user/removed; echo more >> /home/user/kept")?;
    let mut all = vec![source.clone()];
    for _ in 0..5 {
        all.extend(fork(node, &source, 2)?);
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    for id in &all {
        let text = node.shell(id, "cat /home/user/diary")?;
        let numbers: Vec<u64> = text.lines().map(str::parse).collect::<Result<_, _>>()?;
        let gap = numbers.iter().enumerate().find(|(line, number)| *line as u64 != **number);
        ensure!(gap.is_none(), "{id}: line {gap:?} of {}", numbers.len());
        let files = node.shell(id, "cat /home/user/kept; ls /home/user")?;
        ensure!(files == "from the template\nmore\ndiary\nkept\n", "{id}: {files:?}");
        let before = numbers.len();
        ensure!(node.shell(id, "wc -l < /home/user/diary")?.trim().parse::<usize>()? >= before, "{id} stands still");
    }
    Ok(())
}
