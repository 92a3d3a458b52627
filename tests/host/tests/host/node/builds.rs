//! Builds of templates by steps: what they make, how they fail, and what they leave.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use testkit::{
    node::{Node, Setting},
    runner::Case,
};

use super::{
    images::{import, root},
    shared::{arguments, with_node},
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("builds::a_dockerfile_becomes_a_template", || with_node(Setting::default(), whole)),
        Case::new("builds::a_copy_merges_and_replaces_as_docker_does", || with_node(Setting::default(), copied)),
        Case::new("builds::what_fails_names_its_step_and_leaves_nothing", || with_node(Setting::default(), failing)),
        Case::new("builds::hostile_archives_change_nothing", || with_node(Setting::default(), hostile)),
        Case::new("builds::an_interrupted_build_keeps_its_layers", || with_node(Setting::default(), interrupted)),
        Case::new("builds::a_killed_node_leaves_nothing_of_a_build", killed),
        Case::new("builds::a_template_without_files_of_its_own_is_copied", || {
            with_node(Setting::default(), copied_origin)
        }),
        Case::new("builds::what_the_operator_gives_is_in_every_image", given),
    ]
}

const BUILD: [&str; 5] = ["template", "build", "made", "-f", "Dockerfile"];

/// A directory with a Dockerfile that begins with an image of busybox.
fn context(node: &Node, steps: &str) -> Result<PathBuf> {
    let image = root(node, "image")?;
    fs::create_dir_all(image.join("0/etc"))?;
    fs::write(image.join("0/etc/passwd"), "root:x:0:0::/root:/bin/sh\napp:x:1234:1235::/:/bin/sh\n")?;
    import(node, "save", &image, "image.tar")?;
    let context = node.dir().join("context");
    fs::create_dir_all(&context)?;
    write(&context, steps)?;
    Ok(context)
}

fn write(context: &Path, steps: &str) -> Result<()> {
    Ok(fs::write(context.join("Dockerfile"), format!("FROM example/app:1.0\n{steps}\n"))?)
}

fn build(node: &Node, context: &Path) -> Result<testkit::node::Answer> {
    let file = context.join("Dockerfile");
    let (file, context) = (file.to_string_lossy(), context.to_string_lossy());
    node.pando(&["template", "build", "made", "-f", &file, "--context", &context, "--build-arg", "WHO=me"])
}

fn built(node: &Node, context: &Path) -> Result<String> {
    let answer = build(node, context)?;
    ensure!(answer.code == 0, "{answer}");
    Ok(answer.stderr)
}

/// What a new sandbox of the template answers.
fn inside(node: &Node, command: &str) -> Result<String> {
    let id = node.run("made", 1)?[0].id.to_string();
    let said = node.ok(&["exec", &id, "--", "/bin/sh", "-c", command])?;
    node.ok(&["kill", &id])?;
    Ok(said)
}

fn expect(found: &str, wanted: &str) -> Result<()> {
    ensure!(found.trim_end() == wanted, "{found:?}, wanted {wanted:?}");
    Ok(())
}

fn expect_nothing_of_builds(node: &Node) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let (sandboxes, templates) = (node.ps()?, node.ok(&["template", "ls"])?);
        if sandboxes.is_empty() && !templates.contains("build-") {
            let builds = node.dir().join("state/builds");
            let unfinished = fs::read_dir(&builds).into_iter().flatten().flatten();
            let names = unfinished.map(|entry| PathBuf::from(entry.file_name()));
            let is_whole = |name: &PathBuf| name.extension().is_none_or(|kind| kind == "step" || kind == "made");
            let unfinished: Vec<_> = names.filter(|name| !is_whole(name)).collect();
            ensure!(unfinished.is_empty(), "{unfinished:?}");
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "left: {sandboxes:?} {templates}");
        sleep(Duration::from_millis(20));
    }
}

fn whole(node: &mut Node) -> Result<()> {
    let steps = r#"ARG WHO=other
ENV GREETING="hello $WHO" PATH=/opt:$PATH
WORKDIR /srv/app
COPY --chmod=604 file ./
USER app
RUN <<END
set -e
(sleep 1000 &)
echo "$GREETING $(id -u) $WHO $PWD" > /tmp/made
END
RUN cat /tmp/made
EXPOSE 8080
LABEL x=y
CMD ["/bin/sh", "-c", "echo ready > /tmp/up; nc -l -p 8080; sleep 1000"]"#;
    let context = context(node, steps)?;
    fs::write(context.join("file"), "content")?;
    let said = built(node, &context)?;
    for line in ["LABEL (line 14) changes nothing here", "[3/6] COPY file ./", "[6/6] hello me 1234 me /srv/app"] {
        ensure!(said.contains(line), "{line:?} is not in {said}");
    }
    expect(
        &inside(
            node,
            "cat /tmp/made file; echo; stat -c '%a %u' file; id -u; echo $PATH $WHO; pwd; cat /proc/[0-9]*/comm | grep -c sleep; cat /tmp/up",
        )?,
        "hello me 1234 me /srv/app\ncontent\n604 0\n1234\n/opt:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n/srv/app\n0\nready",
    )?;
    // Once more, and then with another file: what stands behind it is done again, and what stands before it is not.
    let said = built(node, &context)?;
    ensure!(said.matches("CACHED").count() == 4, "{said}");
    fs::write(context.join("file"), "changed")?;
    let said = built(node, &context)?;
    ensure!(said.matches("CACHED").count() == 1 && said.contains("CACHED WORKDIR"), "{said}");
    expect(&inside(node, "cat file")?, "changed")?;
    // The node's own program that is built on it, after a restart of its node, too.
    let listed = node.ok(&["template", "inspect", "made"])?;
    ensure!(listed.contains("user       app") && listed.contains("begun in each sandbox"), "{listed}");
    node.ok(&["template", "rm", "made"])?;
    expect(&inside(node, "cat file")?, "changed")?;
    expect_nothing_of_builds(node)
}

fn copied(node: &mut Node) -> Result<()> {
    let steps = r#"RUN mkdir -p /to/sub /real && echo old > /to/sub/old && ln -s /real /link && ln -s sub/old /to/file && chmod 700 /to/sub
COPY tree /to
COPY one.txt two.txt /many
COPY *.txt /patterns
COPY one.txt /link/
COPY one.txt /new/name
COPY --chown=7:8 tree/sub/file /owned
COPY one.txt /real"#;
    let context = context(node, steps)?;
    fs::create_dir_all(context.join("tree/sub"))?;
    fs::write(context.join("tree/sub/file"), "new")?;
    fs::write(context.join("tree/file"), "replaced")?;
    std::os::unix::fs::symlink("sub/file", context.join("tree/to"))?;
    fs::hard_link(context.join("tree/file"), context.join("tree/hard"))?;
    fs::write(context.join("one.txt"), "1")?;
    fs::write(context.join("two.txt"), "2")?;
    fs::write(context.join("ignored.txt"), "3")?;
    fs::write(context.join(".dockerignore"), "ignored.txt\n")?;
    built(node, &context)?;
    let tell = "cat /to/sub/old /to/sub/file /to/file; echo; cat /to/to; stat -c ' %F %h %a' /to/file; stat -c '%a' /to/sub; \
        ls /many /patterns /real /new; stat -c '%u %g' /owned; find /link";
    expect(
        &inside(node, tell)?,
        "old\nnewreplaced\nnew regular file 1 644\n700\n/many:\none.txt\ntwo.txt\n\n/new:\nname\n\n/patterns:\none.txt\ntwo.txt\n\n/real:\none.txt\n7 8\n/link",
    )
}

fn failing(node: &mut Node) -> Result<()> {
    let context = context(node, "RUN echo fine\nRUN echo the reason >&2; exit 3")?;
    fs::write(context.join("file"), "x")?;
    let cases = [
        ("RUN echo fine\nRUN echo the reason >&2; exit 3", ["step 2", "exited with status 3", "the reason"]),
        ("USER absent", ["step 1", "\"absent\"", "passwd"]),
        ("COPY file /bin", ["", "", ""]),
        ("RUN mkdir /d\nCOPY file /d\nCOPY . /d/file", ["step 3", "/d/file", "not a directory"]),
        ("RUN echo much > /tmp/much; kill -9 $$", ["step 1", "signal 9", ""]),
        ("EXPOSE 80\nCMD [\"/bin/sh\", \"-c\", \"echo no start; exit 7\"]", ["steps are done", "status 7", "no start"]),
        ("EXPOSE 80\nCMD [\"/bin/absent\"]", ["steps are done", "", ""]),
    ];
    for (steps, says) in cases {
        write(&context, steps)?;
        let answer = build(node, &context)?;
        ensure!((answer.code == 0) == says.concat().is_empty(), "{steps}: {answer}");
        for said in says {
            ensure!(answer.stderr.contains(said), "{steps}: {said:?} is not in {answer}");
        }
        expect_nothing_of_builds(node)?;
    }
    for (file, says) in [
        ("FROM nothing/here\n", "neither an image nor a template of that name, and it cannot be fetched"),
        ("FROM a\nFROM b\n", "2 stages"),
    ] {
        fs::write(context.join("Dockerfile"), file)?;
        let answer = build(node, &context)?;
        ensure!(answer.code == 1 && answer.stderr.contains(says), "{answer}");
    }
    Ok(())
}

/// Archives whose members lead out, or are what no file of a build is.
const HOSTILE: &str = r#"
import io, sys, tarfile
kind, out = sys.argv[1:3]
def add(tar, name, type=tarfile.REGTYPE, link='', data=b'evil'):
    entry = tarfile.TarInfo(name); entry.type = type; entry.linkname = link
    entry.size = len(data) if type == tarfile.REGTYPE else 0; entry.mode = 0o4755
    tar.addfile(entry, io.BytesIO(data) if entry.size else None)
if kind == 'garbage':
    open(out, 'wb').write(b'no archive' * 1000)
elif kind == 'cut':
    with tarfile.open(out, 'w:gz') as tar: add(tar, 'x/a', data=b'a' * 100000)
    whole = open(out, 'rb').read(); open(out, 'wb').write(whole[:len(whole) // 2])
else:
    with tarfile.open(out, 'w:gz') as tar:
        if kind == 'up': add(tar, 'x/../../../evil')
        if kind == 'absolute': add(tar, '/evil')
        if kind == 'device': add(tar, 'x/device', tarfile.CHRTYPE)
        if kind == 'fifo': add(tar, 'x/fifo', tarfile.FIFOTYPE)
        if kind == 'hardlink': add(tar, 'x/passwd', tarfile.LNKTYPE, '/etc/passwd')
        if kind == 'link': add(tar, 'x/link', tarfile.SYMTYPE, '/etc'); add(tar, 'x/link/evil')
        if kind == 'empty': add(tar, 'y/other')
"#;

fn hostile(node: &mut Node) -> Result<()> {
    context(node, "")?;
    let archive = node.dir().join("hostile.tar");
    let kinds = ["garbage", "cut", "up", "absolute", "device", "fifo", "hardlink", "empty", "link"];
    for kind in kinds {
        let made = Command::new("python3").args(["-c", HOSTILE, kind]).arg(&archive).output()?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let copy = serde_json::json!({"copy": {"archive": archive, "key": kind, "source": "x", "target": "/to", "owner": null, "mode": null}});
        let recipe = serde_json::json!({
            "name": "made", "from": {"image": "example/app:1.0"}, "ready": "listening", "ready_timeout_ms": 1000, "steps": [copy],
        });
        let (status, said) = node.api("POST /v1/builds", recipe.to_string().as_bytes())?;
        ensure!(status == 200 && (said.contains("\"failed\"") || kind == "link"), "{kind}: {status} {said}");
        if kind == "link" {
            // It is followed inside, as root of the sandbox may do.
            expect(&inside(node, "cat /etc/evil; stat -c ' %F' /to/link")?, "evil symbolic link")?;
        }
        ensure!(!Path::new("/evil").exists() && !Path::new("/etc/evil").exists(), "{kind}");
        expect_nothing_of_builds(node)?;
    }
    Ok(())
}

fn interrupted(node: &mut Node) -> Result<()> {
    let context = context(node, "RUN echo first > /first\nRUN echo begun; sleep 1000")?;
    let (file, directory) = (context.join("Dockerfile"), context.to_string_lossy().into_owned());
    let mut arguments = BUILD.to_vec();
    let file = file.to_string_lossy().into_owned();
    arguments[4] = &file;
    arguments.extend(["--context", &directory]);
    let command = node.begin(&arguments)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while !node.ok(&["template", "ls"])?.contains("build-") || node.ps()?.is_empty() {
        ensure!(Instant::now() < deadline, "it has not begun: {}", command.end()?);
        sleep(Duration::from_millis(20));
    }
    sleep(Duration::from_millis(500));
    command.signal(Signal::INT)?;
    let answer = command.end()?;
    ensure!(answer.code == 130 && answer.stderr.contains("being cancelled"), "{answer}");
    expect_nothing_of_builds(node)?;
    write(&context, "RUN echo first > /first\nRUN cat /first")?;
    let said = built(node, &context)?;
    ensure!(said.contains("CACHED RUN echo first"), "{said}");
    Ok(())
}

fn killed() -> Result<()> {
    let mut node = Node::start()?;
    let tested = killed_node(&mut node);
    tested.with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

fn killed_node(node: &mut Node) -> Result<()> {
    let context = context(node, "RUN echo first > /first\nRUN echo begun; sleep 1000")?;
    let (file, directory) = (context.join("Dockerfile"), context.to_string_lossy().into_owned());
    let file = file.to_string_lossy().into_owned();
    let command = node.begin(&["template", "build", "made", "-f", &file, "--context", &directory])?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while node.ps()?.is_empty() {
        ensure!(Instant::now() < deadline, "it has not begun: {}", command.end()?);
        sleep(Duration::from_millis(20));
    }
    sleep(Duration::from_millis(300));
    node.kill_server()?;
    let answer = command.end()?;
    ensure!(answer.code != 0, "{answer}");
    node.start_server()?;
    expect_nothing_of_builds(node)?;
    write(&context, "RUN echo first > /first\nRUN cat /first")?;
    built(node, &context)?;
    expect(&inside(node, "cat /first")?, "first")?;
    node.ok(&["template", "rm", "made"]).map(drop)
}

/// A recipe that changes no file is a template of its own all the same.
fn copied_origin(node: &mut Node) -> Result<()> {
    let context = context(node, "ENV A=1")?;
    built(node, &context)?;
    expect(&inside(node, "echo $A; cat /etc/passwd | head -1")?, "1\nroot:x:0:0::/root:/bin/sh")?;
    fs::write(context.join("Dockerfile"), "FROM made\nENV B=2\n")?;
    built(node, &context)?;
    expect(&inside(node, "echo $A $B")?, "1 2")
}

/// Variables and files of the operator: in steps, in sandboxes, and where an image has a link above them.
fn given() -> Result<()> {
    let files = tempfile::tempdir()?;
    let path = files.path().join("clients.conf");
    fs::write(&path, "given\n")?;
    let file = format!("{}:/etc/deep/clients.conf", path.display());
    let asked = ["--sandbox-env", "GIVEN=by the node", "--sandbox-env", "GREETING=not this", "--sandbox-file", &file];
    let node = Node::start_with(arguments(&asked))?;
    let image = root(&node, "image")?;
    fs::create_dir_all(image.join("0/conf"))?;
    std::os::unix::fs::symlink("conf", image.join("0/etc"))?;
    import(&node, "save", &image, "image.tar")?;
    let context = node.dir().join("context");
    fs::create_dir_all(&context)?;
    write(&context, "ENV GREETING=hello\nRUN echo $GIVEN $GREETING $(cat /etc/deep/clients.conf) > /made")?;
    built(&node, &context)?;
    let command =
        "cat /made /conf/deep/clients.conf; echo $GIVEN; stat -c '%a %u' /etc/deep/clients.conf; readlink /etc";
    expect(&inside(&node, command)?, "by the node hello given\ngiven\nby the node\n644 0\nconf")?;
    // Templates of the host's own files have the variables.
    node.ok(&["template", "build", "idle"])?;
    let id = node.run("idle", 1)?[0].id.to_string();
    expect(&node.ok(&["exec", &id, "--", "/bin/sh", "-c", "echo $GIVEN"])?, "by the node")?;
    node.ok(&["kill", &id])?;
    node.finish()?;
    // A missing file is named, and nothing is started.
    fs::remove_file(&path)?;
    let missing = path.to_string_lossy();
    for asked in [&asked[..], &["--egress-ca", &missing]] {
        let Err(refused) = Node::start_with(arguments(asked)) else { anyhow::bail!("the node has started") };
        let refused = format!("{refused:#}");
        ensure!(refused.contains("clients.conf"), "{refused}");
    }
    Ok(())
}
