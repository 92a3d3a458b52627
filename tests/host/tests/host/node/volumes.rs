//! Volumes in sandboxes, over HTTP and on the host: one state that all see; states that are kept; what is refused.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use testkit::{
    node::{Node, Setting},
    runner::Case,
};

use super::{
    pager::{memory_group, read_number},
    volumes_faults::process,
};

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, body| scribe_case(&format!("volumes::{name}"), "0", body);
    vec![
        case("sandboxes_http_and_the_host_see_one_state", shared),
        case("what_is_read_only_stays_as_it_is", read_only),
        case("what_cannot_be_mounted_is_refused_and_leaves_nothing", refused),
        case("a_live_fork_gets_volumes_of_its_own_as_they_were_in_that_instant", forked),
        case("a_sandbox_that_writes_its_volume_is_paused_in_the_middle_of_it", paused),
        case("forks_pauses_and_commands_at_once_do_not_tear_each_other", at_once),
        case("an_interrupted_fork_leaves_no_volumes", interrupted),
        Case::new("volumes::a_program_finds_its_volume_where_it_works_also_if_it_was_forked_ahead", || {
            with_scribe(&["--pool", "4", "--ahead", "4"], |node| carried(node))
        }),
        Case::new("volumes::the_memory_of_their_processes_is_bounded", || {
            with_scribe(&["--volumes-memory", "600M"], |node| bounded(node))
        }),
        case("volumes_that_nobody_works_in_cost_little_memory", idle),
        Case::new("volumes::an_ephemeral_node_takes_its_mounts_along", ephemeral),
    ]
}

/// A case on a node with that template. `ahead`: most copies that are forked ahead.
pub(crate) fn scribe_case(name: &str, ahead: &'static str, body: fn(&Node) -> Result<()>) -> Case {
    Case::new(name, move || with_scribe(&["--pool", "3", "--ahead", ahead], |node| body(node)))
}

pub(crate) fn with_scribe(arguments: &[&str], body: impl FnOnce(&mut Node) -> Result<()>) -> Result<()> {
    let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let mut node = Node::start_with(Setting { arguments, ..Setting::default() })?;
    build_scribe(&node)?;
    body(&mut node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

/// A template whose program writes a journal into its volume.
pub(crate) fn build_scribe(node: &Node) -> Result<()> {
    let scribe = node.program("scribe.py");
    let build =
        ["template", "build", "scribe", "--mount-point", "/workspace", "--mount-point", "/data", "--cwd", "/workspace"];
    node.ok(&[&build[..], &["--port", "8080", "--", "/usr/bin/python3", &scribe]].concat()).map(drop)
}

/// Starts a sandbox with volumes.
pub(crate) fn run_with(node: &Node, volumes: &[&str]) -> Result<String> {
    let volumes = volumes.iter().flat_map(|volume| ["--volume", volume]);
    let arguments: Vec<&str> = ["create", "scribe", "--json"].into_iter().chain(volumes).collect();
    let started = node.json(&arguments)?;
    Ok(started["sandboxes"][0]["id"].as_str().with_context(|| format!("not started: {started}"))?.to_owned())
}

pub(crate) fn fails(node: &Node, arguments: &[&str], code: i32, says: &str) -> Result<()> {
    let answer = node.pando(arguments)?;
    ensure!(answer.code == code && answer.stderr.contains(says), "{says:?} and code {code} were expected: {answer}");
    Ok(())
}

/// A directory of the host, of this case.
fn directory(node: &Node, name: &str) -> Result<PathBuf> {
    let path = node.dir().join(name);
    fs::create_dir(&path)?;
    Ok(path)
}

fn shared(node: &Node) -> Result<()> {
    node.ok(&["volume", "create", "ws", "--size", "1G"])?;
    let (one, two) = (run_with(node, &["ws:/workspace"])?, run_with(node, &["ws:/workspace"])?);
    node.shell(&one, "cd /workspace; mkdir d; echo from one > d/a; ln -s a d/link; stat -c '%u %a' .")?;
    ensure!(node.shell(&two, "cat /workspace/d/link")? == "from one\n");
    ensure!(node.ok(&["volume", "cat", "ws", "d/a"])? == "from one\n");
    let (status, body) = node.api("PUT /v1/volumes/ws/files/d/b", b"by http")?;
    ensure!((200..300).contains(&status), "{status} {body}");
    ensure!(node.shell(&one, "cat /workspace/d/b; ls /workspace/d")? == "by httpa\nb\nlink\n");
    let here = directory(node, "here")?;
    node.ok(&["volume", "mount", "ws", &here.display().to_string()])?;
    ensure!(fs::read_to_string(here.join("d/b"))? == "by http");
    // Four requests at a time, of eight chunks each, not one chunk.
    let device = fs::metadata(&here)?.dev();
    let bdi = format!("/sys/class/bdi/{}:{}/read_ahead_kb", rustix::fs::major(device), rustix::fs::minor(device));
    let kib = fs::read_to_string(&bdi)?;
    match fs::write(&bdi, &kib) {
        Ok(()) => ensure!(kib.trim() == "4096", "{bdi}: {kib}"),
        Err(error) => println!("    how far is read ahead cannot be set here: {bdi}: {error}"),
    }
    fs::write(here.join("d/c"), "from the host")?;
    ensure!(node.shell(&two, "cat /workspace/d/c")? == "from the host");

    let volumes = serde_json::to_value(node.inspect(&one)?.sandbox.volumes)?;
    ensure!(volumes[0]["volume"] == "ws" && volumes[0]["path"] == "/workspace", "{volumes}");
    ensure!(node.ok(&["inspect", &one])?.contains("ws on /workspace"));
    let inspected = node.json(&["volume", "inspect", "ws", "--json"])?;
    let holders = inspected["open"]["holders"].as_array().context("no holders")?;
    let on_host = format!("host:{}", here.display());
    ensure!([&one, &two, &on_host].iter().all(|holder| holders.contains(&holder.as_str().into())), "{inspected}");
    fails(node, &["volume", "rm", "ws"], 1, "ws")?;
    fails(node, &["volume", "mount", "ws", &here.display().to_string()], 1, "mounted there")?;

    node.ok(&["kill", &one, &two])?;
    ensure!(node.ok(&["volume", "ls"])?.contains("mounted 1"), "sandboxes let go when they are removed");
    let busy = fs::File::open(here.join("d/c"))?;
    fails(node, &["volume", "unmount", "ws", &here.display().to_string()], 1, "in use by")?;
    drop(busy);
    node.ok(&["volume", "unmount", "ws", &here.display().to_string()])?;
    ensure!(fs::read_dir(&here)?.next().is_none(), "still mounted");
    // Taken off by other means.
    node.ok(&["volume", "mount", "ws", &here.display().to_string()])?;
    rustix::mount::unmount(&here, rustix::mount::UnmountFlags::empty())?;
    node.ok(&["volume", "mount", "ws", &here.display().to_string()])?;
    rustix::mount::unmount(&here, rustix::mount::UnmountFlags::empty())?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while !node.ok(&["volume", "inspect", "ws"])?.contains("mounted by   nobody") {
        ensure!(Instant::now() < deadline, "it still counts as mounted");
        sleep(Duration::from_millis(100));
    }
    // One that cannot be removed keeps no other.
    let answer = node.pando(&["volume", "rm", "nowhere", "ws"])?;
    ensure!(answer.code == 4 && answer.stdout == "ws\n" && answer.stderr.contains("no volume nowhere"), "{answer}");
    fails(node, &["volume", "inspect", "ws"], 4, "ws")
}

fn read_only(node: &Node) -> Result<()> {
    node.ok(&["volume", "create", "ws"])?;
    let writer = run_with(node, &["ws:/workspace"])?;
    let reader = run_with(node, &["ws:/workspace:ro"])?;
    node.shell(&writer, "echo text > /workspace/a")?;
    let script = "cat /workspace/a; (echo x > /workspace/a) 2>&1 | grep -o Read-only; (rm /workspace/a) 2>&1 | grep -o Read-only";
    ensure!(node.shell(&reader, script)? == "text\nRead-only\nRead-only\n");
    node.ok(&["kill", "--all", "--force"])?;
    node.ok(&["volume", "rm", "ws"]).map(drop)
}

fn refused(node: &Node) -> Result<()> {
    fails(node, &["volume", "create", "tiny", "--size", "1"], 2, "at most 1 bytes")?;
    fails(node, &["volume", "create", "tiny", "--inodes", "0"], 2, "at most 0 inodes")?;
    fails(node, &["volume", "inspect", "tiny"], 4, "tiny")?;
    node.ok(&["volume", "create", "ws"])?;
    fails(node, &["create", "scribe", "--volume", "ws:/elsewhere"], 2, "/elsewhere")?;
    fails(node, &["create", "scribe", "--volume", "ws:/elsewhere"], 2, "/workspace, /data")?;
    fails(node, &["create", "scribe", "--volume", "ws:/data", "--volume", "ws:/data"], 2, "two volumes")?;
    fails(node, &["create", "scribe", "--volume", "absent:/data", "-n", "2"], 4, "absent")?;
    fails(node, &["create", "scribe", "--volume", "ws@absent:/data"], 4, "absent")?;
    ensure!(node.ps()?.is_empty(), "a sandbox is there without its volume");
    let build = |point: &str, command: &[&str]| {
        let arguments = ["template", "build", "wrong", "--mount-point", point, "--port", "8080", "--"];
        node.pando(&[&arguments[..], command].concat())
    };
    let scribe = node.program("scribe.py");
    for point in ["workspace", "/", "/proc/x", "/etc", "/a/../b"] {
        let answer = build(point, &["/usr/bin/python3", &scribe])?;
        ensure!(answer.code == 2, "{point}: {answer}");
    }
    let opens = "import socket, time; kept = open('/workspace/kept', 'w'); socket.create_server(('127.0.0.1', 8080)); time.sleep(1e6)";
    let answer = build("/workspace", &["/usr/bin/python3", "-c", &opens.replace("; socket", "; s = socket")])?;
    ensure!(answer.code == 5 && answer.stderr.contains("/workspace/kept"), "a file open below a mount point: {answer}");
    node.expect_only_itself()?;
    node.ok(&["volume", "rm", "ws"]).map(drop)
}

/// Lets the program write its journal, and waits until it does: ten seconds at most.
pub(crate) const BEGIN_WRITING: &str = "cd /workspace; touch go; \
    for i in $(seq 500); do test -s journal && break; sleep 0.02; done; test -s journal";

/// A sandbox whose program is writing its journal, and always will until `go` is removed.
pub(crate) fn writing(node: &Node) -> Result<String> {
    node.ok(&["volume", "create", "ws"])?;
    let writer = run_with(node, &["ws:/workspace"])?;
    node.shell(&writer, BEGIN_WRITING)?;
    Ok(writer)
}

/// The program goes on writing; every number is there, in order and once: memory and file are of one instant.
pub(crate) fn expect_whole_journal(node: &Node, id: &str) -> Result<()> {
    let before = "cd /workspace; before=$(wc -l < journal); \
        for i in $(seq 500); do test $(wc -l < journal) -gt $before && break; sleep 0.02; done; rm go; sleep 0.1; ";
    let after = "test $(wc -l < journal) -gt $before && awk '$1 != NR - 1 { print NR, $0; exit 1 }' journal";
    node.shell(id, &format!("{before}{after}"))
        .with_context(|| format!("the journal of {id}; its log: {}", node.ok(&["logs", id]).unwrap_or_default()))
        .map(drop)
}

/// Writes through a mapping, which nobody syncs: only the kernel has it then.
pub(crate) fn write_by_mapping(node: &Node, id: &str, text: &str) -> Result<()> {
    let program = format!(
        "import mmap; f = open('/workspace/page', 'w+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096); m[:{}] = b'{text}'",
        text.len()
    );
    node.ok(&["exec", id, "--", "/usr/bin/python3", "-c", &program]).map(drop)
}

fn forked(node: &Node) -> Result<()> {
    let writer = writing(node)?;
    let mut volumes = Vec::new();
    for round in 0..3 {
        let text = format!("round {round}");
        write_by_mapping(node, &writer, &text)?;
        let response = node.json(&["fork", &writer, "-n", "2", "--json"])?;
        let copies = response["sandboxes"].as_array().context("no copies")?;
        ensure!(copies.len() == 2, "{response}");
        for copy in copies {
            let id = copy["id"].as_str().context("no id")?;
            let volume = format!("ws-{id}");
            ensure!(copy["volumes"][0]["volume"] == volume.as_str(), "{copy}");
            ensure!(node.shell(id, "head -c 7 /workspace/page")? == text, "{id}: what was written through a mapping");
            expect_whole_journal(node, id)?;
            node.shell(id, "echo mine > /workspace/mine")?;
            ensure!(node.ok(&["volume", "cat", &volume, "mine"])? == "mine\n");
            volumes.push(volume);
        }
        node.shell(&writer, "test -e /workspace/go -a ! -e /workspace/mine").context("the original's volume")?;
    }
    // A copy of a copy.
    let copy = volumes[0].strip_prefix("ws-").context("no copy")?.to_owned();
    let again = node.json(&["fork", &copy, "--json"])?;
    let again = again["sandboxes"][0]["volumes"][0]["volume"].as_str().context("no volume")?.to_owned();
    ensure!(node.ok(&["volume", "cat", &again, "mine"])? == "mine\n");
    volumes.push(again);
    ensure!(node.json(&["volume", "log", "ws", "--json"])?.as_array().is_some_and(Vec::is_empty), "snapshots are left");
    expect_whole_journal(node, &writer)?;
    let prune = ["volume", "prune", "--older", "1ms"];
    ensure!(node.ok(&prune)?.is_empty(), "their sandboxes are there");
    node.ok(&["kill", "--all", "--force"])?;
    fails(node, &prune, 2, "--force")?;
    let pruned = node.ok(&[&prune[..], &["--force"]].concat())?;
    let mut pruned: Vec<&str> = pruned.lines().collect();
    pruned.sort_unstable();
    volumes.sort();
    ensure!(pruned == volumes, "{pruned:?}");
    node.ok(&["volume", "rm", "ws"]).map(drop)
}

fn paused(node: &Node) -> Result<()> {
    let writer = writing(node)?;
    for round in 0..3 {
        let text = format!("round {round}");
        write_by_mapping(node, &writer, &text)?;
        node.ok(&["pause", &writer])?;
        fails(node, &["volume", "rm", "ws"], 1, &format!("held by {writer}, paused"))?;
        ensure!(node.ok(&["volume", "cat", "ws", "page"])?.starts_with(&text), "what was written through a mapping");
        node.ok(&["resume", &writer])?;
        node.shell(&writer, "test -e /workspace/go")?;
    }
    expect_whole_journal(node, &writer)?;
    ensure!(node.json(&["volume", "log", "ws", "--json"])?.as_array().is_some_and(Vec::is_empty), "snapshots are left");
    node.ok(&["kill", "--all", "--force"])?;
    node.ok(&["volume", "rm", "ws"]).map(drop)
}

fn at_once(node: &Node) -> Result<()> {
    let writer = writing(node)?;
    let fork = ["fork", &writer, "--json"];
    let mut made = 0;
    for round in 0..5 {
        let forks = [node.begin(&fork)?, node.begin(&fork)?];
        // The forks of the first round have only each other in their way.
        let others = match round {
            0 => None,
            _ => {
                let command = node.begin(&["exec", &writer, "--", "/bin/true"])?;
                sleep(Duration::from_millis(25 * round));
                Some((command, node.begin(&["pause", &writer])?))
            }
        };
        for fork in forks {
            let answer = fork.end()?;
            // Who came after the pause, or found the command in its way, is told so.
            ensure!([0, 1, 5].contains(&answer.code), "{answer}");
            if answer.code == 0 {
                let response: serde_json::Value = serde_json::from_str(&answer.stdout)?;
                let id = response["sandboxes"][0]["id"].as_str().context("no copy")?;
                expect_whole_journal(node, id)?;
                node.ok(&["kill", id])?;
                node.ok(&["volume", "rm", &format!("ws-{id}")])?;
                made += 1;
            }
        }
        if let Some((command, pause)) = others {
            command.end()?;
            if pause.end()?.code == 0 {
                node.ok(&["resume", &writer])?;
            }
        }
        node.shell(&writer, "test -e /workspace/go")?;
    }
    ensure!(made > 1, "the first two forks were not made");
    eprintln!("    {made} of 10 forks were made beside commands and pauses");
    expect_whole_journal(node, &writer)?;
    node.ok(&["kill", "--all", "--force"])?;
    node.ok(&["volume", "rm", "ws"]).map(drop)
}

fn interrupted(node: &Node) -> Result<()> {
    let writer = writing(node)?;
    for round in 0..6 {
        let fork = node.begin(&["fork", &writer, "-n", "4"])?;
        sleep(Duration::from_millis(8 + 12 * round));
        // It may have ended.
        let _ = fork.signal(Signal::INT);
        if fork.end()?.code == 0 {
            break;
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while node.json(&["volume", "ls", "--json"])?.as_array().is_none_or(|volumes| volumes.len() != 1)
            || node.ps()?.len() != 1
        {
            ensure!(Instant::now() < deadline, "round {round}: left: {}", node.ok(&["volume", "ls"])?);
            sleep(Duration::from_millis(20));
        }
    }
    expect_whole_journal(node, &writer)?;
    node.ok(&["kill", "--all", "--force"])?;
    // A fork whose client ended before the node had read its request makes volumes later, and removes them itself.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let volumes = node.json(&["volume", "ls", "--json"])?;
        let names = volumes.as_array().context("no list")?.iter().filter_map(|volume| volume["name"].as_str());
        let removed: Vec<Result<String>> = names.map(|name| node.ok(&["volume", "rm", name])).collect();
        if removed.iter().all(Result::is_ok) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{removed:?}");
    }
}

fn carried(node: &Node) -> Result<()> {
    node.ok(&["volume", "create", "ws"])?;
    let works = |id: &str| {
        node.shell(
            id,
            "cd /workspace; rm -f journal; touch go; sleep 0.5; rm go; sleep 0.1; test $(wc -l < journal) -gt 3",
        )
        .with_context(|| format!("{id} does not work in its volume: {}", node.ok(&["logs", id]).unwrap_or_default()))?;
        node.ok(&["volume", "cat", "ws", "journal"]).map(drop)
    };
    for _ in 0..3 {
        let id = run_with(node, &["ws:/workspace"])?;
        works(&id)?;
        node.ok(&["kill", &id])?;
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while node.info()?.pool.ahead == 0 {
        ensure!(std::time::Instant::now() < deadline, "no copy is forked ahead");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let before = node.info()?.pool.ahead;
    let id = run_with(node, &["ws:/workspace"])?;
    ensure!(node.info()?.pool.ahead < before, "a waiting copy was not used");
    works(&id)?;
    // Its host directory is as any other's without a volume.
    let without = node.run("scribe", 1)?[0].id.to_string();
    ensure!(node.shell(&without, "ls -A /workspace; touch /workspace/own; stat -c %u /workspace")? == "1000\n");
    node.ok(&["kill", "--all", "--force"])?;
    node.ok(&["volume", "rm", "ws"]).map(drop)
}

fn bounded(node: &Node) -> Result<()> {
    node.ok(&["volume", "create", "ws"])?;
    run_with(node, &["ws:/workspace"])?;
    let group = memory_group(process(node, "worker")?)?;
    ensure!(group.ends_with("volumes"), "{}", group.display());
    ensure!(read_number(&group, ["memory.limit_in_bytes", "memory.max"])? == 600 << 20);
    let guardian = process(node, "guardian")?;
    ensure!(memory_group(guardian)? == group, "{}", memory_group(guardian)?.display());
    kill_process(Pid::from_raw(guardian).context("a pid")?, Signal::KILL)?;
    while process(node, "guardian")? == guardian {
        sleep(Duration::from_millis(5));
    }
    let heir = memory_group(process(node, "guardian")?)?;
    ensure!(heir == group, "who takes its place is in {}", heir.display());
    node.ok(&["kill", "--all", "--force"])?;
    node.ok(&["volume", "rm", "ws"])?;
    let Err(error) = Node::start_with(Setting {
        arguments: ["--volumes-memory", "5M"].map(str::to_owned).to_vec(),
        ..Setting::default()
    }) else {
        bail!("a node runs whose volumes have 5 MiB")
    };
    let text = format!("{error:#}");
    ensure!(text.contains("give it 512M at least"), "{text}");
    Ok(())
}

fn idle(node: &Node) -> Result<()> {
    const COUNT: usize = 24;
    const EACH_MAX: u64 = 6 << 20;
    let resident = || -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", process(node, "worker")?))?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
    };
    let mount = |number: usize| -> Result<()> {
        let (name, at) = (format!("ws{number}"), directory(node, &format!("on{number}"))?);
        node.ok(&["volume", "create", &name])?;
        node.ok(&["volume", "mount", &name, &at.display().to_string()])?;
        fs::write(at.join("a"), "text")?;
        Ok(())
    };
    mount(0)?;
    let before = resident()?;
    (1..=COUNT).try_for_each(mount)?;
    let each = (resident()? - before) / COUNT as u64;
    println!("    {:.1} MiB each", each as f64 / f64::from(1 << 20));
    ensure!(each < EACH_MAX, "{} KiB each", each >> 10);
    for number in 0..=COUNT {
        node.ok(&[
            "volume",
            "unmount",
            &format!("ws{number}"),
            &node.dir().join(format!("on{number}")).display().to_string(),
        ])?;
        node.ok(&["volume", "rm", &format!("ws{number}")])?;
    }
    Ok(())
}

fn ephemeral() -> Result<()> {
    let setting = Setting { arguments: vec!["--ephemeral".to_owned()], ..Setting::default() };
    let mut node = Node::start_with(setting)?;
    build_scribe(&node)?;
    node.ok(&["volume", "create", "ws"])?;
    run_with(&node, &["ws:/workspace"])?;
    let here = directory(&node, "here")?;
    node.ok(&["volume", "mount", "ws", &here.display().to_string()])?;
    fs::write(here.join("a"), "kept")?;
    ensure!(node.stop_server()? == Some(0), "{}", node.log_tail());
    ensure!(fs::read_dir(&here)?.next().is_none(), "still mounted");
    node.expect_stopped()?;
    node.start_server()?;
    ensure!(node.ok(&["volume", "cat", "ws", "a"])? == "kept", "the volume is there");
    node.ok(&["volume", "rm", "ws"])?;
    node.finish()
}
