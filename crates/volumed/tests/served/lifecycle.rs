//! Opening, closing, and what becomes of a volume whose store or node changes.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use api::{
    Change, VolumeChange, VolumeVerification,
    volume::{FileInfo, Restored, Snapshot, Volume, VolumeMeter},
};
use hyper::{Method, StatusCode};
use rustix::{
    fs::statvfs,
    process::{Signal, kill_process},
};
use serde_json::json;
use volumed::{Access, Error};

use crate::place::{FAST, Mounted, Node, wait_until};

pub(crate) fn snapshots_forks_and_restores() -> Result<()> {
    let node = Node::new(FAST)?;
    node.create("ws")?;
    let mount = node.mount("ws")?;
    fs::write(mount.path.join("a"), b"one")?;
    let first: Snapshot = node.post("/volumes/ws/snapshots", &json!({ "snapshot": "s1", "note": "the first" }))?;
    ensure!(first.note.as_deref() == Some("the first"));
    fs::write(mount.path.join("a"), b"two, and longer")?;
    fs::write(mount.path.join("b"), b"later")?;
    let second: Snapshot = node.post("/volumes/ws/snapshots", &json!({}))?;
    let log: Vec<Snapshot> = node.get("/volumes/ws/snapshots")?;
    ensure!(log == [second.clone(), first.clone()], "{log:?}");
    let taken = node.send(Method::POST, "/volumes/ws/snapshots", "{\"snapshot\":\"s1\"}")?;
    ensure!(taken.status.is_client_error());
    let old = node.send(Method::GET, "/volumes/ws/files/a?snapshot=s1", "")?;
    ensure!(old.body == "one");

    let fork: Volume = node.post("/volumes/ws/fork", &json!({ "name": "now" }))?;
    ensure!(fork.name.as_str() == "now");
    node.post::<Volume>("/volumes/ws/fork", &json!({ "name": "then", "snapshot": "s1" }))?;
    ensure!(node.send(Method::GET, "/volumes/now/files/b", "")?.body == "later");
    ensure!(node.send(Method::GET, "/volumes/then/files/b", "")?.status == StatusCode::NOT_FOUND);
    node.send(Method::PUT, "/volumes/then/files/b", "its own")?.parsed::<FileInfo>()?;

    ensure!(fs::read(mount.path.join("a"))? == b"two, and longer");
    let restored: Restored = node.post("/volumes/ws/restore", &json!({ "snapshot": "s1" }))?;
    ensure!(fs::read(mount.path.join("a"))? == b"one", "the kernel asks again");
    ensure!(!mount.path.join("b").exists());
    let before = format!("/volumes/ws/files/b?snapshot={}", restored.before);
    ensure!(node.send(Method::GET, &before, "")?.body == "later");
    node.send(Method::DELETE, &format!("/volumes/ws/snapshots/{}", second.snapshot), "")?.parsed::<()>()?;
    ensure!(node.get::<Vec<Snapshot>>("/volumes/ws/snapshots")?.len() == 2);

    let usage: Vec<VolumeMeter> = node.get("/volumes/usage")?;
    let sum = usage.last().context("a sum")?;
    let bytes: u64 = usage[..3].iter().map(|meter| meter.usage.bytes).sum();
    ensure!(usage.len() == 4 && sum.name.is_none() && sum.usage.bytes == bytes && bytes > 0, "{usage:?}");
    ensure!(sum.meter.operations > 10 && sum.meter.written_bytes > 10 && sum.meter.http_written_bytes == 7, "{sum:?}");
    let metrics = node.send(Method::GET, "/metrics", "")?;
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    ensure!(text.contains("pando_volume_holders{realm=\"test\",volume=\"ws\"} 1\n"), "{text}");
    mount.leave()?;
    node.finish()
}

pub(crate) fn what_a_volume_holds_goes_out_and_in() -> Result<()> {
    let node = Node::new(FAST)?;
    node.create("ws")?;
    let mount = node.mount("ws")?;
    fs::create_dir(mount.path.join("d"))?;
    fs::write(mount.path.join("d/kept"), b"kept")?;
    fs::write(mount.path.join("old"), b"renamed")?;
    node.post::<Snapshot>("/volumes/ws/snapshots", &json!({ "snapshot": "s1" }))?;
    fs::write(mount.path.join("d/new"), vec![1; 3 << 20])?;
    fs::rename(mount.path.join("old"), mount.path.join("d/moved"))?;
    let diff = node.send(Method::GET, "/volumes/ws/diff?from=s1", "")?;
    let mut lines = Vec::new();
    for line in std::str::from_utf8(&diff.body)?.lines() {
        lines.push(serde_json::from_str::<VolumeChange>(line)?);
    }
    let has = |path: &str, change| lines.iter().any(|line| line.path == path && line.change == change);
    ensure!(
        has("d/new", Change::Added) && has("d/moved", Change::Renamed) && !has("d/kept", Change::Metadata),
        "{lines:?}"
    );
    ensure!(node.send(Method::GET, "/volumes/ws/diff?from=none", "")?.status == StatusCode::NOT_FOUND);
    let verified: VolumeVerification = node.post("/volumes/ws/verify", &json!({}))?;
    ensure!(verified.damage.is_empty() && verified.bytes > 3 << 20, "{verified:?}");

    let archive = node.send(Method::GET, "/volumes/ws/export", "")?;
    ensure!(archive.status == StatusCode::OK && archive.body.len() > 3 << 20);
    node.create("copy")?;
    let copy = node.mount("copy")?;
    ensure!(fs::read_dir(&copy.path)?.count() == 0, "and the kernel remembers that");
    node.send(Method::POST, "/volumes/copy/import?path=in/here", archive.body.clone())?.parsed::<()>()?;
    ensure!(fs::read(copy.path.join("in/here/d/moved"))? == b"renamed");
    ensure!(fs::read(copy.path.join("in/here/d/new"))? == vec![1; 3 << 20]);
    let broken = node.send(Method::POST, "/volumes/copy/import", archive.body.slice(..1 << 20))?;
    ensure!(broken.status.is_client_error(), "{}", broken.status);
    ensure!(node.send(Method::POST, "/volumes/copy/import", "garbage")?.status.is_client_error());
    copy.leave()?;
    mount.leave()?;
    node.finish()
}

pub(crate) fn what_nobody_uses_is_closed_and_the_processes_end() -> Result<()> {
    let node = Node::new([200, 300, 1500])?;
    node.create("ws")?;
    node.send(Method::PUT, "/volumes/ws/files/a", "kept")?.parsed::<FileInfo>()?;
    ensure!(node.open_volumes()? == ["ws"]);
    wait_until("it is closed", || Ok(node.open_volumes()?.is_empty()))?;
    ensure!(node.send(Method::GET, "/volumes/ws/files/a", "")?.body == "kept");
    let mount = node.mount("ws")?;
    thread::sleep(Duration::from_millis(1000));
    ensure!(node.open_volumes()? == ["ws"], "it is held");
    ensure!(fs::read(mount.path.join("a"))? == b"kept");
    // Somebody still works in it although nobody holds it any more.
    let file = fs::File::open(mount.path.join("a"))?;
    mount.leave()?;
    thread::sleep(Duration::from_millis(1000));
    drop(file);
    wait_until("it is closed", || Ok(node.open_volumes()?.is_empty()))?;
    node.wait_ended()?;
    // The next request begins anew.
    ensure!(node.send(Method::GET, "/volumes/ws/files/a", "")?.body == "kept");
    node.finish()
}

pub(crate) fn whoever_is_asked_to_end_commits_first() -> Result<()> {
    let node = Node::new([60_000, 60_000, 60_000])?;
    node.create("ws")?;
    let mount = node.mount("ws")?;
    fs::write(mount.path.join("a"), b"by mount")?;
    node.create("other")?;
    node.send(Method::PUT, "/volumes/other/files/b", "by http")?.parsed::<FileInfo>()?;
    rustix::process::kill_process(node.worker().context("it lives")?, rustix::process::Signal::TERM)?;
    node.wait_ended()?;
    let gone = fs::read(mount.path.join("a")).map_err(|error| error.raw_os_error());
    ensure!(gone == Err(Some(rustix::io::Errno::NOTCONN.raw_os_error())), "{gone:?}");
    let two = node.neighbour("two")?;
    ensure!(two.send(Method::GET, "/volumes/ws/files/a", "")?.body == "by mount");
    ensure!(two.send(Method::GET, "/volumes/other/files/b", "")?.body == "by http");
    drop(mount);
    two.finish()
}

pub(crate) fn what_is_held_is_not_taken_away() -> Result<()> {
    let node = Node::new(FAST)?;
    node.create("ws")?;
    let mount = node.mount("ws")?;
    fs::write(mount.path.join("a"), b"1")?;
    ensure!(node.send(Method::DELETE, "/volumes/ws", "")?.status == StatusCode::CONFLICT);
    let refused = node.runtime.block_on(node.client.shutdown());
    ensure!(
        matches!(&refused, Err(Error::Refused(failure)) if failure.kind == model::FailureKind::Conflict),
        "{refused:?}"
    );
    let second = node.attach("ws", "s0123456789ab", Access::ReadOnly)?;
    let holders = node.runtime.block_on(node.client.holders())?;
    ensure!(holders.len() == 2 && holders.contains(&"s0123456789ab".to_owned()), "{holders:?}");
    let volume: Volume = node.get("/volumes/ws")?;
    ensure!(volume.open.is_some_and(|open| open.holders.len() == 2));
    let place = node.directory.path().join("mounts/second");
    fs::create_dir_all(&place)?;
    let flags = rustix::mount::MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(&second, "", rustix::fs::CWD, &place, flags)?;
    ensure!(fs::read(place.join("a"))? == b"1");
    let denied = fs::write(place.join("a"), b"2").map_err(|error| error.kind());
    ensure!(denied == Err(ErrorKind::ReadOnlyFilesystem), "{denied:?}");
    rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH)?;
    drop(second);
    node.runtime.block_on(node.client.detach("s0123456789ab"))?;
    mount.leave()?;
    node.send(Method::DELETE, "/volumes/ws", "")?.parsed::<()>()?;
    ensure!(node.get::<Vec<Volume>>("/volumes")?.is_empty());
    node.finish()
}

/// Names of holders have up to 4 KiB, and 128 KiB fit into one message of the control socket.
pub(crate) fn any_number_of_holders_is_told() -> Result<()> {
    let node = Node::new(FAST)?;
    let mut wanted = Vec::new();
    for volume in ["a", "b", "c", "d"] {
        node.create(volume)?;
        for number in 0..11 {
            // Written in JSON the quotes are twice as long.
            let holder = format!("host:/{volume}/{number:02}/{}", "\"".repeat(4080));
            drop(node.attach(volume, &holder, Access::ReadOnly)?);
            wanted.push(holder);
        }
    }
    let holders = node.runtime.block_on(node.client.holders())?;
    ensure!(holders == wanted, "{} of {} holders", holders.len(), wanted.len());
    let refused = node.runtime.block_on(node.client.shutdown());
    let Err(Error::Refused(error)) = &refused else { anyhow::bail!("{refused:?}") };
    ensure!(error.message.ends_with(", and 38 more") && error.details.len() == 7, "{}", error.message);
    for holder in &wanted {
        node.runtime.block_on(node.client.detach(holder))?;
    }
    ensure!(node.runtime.block_on(node.client.holders())?.is_empty());
    node.finish()
}

/// More of them than there are turns, and none goes on: not those that read a file, and not those that send one.
pub(crate) fn slow_clients_of_one_volume_hold_up_no_other() -> Result<()> {
    const CLIENTS: usize = 160;
    let node = Node::new(FAST)?;
    for volume in ["busy", "quiet"] {
        node.create(volume)?;
        node.send(Method::PUT, &format!("/volumes/{volume}/files/long"), vec![7; 4 << 20])?.parsed::<FileInfo>()?;
    }
    let client = |head: String| -> Result<UnixStream> {
        let mut stream = UnixStream::connect(node.folder.join("http.sock"))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        write!(stream, "{head} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n")?;
        Ok(stream)
    };
    let get = |volume: &str| -> Result<UnixStream> {
        let mut stream = client(format!("GET /v1/volumes/{volume}/files/long"))?;
        stream.write_all(b"\r\n")?;
        Ok(stream)
    };
    let put = |volume: &str, name: &str, body: &[u8]| -> Result<UnixStream> {
        let mut stream = client(format!("PUT /v1/volumes/{volume}/files/{name}"))?;
        stream.write_all(b"content-length: 4\r\n\r\n")?;
        stream.write_all(body)?;
        Ok(stream)
    };
    let sending = (0..CLIENTS).map(|number| put("busy", &number.to_string(), b"12")).collect::<Result<Vec<_>>>()?;
    let reading = (0..CLIENTS).map(|_| get("busy")).collect::<Result<Vec<_>>>()?;
    // More than the head of an answer.
    let has_begun = |stream: &&UnixStream| rustix::io::ioctl_fionread(stream).is_ok_and(|bytes| bytes > 4096);
    wait_until("half of the turns are taken", || Ok(reading.iter().filter(has_begun).count() >= 64))?;
    let mut answer = Vec::new();
    get("quiet")?.read_to_end(&mut answer).context("what another volume has cannot be read")?;
    ensure!(answer.len() > 4 << 20, "{}", String::from_utf8_lossy(&answer));
    answer.clear();
    put("quiet", "short", b"1234")?.read_to_end(&mut answer).context("nothing can be written to another volume")?;
    ensure!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    drop((sending, reading));
    // Those that waited go on, one after the other, and find that their clients are gone.
    ensure!(node.send(Method::GET, "/volumes/busy/files/long", "")?.body.len() == 4 << 20);
    node.finish()
}

/// Requests whose clients have gone are read, or end, after the one that removes what they make.
pub(crate) fn what_was_removed_for_good_is_not_made_later() -> Result<()> {
    let node = Node::new(FAST)?;
    node.create("ws")?;
    let worker = node.worker().context("no worker")?;
    for round in 0..20 {
        let (new, snapshot) = (format!("new-{round}"), format!("s{round}"));
        let making = [
            ("/volumes", json!({ "name": new }), format!("/volumes/{new}")),
            ("/volumes/ws/snapshots", json!({ "snapshot": snapshot }), format!("/volumes/ws/snapshots/{snapshot}")),
            ("/volumes/ws/fork", json!({ "name": format!("fork-{round}") }), format!("/volumes/fork-{round}")),
        ];
        kill_process(worker, Signal::STOP)?;
        for (path, body, _) in &making {
            let mut stream = UnixStream::connect(node.folder.join("http.sock"))?;
            let body = body.to_string();
            write!(stream, "POST /v1{path} HTTP/1.1\r\nhost: node\r\ncontent-type: application/json\r\n")?;
            write!(stream, "content-length: {}\r\n\r\n{body}", body.len())?;
        }
        thread::scope(|scope| {
            let remove = |made| node.send(Method::DELETE, &format!("{made}?for_good=true"), "");
            let removals: Vec<_> = making.iter().map(|(.., made)| scope.spawn(move || remove(made))).collect();
            thread::sleep(Duration::from_millis(10));
            kill_process(worker, Signal::CONT)?;
            for removal in removals {
                let status = removal.join().expect("it does not panic")?.status;
                ensure!(matches!(status, StatusCode::OK | StatusCode::NOT_FOUND), "{status}");
            }
            anyhow::Ok(())
        })?;
    }
    // Longer than any of the requests took.
    thread::sleep(Duration::from_secs(1));
    let left: Vec<_> = node.get::<Vec<Volume>>("/volumes")?.into_iter().map(|volume| volume.name.to_string()).collect();
    ensure!(left == ["ws"], "{left:?}");
    let left = node.get::<Vec<Snapshot>>("/volumes/ws/snapshots")?;
    ensure!(left.is_empty(), "{left:?}");
    let late = node.create("never").and_then(|_| node.send(Method::DELETE, "/volumes/never?for_good=true", ""));
    ensure!(late?.status == StatusCode::OK && node.create("never").is_ok(), "what was removed can be made again");
    ensure!(node.send(Method::DELETE, "/volumes/none?for_good=true", "")?.status == StatusCode::NOT_FOUND);
    let refused = node.create("none").map(drop).map_err(|error| error.to_string());
    ensure!(refused.is_err_and(|error| error.contains("not wanted any more")));
    node.finish()
}

pub(crate) fn a_store_that_is_away_is_told_and_nothing_is_lost() -> Result<()> {
    let node = Node::new(FAST)?;
    node.create("ws")?;
    let mount = node.mount("ws")?;
    fs::write(mount.path.join("before"), b"before")?;
    fs::write(node.away(), b"")?;
    fs::write(mount.path.join("meanwhile"), vec![7; 1 << 20])?;
    node.send(Method::PUT, "/volumes/ws/files/by%20http", "meanwhile")?.parsed::<FileInfo>()?;
    wait_until("inspect tells of it", || {
        let open = node.get::<Volume>("/volumes/ws")?.open.context("it is open")?;
        Ok(open.store_failure.is_some() && open.dirty_bytes >= 1 << 20 && open.read_only.is_none())
    })?;
    let metrics = node.send(Method::GET, "/metrics", "")?;
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    ensure!(text.contains("pando_volume_store_failures_total{realm=\"test\",volume=\"ws\"}"), "{text}");
    ensure!(node.send(Method::POST, "/volumes/ws/snapshots", "{}")?.status.is_client_error(), "without a content type");
    let snapshot = node.post::<Snapshot>("/volumes/ws/snapshots", &json!({}));
    ensure!(snapshot.is_err(), "a snapshot is in the store or is none");
    // More than may be dirty: the writer waits, and goes on when the store is back.
    let path = mount.path.join("large");
    let writer = thread::spawn(move || fs::write(path, vec![9; 300 << 20]));
    thread::sleep(Duration::from_secs(2));
    ensure!(!writer.is_finished(), "it waits");
    wait_until("df tells of it", || {
        let room = statvfs(&mount.path)?;
        Ok(room.f_bavail == 0 && room.f_bfree > 0)
    })?;
    ensure!(node.get::<Volume>("/volumes/ws")?.open.is_some(), "others are answered");
    fs::remove_file(node.away())?;
    writer.join().expect("it does not panic")?;
    wait_until("everything is in the store", || {
        let open = node.get::<Volume>("/volumes/ws")?.open.context("it is open")?;
        Ok(open.store_failure.is_none() && open.dirty_bytes == 0)
    })?;
    ensure!(fs::read(mount.path.join("large"))? == vec![9; 300 << 20]);
    ensure!(fs::read(mount.path.join("meanwhile"))? == vec![7; 1 << 20]);
    mount.leave()?;
    node.finish()
}

/// A volume of `one`, written and mounted there, and the node that has taken it over.
fn taken_over(one: &Node) -> Result<(Mounted<'_>, Node)> {
    one.create("ws")?;
    let mount = one.mount("ws")?;
    fs::write(mount.path.join("a"), b"one")?;
    wait_until("it is committed", || {
        Ok(one.get::<Volume>("/volumes/ws")?.open.is_some_and(|open| open.dirty_bytes == 0))
    })?;
    let two = one.neighbour("two")?;
    two.send(Method::PUT, "/volumes/ws/files/b", "two")?.parsed::<FileInfo>()?;
    Ok((mount, two))
}

fn becomes_read_only(one: &Node, mount: &Mounted<'_>) -> Result<()> {
    wait_until("the first node knows", || {
        let open = one.get::<Volume>("/volumes/ws")?.open.context("it is open")?;
        Ok(open.read_only.is_some_and(|why| why.contains("another node")))
    })?;
    let denied = fs::write(mount.path.join("c"), b"").map_err(|error| error.kind());
    ensure!(denied == Err(ErrorKind::ReadOnlyFilesystem), "{denied:?}");
    Ok(())
}

pub(crate) fn a_takeover_is_noticed_where_nobody_writes() -> Result<()> {
    let one = Node::new(FAST)?;
    let (mount, two) = taken_over(&one)?;
    // Nothing is changed here, and nothing is asked for that would need the newest state.
    becomes_read_only(&one, &mount)?;
    mount.leave()?;
    two.finish()?;
    one.finish()
}

pub(crate) fn a_volume_that_was_taken_over_says_so() -> Result<()> {
    let one = Node::new(FAST)?;
    let (mount, two) = taken_over(&one)?;
    fs::write(mount.path.join("lost"), b"too late")?;
    becomes_read_only(&one, &mount)?;
    ensure!(fs::read(mount.path.join("a"))? == b"one");
    let refused = one.send(Method::PUT, "/volumes/ws/files/c", "")?;
    ensure!(refused.status == StatusCode::CONFLICT, "{}", refused.status);
    mount.leave()?;
    two.finish()?;
    // Whether the first one has closed it already or not: what it had open is of the past.
    ensure!(one.send(Method::GET, "/volumes/ws/files/b", "")?.body == "two", "now it is this node's");
    ensure!(one.send(Method::GET, "/volumes/ws/files/lost", "")?.status == StatusCode::NOT_FOUND);
    one.finish()
}
