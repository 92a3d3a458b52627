//! Every operation, and what hands refuse.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use hands::{Kind, Metadata, Problem};

use super::place::{Place, VOLUME_PATH, get, put, refusal};

pub(super) fn every_operation(place: &Place) -> Result<()> {
    let id = place.sandbox()?;
    place.runtime.block_on(async {
        for root in ["/home/user/w", "/dev/shm/w"] {
            operations(place, &id, root).await.with_context(|| root.to_owned())?;
        }
        let hand = place.hand(&id).await?;
        let metadata = Metadata::from([("author".to_owned(), "me".to_owned())]);
        let writer = hand.write(Path::new("/home/user/m"), Some(metadata.clone())).await?;
        ensure!(writer.finish().await?.metadata == metadata, "the metadata of a write");
        let entry = hand.stat(Path::new("/home/user/m")).await?;
        ensure!(entry.metadata == metadata, "{entry:?}");
        hand.set_metadata(Path::new("/home/user"), Metadata::new()).await?;
        Ok(())
    })
}

/// All that does not depend on a filesystem that keeps metadata.
async fn operations(place: &Place, id: &base::id::SandboxId, root: &str) -> Result<()> {
    let hand = place.hand(id).await?;
    let at = |name: &str| PathBuf::from(format!("{root}/{name}"));
    let text = |name: &str| format!("{root}/{name}");
    let entry = hand.make_directory(&at("d")).await?;
    ensure!((entry.kind, entry.mode, &*entry.owner) == (Kind::Directory, 0o755, "user"), "{entry:?}");
    ensure!(refusal(hand.make_directory(&at("d"))).await? == Problem::Exists);
    let entry = put(&hand, &text("d/deep/file"), b"hello").await?;
    ensure!((entry.size, &*entry.permissions, &*entry.group) == (5, "-rw-r--r--", "user"), "{entry:?}");
    let seen = place.shell(id, &format!("cat {root}/d/deep/file; stat -c %U%a {root}/d/deep")).await?;
    ensure!(seen == "hellouser755\n", "{seen:?}");
    place.shell(id, &format!("ln -s deep {root}/d/link; printf changed > {root}/d/deep/file")).await?;
    ensure!(get(&hand, &text("d/link/file")).await? == b"changed");
    let link = hand.stat(&at("d/link")).await?;
    ensure!(link.kind == Kind::Directory && link.permissions.starts_with('L'), "{link:?}");
    ensure!(link.link_target.as_ref().is_some_and(|to| to.as_path() == at("d/deep")), "{link:?}");
    let listed = hand.list(&at("d"), 2).await?;
    let names: Vec<_> = listed.iter().map(|entry| entry.path.as_path().to_owned()).collect();
    ensure!(names == [at("d/deep"), at("d/deep/file"), at("d/link")], "{names:?}");
    hand.rename(&at("d/deep/file"), &at("new/place")).await?;
    put(&hand, &text("two"), b" and more").await?;
    let joined = hand.compose(&[at("new/place"), at("two")], &at("all")).await?;
    ensure!(joined.size == 16 && get(&hand, &text("all")).await? == b"changed and more");
    ensure!(refusal(hand.stat(&at("two"))).await? == Problem::NotFound);
    hand.remove(Path::new(root)).await?;
    ensure!(refusal(hand.stat(Path::new(root))).await? == Problem::NotFound);
    Ok(())
}

pub(super) fn volumes(place: &Place) -> Result<()> {
    let mount = model::Mount { volume: "work".parse()?, path: VOLUME_PATH.into(), read_only: false, snapshot: None };
    place.runtime.block_on(place.make_volume("work"))?;
    let id = place.sandbox_with(vec![mount])?;
    place.runtime.block_on(async {
        operations(place, &id, &format!("{VOLUME_PATH}/w")).await?;
        let hand = place.hand(&id).await?;
        put(&hand, &format!("{VOLUME_PATH}/large"), &vec![3; 5 << 20]).await?;
        ensure!(get(&hand, &format!("{VOLUME_PATH}/large")).await? == vec![3; 5 << 20]);
        Ok(())
    })
}

const MIB: usize = 1 << 20;

pub(super) fn streams(place: &Place) -> Result<()> {
    let id = place.sandbox()?;
    place.runtime.block_on(async {
        let hand = place.hand(&id).await?;
        put(&hand, "/home/user/first", &[1; 8 * MIB]).await?;
        let pid = *place.hands().first().context("there is no hand")?;
        let (own, theirs) = (resident(std::process::id() as i32)?, resident(pid)?);
        let piece: Vec<u8> = (0..MIB).map(|at| (at % 253) as u8).collect();
        let mut writer = hand.write(Path::new("/home/user/large"), None).await?;
        for _ in 0..64 {
            writer.write(&piece).await?;
        }
        ensure!(writer.finish().await?.size == 64 << 20);
        let mut reader = hand.read(Path::new("/home/user/large"), 0, None).await?;
        let (mut buffer, mut position) = (Vec::new(), 0);
        loop {
            buffer.clear();
            buffer.reserve(128 << 10);
            let length = reader.read(&mut buffer).await?;
            if length == 0 {
                break;
            }
            let right =
                buffer[..length].iter().enumerate().all(|(at, byte)| *byte == ((position + at) % MIB % 253) as u8);
            ensure!(right, "other bytes at {position}");
            position += length;
        }
        ensure!(position == 64 << 20, "{position} bytes");
        let (own_now, theirs_now) = (resident(std::process::id() as i32)?, resident(pid)?);
        ensure!(own_now < own + 16 * MIB, "this process grew from {own} to {own_now} bytes");
        ensure!(theirs_now < theirs + 2 * MIB, "the hand grew from {theirs} to {theirs_now} bytes");
        Ok(())
    })
}

/// Most memory that a process has had, in bytes.
fn resident(pid: i32) -> Result<usize> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<usize>()? << 10)
}

pub(super) fn special_files(place: &Place) -> Result<()> {
    let id = place.sandbox()?;
    place.runtime.block_on(async {
        let hand = place.hand(&id).await?;
        let make = "cd /home/user; mkfifo pipe; ln -s pipe link; truncate -s 8T sparse; \
                    python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'";
        let printed = place.shell(&id, make).await?;
        ensure!(printed.is_empty(), "{printed}");
        for path in ["/home/user/pipe", "/home/user/link", "/home/user/socket", "/dev/zero", "/dev/tty"] {
            ensure!(refusal(get(&hand, path)).await? == Problem::NotRegular, "{path} is read");
            ensure!(refusal(put(&hand, path, b"x")).await? == Problem::NotRegular, "{path} is written");
            ensure!(hand.stat(Path::new(path)).await?.kind == Kind::Other, "{path}");
        }
        ensure!(refusal(get(&hand, "/home")).await? == Problem::IsDirectory);
        let boot_id = get(&hand, "/proc/sys/kernel/random/boot_id").await?;
        let inside = place.shell(&id, "cat /proc/sys/kernel/random/boot_id").await?;
        ensure!(boot_id == inside.as_bytes() && inside.len() == 37, "{inside:?}");
        // The kernel answers for the reader's namespaces: these are the sandbox's.
        let name = get(&hand, "/proc/sys/kernel/hostname").await?;
        ensure!(name == format!("{id}\n").as_bytes(), "{:?}", String::from_utf8_lossy(&name));
        ensure!(refusal(get(&hand, "/proc/kallsyms")).await? == Problem::NotRegular, "what is masked");
        let sparse = Path::new("/home/user/sparse");
        let mut end = hand.read(sparse, (8 << 40) - 2, None).await?;
        ensure!((end.size(), end.read_to_end().await?) == (8 << 40, vec![0; 2]));
        let mut whole = hand.read(sparse, 0, None).await?;
        ensure!(whole.length() == 8 << 40 && whole.read(&mut &mut [1; 4096][..]).await? > 0);
        drop(whole);
        ensure!(get(&hand, "/proc/sys/kernel/ostype").await? == b"Linux\n");
        Ok(())
    })
}

pub(super) fn full_disk(place: &Place) -> Result<()> {
    let id = place.sandbox()?;
    place.runtime.block_on(async {
        let hand = place.hand(&id).await?;
        // In memory, of 256 MiB.
        let mut writer = hand.write(Path::new("/dev/shm/large"), None).await?;
        let piece = vec![5; 4 << 20];
        let mut written = Ok(());
        for _ in 0..65 {
            written = writer.write(&piece).await;
            if written.is_err() {
                break;
            }
        }
        let ended = match written {
            Ok(()) => writer.finish().await.map(drop),
            failed => failed,
        };
        let problem = ended.err().and_then(|error| error.problem().cloned());
        ensure!(problem == Some(Problem::NoSpace), "{problem:?}");
        ensure!(refusal(hand.stat(Path::new("/dev/shm/large"))).await? == Problem::NotFound, "it stays");
        put(&hand, "/dev/shm/small", b"x").await?;
        Ok(())
    })
}

pub(super) fn rights(place: &Place) -> Result<()> {
    let id = place.sandbox()?;
    place.runtime.block_on(async {
        let hand = place.hand(&id).await?;
        hand.stat(Path::new("/")).await?;
        let pid = *place.hands().first().context("there is no hand")?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let own = testkit::ids::program(pid)?;
        let ids = format!("Uid:\t{own}\t{own}\t{own}\t{own}");
        for line in [ids.as_str(), "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000"] {
            ensure!(status.contains(line), "{line} is not in {status}");
        }
        for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapPrm:\t0000000000000000"] {
            ensure!(status.contains(line), "{line} is not in {status}");
        }
        let namespace = |kind: &str, of: &str| fs::read_link(format!("/proc/{of}/ns/{kind}"));
        ensure!(namespace("pid", &pid.to_string())? == namespace("pid", "self")?, "its pid namespace");
        ensure!(namespace("mnt", &pid.to_string())? != namespace("mnt", "self")?, "its mount namespace");
        let group = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        ensure!(!group.contains(id.as_str()), "it is in the sandbox's group: {group}");
        let open: Vec<_> = fs::read_dir(format!("/proc/{pid}/fd"))?.flatten().collect();
        ensure!(open.len() == 4, "descriptors: {open:?}");
        let seen = place.shell(&id, "cat /proc/[0-9]*/comm").await?;
        ensure!(seen.contains("sleep") && !seen.contains("pando-hand"), "{seen}");
        // A hand has no more rights than a program.
        for path in ["/etc/passwd", "/root/x", "/proc/sys/kernel/hostname", "/home/x/y", "/etc/new"] {
            let problem = refusal(put(&hand, path, b"x")).await?;
            ensure!(matches!(problem, Problem::Denied | Problem::ReadOnly), "{path}: {problem:?}");
        }
        ensure!(refusal(hand.remove(Path::new("/etc"))).await? == Problem::Denied);
        let shadow = refusal(get(&hand, "/etc/shadow")).await?;
        ensure!(matches!(shadow, Problem::Denied | Problem::NotFound), "{shadow:?}");
        Ok(())
    })
}

pub(super) fn refusals(place: &Place) -> Result<()> {
    let id = place.sandbox()?;
    place.runtime.block_on(async {
        for name in ["stranger", "", "us:er", "../etc"] {
            let other = place.node.files(&id, Some(name)).await;
            ensure!(matches!(other, Err(node::Error::OneUser { .. })), "another user: {name:?}");
        }
        let none = place.node.files(&"s0123456789ab".parse()?, None).await;
        ensure!(matches!(none, Err(node::Error::NoSandbox(_))), "no sandbox");
        let hand = place.hand(&id).await?;
        for path in ["relative", "", "/a\0b"] {
            ensure!(refusal(hand.stat(Path::new(path))).await? == Problem::BadPath, "{path:?}");
        }
        let long = format!("/{}", "x/".repeat(3000));
        ensure!(refusal(put(&hand, &long, b"")).await? == Problem::BadPath);
        ensure!(refusal(put(&hand, &format!("/home/user/{}", "x".repeat(256)), b"")).await? == Problem::BadPath);
        // Its program has ended: the files are there.
        place.shell(&id, "pkill sleep").await?;
        put(&hand, "/home/user/after", b"x").await?;
        place.node.remove(&id).await?;
        let gone = place.node.files(&id, None).await;
        ensure!(matches!(gone, Err(node::Error::NoSandbox(_))), "a removed sandbox");
        Ok(())
    })
}
