//! Objects of a volume that are damaged or missing: seen where they are, and the rest goes on.

use std::{collections::BTreeMap, fs, io, path::PathBuf};

use anyhow::{Context, Result, ensure};
use api::{VolumeVerification, volume::Volume};
use hyper::{Method, StatusCode};
use rustix::{io::Errno, rand::GetRandomFlags};
use serde_json::json;

use crate::place::{FAST, Node, wait_until};

/// More than a commit packs together with other things.
const BYTES: usize = 1 << 20;

fn noise() -> Result<Vec<u8>> {
    let mut bytes = vec![0; BYTES];
    let mut filled = 0;
    while filled < BYTES {
        filled += rustix::rand::getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

/// The objects of the store with their sizes.
fn objects(node: &Node) -> Result<BTreeMap<PathBuf, u64>> {
    let (mut found, mut rest) = (BTreeMap::new(), vec![node.directory.path().join("objects")]);
    while let Some(directory) = rest.pop() {
        for entry in fs::read_dir(directory)? {
            let (path, about) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
            match about.is_dir() {
                true => rest.push(path),
                false => _ = found.insert(path, about.len()),
            }
        }
    }
    Ok(found)
}

pub(crate) fn damage_is_seen_where_it_is_and_the_rest_is_read() -> Result<()> {
    let node = Node::new(FAST)?;
    node.create("ws")?;
    let mount = node.mount("ws")?;
    let (sound, hurt) = (noise()?, noise()?);
    let committed = |name: &str, bytes: &[u8]| -> Result<()> {
        fs::write(mount.path.join(name), bytes)?;
        wait_until("it is committed", || {
            Ok(node.get::<Volume>("/volumes/ws")?.open.context("it is open")?.dirty_bytes == 0)
        })
    };
    committed("sound", &sound)?;
    let before = objects(&node)?;
    committed("hurt", &hurt)?;
    let new = objects(&node)?.into_iter().filter(|(path, _)| !before.contains_key(path));
    let (segment, length) = new.max_by_key(|(_, length)| *length).context("nothing was stored")?;
    ensure!(length >= BYTES as u64, "{} has {length} bytes", segment.display());
    mount.leave()?;
    node.finish()?;

    let whole = fs::read(&segment)?;
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for damaged in [Some(flipped), None] {
        match &damaged {
            Some(bytes) => fs::write(&segment, bytes)?,
            None => fs::remove_file(&segment)?,
        }
        let mount = node.mount("ws")?;
        let read = |name: &str| fs::read(mount.path.join(name));
        ensure!(read("sound")? == sound, "what is whole is read");
        let refused = read("hurt").map_err(|error: io::Error| error.raw_os_error());
        ensure!(refused.is_err_and(|error| error == Some(Errno::IO.raw_os_error())), "what is damaged is not");
        ensure!(fs::metadata(mount.path.join("hurt"))?.len() == BYTES as u64);
        fs::write(mount.path.join("later"), b"later")?;
        ensure!(read("later")? == b"later", "work goes on");
        let answer = node.send(Method::GET, "/volumes/ws/files/sound", "")?;
        ensure!(answer.status == StatusCode::OK && answer.body == sound);
        let answer = node.send(Method::GET, "/volumes/ws/files/hurt", "");
        ensure!(!answer.is_ok_and(|answer| answer.status.is_success() && answer.body.len() == BYTES), "by HTTP");
        let VolumeVerification { damage, unreachable, .. } = node.post("/volumes/ws/verify", &json!({}))?;
        ensure!(!damage.is_empty() && damage.iter().all(|damage| damage.part.contains("hurt")), "{damage:?}");
        ensure!(unreachable.is_empty(), "{unreachable:?}");
        mount.leave()?;
        node.finish()?;
    }
    fs::write(&segment, whole)?;
    let mount = node.mount("ws")?;
    ensure!(fs::read(mount.path.join("hurt"))? == hurt, "it is there again");
    mount.leave()?;
    node.finish()
}
