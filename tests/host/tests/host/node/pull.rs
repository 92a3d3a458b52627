//! Images from a registry: Docker's own, by TLS.

use std::{
    os::unix::fs::PermissionsExt,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::{
    node::{Node, Setting},
    registry::{Access, LOGIN, Registry},
    runner::Case,
};

use super::{
    images::{root, script},
    shared::with_node,
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("pull::an_image_of_a_registry_runs", || with_registry(Access::Anybody, runs)),
        Case::new("pull::credentials_are_asked_for_and_not_kept", || with_registry(Access::Login, login)),
        Case::new("pull::layers_that_are_there_are_not_fetched_again", || with_registry(Access::Anybody, shared)),
        Case::new("pull::an_index_gives_the_image_of_this_machine", || with_registry(Access::Anybody, index)),
        Case::new("pull::a_build_fetches_its_image", || with_registry(Access::Login, built)),
        Case::new("pull::registries_are_reached_as_the_operator_says", || with_node(Setting::default(), operator)),
    ]
}

/// A node may pull from these registries of the loopback.
pub(super) fn with_registry(access: Access, body: impl FnOnce(&mut Node, &Registry) -> Result<()>) -> Result<()> {
    let registry = Registry::start(access)?;
    let authority = registry.authority().display().to_string();
    let arguments = ["--network-allow", "127.0.0.1", "--registry-ca", &authority, "--registry", &registry.address()];
    let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    with_node(Setting { arguments, ..Setting::default() }, |node| body(node, &registry))
}

/// What the image store has of interrupted pulls.
pub(super) fn downloads(node: &Node) -> Result<usize> {
    Ok(std::fs::read_dir(node.state.join("image-store/pulls"))?.count())
}

pub(super) fn layers(node: &Node) -> Result<usize> {
    Ok(std::fs::read_dir(node.state.join("image-store/layers"))?.count())
}

fn runs(node: &mut Node, registry: &Registry) -> Result<()> {
    let source = root(node, "app")?;
    script("mkdir -p $1/1 $1/2 $1/3; echo one > $1/1/one; echo two > $1/2/two; echo three > $1/3/three", &[&source])?;
    let options = json!({
        "pack": ["gzip", "zstd", "xz", "none"],
        "config": {"Env": ["GREETING=hello"], "Entrypoint": ["/bin/nc", "-ll"], "Cmd": ["-p", "8080", "-e", "/bin/cat"],
            "ExposedPorts": {"8080/tcp": {}}},
    });
    let pushed = registry.push("example/app", "1.0", &source, &options)?;
    // A name without a registry is of the node's.
    let missing = node.pando(&["template", "build", "app", "--image", "example/app:1.0"])?;
    ensure!(missing.code == 4 && missing.stderr.contains("pando image pull example/app:1.0"), "{missing}");
    let said = node.ok(&["image", "pull", "example/app:1.0"])?;
    ensure!(said.starts_with("example/app:1.0: ") && said.contains("4 layers"), "{said}");
    node.ok(&["template", "build", "app", "--image", "example/app:1.0"])?;
    let id = node.ok(&["create", "app", "-q"])?.trim().to_owned();
    let found =
        node.ok(&["exec", &id, "--", "/bin/sh", "-c", "cat /one /two /three; echo $GREETING | nc 127.0.0.1 8080"])?;
    ensure!(found == "one\ntwo\nthree\nhello\n", "{found:?}");
    // By digest, of the registry named in full: the same layers.
    let asked = registry.requests().len();
    let digest = pushed["manifest"].as_str().context("it has no digest")?;
    let pinned = format!("{}/example/app@{digest}", registry.address());
    node.ok(&["image", "pull", &pinned])?;
    let blobs = registry.requests()[asked..].iter().filter(|request| request.contains("/blobs/")).count();
    ensure!(blobs == 1 && layers(node)? == 4 && downloads(node)? == 0, "{:?}", registry.requests());
    let names: Vec<Value> = serde_json::from_value(node.json(&["image", "ls", "--json"])?)?;
    ensure!(names.len() == 2 && names.iter().any(|image| image["name"] == pinned), "{names:?}");
    node.ok(&["template", "build", "pinned", "--image", &pinned])?;
    // It has not lost its name; the other one has none, and its layers are in use.
    node.ok(&["image", "rm", "example/app:1.0"])?;
    ensure!(node.ok(&["image", "prune"])? == "removed 0 layers\n", "something was removed");
    node.ok(&["image", "inspect", &pinned])?;
    node.ok(&["image", "rm", &pinned])?;
    node.ok(&["kill", &id])?;
    node.ok(&["template", "rm", "app"])?;
    node.ok(&["template", "rm", "pinned"])?;
    // Prepared sandboxes of the templates go soon.
    let deadline = Instant::now() + Duration::from_secs(5);
    while layers(node)? > 0 {
        ensure!(Instant::now() < deadline, "{} layers stay", layers(node)?);
        node.ok(&["image", "prune"])?;
    }
    let wrong = node.pando(&["image", "pull", "example/app:2.0"])?;
    ensure!(wrong.code == 4 && wrong.stderr.contains("manifest unknown"), "{wrong}");
    Ok(())
}

/// With the credentials of Docker's clients, and none where the node itself fetches it.
fn built(node: &mut Node, registry: &Registry) -> Result<()> {
    let source = root(node, "app")?;
    registry.push(
        "example/app",
        "1.0",
        &source,
        &json!({"config": {"Env": ["GREETING=hello"], "WorkingDir": "/srv"}}),
    )?;
    let context = node.dir().join("context");
    std::fs::create_dir_all(&context)?;
    std::fs::write(context.join("Dockerfile"), "FROM example/app:1.0\nRUN echo $GREETING $PWD > /said\n")?;
    let (file, directory) = (context.join("Dockerfile").display().to_string(), context.display().to_string());
    let build = ["template", "build", "made", "-f", &file, "--context", &directory];
    let refused = node.pando(&build)?;
    ensure!(refused.code != 0 && refused.stderr.contains("FROM example/app:1.0"), "{refused}");
    let recipe = json!({
        "name": "made", "from": {"image": "example/app:1.0"}, "ready": "listening", "ready_timeout_ms": 1000, "steps": [],
    });
    let (status, said) = node.api("POST /v1/builds", recipe.to_string().as_bytes())?;
    ensure!(status == 200 && said.contains("PULL example/app:1.0") && said.contains("\"failed\""), "{status} {said}");
    let docker = node.dir().join("docker");
    std::fs::create_dir_all(&docker)?;
    let config = json!({"auths": {registry.address(): {"auth": "bWU6c2VzYW1l"}}});
    std::fs::write(docker.join("config.json"), config.to_string())?;
    let answer = node.command_of(&build).env("DOCKER_CONFIG", &docker).output()?;
    ensure!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let id = node.ok(&["create", "made", "-q"])?.trim().to_owned();
    let found = node.ok(&["exec", &id, "--", "/bin/sh", "-c", "cat /said"])?;
    ensure!(found == "hello /srv\n", "{found:?}");
    node.ok(&["kill", &id])?;
    node.ok(&["template", "rm", "made"]).map(drop)
}

fn login(node: &mut Node, registry: &Registry) -> Result<()> {
    let source = root(node, "app")?;
    registry.push("example/app", "1.0", &source, &json!({}))?;
    let pull = ["image", "pull", "example/app:1.0"];
    let with_password = [&pull[..], &["--username", LOGIN.0, "--password-stdin"]].concat();
    let docker = node.dir().join("docker");
    let config = |text: &str| -> Result<Command> {
        std::fs::create_dir_all(&docker)?;
        std::fs::write(docker.join("config.json"), text)?;
        let mut command = node.command_of(&pull);
        command.env("DOCKER_CONFIG", &docker);
        Ok(command)
    };
    let anonymous = config("{}")?.output()?;
    let said = String::from_utf8_lossy(&anonymous.stderr).into_owned();
    ensure!(anonymous.status.code() == Some(2) && said.contains("credentials are wrong or missing"), "{said}");
    ensure!(said.contains(&format!("docker login {}", registry.address())), "{said}");
    let wrong = node.pando_with_input(&with_password, b"opensesame\n")?;
    ensure!(wrong.code == 2 && wrong.stderr.contains("credentials are wrong or missing"), "{wrong}");
    ensure!(downloads(node)? == 0 && layers(node)? == 0, "something is left");
    let right = node.pando_with_input(&with_password, format!("{}\n", LOGIN.1).as_bytes())?;
    ensure!(right.code == 0, "{right}");
    node.ok(&["image", "rm", "example/app:1.0"])?;
    // What `docker login` leaves, and a helper.
    let auths = json!({"auths": {registry.address(): {"auth": "bWU6c2VzYW1l"}}}).to_string();
    ensure!(config(&auths)?.output()?.status.success(), "the credentials of Docker's configuration are not used");
    let helper = node.dir().join("docker-credential-test");
    let answer = json!({"Username": LOGIN.0, "Secret": LOGIN.1});
    std::fs::write(&helper, format!("#!/bin/sh\ngrep -qx {} && echo '{answer}'\n", registry.address()))?;
    std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o700))?;
    let mut helped = config(&json!({"credsStore": "test"}).to_string())?;
    helped.env("PATH", format!("{}:{}", node.dir().display(), std::env::var("PATH")?));
    let helped = helped.output()?;
    ensure!(helped.status.success(), "{}", String::from_utf8_lossy(&helped.stderr));
    // Nothing has the password, as it is or encoded. The image with what sandboxes change is large, and mounted.
    for secret in [LOGIN.1, "bWU6c2VzYW1l"] {
        let found = Command::new("grep").args(["-rl", "--exclude=changes.img", secret]).arg(&node.state).output()?;
        ensure!(found.stdout.is_empty(), "{}", String::from_utf8_lossy(&found.stdout));
        ensure!(!node.log()?.contains(secret), "the log has it");
    }
    Ok(())
}

fn shared(node: &mut Node, registry: &Registry) -> Result<()> {
    let source = root(node, "app")?;
    script("mkdir -p $1/1; echo one > $1/1/own", &[&source])?;
    registry.push("example/app", "1.0", &source, &json!({}))?;
    node.ok(&["image", "pull", "example/app:1.0"])?;
    script("echo two > $1/1/own", &[&source])?;
    // The layers of an archive count, too, however they are packed.
    let pushed = registry.push("other/app", "2.0", &source, &json!({"pack": ["zstd"]}))?;
    let asked = registry.requests().len();
    node.ok(&["image", "pull", "other/app:2.0"])?;
    let asked = registry.requests().split_off(asked);
    let of = |number: usize| pushed["layers"][number]["digest"].as_str().unwrap_or_default().to_owned();
    ensure!(
        !asked.iter().any(|path| path.contains(&of(0))) && asked.iter().any(|path| path.contains(&of(1))),
        "{asked:?}"
    );
    ensure!(layers(node)? == 3, "{} layers", layers(node)?);
    Ok(())
}

fn index(node: &mut Node, registry: &Registry) -> Result<()> {
    let source = root(node, "app")?;
    let several = json!({"platforms": ["linux/s390x", "windows/amd64", "unknown/unknown", "own"]});
    let pushed = registry.push("example/app", "several", &source, &several)?;
    node.ok(&["image", "pull", "example/app:several"])?;
    // By the digest of the index, which is what people copy.
    let digest = pushed["index"].as_str().context("it has no index")?;
    node.ok(&["image", "pull", &format!("example/app@{digest}")])?;
    node.ok(&["template", "build", "app", "--image", &format!("example/app@{digest}")])?;
    registry.push("example/app", "others", &source, &json!({"platforms": ["linux/s390x", "windows/amd64"]}))?;
    let others = node.pando(&["image", "pull", "example/app:others"])?;
    ensure!(others.code == 2 && others.stderr.contains("it has linux/s390x, windows/amd64"), "{others}");
    ensure!(downloads(node)? == 0, "something is left");
    Ok(())
}

fn operator(node: &mut Node) -> Result<()> {
    let (tls, plain) = (Registry::start(Access::Anybody)?, Registry::start(Access::Plain)?);
    let source = root(node, "app")?;
    for registry in [&tls, &plain] {
        registry.push("app", "1.0", &source, &json!({}))?;
    }
    let name = |registry: &Registry| format!("{}/app:1.0", registry.address());
    let refused = |node: &Node, registry: &Registry, why: &str| -> Result<()> {
        let answer = node.pando(&["image", "pull", &name(registry)])?;
        ensure!(answer.code != 0 && answer.stderr.contains(why), "not {why:?}: {answer}");
        ensure!(registry.requests().iter().all(|path| !path.contains("/manifests/")), "it was asked");
        Ok(())
    };
    // Nothing of the host, by address or by name.
    refused(node, &tls, "127.0.0.1 has the address 127.0.0.1")?;
    let by_name = name(&tls).replace("127.0.0.1", "localhost");
    let answer = node.pando(&["image", "pull", &by_name])?;
    ensure!(answer.code == 2 && answer.stderr.contains("localhost has the address 127.0.0.1"), "{answer}");
    ensure!(answer.stderr.contains("--network-allow 127.0.0.1"), "{answer}");
    node.stop_server()?;
    node.set_arguments(&["--network-allow", "127.0.0.1"]);
    node.start_server()?;
    refused(node, &tls, "cannot be spoken to by TLS")?;
    refused(node, &plain, "cannot be spoken to by TLS")?;
    node.stop_server()?;
    let authority = tls.authority().display().to_string();
    node.set_arguments(&[
        "--network-allow",
        "127.0.0.1",
        "--registry-ca",
        &authority,
        "--registry-insecure",
        &plain.address(),
    ]);
    node.start_server()?;
    for name in [name(&tls), name(&plain), by_name] {
        node.ok(&["image", "pull", &name])?;
    }
    Ok(())
}
