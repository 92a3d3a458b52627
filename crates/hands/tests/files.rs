//! A hand in a thread of this process: every operation, on real files.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use pando_hands as hands;

use hands::{Error, EventKind, Hand, Kind, Metadata, Problem, WatchEvent, WatchOptions, Writer};

struct Place {
    folder: tempfile::TempDir,
    hand: Arc<Hand>,
    gate: Arc<tokio::sync::RwLock<()>>,
}

impl Place {
    /// Not in memory: metadata needs a filesystem that keeps it.
    fn new() -> Self {
        Self::within("/var/tmp")
    }

    /// For thousands of files, which take a disk seconds.
    fn in_memory() -> Self {
        Self::within("/dev/shm")
    }

    fn within(folder: &str) -> Self {
        let (ours, theirs) = sys::seqpacket::pair().unwrap();
        std::thread::spawn(move || hands::serve::run(theirs));
        let shares = hands::Shares { gate: Arc::default(), events: base::budget::Budget::new(16 << 20) };
        let gate = Arc::clone(&shares.gate);
        Self { folder: tempfile::tempdir_in(folder).unwrap(), hand: Hand::start(ours, shares).unwrap(), gate }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn put(&self, name: &str, content: &[u8]) -> Result<hands::Entry, Error> {
        let mut writer = self.hand.write(&self.at(name), None).await?;
        writer.write(content).await?;
        writer.finish().await
    }

    async fn get(&self, name: &str) -> Result<Vec<u8>, Error> {
        self.hand.read(&self.at(name), 0, None).await?.read_to_end().await
    }

    async fn refusal<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Problem {
        let began = Instant::now();
        let error = work.await.err().expect("it is refused");
        assert!(began.elapsed() < Duration::from_secs(5), "{error:?} took {:?}", began.elapsed());
        error.problem().unwrap_or_else(|| panic!("{error:?}")).clone()
    }
}

#[tokio::test]
async fn what_is_written_is_read() {
    let place = Place::new();
    for length in [0, 1, 18 << 10, 64 << 10, (64 << 10) + 1, 3 << 20] {
        let content: Vec<u8> = (0..length).map(|at: usize| (at * 7 % 251) as u8).collect();
        let entry = place.put("a/b/file", &content).await.unwrap();
        assert_eq!((entry.kind, entry.size, entry.mode), (Kind::File, length as u64, 0o644));
        assert!(place.get("a/b/file").await.unwrap() == content, "{length} bytes");
        assert!(fs::read(place.at("a/b/file")).unwrap() == content, "{length} bytes");
    }
    assert_eq!(fs::metadata(place.at("a")).unwrap().permissions().mode() & 0o7777, 0o755);
}

#[tokio::test]
async fn parts_of_a_file_are_read() {
    let place = Place::new();
    place.put("file", b"0123456789").await.unwrap();
    let part = async |offset, length| {
        let mut reader = place.hand.read(&place.at("file"), offset, length).await?;
        assert_eq!(reader.size(), 10);
        let announced = reader.length();
        let content = reader.read_to_end().await?;
        assert_eq!(content.len() as u64, announced);
        Ok::<_, Error>(String::from_utf8(content).unwrap())
    };
    assert_eq!(part(3, Some(4)).await.unwrap(), "3456");
    assert_eq!(part(8, Some(u64::MAX)).await.unwrap(), "89");
    assert_eq!(part(10, None).await.unwrap(), "");
    assert_eq!(place.refusal(part(11, None)).await, Problem::BadRange { size: 10 });
    fs::File::create(place.at("sparse")).unwrap().set_len(8 << 40).unwrap();
    let mut reader = place.hand.read(&place.at("sparse"), (8 << 40) - 3, None).await.unwrap();
    assert_eq!((reader.size(), reader.read_to_end().await.unwrap()), (8 << 40, vec![0; 3]));
    let mut endless = place.hand.read(&place.at("sparse"), 0, None).await.unwrap();
    assert!(endless.read(&mut &mut [1; 4096][..]).await.unwrap() > 0);
    drop(endless);
    assert_eq!(place.get("file").await.unwrap(), b"0123456789");
}

#[tokio::test]
async fn only_regular_files_are_opened() {
    let place = Place::new();
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(rustix::fs::CWD, place.at("pipe"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(place.at("socket")).unwrap();
    symlink("pipe", place.at("link")).unwrap();
    for name in ["pipe", "socket", "link", "/dev/zero", "/dev/null"] {
        assert_eq!(place.refusal(place.get(name)).await, Problem::NotRegular, "{name}");
        assert_eq!(place.refusal(place.put(name, b"x")).await, Problem::NotRegular, "{name}");
    }
    fs::create_dir(place.at("d")).unwrap();
    assert_eq!(place.refusal(place.get("d")).await, Problem::IsDirectory);
    assert_eq!(place.refusal(place.put("d", b"x")).await, Problem::IsDirectory);
    assert_eq!(place.refusal(place.get("none")).await, Problem::NotFound);
    let relative = place.hand.stat(Path::new("a"));
    assert_eq!(place.refusal(relative).await, Problem::BadPath);
    // Of the kernel: small ones are read, endless ones are refused.
    let id = place.get("/proc/sys/kernel/random/boot_id").await.unwrap();
    assert_eq!(id.len(), 37);
    let huge = place.refusal(place.get("/proc/self/pagemap")).await;
    assert_eq!(huge, Problem::KernelFileTooLarge { bytes_max: 1 << 20 });
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_nothing_new() {
    let place = Place::new();
    place.put("old", b"old").await.unwrap();
    for name in ["new", "old"] {
        let mut writer: Writer = place.hand.write(&place.at(name), None).await.unwrap();
        writer.write(b"half").await.unwrap();
        drop(writer);
    }
    let gone = || !place.at("new").exists();
    for _ in 0..100 {
        if gone() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(gone() && place.at("old").exists());
}

#[tokio::test]
async fn a_hand_that_is_closed_interrupts_its_requests() {
    let place = Place::new();
    let mut writer = place.hand.write(&place.at("new"), None).await.unwrap();
    writer.write(b"half").await.unwrap();
    assert!(!place.hand.settle(Duration::from_millis(50)).await, "an upload is under way");
    assert!(!place.hand.is_usable());
    let refused = place.hand.stat(Path::new("/")).await;
    assert!(matches!(refused, Err(Error::Interrupted { .. })), "{refused:?}");
    place.hand.close();
    let interrupted = writer.finish().await;
    assert!(matches!(interrupted, Err(Error::Interrupted { .. })), "{interrupted:?}");
    for _ in 0..100 {
        if !place.at("new").exists() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("a broken upload stays");
}

#[tokio::test]
async fn settling_waits_for_changes_only() {
    let place = Place::new();
    let writer = place.hand.write(&place.at("new"), None).await.unwrap();
    let _watch = place.hand.watch(&place.at(""), WatchOptions::default()).await.unwrap();
    let hand = Arc::clone(&place.hand);
    let settled = tokio::spawn(async move { hand.settle(Duration::from_secs(10)).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    writer.finish().await.unwrap();
    assert!(settled.await.unwrap());
}

#[tokio::test]
async fn directories_are_listed_to_a_depth() {
    let place = Place::in_memory();
    fs::create_dir_all(place.at("d/e/f")).unwrap();
    fs::write(place.at("d/a"), "").unwrap();
    fs::write(place.at("d/e/g"), "").unwrap();
    symlink("..", place.at("d/up")).unwrap();
    let list = async |depth| {
        let entries = place.hand.list(&place.at("d"), depth).await.unwrap();
        let names = entries.iter().map(|entry| entry.path.as_path().strip_prefix(place.at("d")).unwrap());
        names.map(|name| name.display().to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(list(1).await, "a e up");
    assert_eq!(list(2).await, "a e e/f e/g up");
    assert_eq!(list(u32::MAX).await, "a e e/f e/g up");
    let file = place.at("d/a");
    assert_eq!(place.refusal(place.hand.list(&file, 1)).await, Problem::NotDirectory);
    for number in 0..5_000 {
        fs::write(place.at(&format!("d/e/f/a-name-of-some-length-{number}")), "").unwrap();
    }
    assert_eq!(place.hand.list(&place.at("d"), 9).await.unwrap().len(), 5_005);
}

#[tokio::test]
async fn trees_of_any_depth_are_removed() {
    let place = Place::in_memory();
    fs::create_dir_all(place.at("keep")).unwrap();
    fs::write(place.at("keep/file"), "").unwrap();
    fs::create_dir_all(place.at("t/wide")).unwrap();
    (0..3_000).for_each(|number| fs::write(place.at(&format!("t/wide/{number}")), "").unwrap());
    symlink(place.at("keep"), place.at("t/link")).unwrap();
    let mut deep = rustix::fs::open(place.at("t"), rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
    for _ in 0..3_000 {
        rustix::fs::mkdirat(&deep, "d", rustix::fs::Mode::RWXU).unwrap();
        deep = rustix::fs::openat(&deep, "d", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
    }
    place.hand.remove(&place.at("t")).await.unwrap();
    assert!(!place.at("t").exists() && place.at("keep/file").exists());
    symlink("keep", place.at("link")).unwrap();
    place.hand.remove(&place.at("link")).await.unwrap();
    assert!(place.at("keep/file").exists());
    let gone = place.at("t");
    assert_eq!(place.refusal(place.hand.remove(&gone)).await, Problem::NotFound);
}

#[tokio::test]
async fn renaming_makes_directories_only_for_what_is_there() {
    let place = Place::new();
    let at = |name: &str| place.at(name);
    assert_eq!(place.refusal(place.hand.rename(&at("none"), &at("x/y"))).await, Problem::NotFound);
    assert!(!at("x").exists());
    fs::write(at("file"), "1").unwrap();
    place.hand.rename(&at("file"), &at("x/y")).await.unwrap();
    assert_eq!(fs::read(at("x/y")).unwrap(), b"1");
    fs::create_dir(at("d")).unwrap();
    assert_eq!(place.refusal(place.hand.rename(&at("d"), &at("x"))).await, Problem::Exists);
}

#[tokio::test]
async fn trees_move_to_other_filesystems() {
    let place = Place::new();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::create_dir_all(place.at("t/a/b")).unwrap();
    fs::write(place.at("t/a/file"), vec![3; 1 << 20]).unwrap();
    fs::set_permissions(place.at("t/a/file"), fs::Permissions::from_mode(0o640)).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    fs::File::open(place.at("t/a/file")).unwrap().set_modified(old).unwrap();
    symlink("a/file", place.at("t/link")).unwrap();
    let to = memory.path().join("deep/t");
    place.hand.rename(&place.at("t"), &to).await.unwrap();
    assert!(!place.at("t").exists());
    let moved = fs::metadata(to.join("a/file")).unwrap();
    assert_eq!((moved.len(), moved.permissions().mode() & 0o777, moved.modified().unwrap()), (1 << 20, 0o640, old));
    assert!(fs::read(to.join("link")).unwrap() == vec![3; 1 << 20] && to.join("a/b").is_dir());
    // What cannot be moved stays, and so does what is beside it.
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(rustix::fs::CWD, to.join("pipe"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let back = place.at("back");
    assert_eq!(place.refusal(place.hand.rename(&to, &back)).await, Problem::System { errno: 18 });
    assert!(to.join("pipe").exists());
}

#[tokio::test]
async fn files_are_joined_in_order() {
    let place = Place::new();
    let large = vec![7; 20 << 20];
    for (name, content) in [("1", &b"one"[..]), ("2", b""), ("3", &large)] {
        place.put(name, content).await.unwrap();
    }
    let sources: Vec<_> = ["1", "2", "3"].map(|name| place.at(name)).into();
    let missing = [&sources[..], &[place.at("none")]].concat();
    assert_eq!(place.refusal(place.hand.compose(&missing, &place.at("x/all"))).await, Problem::NotFound);
    assert_eq!(place.refusal(place.hand.compose(&sources, &place.at("2"))).await, Problem::SameFile);
    let entry = place.hand.compose(&sources, &place.at("x/all")).await.unwrap();
    assert_eq!(entry.size, 3 + (20 << 20));
    assert!(place.get("x/all").await.unwrap() == [&b"one"[..], &large].concat());
    assert!(sources.iter().all(|source| !source.exists()));
    assert_eq!(fs::read_dir(place.at("x")).unwrap().count(), 1);
}

#[tokio::test]
async fn metadata_is_replaced_as_a_whole() {
    let place = Place::new();
    let of = |pairs: &[(&str, &str)]| -> Metadata {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    for metadata in [of(&[("a", "1"), ("b", "two words")]), of(&[("c", "3")])] {
        let writer = place.hand.write(&place.at("file"), Some(metadata.clone())).await.unwrap();
        assert_eq!(writer.finish().await.unwrap().metadata, metadata);
    }
    place.put("file", b"x").await.unwrap();
    assert_eq!(place.hand.stat(&place.at("file")).await.unwrap().metadata, of(&[("c", "3")]));
    let bad = place.at("bad");
    assert_eq!(place.refusal(place.hand.write(&bad, Some(of(&[("", "1")])))).await, Problem::BadMetadata);
    assert!(!bad.exists());
}

/// What a watch reports until the file `end` appears: kinds and names.
async fn heard(place: &Place, watch: &mut hands::Watch) -> Vec<String> {
    fs::create_dir(place.at("end")).unwrap();
    let mut heard = Vec::new();
    loop {
        match watch.next().await.unwrap() {
            WatchEvent::Change { name, .. } if name.as_path() == Path::new("end") => break,
            WatchEvent::Change { name, kind, .. } => heard.push(format!("{kind:?} {}", name.as_path().display())),
            other => heard.push(format!("{other:?}")),
        }
    }
    fs::remove_dir(place.at("end")).unwrap();
    while !matches!(watch.next().await.unwrap(), WatchEvent::Change { kind: EventKind::Remove, .. }) {}
    heard
}

#[tokio::test]
async fn a_write_gives_as_many_events_as_in_e2b() {
    let place = Place::new();
    let mut watch = place.hand.watch(&place.at(""), WatchOptions::default()).await.unwrap();
    place.put("f", b"hello").await.unwrap();
    assert_eq!(heard(&place, &mut watch).await, ["Create f", "Chmod f", "Write f"]);
    place.put("f", b"").await.unwrap();
    assert_eq!(heard(&place, &mut watch).await, ["Chmod f", "Write f"]);
    place.put("f", b"hello").await.unwrap();
    let third = heard(&place, &mut watch).await;
    // The kernel merges the truncation and the content if both wait to be read.
    assert!(third == ["Chmod f", "Write f"] || third == ["Chmod f", "Write f", "Write f"], "{third:?}");
    fs::rename(place.at("f"), place.at("g")).unwrap();
    assert_eq!(heard(&place, &mut watch).await, ["Rename f", "Create g"]);
    fs::remove_file(place.at("g")).unwrap();
    assert_eq!(heard(&place, &mut watch).await, ["Remove g"]);
    fs::create_dir(place.at("d")).unwrap();
    fs::write(place.at("d/f"), "").unwrap();
    assert_eq!(heard(&place, &mut watch).await, ["Create d"]);
}

#[tokio::test]
async fn directories_that_appear_are_watched_too() {
    let place = Place::new();
    fs::create_dir_all(place.at("old/sub")).unwrap();
    let options = WatchOptions { recursive: true, entries: true };
    let mut watch = place.hand.watch(&place.at(""), options).await.unwrap();
    fs::write(place.at("old/sub/f"), "").unwrap();
    assert_eq!(heard(&place, &mut watch).await, ["Create old/sub/f"]);
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::create_dir_all(outside.path().join("in/deep")).unwrap();
    fs::write(outside.path().join("in/deep/f"), "").unwrap();
    fs::rename(outside.path().join("in"), place.at("in")).unwrap();
    assert_eq!(heard(&place, &mut watch).await, ["Create in", "Create in/deep", "Create in/deep/f"]);
    fs::write(place.at("in/deep/f"), "x").unwrap();
    let written = heard(&place, &mut watch).await;
    // One or two: the kernel merges the truncation and the content if both wait to be read.
    assert!(written.iter().all(|event| event == "Write in/deep/f") && !written.is_empty(), "{written:?}");
    fs::rename(place.at("in"), place.at("old/in")).unwrap();
    let moved = heard(&place, &mut watch).await;
    assert_eq!(moved, ["Rename in", "Create old/in", "Create old/in/deep", "Create old/in/deep/f"]);
    fs::write(place.at("old/in/deep/f"), "xy").unwrap();
    let written = heard(&place, &mut watch).await;
    assert!(written.iter().all(|event| event == "Write old/in/deep/f") && !written.is_empty(), "{written:?}");
    fs::rename(place.at("old"), outside.path().join("old")).unwrap();
    assert_eq!(heard(&place, &mut watch).await, ["Rename old"]);
    tokio::time::sleep(Duration::from_millis(200)).await;
    fs::write(outside.path().join("old/in/deep/f"), "xyz").unwrap();
    assert_eq!(heard(&place, &mut watch).await, Vec::<String>::new(), "what was moved away");
}

#[tokio::test]
async fn events_describe_their_files_if_asked() {
    let place = Place::new();
    let options = WatchOptions { recursive: false, entries: true };
    let mut watch = place.hand.watch(&place.at(""), options).await.unwrap();
    fs::write(place.at("f"), "").unwrap();
    let WatchEvent::Change { entry: Some(entry), .. } = watch.next().await.unwrap() else { panic!() };
    assert_eq!((entry.path.as_path(), entry.kind), (&*place.at("f"), Kind::File));
    fs::remove_file(place.at("f")).unwrap();
    loop {
        if let WatchEvent::Change { kind: EventKind::Remove, entry, .. } = watch.next().await.unwrap() {
            assert_eq!(entry, None);
            return;
        }
    }
}

#[tokio::test]
async fn ten_thousand_events_arrive() {
    let place = Place::in_memory();
    let mut watch = place.hand.watch(&place.at(""), WatchOptions::default()).await.unwrap();
    let folder = place.at("");
    let made = tokio::task::spawn_blocking(move || {
        (0..10_000).for_each(|number| fs::create_dir(folder.join(format!("{number}"))).unwrap());
    });
    for number in 0..10_000 {
        let WatchEvent::Change { name, kind: EventKind::Create, .. } = watch.next().await.unwrap() else { panic!() };
        assert_eq!(name.as_path().display().to_string(), number.to_string());
    }
    made.await.unwrap();
}

#[tokio::test]
async fn requests_beyond_the_bounds_wait_for_their_turn() {
    let place = Arc::new(Place::new());
    place.put("file", &vec![1; 2 << 20]).await.unwrap();
    let all: Vec<_> = (0..100)
        .map(|_| {
            let place = Arc::clone(&place);
            tokio::spawn(async move {
                assert_eq!(place.get("file").await.unwrap().len(), 2 << 20);
                place.hand.stat(&place.at("file")).await.unwrap();
            })
        })
        .collect();
    for one in all {
        one.await.unwrap();
    }
    assert!(place.hand.idle_for().is_some());
}

/// Of each way in which an upload waits: in memory, without a name, on another filesystem.
#[tokio::test]
async fn what_was_there_stays_until_all_is_there() {
    for (place, length) in [(Place::new(), 10), (Place::new(), 1 << 20), (Place::in_memory(), 1 << 20)] {
        place.put("old", b"old content").await.unwrap();
        fs::set_permissions(place.at("old"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(place.at("old"), place.at("same")).unwrap();
        let mut writer = place.hand.write(&place.at("old"), None).await.unwrap();
        writer.write(&vec![b'n'; length]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(fs::read(place.at("old")).unwrap(), b"old content", "{length}");
        drop(writer);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(fs::read(place.at("old")).unwrap(), b"old content", "{length}");
        place.put("old", &vec![b'n'; length]).await.unwrap();
        assert_eq!(fs::read(place.at("same")).unwrap(), vec![b'n'; length], "it is the same file");
        assert_eq!(fs::metadata(place.at("old")).unwrap().permissions().mode() & 0o777, 0o600);
        place.put("old", b"short").await.unwrap();
        assert_eq!(fs::read(place.at("same")).unwrap(), b"short");
        assert_eq!(fs::read_dir(place.folder.path()).unwrap().count(), 2, "something else is left");
    }
}

#[tokio::test]
async fn a_new_file_is_not_there_before_all_of_it_is() {
    let place = Place::new();
    for length in [10, 1 << 20] {
        let mut writer = place.hand.write(&place.at("new"), None).await.unwrap();
        writer.write(&vec![b'n'; length]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!place.at("new").exists(), "{length}");
        // A program is faster: the upload replaces what it made.
        fs::write(place.at("new"), b"made meanwhile").unwrap();
        writer.finish().await.unwrap();
        assert_eq!(fs::read(place.at("new")).unwrap(), vec![b'n'; length]);
        fs::remove_file(place.at("new")).unwrap();
    }
}

#[tokio::test]
async fn held_changes_wait_and_reads_do_not() {
    let place = Place::new();
    place.put("file", b"old").await.unwrap();
    let mut writer = place.hand.write(&place.at("file"), None).await.unwrap();
    writer.write(b"new").await.unwrap();
    let held = Arc::clone(&place.gate).write_owned().await;
    let mut finishing = tokio::spawn(writer.finish());
    let hand = Arc::clone(&place.hand);
    let path = place.at("directory");
    let mut making = tokio::spawn(async move { hand.make_directory(&path).await });
    let patience = Duration::from_millis(50);
    assert!(tokio::time::timeout(patience, &mut finishing).await.is_err(), "an upload ends though changes are held");
    assert!(tokio::time::timeout(patience, &mut making).await.is_err(), "a change is made though changes are held");
    assert_eq!(place.get("file").await.unwrap(), b"old");
    drop(held);
    finishing.await.unwrap().unwrap();
    making.await.unwrap().unwrap();
    assert_eq!(place.get("file").await.unwrap(), b"new");
}

#[tokio::test]
async fn a_list_is_bounded_by_its_bytes() {
    let place = Place::in_memory();
    let deep = place.at(&vec!["d".repeat(250); 12].join("/"));
    fs::create_dir_all(&deep).unwrap();
    // 3 KiB each.
    for number in 0..12_000 {
        fs::write(deep.join(format!("{number:0>60}")), b"").unwrap();
    }
    let refused = place.hand.list(&deep, 1).await.expect_err("it is refused");
    let bytes_max = base::limits::HAND_LIST_BYTES_MAX;
    assert_eq!(refused.problem(), Some(&Problem::ListTooLong { bytes_max }));
    assert_eq!(place.hand.list(&place.at(""), 5).await.unwrap().len(), 5);
}
