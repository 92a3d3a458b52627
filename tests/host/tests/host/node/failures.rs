//! Failures that a user meets: the exit code, what is said, and that nothing stays of it.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};
use testkit::{
    node::{Node, Setting},
    runner::Case,
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("failures::programs_that_cannot_become_templates", || case(programs)),
        Case::new("failures::images_that_cannot_be_used", || case(images)),
        Case::new("failures::names_and_things_that_are_not_there", || case(names)),
        Case::new("failures::things_in_use", || case(in_use)),
        Case::new("failures::a_program_that_ends_later_is_listed_with_its_status", || case(ends_later)),
        Case::new("failures::a_directory_and_a_tarball_work_as_images", || case(other_images)),
        Case::new("failures::no_node_and_a_second_node", second_node),
        Case::new("failures::an_ephemeral_node_takes_its_sandboxes_with_it", ephemeral),
    ]
}

fn case(body: fn(&Node) -> Result<()>) -> Result<()> {
    let node = Node::start()?;
    body(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

/// The command fails with `code`, says each of `texts`, and leaves nothing.
fn fails(node: &Node, arguments: &[&str], code: i32, texts: &[&str]) -> Result<()> {
    let shown = format!("`pando {}`", arguments.join(" "));
    let answer = node.pando(arguments)?;
    ensure!(answer.code == code, "{shown}: expected exit code {code}: {answer}");
    for text in texts {
        ensure!(answer.stderr.contains(text), "{shown} does not say {text:?}: {answer}");
    }
    ensure!(answer.stdout.is_empty(), "{shown} prints a result: {answer}");
    node.expect_only_itself().context(shown)
}

fn programs(node: &Node) -> Result<()> {
    let program = |name: &str| node.program(name);
    let ready = ["--ready-file", "/tmp/ready"];
    let build = |options: &[&str], command: &[&str], code: i32, texts: &[&str]| {
        let mut arguments = vec!["template", "build", "failing"];
        arguments.extend(options);
        arguments.push("--");
        arguments.extend(command);
        fails(node, &arguments, code, texts)
    };
    let (before, output) =
        ("pando: the program exited with status 7 before it was ready", "    crash: the licence file is missing");
    build(&[], &[&program("crash")], 6, &[before, "    starting", output, "hint: run the command by itself"])?;
    let late = "pando: the program was not ready within 1000 ms: waited until it listens on a TCP port";
    build(&["--ready-timeout", "1"], &[&program("never_ready")], 6, &[late, "    still starting", "--ready-timeout"])?;
    let late = "waited until it listens on port 81";
    build(&["--ready-timeout", "300ms", "--port", "81"], &[&program("never_ready")], 6, &[late])?;
    build(
        &["--ready-timeout", "300ms", "--ready", "false"],
        &[&program("never_ready")],
        6,
        &["`/bin/sh -c false` succeeds"],
    )?;
    build(&["--ready", "true"], &["/bin/true"], 6, &["the program exited with status 0 before it was ready"])?;
    let own = ["pando: template failing cannot be forked", "handles its own system calls"];
    build(&ready, &[&program("own_dispatch"), "--ready-file", "/tmp/ready"], 5, &own)?;
    let refused = |what: &str, texts: &[&str]| {
        build(&ready, &[&program("refused"), what, "--ready-file", "/tmp/ready"], 5, texts)
    };
    refused("lease", &["holds a lease on /tmp/leased (LEASE)", "give it up (or close the file)"])?;
    refused("deleted_directory", &["its working directory /tmp/gone (deleted) was deleted or replaced"])?;
    let ring = ["exited with status 3 before it was ready", "io_uring_setup: errno"];
    build(&ready, &[&program("io_uring"), "--ready-file", "/tmp/ready"], 6, &ring)?;
    build(
        &[],
        &["/no/such/command"],
        127,
        &["cannot run \"/no/such/command\" in the sandbox: No such file or directory"],
    )?;
    build(
        &[],
        &["no-such-command"],
        127,
        &["cannot run \"no-such-command\" in the sandbox: No such file or directory"],
    )?;
    build(&[], &["/etc/passwd"], 126, &["cannot run \"/etc/passwd\" in the sandbox: Permission denied"])?;
    build(&["--cwd", "/no/such/place"], &["/bin/true"], 1, &["/no/such/place"])?;
    build(&["--cwd", "relative"], &["/bin/true"], 2, &["the working directory must be an absolute path"])?;
    ensure!(node.ok(&["template", "ls"])?.lines().count() == 1, "a failed build is listed");
    Ok(())
}

fn images(node: &Node) -> Result<()> {
    let build = |image: &str, code: i32, texts: &[&str]| {
        fails(node, &["template", "build", "failing", "--image", image, "--", "/bin/true"], code, texts)
    };
    build("/nonexistent.tar", 1, &["pando: cannot open the image /nonexistent.tar: No such file or directory"])?;
    let broken = node.dir().join("broken.tar.gz");
    std::fs::write(&broken, b"\x1f\x8b\x08 this is not gzip")?;
    build(&broken.to_string_lossy(), 2, &["the archive cannot be read"])?;
    let empty = node.dir().join("empty");
    std::fs::create_dir(&empty)?;
    build(&empty.to_string_lossy(), 127, &["cannot run \"/bin/true\" in the sandbox: No such file or directory"])?;
    // A tarball that wants out of its directory.
    let outside = node.dir().join("outside.tar");
    let script = "import sys, tarfile, io\nt = tarfile.open(sys.argv[1], 'w')\ni = tarfile.TarInfo('../../escaped')\ni.size = 1\nt.addfile(i, io.BytesIO(b'x'))\nt.close()";
    let made = std::process::Command::new("/usr/bin/python3").args(["-c", script]).arg(&outside).status()?;
    ensure!(made.success(), "the tarball cannot be made");
    let answer =
        node.pando(&["template", "build", "failing", "--image", &outside.to_string_lossy(), "--", "/bin/true"])?;
    ensure!(answer.code == 2 && answer.stderr.contains("../../escaped leads above the root"), "{answer}");
    build("python:3.12-slim", 4, &["there is no image python:3.12-slim", "pando image pull python:3.12-slim"])?;
    for place in [node.dir().join("escaped"), node.state.join("escaped"), node.state.join("images/escaped")] {
        ensure!(!place.exists(), "{} was unpacked outside of the image", place.display());
    }
    node.expect_only_itself()
}

fn names(node: &Node) -> Result<()> {
    let no_sandbox = "pando: there is no sandbox s000000000000";
    let no_template = "pando: there is no template nosuch";
    let long = "a".repeat(64);
    for arguments in [&["inspect"] as &[&str], &["logs"], &["fork"], &["kill"]] {
        fails(node, &[arguments, &["s000000000000"]].concat(), 4, &[no_sandbox, "hint: `pando ls`"])?;
        fails(node, &[arguments, &["s00000000000g"]].concat(), 4, &["there is no sandbox s00000000000g"])?;
        fails(node, &[arguments, &["../../etc"]].concat(), 2, &["is not a sandbox id"])?;
    }
    fails(node, &["exec", "s000000000000", "--", "true"], 4, &[no_sandbox])?;
    fails(node, &["connect", "s000000000000", "80"], 4, &[no_sandbox])?;
    let nothing = "pando: there is neither a template nor a checkpoint nosuch";
    for (arguments, message) in
        [(&["create"] as &[&str], nothing), (&["template", "inspect"], no_template), (&["template", "rm"], no_template)]
    {
        fails(node, &[arguments, &["nosuch"]].concat(), 4, &[message, "hint: `pando template ls`"])?;
        for name in ["Upper", "a/b", "..", "", &long] {
            fails(node, &[arguments, &[name]].concat(), 2, &["is not a template name"])?;
        }
    }
    fails(node, &["template", "build", "../x", "--", "/bin/true"], 2, &["is not a template name"])?;
    fails(node, &["template", "build"], 2, &["required"])?;
    fails(node, &["create", "nosuch", "-n", "0"], 2, &["0 sandboxes were asked for; one request starts 1 to 1000"])?;
    fails(node, &["create", "nosuch", "-n", "1001"], 2, &["1001 sandboxes were asked for"])?;
    fails(node, &["no-such-command"], 2, &["unrecognized subcommand"])?;
    fails(node, &["kill"], 2, &["required"])
}

fn in_use(node: &Node) -> Result<()> {
    node.build_geo("geo", &["--nidx", "2"])?;
    let id = node.run("geo", 1)?[0].id.to_string();
    let answer = node.pando(&["template", "rm", "geo"])?;
    ensure!(answer.code == 1 && answer.stderr.contains("template geo is in use by 1 sandbox\n"), "{answer}");
    let answer = node.pando(&["connect", &id, "81"])?;
    ensure!(
        answer.code == 1 && answer.stderr.contains(&format!("nothing listens on port 81 in sandbox {id}")),
        "{answer}"
    );
    let answer = node.pando(&["exec", &id, "--", "/no/such/command"])?;
    ensure!(answer.code == 127 && answer.stderr.contains("cannot run \"/no/such/command\" in the sandbox"), "{answer}");
    let answer = node.pando(&["kill", &id, "s000000000000", &id])?;
    ensure!(answer.code == 4 && answer.stdout == format!("{id}\n"), "the others are removed all the same: {answer}");
    // Built again under the same name, and while it is used.
    let id = node.run("geo", 1)?[0].id.to_string();
    let digest = node.ask(&id, "GET /state")?["digest"].clone();
    node.build_geo("geo", &["--nidx", "2", "--seed", "7"])?;
    let newer = node.run("geo", 1)?[0].id.to_string();
    ensure!(node.ask(&newer, "GET /state")?["digest"] != digest, "the newer template is the older one");
    ensure!(node.ask(&id, "GET /verify")?["intact"] == true, "a sandbox of the older template");
    node.shell(&id, "ls /etc/passwd").map(drop)
}

fn ends_later(node: &Node) -> Result<()> {
    node.build_geo("geo", &["--nidx", "2"])?;
    let id = node.run("geo", 1)?[0].id.to_string();
    node.shell(&id, "kill -TERM 2")?;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while !node.ok(&["ls"])?.contains("exited (0)") {
        ensure!(std::time::Instant::now() < deadline, "{}", node.ok(&["ls"])?);
    }
    let answer = node.pando(&["fork", &id])?;
    ensure!(
        answer.code == 1
            && answer.stderr.contains(&format!("sandbox {id} does not run: its program exited with status 0")),
        "{answer}"
    );
    node.ok(&["logs", "--follow", &id])?;
    node.ok(&["inspect", &id])?;
    node.ok(&["kill", &id]).map(drop)
}

fn other_images(node: &Node) -> Result<()> {
    let root = node.programs.join("root");
    std::fs::create_dir(&root)?;
    // A static binary is the whole image: no shell, no libc, no user database.
    std::fs::copy(node.programs.join("geo-go"), root.join("service"))?;
    let tarball = node.dir().join("image.tar.gz");
    let made = std::process::Command::new("tar").arg("-czf").arg(&tarball).arg("-C").arg(&root).arg(".").status()?;
    ensure!(made.success(), "the tarball cannot be made");
    for (name, image) in [("directory", &root), ("tarball", &tarball)] {
        node.ok(&["template", "build", name, "--image", &image.to_string_lossy(), "--", "/service", "--nidx", "4"])?;
        for sandbox in node.run(name, 2)? {
            ensure!(node.ask(sandbox.id.as_str(), "GET /verify")?["intact"] == true, "{name}");
            ensure!(node.ask(sandbox.id.as_str(), "GET /state")?["hostname"] == sandbox.id.as_str(), "{name}");
        }
    }
    ensure!(std::fs::read_dir(&root)?.count() == 1, "the image's directory was written to");
    Ok(())
}

fn second_node() -> Result<()> {
    let node = Node::start()?;
    let (state, other) = (node.state.display().to_string(), node.dir().join("other").display().to_string());
    let other_socket = node.dir().join("other.sock").display().to_string();
    let answer = node.pando_at(other_socket.as_ref(), &["ls"])?;
    let text = format!("pando: the node at {other_socket} cannot be reached: No such file or directory");
    ensure!(
        answer.code == 3
            && answer.stderr.contains(&text)
            && answer.stderr.contains("hint: start one with `pando node`"),
        "{answer}"
    );
    let answer = node.pando_at(other_socket.as_ref(), &["node", "--state", &state])?;
    ensure!(
        answer.code == 1 && answer.stderr.contains(&format!("another node uses the state directory {state}")),
        "{answer}"
    );
    ensure!(!std::path::Path::new(&other_socket).exists(), "the second node leaves a socket");
    let answer = node.pando(&["node", "--state", &other])?;
    ensure!(answer.code == 1 && answer.stderr.contains("another node listens on"), "{answer}");
    let database = format!("sqlite://{other}/nowhere/heads.db");
    let answer = node.pando_at(other_socket.as_ref(), &["node", "--state", &other, "--database", &database])?;
    ensure!(answer.code == 1 && answer.stderr.contains("cannot open the database"), "{answer}");
    let answer = node.pando_at(other_socket.as_ref(), &["node", "--state", &other, "--master-keys", &other])?;
    ensure!(answer.code == 1 && answer.stderr.contains("it is not a file"), "{answer}");
    expect_no_groups(&other)?;
    node.info().context("the first node does not answer any more")?;
    node.finish()
}

/// Of a node that could not start.
fn expect_no_groups(state: &str) -> Result<()> {
    let record = fs::read(format!("{state}/node.json")).context("it did not come as far as to have an id")?;
    let record = String::from_utf8_lossy(&record).into_owned();
    let id = record.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next()).context("no id")?;
    let found = Command::new("find").args(["/sys/fs/cgroup", "-name", &format!("pando-{id}")]).output()?;
    ensure!(found.stdout.is_empty(), "left: {}", String::from_utf8_lossy(&found.stdout));
    Ok(())
}

fn ephemeral() -> Result<()> {
    let mut node = Node::start_with(Setting { arguments: vec!["--ephemeral".into()], ..Setting::default() })?;
    node.build_geo("geo", &["--nidx", "2"])?;
    node.run("geo", 3)?;
    node.ok(&["template", "rm", "geo"]).err().context("a template in use was removed")?;
    let code = node.stop_server()?;
    ensure!(code == Some(0), "the node ended with {code:?}");
    node.expect_stopped()?;
    node.start_server()?;
    ensure!(node.ps()?.is_empty(), "sandboxes of an ephemeral node are listed after its restart");
    node.finish()
}
