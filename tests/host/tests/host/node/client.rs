//! Daily work by the command line, with a node by its socket and with a server by its URL: the same commands, the same
//! answers.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::{
    node::{Node, Setting},
    runner::Case,
};

use super::serve::Server;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("client::commands_answer_alike_by_socket_and_url", || case(alike)),
        Case::new("client::commands_that_run_on_are_followed_again", || case(kept)),
        Case::new("client::files_and_directories_are_copied_both_ways", || case(copies)),
        Case::new("client::a_local_port_leads_into_a_sandbox", || case(forwards)),
        Case::new("client::names_labels_and_lifetimes_are_a_servers", || case(names)),
        Case::new("client::pauses_and_forks_go_by_url", || case(pauses)),
        Case::new("client::volumes_go_by_url", || case(volumes)),
        Case::new("client::errors_name_the_address_and_what_to_do", || case(addresses)),
    ]
}

fn case(body: fn(&Node, &Server) -> Result<()>) -> Result<()> {
    let node = Node::start_with(Setting { serves: true, ..Setting::default() })?;
    node.ok(&["template", "build", "plain"])?;
    let server = Server::of(&node)?;
    body(&node, &server).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

/// How the command line reaches the sandboxes.
#[derive(Clone, Copy)]
enum By<'a> {
    Socket(&'a Node),
    Url(&'a Node, &'a Server),
}

impl By<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        match self {
            Self::Socket(node) => node.command_of(arguments),
            Self::Url(node, server) => by_url(node, server, arguments),
        }
    }

    fn ask(&self, arguments: &[&str]) -> Result<Output> {
        Ok(self.command(arguments).stdin(Stdio::null()).output()?)
    }

    /// What a command prints that must succeed.
    fn ok(&self, arguments: &[&str]) -> Result<String> {
        let output = self.ask(arguments)?;
        ensure!(output.status.success(), "{arguments:?}: {output:?}");
        Ok(String::from_utf8(output.stdout)?)
    }

    fn json(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.ok(arguments)?;
        serde_json::from_str(&text).with_context(|| format!("{arguments:?} printed {text:?}"))
    }

    /// Fails unless the command ends with this code and says this.
    fn refused(&self, arguments: &[&str], code: i32, said: &str) -> Result<()> {
        let output = self.ask(arguments)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(code) && stderr.contains(said),
            "{arguments:?}: {code} {said:?}: {output:?}"
        );
        Ok(())
    }

    fn create(&self) -> Result<String> {
        Ok(self.ok(&["create", "plain", "-q"])?.trim().to_owned())
    }
}

/// As after `eval "$(pando env)"`: by TLS.
fn by_url(node: &Node, server: &Server, arguments: &[&str]) -> Command {
    let mut command = Command::new(node.command_of(&[]).get_program());
    command.env("PANDO_URL", format!("https://api.{}", server.domain)).env("PANDO_KEY", &server.key);
    command.env("SSL_CERT_FILE", node.state.join("tls/pando.localhost/bundle.pem")).args(arguments);
    command
}

fn both<'a>(node: &'a Node, server: &'a Server) -> [By<'a>; 2] {
    [By::Socket(node), By::Url(node, server)]
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect()
}

fn alike(node: &Node, server: &Server) -> Result<()> {
    let mut shapes = Vec::new();
    for by in both(node, server) {
        let made = by.json(&["create", "plain", "--json"])?;
        let id = made["sandboxes"][0]["id"].as_str().context("no id")?;
        let listed = by.json(&["ls", "--json"])?;
        let table = by.ok(&["ls"])?;
        ensure!(table.contains("ID") && table.contains(id) && table.contains("running"), "{table}");
        let used = by.json(&["stats", "--json", id])?;
        ensure!(used[0]["memory_bytes"].is_u64(), "{used}");
        by.ok(&["stats"])?;
        shapes.push(
            [keys(&made), keys(&made["sandboxes"][0]), keys(&listed[0]), keys(&used[0])].map(|keys| keys.join(" ")),
        );
        exec(by, id)?;
        ensure!(by.ok(&["logs", id, "--tail", "3"])?.is_empty(), "nothing was printed");
        let short = &id[..12];
        ensure!(by.ok(&["kill", short])?.trim() == id, "kill");
        by.refused(&["kill", id], 4, id)?;
        by.refused(&["exec", "nosuch", "--", "true"], 4, "no sandbox nosuch")?;
        by.refused(&["create", "nowhere"], 4, "nowhere")?;
    }
    ensure!(shapes[0] == shapes[1], "{shapes:#?}");
    Ok(())
}

fn exec(by: By<'_>, id: &str) -> Result<()> {
    let shell = |script: &str| by.ask(&["exec", "-w", "/tmp", "-e", "A=b c", id, "--", "/bin/sh", "-c", script]);
    let output = shell("pwd; echo \"$A\"; echo no >&2; exit 7")?;
    ensure!(
        output.status.code() == Some(7) && output.stdout == b"/tmp\nb c\n" && output.stderr == b"no\n",
        "{output:?}"
    );
    ensure!(shell("kill -9 $$")?.status.code() == Some(137), "a signal");
    by.refused(&["exec", "-w", "/", id, "--", "/no/such/program"], 127, "/no/such/program")?;
    by.refused(&["exec", "-w", "/", id, "--", "/etc/passwd"], 126, "/etc/passwd")?;
    let slow = ["exec", "-w", "/", "--timeout", "300ms", id, "--", "/bin/sleep", "100"];
    ensure!(by.ask(&slow)?.status.code() == Some(124), "a timeout");
    // Input and its end.
    let mut cat = by.command(&["exec", "-i", "-w", "/", id, "--", "/bin/cat"]);
    let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    std::io::Write::write_all(&mut cat.stdin.take().context("no input")?, &[b'x'; 100_000])?;
    let output = cat.wait_with_output()?;
    ensure!(output.status.success() && output.stdout == [b'x'; 100_000], "{} bytes", output.stdout.len());
    terminal(by, id)
}

/// On a terminal of its own, as script(1) makes one.
fn terminal(by: By<'_>, id: &str) -> Result<()> {
    let command = by.command(&["exec", "-t", "-w", "/", id, "--", "/bin/sh", "-c", "'stty size; exit 3'"]);
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let words: Vec<String> = words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let line = format!("stty rows 31 cols 97; {}", words.join(" "));
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        script.env(name, value.unwrap_or_default());
    }
    let output = script.output().context("script(1)")?;
    let shown = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.code() == Some(3) && shown.contains("31 97"), "{output:?}");
    Ok(())
}

fn kept(node: &Node, server: &Server) -> Result<()> {
    for by in both(node, server) {
        let id = by.create()?;
        by.refused(&["attach", &id], 4, "no command runs")?;
        let script = "echo begun; read line; echo \"got $line\"; exit 5";
        let start = ["exec", "-d", "-i", "-w", "/", "--tag", "worker", "--json", &id, "--", "/bin/sh", "-c", script];
        let pid = by.json(&start)?["pid"].to_string();
        // Its output so far, by one that leaves.
        let mut looks = by.command(&["attach", &id, &pid]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut line = [0; 6];
        std::io::Read::read_exact(&mut looks.stdout.take().context("no output")?, &mut line)?;
        ensure!(&line == b"begun\n", "{line:?}");
        looks.kill()?;
        looks.wait()?;
        // By its tag, with input.
        let mut attached = by.command(&["attach", "-i", &id, "worker"]);
        let mut attached = attached.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        std::io::Write::write_all(&mut attached.stdin.take().context("no input")?, b"this\n")?;
        let output = attached.wait_with_output()?;
        ensure!(output.status.code() == Some(5) && output.stdout == b"begun\ngot this\n", "{output:?}");
        // An interrupt ends a command in the foreground.
        let ends = by.command(&["exec", "-w", "/", &id, "--", "/bin/sh", "-c", "echo $$; exec sleep 1000"]);
        interrupted(ends)?;
        let deadline = Instant::now() + Duration::from_secs(20);
        while let Err(error) = by.refused(&["attach", &id], 4, "no command runs") {
            ensure!(Instant::now() < deadline, "it runs on: {error}");
            std::thread::sleep(Duration::from_millis(50));
        }
        by.ok(&["kill", &id])?;
    }
    Ok(())
}

fn interrupted(mut command: Command) -> Result<()> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut byte = [0];
    std::io::Read::read_exact(child.stdout.as_mut().context("no output")?, &mut byte)?;
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)?;
    ensure!(child.wait()?.code() == Some(130), "an interrupt");
    Ok(())
}

fn copies(node: &Node, server: &Server) -> Result<()> {
    let here = node.dir().join("copies");
    fs::create_dir_all(here.join("tree/a/empty"))?;
    fs::write(here.join("tree/a/b c.txt"), "inner")?;
    fs::write(here.join("big"), vec![7; 3 << 20])?;
    for (name, mode) in [("tree/run it.sh", 0o755), ("tree/a/secret", 0o600)] {
        fs::write(here.join(name), "#!/bin/sh\necho ran\n")?;
        fs::set_permissions(here.join(name), fs::Permissions::from_mode(mode))?;
    }
    let path = |name: &str| here.join(name).display().to_string();
    for (round, by) in both(node, server).into_iter().enumerate() {
        let id = by.create()?;
        let at = |path: &str| format!("{id}:{path}");
        by.ok(&["cp", &path("big"), &at("/tmp/new/big")])?;
        by.ok(&["cp", &path("tree"), &at("/tmp/")])?;
        ensure!(by.ok(&["exec", "-w", "/tmp", &id, "--", "/bin/cat", "/tmp/tree/a/b c.txt"])? == "inner", "a tree");
        ensure!(by.ok(&["exec", "-w", "/tmp", &id, "--", "/tmp/tree/run it.sh"])? == "ran\n", "a program stays one");
        let back = path(&format!("back{round}"));
        by.ok(&["cp", &at("/tmp/new/big"), &back])?;
        ensure!(fs::read(&back)? == fs::read(here.join("big"))?, "a file");
        let tree = path(&format!("tree{round}"));
        by.ok(&["cp", &at("/tmp/tree"), &tree])?;
        let inner = here.join(&tree);
        ensure!(fs::read(inner.join("a/b c.txt"))? == b"inner" && inner.join("a/empty").is_dir(), "a tree back");
        let mode = |name: &str| Ok::<_, anyhow::Error>(fs::metadata(inner.join(name))?.permissions().mode() & 0o777);
        ensure!((mode("run it.sh")?, mode("a/secret")?, mode("a/b c.txt")?) == (0o755, 0o600, 0o644), "permissions");
        ensure!(by.ok(&["cp", &at("/tmp/tree/a/b c.txt"), "-"])? == "inner", "to standard output");
        let inside = "ln -s /etc/passwd /tmp/tree/link; ln -s / /tmp/tree/all; mkdir -m 0 /tmp/tree/closed";
        by.ok(&["exec", "-n", "-w", "/", &id, "--", "/bin/sh", "-c", inside])?;
        by.refused(&["cp", &at("/tmp/tree"), &tree], 1, "/tmp/tree/closed")?;
        by.ok(&["exec", "-n", "-w", "/", &id, "--", "/bin/rmdir", "/tmp/tree/closed"])?;
        let said = by.ask(&["cp", &at("/tmp/tree"), &format!("{tree}-links")])?;
        ensure!(String::from_utf8_lossy(&said.stderr).contains("/tmp/tree/all is a symbolic link"), "{said:?}");
        let (link, all) = (here.join(format!("{tree}-links/link")), here.join(format!("{tree}-links/all")));
        ensure!(!link.exists() && !all.exists(), "links are left out");
        // Links and devices stay.
        let (target, link) = (here.join(format!("target{round}")), path(&format!("link{round}")));
        fs::write(&target, "old")?;
        std::os::unix::fs::symlink(&target, &link)?;
        by.ok(&["cp", &at("/tmp/tree/a/b c.txt"), &link])?;
        ensure!(fs::symlink_metadata(&link)?.is_symlink() && fs::read(&target)? == b"inner", "through a link");
        let null = path(&format!("null{round}"));
        ensure!(Command::new("mknod").args([&null, "c", "1", "3"]).status()?.success(), "mknod");
        by.ok(&["cp", &at("/tmp/tree/a/b c.txt"), &null])?;
        ensure!(fs::metadata(&null)?.file_type().is_char_device(), "a device stays one");
        by.refused(&["cp", &at("/nowhere"), &back], 4, "/nowhere")?;
        by.refused(&["cp", &path("big"), &at("/usr/big")], 1, "/usr/big")?;
        by.refused(&["cp", &path("big"), &path("other")], 2, "SANDBOX:PATH")?;
        by.refused(&["cp", &path("missing"), &at("/tmp/x")], 1, "missing")?;
        by.ok(&["kill", &id])?;
    }
    Ok(())
}

fn forwards(node: &Node, server: &Server) -> Result<()> {
    let serve = "mkdir -p /tmp/w; echo hello > /tmp/w/f; cd /tmp/w; exec python3 -m http.server --bind 127.0.0.1 8000";
    for by in both(node, server) {
        let id = by.create()?;
        by.ok(&["exec", "-d", "-w", "/", &id, "--", "/bin/sh", "-c", serve])?;
        let mut forward = by.command(&["forward", "--json", &id, "0:8000"]);
        let mut forward = forward.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        let output = forward.stdout.take().context("no output")?;
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line)?;
        let told: Value = serde_json::from_str(&line)?;
        let url = format!("http://{}/f", told["address"].as_str().context("no address")?);
        // It may not listen yet.
        let deadline = Instant::now() + Duration::from_secs(20);
        let answer = loop {
            let curl = Command::new("curl").args(["-sS", "-f", "--max-time", "10", &url]).output()?;
            if curl.status.success() || Instant::now() > deadline {
                break curl;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        forward.kill()?;
        forward.wait()?;
        ensure!(answer.stdout == b"hello\n", "{answer:?}");
        by.refused(&["forward", &id, "0"], 2, "LOCAL:PORT")?;
        by.ok(&["kill", &id])?;
    }
    Ok(())
}

fn names(node: &Node, server: &Server) -> Result<()> {
    let [socket, url] = both(node, server);
    socket.refused(&["create", "plain", "--name", "web"], 2, "PANDO_URL")?;
    socket.refused(&["timeout", "1h", "s0"], 4, "s0")?;
    let web = ["create", "plain", "-q", "--name", "web", "-l", "job=a b", "-e", "A=of all", "--timeout", "1h"];
    let id = url.ok(&web)?.trim().to_owned();
    ensure!(url.ok(&["exec", "-w", "/", "web", "--", "/bin/sh", "-c", "echo $A"])? == "of all\n", "a name");
    let other = url.ok(&["create", "plain", "-q", "-l", "job=c"])?.trim().to_owned();
    ensure!(url.ok(&["ls", "-q"])?.lines().count() == 2, "both");
    ensure!(url.ok(&["ls", "-q", "-l", "job=a b"])?.trim() == id, "a label");
    let table = url.ok(&["ls"])?;
    ensure!(table.contains("NAME") && table.contains("job=a b") && table.contains("59m"), "{table}");
    ensure!(url.ok(&["timeout", "2h", "web", &other])? == format!("{id}\n{other}\n"), "two lifetimes");
    ensure!(url.ok(&["ls"])?.matches("1h59m").count() == 2, "both live longer");
    url.refused(&web, 2, "has the name web")?;
    let twin = url.json(&["fork", "web", "--json"])?["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned();
    url.refused(&["kill", "web"], 2, &twin)?;
    url.refused(&["timeout", "100d", &other], 2, "timeout")?;
    ensure!(url.ok(&["kill", &id, &other, &twin])?.lines().count() == 3, "three");
    ensure!(url.ok(&["ls", "-q"])?.is_empty(), "none is left");
    // Many at once.
    let many = url.ok(&["create", "plain", "-q", "-n", "3"])?;
    ensure!(many.lines().count() == 3, "{many}");
    ensure!(url.ok(&["kill", "--all"])?.lines().count() == 3, "all");
    // Old names.
    let old = url.ok(&["run", "plain", "-q"])?;
    ensure!(url.ok(&["ps", "-q"])? == old && url.ok(&["rm", old.trim()])? == old, "old names");
    Ok(())
}

fn pauses(node: &Node, server: &Server) -> Result<()> {
    let url = By::Url(node, server);
    let id = url.create()?;
    url.ok(&["exec", "-w", "/", &id, "--", "/bin/sh", "-c", "echo kept > /tmp/it"])?;
    ensure!(url.ok(&["pause", &id])?.trim() == id, "pause");
    ensure!(url.json(&["ls", "--json"])?[0]["state"] == "paused", "it is listed");
    url.refused(&["exec", &id, "--", "true"], 1, "pando resume")?;
    url.refused(&["pause", &id], 1, "paused")?;
    ensure!(url.ok(&["resume", &id, "--timeout", "1h"])?.contains(&id), "resume");
    url.refused(&["resume", &id], 1, "not paused")?;
    let forked = url.json(&["fork", &id, "-n", "2", "--json"])?;
    let copy = forked["sandboxes"][1]["id"].as_str().context("no copy")?;
    ensure!(forked["sandboxes"][0]["parent"] == id.as_str(), "{forked}");
    ensure!(url.ok(&["exec", "-w", "/", copy, "--", "/bin/cat", "/tmp/it"])? == "kept\n", "its files");
    // Of any sandbox: this one has a command that runs.
    url.ok(&["exec", "-d", "-w", "/", copy, "--", "/bin/sleep", "60"])?;
    let files = url.json(&["fork", copy, "--files-only", "--json"])?;
    let files = files["sandboxes"][0]["id"].as_str().context("no copy of the files")?;
    ensure!(url.ok(&["exec", "-w", "/", files, "--", "/bin/cat", "/tmp/it"])? == "kept\n", "its files only");
    url.ok(&["kill", files])?;
    url.ok(&["pause", copy, "--files-only"])?;
    ensure!(url.ok(&["ls", "--paused", "-q"])?.trim() == copy, "the paused one");
    url.refused(&["kill", "--all"], 2, "--force")?;
    ensure!(url.ok(&["kill", "--all", "--force"])?.lines().count() == 3, "all");
    Ok(())
}

fn volumes(node: &Node, server: &Server) -> Result<()> {
    let url = By::Url(node, server);
    ensure!(url.ok(&["volume", "create", "ws", "--size", "64M"])? == "ws\n", "create");
    url.refused(&["volume", "create", "ws"], 1, "ws")?;
    let listed = url.json(&["volume", "ls", "--json"])?;
    let shown = listed[0]["id"].as_str().context("no id")?;
    ensure!(listed[0]["name"] == "ws" && url.ok(&["volume", "inspect", shown])?.contains("ws"), "{listed}");

    let sandbox = url.ok(&["create", "plain", "-q", "--volume", "ws:/mnt/ws"])?.trim().to_owned();
    let write = |text: &str| url.ok(&["exec", &sandbox, "--", "/bin/sh", "-c", &format!("echo {text} > /mnt/ws/it")]);
    write("first")?;
    ensure!(url.ok(&["volume", "snapshot", "ws", "before", "-m", "a note"])? == "before\n", "snapshot");
    write("second")?;
    let log = url.ok(&["volume", "log", "ws"])?;
    ensure!(log.contains("before") && log.contains("a note"), "{log}");
    ensure!(url.ok(&["volume", "diff", "ws@before"])? == "M /it\n", "diff");
    ensure!(url.json(&["volume", "diff", "ws@before", "--json"])?["change"] == "modified", "as JSON");
    ensure!(url.ok(&["volume", "cat", "ws", "/it"])? == "second\n", "cat");
    ensure!(url.ok(&["volume", "cat", "ws@before", "it"])? == "first\n", "cat of a snapshot");
    url.ok(&["volume", "fork", "ws@before", "other"])?;
    ensure!(url.ok(&["volume", "cat", "other", "it"])? == "first\n", "a fork");
    url.refused(&["volume", "rm", "ws"], 1, "ws")?;

    // A copy has a volume of its own, which outlives it.
    let copy = url.json(&["fork", &sandbox, "--json"])?["sandboxes"][0]["id"].as_str().context("no copy")?.to_owned();
    let of_copy = format!("ws-{copy}\n");
    url.refused(&["volume", "rm", of_copy.trim()], 1, "ws")?;
    let prune = ["volume", "prune", "--older", "1ms", "--force"];
    ensure!(url.ok(&prune)?.is_empty(), "all are in use");
    url.ok(&["kill", &sandbox, &copy])?;
    ensure!(url.ok(&["volume", "prune", "--force"])?.is_empty(), "it is too young");
    url.refused(&["volume", "prune", "--older", "1ms"], 2, of_copy.trim())?;
    ensure!(url.ok(&prune)? == of_copy, "it is left");

    let before = url.ok(&["volume", "restore", "ws", "before"])?;
    ensure!(url.ok(&["volume", "cat", "ws", "it"])? == "first\n", "it is as it was");
    ensure!(url.ok(&["volume", "cat", &format!("ws@{}", before.trim()), "it"])? == "second\n", "the state before");
    url.refused(&["volume", "cat", "ws", "missing"], 4, "missing")?;
    url.refused(&["volume", "verify", "ws"], 2, "--socket")?;
    ensure!(url.ok(&["volume", "rm", "ws@before", "ws", "other"])? == "ws@before\nws\nother\n", "rm");
    url.refused(&["volume", "inspect", "ws"], 4, "pando volume ls")
}

fn addresses(node: &Node, server: &Server) -> Result<()> {
    let url = By::Url(node, server);
    let ask = |variables: &[(&str, &str)], arguments: &[&str], code: i32, said: &str| -> Result<()> {
        let mut command = url.command(arguments);
        let output = command.envs(variables.iter().copied()).stdin(Stdio::null()).output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(code) && stderr.contains(said), "{code} {said:?}: {output:?}");
        Ok(())
    };
    let (plain, wrong) = (format!("http://{}", server.address), format!("e2b_{}", "0".repeat(40)));
    let nowhere = node.dir().join("nowhere.sock").display().to_string();
    let closed = ["ls", "--url", "http://127.0.0.1:1"];
    ask(&[], &["ls"], 0, "")?;
    // By address and plain HTTP, too.
    ask(&[("PANDO_URL", &plain)], &["ls"], 0, "")?;
    ask(&[("PANDO_URL", "nothing")], &["ls"], 2, "PANDO_URL: \"nothing\" is no URL")?;
    ask(&[("PANDO_KEY", "")], &["ls"], 2, "PANDO_KEY")?;
    ask(&[("PANDO_KEY", &wrong)], &["ls"], 1, "hint: check PANDO_KEY")?;
    ask(&[], &closed, 3, "the server at http://127.0.0.1:1 cannot be reached")?;
    ask(&[], &closed, 3, "hint: check --url or PANDO_URL")?;
    ask(&[("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt")], &["ls"], 3, "certificate")?;
    // A flag counts more than the variables of a server.
    ask(&[], &["ls", "--socket", &nowhere], 3, &format!("the node at {nowhere} cannot be reached"))?;
    ask(&[], &["ls", "--socket", &nowhere, "--url", "http://a"], 2, "cannot be used with")?;
    // Without them the socket's variable counts.
    ask(&[("PANDO_URL", ""), ("PANDO_SOCKET", &nowhere)], &["ls"], 3, &nowhere)?;
    // A key that may only look.
    let state = node.state.display().to_string();
    let key = node.ok(&["key", "create", "--state", &state, "--read-only", "looks"])?;
    let looks = [("PANDO_KEY", key.trim())];
    let id = url.create()?;
    ask(&looks, &["ls"], 0, "")?;
    ask(&looks, &["kill", &id], 1, "")?;
    ask(&looks, &["exec", &id, "--", "true"], 1, "may only look")?;
    url.ok(&["kill", &id]).map(drop)
}
