//! Files by HTTP, beside a mount.

use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::MetadataExt, net::UnixStream},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use api::volume::{FileInfo, FileKind, FileList, Volume, VolumeUsage};
use bytes::Bytes;
use hyper::{Method, StatusCode};

use crate::place::{FAST, Node, kill, wait_until};

pub(crate) fn http_and_a_mount_show_the_same() -> Result<()> {
    let node = Node::new(FAST)?;
    node.create("ws")?;
    let mount = node.mount("ws")?;
    let at = |name: &str| mount.path.join(name);
    ensure!(!at("new").exists() && !at("deep").exists(), "and the kernel remembers that");
    ensure!(fs::read_dir(&mount.path)?.count() == 0);
    let info: FileInfo = node.send(Method::PUT, "/volumes/ws/files/deep/er/new?mode=750", "by http")?.parsed()?;
    ensure!((info.size, info.mode, info.uid) == (7, 0o750, 1000), "{info:?}");
    ensure!(fs::read_dir(&mount.path)?.count() == 1, "a directory that was made on the way is listed");
    ensure!(fs::read(at("deep/er/new"))? == b"by http");
    ensure!(fs::metadata(at("deep/er/new"))?.mode() & 0o7777 == 0o750);
    node.send(Method::PUT, "/volumes/ws/files/new", "1")?.parsed::<FileInfo>()?;
    ensure!(fs::read(at("new"))? == b"1", "a name that was not there");
    node.send(Method::PUT, "/volumes/ws/files/new", "another")?.parsed::<FileInfo>()?;
    ensure!(fs::read(at("new"))? == b"another", "a file that was read before");

    fs::write(at("deep/by mount"), b"by mount")?;
    let answer = node.send(Method::GET, "/volumes/ws/files/deep/by%20mount", "")?;
    ensure!(answer.body == "by mount", "{:?}", answer.body);
    fs::write(at("deep/by mount"), b"by mount again")?;
    ensure!(node.send(Method::GET, "/volumes/ws/files/deep/by%20mount", "")?.body == "by mount again");

    node.send(Method::POST, "/volumes/ws/files/new?op=rename&to=deep/old", "")?.parsed::<FileInfo>()?;
    ensure!(!at("new").exists() && fs::read(at("deep/old"))? == b"another");
    node.send(Method::POST, "/volumes/ws/files/deep/old?op=chmod&mode=600", "")?.parsed::<FileInfo>()?;
    ensure!(fs::metadata(at("deep/old"))?.mode() & 0o7777 == 0o600);
    node.send(Method::POST, "/volumes/ws/files/link?op=symlink&target=deep/old", "")?.parsed::<FileInfo>()?;
    ensure!(fs::read(at("link"))? == b"another");
    node.send(Method::POST, "/volumes/ws/files/empty/one?op=mkdir", "")?.parsed::<FileInfo>()?;
    ensure!(fs::read_dir(at("empty/one"))?.count() == 0);

    let mut listed: Vec<String> = fs::read_dir(&mount.path)?
        .map(|e| Ok(e?.file_name().into_string().expect("all names are text")))
        .collect::<Result<_>>()?;
    listed.sort();
    let list: FileList = node.get("/volumes/ws/files/")?;
    let mut names: Vec<String> = list.entries.iter().map(|entry| entry.name.clone()).collect();
    names.sort();
    ensure!(listed == names && listed == ["deep", "empty", "link"], "{listed:?} {names:?}");

    ensure!(node.send(Method::DELETE, "/volumes/ws/files/deep", "")?.status == StatusCode::CONFLICT);
    node.send(Method::DELETE, "/volumes/ws/files/deep?recursive=true", "")?.parsed::<()>()?;
    ensure!(!at("deep").exists() && fs::read_dir(&mount.path)?.count() == 2);
    mount.leave()?;
    node.finish()
}

pub(crate) fn paths_stay_in_the_volume() -> Result<()> {
    let node = Node::new(FAST)?;
    node.create("ws")?;
    let link = |name: &str, target: &str| {
        node.send(Method::POST, &format!("/volumes/ws/files/{name}?op=symlink&target={target}"), "")?
            .parsed::<FileInfo>()
    };
    link("up", "../../../../../../etc/passwd")?;
    link("absolute", "/etc/passwd")?;
    link("a", "b")?;
    link("b", "a")?;
    for path in ["up", "absolute", "../../etc/passwd", "%2e%2e/etc/passwd", "a"] {
        let answer = node.send(Method::GET, &format!("/volumes/ws/files/{path}"), "")?;
        ensure!(answer.status.is_client_error(), "{path}: {}", answer.status);
    }
    node.send(Method::PUT, "/volumes/ws/files/etc/passwd", "inside")?.parsed::<FileInfo>()?;
    for path in ["up", "absolute", "etc/../../etc/passwd", "etc/./passwd", "//etc//passwd"] {
        let answer = node.send(Method::GET, &format!("/volumes/ws/files/{path}"), "")?;
        ensure!(answer.body == "inside", "{path}: {}", answer.status);
    }
    // What is put somewhere takes the place of a link, and leaves what that leads to.
    node.send(Method::PUT, "/volumes/ws/files/up", "a file")?.parsed::<FileInfo>()?;
    ensure!(node.send(Method::GET, "/volumes/ws/files/etc/passwd", "")?.body == "inside");
    let info: FileInfo = node.get("/volumes/ws/files/absolute?op=stat")?;
    ensure!(info.kind == FileKind::Symlink && info.target.as_deref() == Some("/etc/passwd"), "{info:?}");
    // Names are bytes.
    node.send(Method::PUT, "/volumes/ws/files/%FF%0A%25", "odd")?.parsed::<FileInfo>()?;
    ensure!(node.send(Method::GET, "/volumes/ws/files/%FF%0A%25", "")?.body == "odd");
    let list: FileList = node.get("/volumes/ws/files")?;
    ensure!(list.entries.iter().any(|entry| entry.name == "%FF%0A%25"), "{list:?}");
    node.finish()
}

pub(crate) fn an_upload_that_breaks_off_leaves_nothing() -> Result<()> {
    let node = Node::new(FAST)?;
    node.create("ws")?;
    node.send(Method::PUT, "/volumes/ws/files/kept", "as it was")?.parsed::<FileInfo>()?;
    let begin = |path: &str| -> Result<UnixStream> {
        let mut stream = UnixStream::connect(node.folder.join("http.sock"))?;
        write!(stream, "PUT /v1/volumes/ws/files/{path} HTTP/1.1\r\nhost: node\r\ncontent-length: 9000000\r\n\r\n")?;
        stream.write_all(&vec![b'x'; 5_000_000])?;
        Ok(stream)
    };
    let used = || anyhow::Ok(node.get::<Volume>("/volumes/ws")?.usage.context("it is known")?);
    let before: VolumeUsage = used()?;
    for path in ["kept", "in/new/directories"] {
        let client = begin(path)?;
        wait_until("it is under way", || Ok(used()?.bytes > before.bytes))?;
        let list: FileList = node.get("/volumes/ws/files/")?;
        ensure!(list.entries.len() == 1, "{list:?}");
        drop(client);
        wait_until("it is gone", || Ok(used()? == before))?;
    }
    let _client = begin("kept")?;
    wait_until("it is under way", || Ok(used()?.bytes > before.bytes))?;
    kill(node.worker().context("it lives")?)?;
    node.send(Method::GET, "/volumes/ws/files/kept", "")?;
    wait_until("what was left is gone", || Ok(used()? == before))?;
    ensure!(node.send(Method::GET, "/volumes/ws/files/kept", "")?.body == "as it was");
    node.finish()
}

pub(crate) fn a_refusal_is_heard_before_all_is_sent() -> Result<()> {
    let node = Node::new(FAST)?;
    node.create("ws")?;
    node.send(Method::POST, "/volumes/ws/files/d/e?op=mkdir", "")?.parsed::<FileInfo>()?;
    // Whether it is heard depends on who is faster, if nobody takes the rest.
    for round in 0..60 {
        let body = Bytes::from(vec![7; (round % 6) << 17]);
        for (path, status) in [
            ("/volumes/ws/files/d/e", StatusCode::CONFLICT),
            ("/volumes/nobody/files/a", StatusCode::NOT_FOUND),
            ("/volumes/ws/files/a?mode=99", StatusCode::BAD_REQUEST),
            ("/volumes/ws/snapshots", StatusCode::METHOD_NOT_ALLOWED),
        ] {
            let answer = node.send(Method::PUT, path, body.clone()).context(path)?;
            ensure!(answer.status == status, "{path}: {} {:?}", answer.status, answer.body);
        }
    }
    let body = Bytes::from(vec![7; 32 << 20]);
    let refused = node.send(Method::POST, "/volumes/ws/import", body)?;
    ensure!(refused.status.is_client_error(), "{}", refused.status);
    // At once, also of one that rests in the middle.
    for (method, path, status) in [("PUT", "/volumes/nobody/files/a", "404"), ("POST", "/volumes/ws/import", "400")] {
        let mut stream = UnixStream::connect(node.folder.join("http.sock"))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "{method} /v1{path} HTTP/1.1\r\nhost: node\r\ncontent-length: 1000000\r\n\r\n")?;
        stream.write_all(&[7; 100_000])?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).context(path)?;
        ensure!(answer.ends_with(status.as_bytes()), "{path}: {}", String::from_utf8_lossy(&answer));
    }
    node.finish()
}

pub(crate) fn ranges_and_tags() -> Result<()> {
    let node = Node::new(FAST)?;
    node.create("ws")?;
    let bytes: Vec<u8> = (0..3_000_000u32).flat_map(|number| number.to_le_bytes()).collect();
    node.send(Method::PUT, "/volumes/ws/files/big", bytes.clone())?.parsed::<FileInfo>()?;
    let get = |headers: &[(&str, &str)]| node.send_with(Method::GET, "/volumes/ws/files/big", "", headers);
    let whole = get(&[])?;
    ensure!(whole.status == StatusCode::OK && whole.body == bytes, "{} bytes", whole.body.len());
    let part = get(&[("range", "bytes=1000000-4999999")])?;
    ensure!(part.status == StatusCode::PARTIAL_CONTENT && part.body == bytes[1_000_000..5_000_000]);
    ensure!(part.headers["content-range"] == "bytes 1000000-4999999/12000000");
    ensure!(get(&[("range", "bytes=12000000-")])?.status == StatusCode::RANGE_NOT_SATISFIABLE);
    let tag = whole.headers["etag"].to_str()?;
    ensure!(get(&[("if-none-match", tag)])?.status == StatusCode::NOT_MODIFIED);
    let head = node.send(Method::HEAD, "/volumes/ws/files/big", "")?;
    ensure!(head.body.is_empty() && head.headers["content-length"] == "12000000", "{:?}", head.headers);
    node.send(Method::PUT, "/volumes/ws/files/big", "other")?.parsed::<FileInfo>()?;
    ensure!(get(&[("if-none-match", tag)])?.body == "other");
    ensure!(get(&[("range", "bytes=0-1"), ("if-range", tag)])?.body == "other", "the range was of another file");
    for number in 0..30 {
        node.send(Method::PUT, &format!("/volumes/ws/files/many/{number}"), "")?.parsed::<FileInfo>()?;
    }
    let (mut names, mut after) = (std::collections::BTreeSet::new(), Some(0));
    while let Some(cursor) = after {
        let list: FileList = node.get(&format!("/volumes/ws/files/many?limit=7&after={cursor}"))?;
        ensure!(list.entries.len() <= 7);
        names.extend(list.entries.into_iter().map(|entry| entry.name));
        after = list.next;
    }
    ensure!(names.len() == 30, "{names:?}");
    node.finish()
}

pub(crate) fn garbage_is_refused_and_harms_nobody() -> Result<()> {
    let node = Node::new(FAST)?;
    node.create("ws")?;
    let worker = node.worker();
    for (method, path, body) in [
        (Method::GET, "/nothing", ""),
        (Method::GET, "/volumes/..%2f..", ""),
        (Method::GET, "/volumes/NOT/files/x", ""),
        (Method::GET, "/volumes/none", ""),
        (Method::GET, "/volumes/none/files/x", ""),
        (Method::GET, "/volumes/ws/files/?limit=x", ""),
        (Method::GET, "/volumes/ws/files/?op=dance", ""),
        (Method::GET, "/volumes/ws/files/?snapshot=none", ""),
        (Method::PUT, "/volumes/ws/files/x?mode=9", "x"),
        (Method::PUT, "/volumes/ws/files/", "x"),
        (Method::PUT, "/volumes/ws/files/x?snapshot=s", "x"),
        (Method::DELETE, "/volumes/ws/files/", ""),
        (Method::POST, "/volumes/ws/files/x?op=rename", ""),
        (Method::POST, "/volumes", "{"),
        (Method::POST, "/volumes", "{\"name\":\"../x\"}"),
        (Method::POST, "/volumes", "{\"name\":\"usage\"}"),
        (Method::POST, "/volumes", "{\"name\":\"x\",\"unknown\":1}"),
        (Method::POST, "/volumes", "{\"name\":\"ws\"}"),
        (Method::POST, "/volumes/ws/restore", "{\"snapshot\":\"none\"}"),
        (Method::DELETE, "/volumes/ws/snapshots/none", ""),
        (Method::DELETE, "/volumes/none", ""),
    ] {
        let answer = node.send_with(method.clone(), path, body, &[("content-type", "application/json")])?;
        let error: api::ErrorBody = serde_json::from_slice(&answer.body)?;
        ensure!(answer.status.is_client_error(), "{method} {path} {body}: {} {error:?}", answer.status);
    }
    let path: String = std::iter::repeat_n("a/", 20_000).collect();
    ensure!(node.send(Method::GET, &format!("/volumes/ws/files/{path}"), "")?.status.is_client_error());
    for bytes in [&b"\0\xff\r\n\r\n"[..], b"GET", b"PUT /v1/volumes/ws/files/x HTTP/1.1\r\ncontent-length: -1\r\n\r\n"]
    {
        let mut stream = UnixStream::connect(node.folder.join("http.sock"))?;
        stream.write_all(bytes)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        stream.read_to_end(&mut Vec::new())?;
    }
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
    for message in [&b"{}"[..], b"\"Nothing\"", b"\xff\xff", b"{\"Attach\":{\"volume\":\"../x\"}}", &[b'x'; 100_000]] {
        let control = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
        connect(&control, &SocketAddrUnix::new(node.folder.join("control.sock"))?)?;
        sys::seqpacket::send(&control, message, &[])?;
        let heard = sys::seqpacket::recv(&control, &mut [0; 4096]);
        ensure!(!matches!(heard, Ok((1.., _))), "{message:?}");
    }
    ensure!(node.attach("none", "x", volumed::Access::ReadWrite).is_err());
    ensure!(node.attach("ws", "a\nb", volumed::Access::ReadWrite).is_err());
    ensure!(node.worker() == worker, "it lives");
    node.finish()
}

pub(crate) fn fifty_at_once() -> Result<()> {
    let node = Node::new(FAST)?;
    node.create("ws")?;
    let work = |number: usize| -> Result<()> {
        let path = format!("/volumes/ws/files/d{}/f{number}", number % 7);
        let bytes = vec![number as u8; 10_000 * number];
        for _ in 0..4 {
            node.send(Method::PUT, &path, bytes.clone())?.parsed::<FileInfo>()?;
            let answer = node.send(Method::GET, &path, "")?;
            ensure!(answer.body == bytes, "{number}: {} of {} bytes", answer.body.len(), bytes.len());
            node.get::<FileList>("/volumes/ws/files/")?;
            node.get::<api::volume::Volume>("/volumes/ws")?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let working: Vec<_> = (0..50).map(|number| scope.spawn(move || work(number))).collect();
        working.into_iter().try_for_each(|work| work.join().expect("it does not panic"))
    })?;
    let list: FileList = node.get("/volumes/ws/files/")?;
    ensure!(list.entries.len() == 7, "{list:?}");
    node.finish()
}
