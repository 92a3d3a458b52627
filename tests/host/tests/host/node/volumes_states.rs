//! States of volumes: kept, restored, forked, compared and carried elsewhere.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use testkit::{node::Node, runner::Case};

use super::volumes::{fails, run_with, scribe_case, with_scribe, write_by_mapping};

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, body| scribe_case(&format!("volumes::{name}"), "0", body);
    vec![
        case("states_are_kept_restored_and_forked", history),
        case("states_are_compared_verified_and_carried_elsewhere", carried_elsewhere),
        case("forks_are_compared", forks_compared),
        case("states_have_what_was_written_through_mappings", mapped),
        Case::new("volumes::commits_come_as_often_as_the_node_was_told", || {
            with_scribe(&["--volumes-lag", "60m"], |node| behind(node, false))?;
            with_scribe(&["--volumes-lag", "100ms"], |node| behind(node, true))
        }),
    ]
}

fn history(node: &Node) -> Result<()> {
    node.ok(&["volume", "create", "ws"])?;
    let id = run_with(node, &["ws:/workspace"])?;
    node.shell(&id, "cd /workspace; echo first > a; mkdir d; echo kept > d/k")?;
    node.ok(&["volume", "snapshot", "ws", "before", "--note", "all is well"])?;
    node.shell(&id, "cd /workspace; echo second > a; rm -r d; echo new > b")?;
    let log = node.ok(&["volume", "log", "ws"])?;
    ensure!(log.contains("before") && log.contains("all is well"), "{log}");
    ensure!(node.ok(&["volume", "cat", "ws@before", "a"])? == "first\n");
    node.ok(&["volume", "fork", "ws@before", "copy"])?;
    fails(node, &["volume", "restore", "ws", "nothing"], 4, "no snapshot nothing of volume ws")?;
    ensure!(node.ok(&["volume", "log", "ws"])?.lines().count() == log.lines().count(), "a snapshot of nothing");
    let kept = node.ok(&["volume", "restore", "ws", "before"])?.trim_end().to_owned();
    ensure!(node.shell(&id, "cd /workspace; cat a d/k; ls")? == "first\nkept\na\nd\n", "what it was");
    ensure!(node.ok(&["volume", "cat", &format!("ws@{kept}"), "b"])? == "new\n", "what it was before is kept");
    let other = run_with(node, &["copy:/workspace", "ws@before:/data"])?;
    node.shell(&other, "cd /workspace; cat a; echo own > a")?;
    ensure!(node.shell(&id, "cat /workspace/a")? == "first\n", "a fork is apart");
    ensure!(node.shell(&other, "cat /data/a; touch /data/x 2>&1 | grep -o Read-only")? == "first\nRead-only\n");
    node.ok(&["kill", "--all", "--force"])?;
    node.ok(&["volume", "rm", "ws", "copy"])?;
    let removed = node.json(&["volume", "ls", "--removed", "--json"])?;
    ensure!(removed == serde_json::json!([{"name": "ws", "snapshots": 2}]), "{removed}");
    node.ok(&["volume", "fork", "ws@before", "ws"])?;
    ensure!(node.ok(&["volume", "cat", "ws", "a"])? == "first\n", "what was removed is back");
    ensure!(node.json(&["volume", "ls", "--removed", "--json"])? == serde_json::json!([]), "it is there");
    node.ok(&["volume", "rm", "ws@before", &format!("ws@{kept}"), "ws"]).map(drop)
}

fn carried_elsewhere(node: &Node) -> Result<()> {
    node.ok(&["volume", "create", "ws"])?;
    let id = run_with(node, &["ws:/workspace"])?;
    node.shell(
        &id,
        "cd /workspace; mkdir d; echo same > d/same; echo old > changed; echo x > gone; ln -s d/same link",
    )?;
    node.ok(&["volume", "snapshot", "ws", "before"])?;
    node.shell(&id, "cd /workspace; echo new > changed; rm gone; echo y > d/added; chmod 600 d/same")?;
    let changes = node.ok(&["volume", "diff", "ws@before"])?;
    for line in ["M changed", "- gone", "+ d/added", "m d/same"] {
        ensure!(changes.lines().any(|found| found == line), "{line:?} is missing:\n{changes}");
    }
    ensure!(!changes.contains("link"), "{changes}");
    ensure!(node.ok(&["volume", "diff", "ws@before", "ws@before"])?.is_empty(), "a state differs from itself");
    for state in ["ws", "ws@before"] {
        let said = node.ok(&["volume", "verify", state])?;
        ensure!(said.contains("all of it is sound"), "{state}: {said}");
    }
    let file = node.dir().join("ws.tar").display().to_string();
    node.ok(&["volume", "export", "ws", &file])?;
    let listed = std::process::Command::new("tar").args(["-tf", &file]).output()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    ensure!(listed.contains("d/added") && !listed.contains("gone"), "another program reads it: {listed}");
    node.ok(&["volume", "create", "copy"])?;
    node.ok(&["volume", "import", "copy", &file])?;
    let copy = run_with(node, &["copy:/workspace"])?;
    let script = "cd /workspace; cat link changed; find . | sort; stat -c '%a %u' d/same";
    ensure!(node.shell(&copy, script)? == node.shell(&id, script)?, "it came otherwise than it went");
    ensure!(node.ok(&["volume", "usage"])?.contains("copy"));
    let (status, body) = node.api("GET /v1/metrics", b"")?;
    ensure!(status == 200 && body.contains("# TYPE"), "{status} {body}");
    node.ok(&["kill", "--all", "--force"])?;
    node.ok(&["volume", "rm", "ws@before", "ws", "copy"]).map(drop)
}

fn forks_compared(node: &Node) -> Result<()> {
    node.ok(&["volume", "create", "ws"])?;
    let one = run_with(node, &["ws:/workspace"])?;
    node.shell(&one, "cd /workspace; mkdir d; echo same > d/same; echo old > changed; echo x > gone")?;
    node.ok(&["volume", "fork", "ws", "fork"])?;
    ensure!(node.ok(&["volume", "diff", "ws", "fork"])?.is_empty(), "a fork differs");
    node.shell(&one, "cd /workspace; echo new > changed; rm gone; echo y > d/added; chmod 600 d/same")?;
    let two = run_with(node, &["fork:/workspace"])?;
    // The first that each makes has the same number, and the page only the kernel has.
    node.shell(&two, "cd /workspace; echo z > only-here; mkdir e; mv changed e/moved")?;
    write_by_mapping(node, &two, "mapped")?;
    let changes = node.ok(&["volume", "diff", "ws", "fork"])?;
    let mut lines: Vec<&str> = changes.lines().collect();
    lines.sort_unstable();
    let moved = ["M e/moved", "R e/moved (was changed)"];
    let expected = [&["+ e/", "+ gone", "+ only-here", "+ page", "- d/added"], &moved[..], &["m d/same"]].concat();
    ensure!(lines == expected, "{changes}");
    fails(node, &["volume", "diff", "ws", "fork@before"], 4, "before")?;
    fails(node, &["volume", "diff", "ws", "nobody"], 4, "nobody")?;
    // One that is no relation has other files.
    node.ok(&["volume", "create", "other"])?;
    ensure!(node.ok(&["volume", "diff", "other", "ws"])?.contains("+ d/same"), "all of it is new");
    node.ok(&["kill", "--all", "--force"])?;
    node.ok(&["volume", "rm", "ws", "fork", "other"]).map(drop)
}

fn behind(node: &Node, is_committed: bool) -> Result<()> {
    node.ok(&["volume", "create", "ws"])?;
    let id = run_with(node, &["ws:/workspace"])?;
    node.shell(&id, "echo text > /workspace/a; sync /workspace/a; sleep 3")?;
    let open = node.json(&["volume", "inspect", "ws", "--json"])?["open"].clone();
    let (dirty, age_ms) = (open["dirty_bytes"].as_u64(), open["last_commit_age_ms"].as_u64());
    ensure!(dirty.map(|dirty| dirty == 0) == Some(is_committed), "{open}");
    ensure!(age_ms.is_some_and(|age| (age < 2000) == is_committed), "{open}");
    node.ok(&["kill", &id])?;
    node.ok(&["volume", "rm", "ws"]).map(drop)
}

/// Says what is to be at the beginning of a mapped page, which stays mapped and is never synced: only the kernel has it then.
const MAPPER: &str = "
import mmap, sys
file = open(sys.argv[1], 'w+b')
file.truncate(4096)
page = mmap.mmap(file.fileno(), 4096)
for line in sys.stdin:
    page[:7] = line[:7].encode()
    print(flush=True)
";

struct Mapper {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Mapper {
    /// `command` runs what it is given after its own arguments.
    fn start(mut command: Command, file: &str) -> Result<Self> {
        command.args(["/usr/bin/python3", "-c", MAPPER, file]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let says = BufReader::new(child.stdout.take().context("it is piped")?);
        Ok(Self { child, says })
    }

    fn write(&mut self, text: &str) -> Result<()> {
        writeln!(self.child.stdin.as_mut().context("it is piped")?, "{text}")?;
        ensure!(self.says.read_line(&mut String::new())? > 0, "it has ended");
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        ensure!(self.child.wait()?.success(), "it has failed");
        Ok(())
    }
}

fn mapped(node: &Node) -> Result<()> {
    node.ok(&["volume", "create", "ws"])?;
    let id = run_with(node, &["ws:/workspace"])?;
    let in_sandbox = |file: &str| Mapper::start(node.command_of(&["exec", &id, "--"]), &format!("/workspace/{file}"));
    states_of_mappings(node, in_sandbox)?;
    node.ok(&["kill", &id])?;
    let here = node.dir().join("mounted");
    std::fs::create_dir(&here)?;
    let path = here.display().to_string();
    node.ok(&["volume", "mount", "ws", &path])?;
    states_of_mappings(node, |file| Mapper::start(Command::new("env"), &format!("{path}/{file}")))?;
    node.ok(&["volume", "unmount", "ws", &path])?;
    node.ok(&["volume", "rm", "ws"]).map(drop)
}

fn states_of_mappings(node: &Node, start: impl Fn(&str) -> Result<Mapper>) -> Result<()> {
    let page = |source: &str| anyhow::Ok(node.ok(&["volume", "cat", source, "page"])?[..7].to_owned());
    let mut mapper = start("page")?;
    mapper.write("state 1")?;
    node.ok(&["volume", "snapshot", "ws", "one"])?;
    let mut later = start("later")?;
    later.write("state 1")?;
    ensure!(page("ws@one")? == "state 1", "a snapshot: {:?}", page("ws@one")?);
    mapper.write("state 2")?;
    node.ok(&["volume", "fork", "ws", "copy"])?;
    ensure!(page("copy")? == "state 2", "a fork: {:?}", page("copy")?);
    mapper.write("state 3")?;
    let archive = node.dir().join("ws.tar").display().to_string();
    node.ok(&["volume", "export", "ws", &archive])?;
    node.ok(&["volume", "create", "unpacked"])?;
    node.ok(&["volume", "import", "unpacked", &archive])?;
    ensure!(page("unpacked")? == "state 3", "an archive: {:?}", page("unpacked")?);
    std::fs::remove_file(archive)?;
    mapper.write("state 4")?;
    ensure!(node.ok(&["volume", "diff", "ws@one"])?.contains("M page"), "a difference");
    mapper.write("state 5")?;
    let before = node.ok(&["volume", "restore", "ws", "one"])?.trim_end().to_owned();
    ensure!(page(&format!("ws@{before}"))? == "state 5", "what was before a restore");
    // A mapping of a file that is not in the volume any more is in nobody's way.
    node.ok(&["volume", "snapshot", "ws", "two"])?;
    // What the kernel still had of it would be written now.
    mapper.end()?;
    later.end()?;
    ensure!(page("ws")? == "state 1", "a restored file: {:?}", page("ws")?);
    for volume in ["copy", "unpacked", "ws@one", "ws@two", &format!("ws@{before}")] {
        node.ok(&["volume", "rm", volume])?;
    }
    Ok(())
}
