//! Registries that fail, and such that lie.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{
    node::{Answer, Node},
    registry::{Access, Front, Registry, Request},
    runner::Case,
};

use super::{
    images::{root, script},
    pull::{downloads, layers, with_registry},
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("pull::a_download_goes_on_where_it_was_cut", || with_front(cut)),
        Case::new("pull::a_killed_node_leaves_a_download_that_goes_on", || with_front(killed)),
        Case::new("pull::an_interrupted_download_ends_and_can_be_removed", || with_front(interrupted)),
        Case::new("pull::two_pulls_of_an_image_share_the_download", || with_front(twice)),
        Case::new("pull::wrong_bytes_and_hostile_layers_leave_nothing", || with_front(wrong)),
        Case::new("pull::a_redirect_leads_to_no_closed_address", || with_front(redirected)),
        Case::new("pull::a_token_service_gives_tokens", || with_front(token)),
        Case::new("pull::a_registry_that_fails_for_a_while_is_asked_again", || with_front(fails)),
        Case::new("pull::a_manifest_without_an_end_is_refused", || with_front(endless)),
    ]
}

/// Bytes of the second layer, which do not compress.
const LAYER_BYTES: u64 = 8 << 20;

/// A node, and an image of two layers at a registry behind a front.
struct Place<'a> {
    node: &'a mut Node,
    registry: &'a Registry,
    front: Front,
    /// The image's name.
    name: String,
    /// The blob of the layer of [`LAYER_BYTES`].
    layer: String,
}

fn with_front(body: fn(&mut Place<'_>) -> Result<()>) -> Result<()> {
    with_registry(Access::Plain, |node, registry| {
        let source = root(node, "app")?;
        script("mkdir $1/1; head -c $2 /dev/urandom > $1/1/large", &[&source, Path::new(&LAYER_BYTES.to_string())])?;
        let pushed = registry.push("app", "1.0", &source, &json!({"pack": ["gzip", "none"]}))?;
        let front = registry.front()?;
        let layer = pushed["layers"][1]["digest"].as_str().context("it has no layers")?.to_owned();
        body(&mut Place { name: format!("{}/app:1.0", front.address()), node, registry, front, layer })
    })
}

impl Place<'_> {
    fn pull(&self, how: &Value) -> Result<Answer> {
        self.front.spoil(how)?;
        self.node.pando(&["image", "pull", &self.name])
    }

    /// Fails unless the image is there, whole, and the download is gone.
    fn check_pulled(&self, answer: &Answer) -> Result<()> {
        ensure!(answer.code == 0 && downloads(self.node)? == 0 && layers(self.node)? == 2, "{answer}");
        self.node.ok(&["template", "build", "app", "--image", &self.name])?;
        let id = self.node.ok(&["create", "app", "-q"])?;
        let length = self.node.ok(&["exec", id.trim(), "--", "/bin/stat", "-c", "%s", "/large"])?;
        ensure!(length.trim() == LAYER_BYTES.to_string(), "{length}");
        Ok(())
    }

    /// Fails unless nothing of a pull is there.
    fn check_nothing(&self) -> Result<()> {
        let images = self.node.ok(&["image", "ls"])?;
        ensure!(downloads(self.node)? == 0 && layers(self.node)? == 0 && images.lines().count() == 1, "left: {images}");
        Ok(())
    }

    /// Fails unless it is refused so, and nothing is left.
    fn check_refused(&self, how: &Value, why: &str) -> Result<Answer> {
        let answer = self.pull(how)?;
        ensure!(answer.code != 0 && answer.stderr.contains(why), "not {why:?}: {answer}");
        self.check_nothing().with_context(|| format!("{answer}"))?;
        Ok(answer)
    }

    /// Requests for the large layer since the last look.
    fn requests(&self) -> Result<Vec<Request>> {
        let mut found = self.front.blobs()?;
        found.retain(|request| request.path.ends_with(&self.layer));
        Ok(found)
    }

    /// Waits until so much of the large layer is there.
    fn wait_for_bytes(&self, bytes: u64) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        let hex = self.layer.trim_start_matches("sha256:");
        loop {
            let pulls = std::fs::read_dir(self.node.state.join("image-store/pulls"))?.flatten();
            let found = pulls.map(|pull| std::fs::metadata(pull.path().join("blobs/sha256").join(hex)));
            if found.flatten().any(|found| found.len() >= bytes) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the download does not come so far");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// 1.3 MiB a second.
fn slowly() -> Value {
    json!({"slow": 0.05})
}

fn cut(place: &mut Place<'_>) -> Result<()> {
    // Twice on the way: the same pull goes on by itself.
    let answer = place.pull(&json!({"cut": 3 << 20}))?;
    let asked = place.requests()?;
    let sent: u64 = asked.iter().map(|request| request.bytes).sum();
    ensure!(asked.len() == 3 && asked[1].from == 3 << 20 && asked[2].from == 6 << 20, "{asked:?}");
    ensure!(sent < LAYER_BYTES + (64 << 10), "{asked:?}");
    place.check_pulled(&answer)?;
    // A registry that cuts and knows no ranges gets no further: the pull ends, and the next one is whole.
    place.node.ok(&["kill", "--all"])?;
    place.node.ok(&["template", "rm", "app"])?;
    place.node.ok(&["image", "rm", &place.name])?;
    place.node.ok(&["image", "prune"])?;
    let answer = place.pull(&json!({"cut": 3 << 20, "whole": true}))?;
    ensure!(answer.code == 1 && answer.stderr.contains("ends in the middle of layer sha256:"), "{answer}");
    let asked = place.requests()?;
    ensure!(asked.len() == 5 && downloads(place.node)? == 1, "{asked:?}");
    let answer = place.pull(&json!({}))?;
    ensure!(place.requests()?.iter().all(|request| request.from == 3 << 20), "it begins anew");
    place.check_pulled(&answer)
}

fn killed(place: &mut Place<'_>) -> Result<()> {
    place.front.spoil(&slowly())?;
    let pull = place.node.begin(&["image", "pull", &place.name])?;
    place.wait_for_bytes(2 << 20)?;
    place.node.kill_server()?;
    let answer = pull.end()?;
    ensure!(answer.code != 0, "{answer}");
    place.front.blobs()?;
    place.node.start_server()?;
    ensure!(downloads(place.node)? == 1, "the download is gone");
    ensure!(place.node.ok(&["image", "ls"])?.lines().count() == 1, "an image is there");
    let answer = place.pull(&json!({}))?;
    let asked = place.requests()?;
    ensure!(asked.len() == 1 && asked[0].from >= 2 << 20 && asked[0].status == 206, "{asked:?}");
    place.check_pulled(&answer)
}

fn interrupted(place: &mut Place<'_>) -> Result<()> {
    place.front.spoil(&slowly())?;
    let pull = place.node.begin(&["image", "pull", &place.name])?;
    place.wait_for_bytes(1 << 20)?;
    // Nothing is removed under a pull.
    ensure!(place.node.ok(&["image", "prune"])? == "removed 0 layers\n", "something was removed");
    pull.signal(Signal::INT)?;
    let answer = pull.end()?;
    ensure!(answer.code == 130 && answer.stderr.contains("the next pull goes on"), "{answer}");
    // The node asks for no more.
    place.front.spoil(&json!({}))?;
    std::thread::sleep(Duration::from_millis(300));
    ensure!(downloads(place.node)? == 1 && layers(place.node)? == 0, "it goes on");
    ensure!(place.node.ok(&["image", "prune"])? == "removed 0 layers and 1 interrupted download\n", "not removed");
    place.check_nothing()?;
    let answer = place.pull(&json!({}))?;
    place.check_pulled(&answer)
}

fn twice(place: &mut Place<'_>) -> Result<()> {
    place.front.spoil(&json!({"slow": 0.01}))?;
    let both = [(); 2].map(|()| place.node.begin(&["image", "pull", &place.name]));
    for pull in both {
        let answer = pull?.end()?;
        ensure!(answer.code == 0, "{answer}");
    }
    let asked = place.requests()?;
    ensure!(asked.len() == 1, "{asked:?}");
    let answer = place.node.pando(&["image", "pull", &place.name])?;
    place.check_pulled(&answer)
}

fn wrong(place: &mut Place<'_>) -> Result<()> {
    let answer = place.check_refused(&json!({"corrupt": true}), "is not what its digest says")?;
    ensure!(answer.code == 1 && answer.stderr.contains("layer sha256:"), "{answer}");
    let asked = place.front.blobs()?;
    ensure!(asked.iter().all(|request| request.from == 0) && asked.len() <= 3, "{asked:?}");
    let source = root(place.node, "hostile")?;
    place.registry.push("app", "hostile", &source, &json!({"hostile": true}))?;
    let name = |tag: &str| format!("{}/app:{tag}", place.front.address());
    let (hostile, longer, shorter) = (name("hostile"), name("longer"), name("shorter"));
    let good = std::mem::replace(&mut place.name, hostile);
    place.check_refused(&json!({}), "leads above the root")?;
    for (name, longer) in [(longer, 1), (shorter, -1)] {
        let tag = name.rsplit(':').next().context("it has no tag")?;
        place.registry.push("app", tag, &source, &json!({ "longer": longer }))?;
        place.name = name;
        place.check_refused(&json!({}), "bytes, and its manifest says")?;
    }
    place.name = good;
    let answer = place.pull(&json!({}))?;
    place.check_pulled(&answer)
}

fn redirected(place: &mut Place<'_>) -> Result<()> {
    for (to, why) in [
        ("https://169.254.169.254/latest/meta-data", "169.254.169.254 has the address 169.254.169.254"),
        ("https://2852039166/latest/meta-data", "has the address 169.254.169.254"),
        ("https://[::1]/", "has the address ::1"),
        ("https://127.0.0.2/", "has the address 127.0.0.2"),
        ("http://169.254.169.254/latest/meta-data", "is to be spoken to without TLS"),
        ("file:///etc/shadow", "is to be spoken to by file"),
    ] {
        place.check_refused(&json!({"redirect": to}), why)?;
    }
    let elsewhere = json!({"token": true, "realm": "https://10.0.0.1/token"});
    place.check_refused(&elsewhere, "10.0.0.1 has the address 10.0.0.1")?;
    let loops = format!("https://{}PATH", place.front.address());
    place.check_refused(&json!({ "redirect": loops }), "sends from one place to another more than 5 times")?;
    // Another place has the blobs, and gets no token.
    place.front.blobs()?;
    let other = place.registry.front()?;
    let elsewhere = json!({"token": true, "redirect": format!("https://{}PATH", other.address())});
    place.front.spoil(&elsewhere)?;
    let answer = place
        .node
        .pando_with_input(&["image", "pull", &place.name, "--username", "me", "--password-stdin"], b"sesame")?;
    let (asked, there) = (place.front.blobs()?, other.blobs()?);
    ensure!(asked.iter().all(|request| request.is_secret) && !asked.is_empty(), "{asked:?}");
    ensure!(there.iter().all(|request| !request.is_secret) && there.len() == asked.len(), "{there:?}");
    place.check_pulled(&answer)
}

fn token(place: &mut Place<'_>) -> Result<()> {
    let answer = place.check_refused(&json!({"token": true}), "credentials are wrong or missing")?;
    ensure!(answer.code == 2, "{answer}");
    let with_password = ["image", "pull", &place.name, "--username", "me", "--password-stdin"];
    let wrong = place.node.pando_with_input(&with_password, b"opensesame")?;
    ensure!(wrong.code == 2 && wrong.stderr.contains("credentials are wrong or missing"), "{wrong}");
    let right = place.node.pando_with_input(&with_password, b"sesame\n")?;
    ensure!(right.code == 0, "{right}");
    place.node.ok(&["image", "rm", &place.name])?;
    // Of another client.
    let auths = json!({"auths": {place.front.address(): {"identitytoken": "an identity"}}});
    std::fs::write(place.node.dir().join("config.json"), auths.to_string())?;
    let mut pull = place.node.command_of(&["image", "pull", &place.name]);
    let pulled = pull.env("DOCKER_CONFIG", place.node.dir()).output()?;
    ensure!(pulled.status.success(), "{}", String::from_utf8_lossy(&pulled.stderr));
    Ok(())
}

fn fails(place: &mut Place<'_>) -> Result<()> {
    let answer = place.pull(&json!({"fail": 3}))?;
    place.check_pulled(&answer)
}

fn endless(place: &mut Place<'_>) -> Result<()> {
    place.check_refused(&json!({"endless": true}), "has more than 4194304 bytes").map(drop)
}
