//! A full disk under the state directory: the program gets ENOSPC, everybody else goes on, and removing frees it.

use anyhow::{Context, Result, ensure};
use testkit::{
    node::{Node, Setting},
    runner::Case,
};

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::new("disk::full", || {
        let node = Node::start_with(Setting {
            state_mib: Some(64),
            arguments: vec!["--pool".into(), "4".into()],
            ..Setting::default()
        })?;
        full(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
        node.finish()
    })]
}

const FILL: &str =
    "dd if=/dev/zero of=/tmp/fill bs=64k 2>&1; for n in $(seq 300); do echo x > /tmp/small$n || break; done 2>&1";

fn full(node: &Node) -> Result<()> {
    node.build_geo("geo", &["--nidx", "2"])?;
    let ids: Vec<String> = node.run("geo", 2)?.iter().map(|sandbox| sandbox.id.to_string()).collect();
    let (filler, other) = (&ids[0], &ids[1]);
    let printed = node.shell(filler, FILL)?;
    ensure!(printed.contains("No space left on device"), "{printed:?}");
    // Both go on; what needs no space still works.
    for id in &ids {
        node.ask(id, &format!("POST /write?key=me&value={id}"))?;
        ensure!(node.ask(id, "GET /verify")?["intact"] == true, "{id} on a full disk");
        ensure!(node.shell(id, "hostname")?.trim() == id, "exec on a full disk");
    }
    let refused = node.pando(&["exec", other, "--", "/bin/sh", "-c", "head -c 100000 /dev/zero | dd of=/tmp/x"])?;
    ensure!(refused.code != 0 && refused.stderr.contains("No space left on device"), "{refused}");
    let before = node.ps()?.len();
    // More than the pool has ready.
    let run = node.pando(&["create", "geo", "-n", "12"])?;
    ensure!(run.code == 1 && run.stderr.contains("No space left on device"), "starts on a full disk: {run}");
    ensure!(run.took < std::time::Duration::from_secs(20), "starts on a full disk took {:?}", run.took);
    let fork = node.pando(&["fork", filler])?;
    ensure!(fork.code == 1 && fork.stderr.contains("No space left on device"), "a fork on a full disk: {fork}");
    let service = node.program("geo.py");
    let build = node.pando(&["template", "build", "other", "--", "/usr/bin/python3", &service, "--nidx", "2"])?;
    // What the failed starts have given back may just be enough for it; or the program itself is the one that lacks room.
    ensure!(
        [0, 6].contains(&build.code) || build.code == 1 && build.stderr.contains("No space left on device"),
        "a build on a full disk: {build}"
    );
    for sandbox in node.ps()?.iter().skip(before) {
        node.ask(sandbox.id.as_str(), "GET /health").context("a sandbox that was started on the full disk")?;
        node.ok(&["kill", sandbox.id.as_str()])?;
    }
    node.expect_only_itself().context("after failed starts")?;
    node.ok(&["kill", filler])?;
    let later = node.run("geo", 6)?;
    for sandbox in &later {
        ensure!(node.ask(sandbox.id.as_str(), "GET /verify")?["intact"] == true, "after space was freed");
    }
    ensure!(node.ask(other, "GET /state")?["values"]["me"] == *other.as_str(), "the other sandbox");
    node.ok(&["fork", other])?;
    Ok(())
}
