//! Hosts that lack something: space, or the files that a checkpoint takes for granted.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use testkit::node::Node;

use super::{
    faults::{expect_right, take},
    shared::Shared,
};

pub(crate) fn full_disk(shared: &Shared, node: &Node, _: &Node) -> Result<()> {
    take(node, "warm")?;
    let objects = shared.0.join("objects").display().to_string();
    let small = shared.node_at(&objects, &shared.database(), "master.keys", Some(64))?;
    let done = on_full_disk(&small);
    done.with_context(|| format!("log of the small node:\n{}", small.log_tail()))?;
    small.finish()
}

fn on_full_disk(small: &Node) -> Result<()> {
    let fill = PathBuf::from(format!("/proc/{}/root{}/fill", small.server_pid()?, small.state.display()));
    let full = |look: &dyn Fn() -> Result<()>| -> Result<()> {
        let mut file = fs::File::create(&fill)?;
        let written = std::io::copy(&mut std::io::repeat(1), &mut file);
        ensure!(written.is_err_and(|error| error.raw_os_error() == Some(28)), "it is not full");
        let looked = look();
        fs::remove_file(&fill)?;
        looked
    };
    full(&|| {
        let refused = small.pando(&["create", "warm"])?;
        ensure!(refused.code == 1 && refused.stderr.contains("No space left on device"), "{refused}");
        small.expect_only_itself()
    })
    .context("a restore")?;
    let ids: Vec<String> = small.run("warm", 2)?.iter().map(|sandbox| sandbox.id.to_string()).collect();
    full(&|| {
        // Their pages come without a cache.
        ids.iter().try_for_each(|id| expect_right(small, id, "warm"))?;
        let kept = small.pando(&["checkpoint", &ids[0], "--name", "kept"])?;
        ensure!(kept.code == 0 || kept.stderr.contains("No space left on device"), "{kept}");
        ensure!(kept.code != 0 || small.pando(&["checkpoint", "rm", "kept"])?.code == 0, "not removed");
        Ok(())
    })
    .context("pages and a checkpoint")?;
    small.ok(&["checkpoint", &ids[0], "--name", "kept"])?;
    small.ok(&["checkpoint", "verify", "kept"])?;
    ids.iter().try_for_each(|id| expect_right(small, id, "warm"))
}

pub(crate) fn unfit(shared: &Shared, node: &Node, other: &Node) -> Result<()> {
    let folder = PathBuf::from(format!("/opt/pando-host-files-{}", std::process::id()));
    fs::create_dir(&folder)?;
    let done = mapped_file(&folder.join("table"), node, other);
    fs::remove_dir_all(&folder)?;
    done.with_context(|| shared.0.display().to_string())
}

fn mapped_file(file: &Path, node: &Node, other: &Node) -> Result<()> {
    let content = b"what the program has mapped\n".repeat(1000);
    fs::write(file, &content)?;
    let program = format!(
        "import mmap, time\nfile = open('{}', 'rb')\nmapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n\
         open('/tmp/ready', 'w').write('x')\nwhile True:\n    open('/tmp/seen', 'wb').write(mapped[:27])\n    time.sleep(0.05)",
        file.display()
    );
    node.ok(&["template", "build", "mapper", "--ready-file", "/tmp/ready", "--", "/usr/bin/python3", "-c", &program])?;
    let id = node.run("mapper", 1)?[0].id.to_string();
    node.ok(&["checkpoint", &id, "--name", "mapping"])?;
    let refused = |why: &str| -> Result<()> {
        let run = other.pando(&["create", "mapping"])?;
        let named =
            run.stderr.contains("cannot be started on this node") && run.stderr.contains(&*file.to_string_lossy());
        ensure!(run.code == 5 && named && run.stderr.contains(why), "{run}");
        let (status, body) = other.api("POST /v1/templates/mapping/run", b"{\"count\": 1}")?;
        ensure!(status == 422 && body.contains(&*file.to_string_lossy()), "{status} {body}");
        ensure!(other.json(&["template", "ls", "--json"])?.as_array().is_some_and(Vec::is_empty), "a template is left");
        other.expect_only_itself()
    };
    fs::remove_file(file)?;
    refused("is not in the root filesystem").context("a missing file")?;
    let mut altered = content.clone();
    altered[20_000] ^= 1;
    fs::write(file, &altered)?;
    refused("").context("an altered file")?;
    fs::write(file, &content[..content.len() - 1])?;
    refused("").context("a shorter file")?;
    fs::remove_file(file)?;
    fs::create_dir(file)?;
    refused("").context("a directory in its place")?;
    fs::remove_dir(file)?;
    // The same content in another file is the same file.
    fs::write(file, &content)?;
    let id = other.run("mapping", 1)?[0].id.to_string();
    let seen = other.shell(&id, "for i in $(seq 100); do [ -s /tmp/seen ] && break; sleep 0.1; done; cat /tmp/seen")?;
    ensure!(seen.trim_end() == "what the program has mapped", "not mapped: {seen:?}");
    Ok(())
}
