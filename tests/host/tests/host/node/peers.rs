//! Nodes that serve each other what they have of checkpoints.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::{node::Node, runner::Case};

use super::shared::Shared;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("peers::a_checkpoint_starts_from_another_nodes_cache_while_the_store_is_away", || case(from_a_peer))
            .slow("a whole checkpoint has to arrive before the store goes away"),
        Case::new("peers::who_lacks_the_key_is_refused", || case(refused)),
        Case::new("peers::peers_that_hang_or_are_gone_are_passed_over", || case(passed_over)),
    ]
}

const KEYS: &str = "master.keys";
const LISTEN: [&str; 2] = ["--peer-listen", "127.0.0.1:0"];

/// After this a small program's zygote has all its pages, and they are in the cache.
const FILLED: Duration = Duration::from_secs(5);

/// Two nodes of one store hold the checkpoint `warm` of a sandbox with `note` = `kept`: one took it, `body` gets the store.
fn case(body: fn(&Shared) -> Result<()>) -> Result<()> {
    let shared = Shared::new()?;
    let node = shared.node()?;
    node.build_geo("geo", &["--nidx", "2"])?;
    let id = node.run("geo", 1)?[0].id.to_string();
    node.ask(&id, "POST /write?key=note&value=kept")?;
    node.shell(&id, "head -c 3000000 /dev/urandom > /home/user/file; md5sum < /home/user/file > /home/user/sum")?;
    node.ok(&["checkpoint", &id, "--name", "warm"])?;
    body(&shared)?;
    node.finish()
}

fn on(node: Node, body: impl FnOnce(&Node) -> Result<()>) -> Result<()> {
    body(&node).with_context(|| format!("log of the node:\n{}", node.log_tail()))?;
    node.finish()
}

/// Starts the checkpoint and looks at all that it has.
fn expect(node: &Node) -> Result<()> {
    for sandbox in node.run("warm", 2)? {
        let id = sandbox.id.as_str();
        ensure!(node.ask(id, "GET /state")?["values"]["note"] == "kept", "{id}: memory");
        ensure!(node.ask(id, "GET /verify")?["intact"] == true, "{id} is not intact");
        ensure!(
            node.shell(id, "md5sum < /home/user/file | cmp - /home/user/sum && echo same")? == "same\n",
            "{id}: files"
        );
    }
    Ok(())
}

fn stats(node: &Node) -> Result<Value> {
    node.json(&["store", "stats", "--json"])
}

fn number(value: &Value, pointer: &str) -> Result<u64> {
    value.pointer(pointer).and_then(Value::as_u64).with_context(|| format!("no {pointer} in {value}"))
}

/// Has the node read all of the checkpoint, also its working set, which the first start on any node records.
fn fill(node: &Node) -> Result<()> {
    for _ in 0..2 {
        expect(node)?;
        std::thread::sleep(FILLED);
        node.ok(&["kill", "--all", "--force"])?;
        node.ok(&["template", "rm", "warm"])?;
    }
    Ok(())
}

fn from_a_peer(shared: &Shared) -> Result<()> {
    let segments = shared.0.join("objects/realms/default/segments");
    let away = segments.with_extension("away");
    on(shared.node_with(KEYS, &LISTEN)?, |holder| {
        fill(holder)?;
        let before = number(&stats(holder)?, "/peers/served")?;
        fs::rename(&segments, &away)?;
        let served = on(shared.node_with(KEYS, &["--find-peers"])?, |other| {
            ensure!(number(&peers_of(other)?, "/known")? == 1, "it is not found");
            // A machine under load may miss the 200 ms that a peer has, who then rests for a second, and longer if that comes again.
            let deadline = Instant::now() + Duration::from_secs(30);
            while other.pando(&["template", "warm", "warm"])?.code != 0 {
                ensure!(Instant::now() < deadline, "it does not start: {}", other.ok(&["template", "warm", "warm"])?);
                std::thread::sleep(Duration::from_millis(500));
            }
            expect(other)?;
            std::thread::sleep(FILLED);
            fs::rename(&away, &segments)?;
            let stats = stats(other)?;
            ensure!(number(&stats, "/reads/fetched")? == 0, "it has read from the store: {stats}");
            ensure!(number(&stats, "/reads/from_peers")? > 0 && number(&stats, "/reads/peer_bytes")? > 0, "{stats}");
            Ok(())
        });
        let after = stats(holder)?;
        served?;
        ensure!(number(&after, "/peers/served")? > before, "{after}");
        let address = after.pointer("/peers/address").and_then(Value::as_str).context("no address")?;
        ensure!(holder.ok(&["store", "stats"])?.contains(&format!("serves at {address}")), "for people");
        Ok(())
    })
}

fn peers_of(node: &Node) -> Result<Value> {
    Ok(stats(node)?["peers"].clone())
}

/// The status of the answer to one request, with these further lines in its head.
fn status(address: &str, request: &str, more: &str) -> Result<u16> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "{request} HTTP/1.1\r\nhost: peer\r\nconnection: close\r\n{more}\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).with_context(|| format!("no answer: {answer:?}"))
}

fn refused(shared: &Shared) -> Result<()> {
    on(shared.node_with(KEYS, &LISTEN)?, |node| {
        expect(node)?;
        let stats_before = stats(node)?;
        let address = stats_before.pointer("/peers/address").and_then(Value::as_str).context("no address")?;
        let cached = fs::read_dir(node.state.join("store/cache/default"))?.next().context("nothing is cached")??;
        let name = cached.file_name().to_string_lossy().into_owned();
        let path = format!("GET /v1/chunks/default/{}/{}", "0".repeat(16), reference(&name)?);
        let tag = format!("authorization: Pando-Peer {}\r\n", "0".repeat(64));
        for (request, more, code) in [
            (path.as_str(), "", 401),
            (&path, tag.as_str(), 401),
            (&path, "authorization: Basic eDp5\r\n", 401),
            ("GET /v1/chunks/default/0/0", &tag, 400),
            ("GET /v1/node", &tag, 400),
            ("DELETE /v1/challenge", "", 405),
            ("GET /v1/challenge", "", 200),
        ] {
            let got = status(address, request, more)?;
            ensure!(got == code, "{request} with {more:?}: {got}");
        }
        let stats = stats(node)?;
        ensure!(number(&stats, "/peers/refused")? == 6 && number(&stats, "/peers/served")? == 0, "{stats}");
        Ok(())
    })
}

/// The reference of a cached chunk, by its file's name.
fn reference(name: &str) -> Result<String> {
    let mut parts = name.split('-');
    let mut next = || parts.next().with_context(|| format!("not a chunk: {name}"));
    let (segment, offset, length, number) = (next()?, next()?, next()?, next()?);
    let rest = [
        offset.parse::<u64>()?.to_le_bytes().to_vec(),
        length.parse::<u32>()?.to_le_bytes().to_vec(),
        number.parse::<u32>()?.to_le_bytes().to_vec(),
    ];
    Ok(segment.to_owned() + &base::id::hex(&rest.concat()))
}

fn passed_over(shared: &Shared) -> Result<()> {
    // Connections wait in its queue for ever; and nobody listens any more.
    let hung = TcpListener::bind("127.0.0.1:0")?;
    let gone = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let hung_address = hung.local_addr()?.to_string();
    on(shared.node_with(KEYS, &["--peer", &hung_address, "--peer", &gone])?, |node| {
        expect(node)?;
        let stats = stats(node)?;
        ensure!(number(&stats, "/peers/known")? == 2 && number(&stats, "/peers/failures")? >= 2, "{stats}");
        ensure!(number(&stats, "/peers/hits")? == 0 && number(&stats, "/reads/fetched")? > 0, "{stats}");
        ensure!(number(&stats, "/reads/broken")? == 0, "{stats}");
        Ok(())
    })?;
    let unusable = Node::start_with(testkit::node::Setting {
        arguments: ["--peer-listen", "0.0.0.0:0"].map(str::to_owned).into(),
        ..Default::default()
    });
    ensure!(unusable.is_err_and(|error| format!("{error:#}").contains("--peer-address")), "an address of no use");
    Ok(())
}
