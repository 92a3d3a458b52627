//! What clients say of new files: owners, modes, whether something may be replaced. Lists of many levels.

use std::{fs, os::unix::fs::MetadataExt};

use anyhow::{Context, Result, ensure};
use api::volume::{FileInfo, FileKind, TreeEntry};
use hyper::{HeaderMap, Method, StatusCode};
use volumed::{Attributes, Existing, Place};

use crate::place::{FAST, Node};

const REFUSED: &str = "?parents=false&replace=false";

pub(crate) fn files_have_owners_and_are_replaced_only_if_they_may_be() -> Result<()> {
    let node = Node::new(FAST)?;
    node.create("ws")?;
    let mount = node.mount("ws")?;
    let files =
        |method: Method, rest: &str, body: &'static str| node.send(method, &format!("/volumes/ws/files/{rest}"), body);
    let made: FileInfo = files(Method::PUT, "f?mode=640&uid=5&gid=6&parents=false&replace=false", "one")?.parsed()?;
    ensure!((made.mode, made.uid, made.gid) == (0o640, 5, 6) && made.born_ns > 0 && made.accessed_ns > 0, "{made:?}");
    let again = files(Method::PUT, &format!("f{REFUSED}"), "two")?;
    ensure!(again.status == StatusCode::CONFLICT && fs::read(mount.path.join("f"))? == b"one");
    ensure!(files(Method::PUT, &format!("absent/f{REFUSED}"), "two")?.status == StatusCode::NOT_FOUND);
    let kept: FileInfo = files(Method::PUT, "f?gid=7", "two")?.parsed()?;
    ensure!((kept.mode, kept.uid, kept.gid, kept.size) == (0o640, 5, 7, 3), "what is not said stays: {kept:?}");
    let set: FileInfo = files(Method::POST, "f?op=set&mode=600&uid=1000&gid=1000", "")?.parsed()?;
    let found = fs::metadata(mount.path.join("f"))?;
    ensure!((set.uid, found.uid(), found.gid(), found.mode() & 0o7777) == (1000, 1000, 1000, 0o600));
    let directory: FileInfo = files(Method::POST, "d?op=mkdir&mode=700&uid=3&parents=false", "")?.parsed()?;
    ensure!((directory.mode, directory.uid, directory.gid) == (0o700, 3, 1000), "{directory:?}");
    ensure!(files(Method::POST, "d?op=mkdir", "")?.status == StatusCode::CONFLICT);
    let there: FileInfo = files(Method::POST, "d?op=mkdir&mode=777&existing=true", "")?.parsed()?;
    ensure!(there.mode == 0o700, "it stays as it is");
    ensure!(files(Method::POST, "f?op=mkdir&existing=true", "")?.status == StatusCode::CONFLICT, "a file is none");
    ensure!(files(Method::POST, "a/b?op=mkdir&parents=false", "")?.status == StatusCode::NOT_FOUND);
    for wrong in ["f?uid=4294967295", "f?gid=-1", "f?mode=10000", "f?replace=maybe"] {
        ensure!(files(Method::PUT, wrong, "")?.status == StatusCode::BAD_REQUEST, "{wrong}");
    }
    ensure!(files(Method::GET, "d?op=read", "")?.status == StatusCode::CONFLICT, "a directory has no bytes");
    ensure!(files(Method::GET, "f?op=read", "")?.body == "two");
    mount.leave()?;
    node.finish()
}

pub(crate) fn of_two_uploads_of_a_new_file_one_is_refused() -> Result<()> {
    let node = Node::new(FAST)?;
    node.create("ws")?;
    let volume = "ws".parse()?;
    for round in 0..20 {
        let path = format!("/f{round}");
        let place = Place { volume: &volume, snapshot: None, path: &path };
        let write = |text: &'static str| {
            let body = http_body_util::Full::new(bytes::Bytes::from_static(text.as_bytes()));
            node.client.write(&place, Attributes::default(), Existing::Refused, body)
        };
        let both = node.runtime.block_on(async { tokio::join!(write("one"), write("two")) });
        ensure!(both.0.is_ok() != both.1.is_ok(), "{both:?}");
        let expected = if both.0.is_ok() { "one" } else { "two" };
        let read = node.send(Method::GET, &format!("/volumes/ws/files{path}"), "")?;
        ensure!(read.body == expected, "{:?}", read.body);
    }
    node.finish()
}

pub(crate) fn directories_are_listed_with_what_is_in_them() -> Result<()> {
    let node = Node::new(FAST)?;
    node.create("ws")?;
    let mount = node.mount("ws")?;
    let mut expected = Vec::new();
    for number in 0..600 {
        fs::write(mount.path.join(format!("f{number}")), b"")?;
        expected.push(format!("f{number}"));
    }
    for directory in ["a%b", "a%b/c", "a%b/c/d"] {
        fs::create_dir(mount.path.join(directory))?;
        fs::write(mount.path.join(directory).join("in"), b"x")?;
    }
    std::os::unix::fs::symlink("/", mount.path.join("link"))?;
    expected.push("link".to_owned());
    for (depth, below) in [(1, &["a%25b"][..]), (2, &["a%25b", "a%25b/c", "a%25b/in"])] {
        let answer = node.send(Method::GET, &format!("/volumes/ws/files/?op=tree&depth={depth}"), "")?;
        let entries = answer.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let entries = entries.map(serde_json::from_slice::<TreeEntry>).collect::<Result<Vec<_>, _>>()?;
        let mut paths: Vec<_> = entries.iter().map(|entry| entry.path.clone()).collect();
        let at = |path: &str| paths.iter().position(|found| found == path);
        ensure!(depth == 1 || at("a%25b/in") > at("a%25b"), "a directory comes before what is in it");
        paths.sort();
        let mut expected: Vec<_> = expected.iter().map(String::as_str).chain(below.iter().copied()).collect();
        expected.sort_unstable();
        ensure!(paths == expected, "{depth}: {paths:?}");
        let link = entries.iter().find(|entry| entry.path == "link").context("no link")?;
        ensure!(link.info.kind == FileKind::Symlink && link.info.target.as_deref() == Some("/"), "not followed");
    }
    for (path, status) in
        [("f0?op=tree", 409), ("absent?op=tree", 404), ("?op=tree&depth=0", 400), ("?op=tree&depth=65", 400)]
    {
        ensure!(node.send(Method::GET, &format!("/volumes/ws/files/{path}"), "")?.status == status, "{path}");
    }
    let (volume, headers) = ("ws".parse()?, HeaderMap::new());
    let link = Place { volume: &volume, snapshot: None, path: "/link/a%b/in" };
    let status = node.runtime.block_on(node.client.read(&link, headers))?.status();
    ensure!(status == StatusCode::OK, "absolute links begin at the volume's top");
    mount.leave()?;
    node.finish()
}
