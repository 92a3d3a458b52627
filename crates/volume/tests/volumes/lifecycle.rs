//! Opening, crashing, taking over, snapshots, forks, restores.

use rustix::io::Errno;
use volume::{Durability, Kind, Options, Origin, ROOT, VolumeError};

use crate::place::{Place, all_bytes, file, new, read_file, write_file};

fn snapshot(volume: &str, snapshot: &str) -> Origin {
    Origin::Snapshot { volume: volume.to_owned(), snapshot: snapshot.to_owned() }
}

#[test]
fn what_was_synced_survives_a_crash_and_what_was_not_is_gone() {
    let place = Place::new();
    let volume = place.volume("ws");
    write_file(volume.engine(), "committed", b"1");
    volume.commit().unwrap();
    write_file(volume.engine(), "synced", b"2");
    volume.sync().unwrap();
    write_file(volume.engine(), "lost", b"3");
    drop(volume);
    for _ in 0..3 {
        let volume = place.node("one").open("ws").unwrap();
        let read = ["committed", "synced", "lost"].map(|name| read_file(volume.engine(), name));
        assert_eq!(read, [Some(b"1".to_vec()), Some(b"2".to_vec()), None]);
    }
}

#[test]
fn what_the_kernel_got_survives_the_process() {
    let place = Place::new();
    let volume = place.volume("ws");
    write_file(volume.engine(), "a", b"1");
    volume.engine().write_log().unwrap();
    drop(volume);
    let volume = place.node("one").open("ws").unwrap();
    assert_eq!(read_file(volume.engine(), "a"), Some(b"1".to_vec()));
}

#[test]
fn volumes_are_listed_whatever_their_snapshots_are_called() {
    let place = Place::new();
    let volume = place.volume("ws");
    for name in ["head", "before"] {
        volume.snapshot(name, "").unwrap();
    }
    drop(volume);
    let node = place.node("one");
    assert_eq!(node.list(None).unwrap(), ["ws"]);
    assert!(node.removed().unwrap().is_empty());
    node.remove(&Origin::Volume("ws".to_owned())).unwrap();
    assert!(node.list(None).unwrap().is_empty());
    assert_eq!(node.removed().unwrap().into_iter().collect::<Vec<_>>(), [("ws".to_owned(), 2)]);
}

#[test]
fn with_durability_object_a_sync_survives_the_node() {
    let place = Place::new();
    let node = place.node("one");
    node.create("ws", &Options { durability: Durability::Object, ..Options::default() }).unwrap();
    let volume = node.open("ws").unwrap();
    write_file(volume.engine(), "a", b"1");
    volume.sync().unwrap();
    let other = place.node("two").open("ws").unwrap();
    assert_eq!(read_file(other.engine(), "a"), Some(b"1".to_vec()));
}

#[test]
fn a_volume_that_was_taken_over_can_be_read_but_never_changed_or_committed() {
    let place = Place::new();
    let first = place.volume("ws");
    write_file(first.engine(), "a", b"first");
    first.commit().unwrap();
    write_file(first.engine(), "b", b"first");
    first.sync().unwrap();
    let second = place.node("two").open("ws").unwrap();
    assert_eq!(read_file(second.engine(), "b"), None);
    assert!(matches!(first.commit(), Err(VolumeError::Fenced { .. })));
    assert_eq!(first.engine().make(ROOT, b"c", file()).err(), Some(Errno::ROFS));
    assert_eq!(read_file(first.engine(), "b"), Some(b"first".to_vec()));
    write_file(second.engine(), "b", b"second");
    second.commit().unwrap();
    assert!(matches!(first.snapshot("s", ""), Err(VolumeError::Fenced { .. })));
    drop(first);
    // Its log goes on from a state that is none any more: it is set aside, and nothing of it is repeated.
    let again = place.node("one").open("ws").unwrap();
    assert_eq!(read_file(again.engine(), "b"), Some(b"second".to_vec()));
    let folder = place.log("one", "ws");
    let aside = std::fs::read_dir(folder.parent().unwrap()).unwrap().count();
    assert_eq!(aside, 2, "the log, and the one that was set aside");
}

#[test]
fn when_the_log_fails_changes_end_and_what_is_in_memory_is_still_committed() {
    let place = Place::new();
    let volume = place.volume("ws");
    write_file(volume.engine(), "a", b"1");
    std::fs::remove_dir_all(place.log("one", "ws")).unwrap();
    assert!(matches!(volume.commit(), Err(VolumeError::Wal(_))));
    assert_eq!(volume.engine().make(ROOT, b"b", file()).err(), Some(Errno::ROFS));
    let other = place.node("two").open("ws").unwrap();
    assert_eq!(read_file(other.engine(), "a"), Some(b"1".to_vec()));
}

#[test]
fn of_two_nodes_that_fight_for_a_volume_one_writes_it() {
    let place = Place::new();
    drop(place.volume("ws"));
    let nodes = [place.node("one"), place.node("two")];
    let opened: Vec<_> = std::thread::scope(|scope| {
        let threads = nodes.each_ref().map(|node| scope.spawn(move || (0..5).rev().find_map(|_| node.open("ws").ok())));
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    let won = opened.iter().filter(|volume| {
        write_file(volume.engine(), "who", b"won");
        volume.commit().is_ok()
    });
    assert_eq!(won.count(), 1);
}

#[test]
fn snapshots_forks_and_restores_are_what_they_were_taken_of() {
    let place = Place::new();
    let (node, volume) = (place.node("one"), place.volume("ws"));
    let ino = write_file(volume.engine(), "a", b"one");
    volume.snapshot("s1", "").unwrap();
    volume.engine().write(ino, 0, b"two", false).unwrap();
    let later = write_file(volume.engine(), "later", b"x");
    volume.snapshot("s2", "").unwrap();
    assert_eq!(node.list(Some("ws")).unwrap(), ["s1", "s2"]);
    assert!(matches!(volume.snapshot("s1", ""), Err(VolumeError::Exists { .. })));

    node.fork(&snapshot("ws", "s1"), "fork").unwrap();
    let fork = node.open("fork").unwrap();
    assert_eq!(read_file(fork.engine(), "a"), Some(b"one".to_vec()));
    write_file(fork.engine(), "only here", b"x");
    fork.close().unwrap();
    assert_eq!(read_file(volume.engine(), "only here"), None);
    assert_eq!(node.list(None).unwrap(), ["fork", "ws"]);

    assert!(matches!(volume.restore("s3", "before"), Err(VolumeError::NotFound { .. })));
    let taken = volume.restore("s1", "s2").unwrap_err();
    assert_eq!(taken.to_string(), "snapshot s2 of volume ws exists already");
    assert_eq!(read_file(volume.engine(), "a"), Some(b"two".to_vec()));
    assert_eq!(node.list(Some("ws")).unwrap(), ["s1", "s2"]);

    volume.restore("s1", "before").unwrap();
    assert_eq!(read_file(volume.engine(), "a"), Some(b"one".to_vec()));
    assert_eq!(volume.engine().attributes(later).err(), Some(Errno::STALE));
    let next = write_file(volume.engine(), "after", b"y");
    assert!(next > later, "the kernel knows numbers of the state that was left");
    volume.sync().unwrap();
    drop(volume);
    let volume = node.open("ws").unwrap();
    assert_eq!(read_file(volume.engine(), "after"), Some(b"y".to_vec()));
    let before = node.open_to_read(&snapshot("ws", "before")).unwrap();
    assert_eq!(read_file(before.engine(), "a"), Some(b"two".to_vec()));
    assert_eq!(before.engine().unlink(ROOT, b"a"), Err(Errno::ROFS));
    assert!(matches!(before.commit(), Err(VolumeError::ReadOnly { .. })));
    before.close().unwrap();
}

#[test]
fn a_file_without_a_name_lives_as_long_as_it_is_open_and_not_beyond_a_crash() {
    let place = Place::new();
    let volume = place.volume("ws");
    let engine = volume.engine();
    let ino = write_file(engine, "open", b"still here");
    engine.pin(ino).unwrap();
    engine.unlink(ROOT, b"open").unwrap();
    volume.commit().unwrap();
    assert_eq!(engine.read(ino, 0, 100).unwrap(), b"still here");
    engine.write(ino, 0, b"STILL", false).unwrap();
    engine.unpin(ino, 1).unwrap();
    assert_eq!(engine.read(ino, 0, 100), Err(Errno::STALE));
    let left = write_file(engine, "left", b"left by a crash");
    engine.pin(left).unwrap();
    engine.unlink(ROOT, b"left").unwrap();
    volume.commit().unwrap();
    assert_eq!(engine.usage().unwrap().inodes, 2);
    drop(volume);
    let volume = place.node("one").open("ws").unwrap();
    let usage = volume.engine().usage().unwrap();
    assert_eq!((usage.inodes, usage.bytes), (1, 0));
}

#[test]
fn nothing_lies_in_the_open_neither_in_the_store_nor_in_the_log() {
    let place = Place::new();
    let volume = place.volume("ws");
    let canary = "canary-7f3a".repeat(4);
    write_file(volume.engine(), &canary, canary.as_bytes());
    volume.snapshot("s1", "").unwrap();
    write_file(volume.engine(), &format!("{canary}2"), canary.as_bytes());
    volume.sync().unwrap();
    for folder in ["objects", "one"] {
        let bytes = all_bytes(&place.directory.path().join(folder));
        let found = bytes.windows(11).any(|window| window == b"canary-7f3a");
        assert!(!bytes.is_empty() && !found, "{folder}");
    }
}

#[test]
fn segments_that_no_state_uses_are_collected_and_all_others_stay() {
    let place = Place::new();
    let volume = place.volume("ws");
    let noise: Vec<u8> = (0..100_000u32).flat_map(|n| (n.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
    for round in 0..5 {
        write_file(volume.engine(), &format!("kept{round}"), &noise[..1000]);
        volume.commit().unwrap();
        write_file(volume.engine(), "big", &noise);
        volume.commit().unwrap();
        volume.engine().unlink(ROOT, b"big").unwrap();
        volume.commit().unwrap();
    }
    let before = place.stored_bytes();
    place.collect();
    let after = place.stored_bytes();
    assert!(before > 5 * 400_000 && after < 300_000, "{before} {after}");
    volume.close().unwrap();
    let volume = place.node("two").open("ws").unwrap();
    for round in 0..5 {
        assert_eq!(read_file(volume.engine(), &format!("kept{round}")).unwrap(), noise[..1000]);
    }
}

#[test]
fn names_of_volumes_cannot_leave_their_place() {
    let place = Place::new();
    let node = place.node("one");
    for bad in ["", "..", "a/b", "A", &"x".repeat(64)] {
        assert!(matches!(node.create(bad, &Options::default()), Err(VolumeError::Name { .. })), "{bad}");
        assert!(matches!(node.open(bad), Err(VolumeError::Name { .. })), "{bad}");
    }
    assert!(matches!(node.open("none"), Err(VolumeError::NotFound { .. })));
    node.create("one", &Options::default()).unwrap();
    assert!(matches!(node.create("one", &Options::default()), Err(VolumeError::Exists { .. })));
    node.remove(&Origin::Volume("one".to_owned())).unwrap();
    assert!(node.list(None).unwrap().is_empty());
}

#[test]
fn a_large_directory_and_a_large_file_are_opened_as_far_as_they_are_used() {
    let place = Place::new();
    let volume = place.volume("ws");
    let engine = volume.engine();
    let directory = engine.make(ROOT, b"many", new(Kind::Directory)).unwrap().ino;
    for number in 0..3000 {
        engine.make(directory, format!("{number}").as_bytes(), file()).unwrap();
    }
    let large = write_file(engine, "large", b"");
    for window in 0..2000 {
        engine.write(large, window << 17, b"x", false).unwrap();
    }
    volume.close().unwrap();
    let volume = place.node("two").open("ws").unwrap();
    let engine = volume.engine();
    assert!(engine.lookup(directory, b"2999").is_ok() && engine.lookup(directory, b"3000").is_err());
    assert_eq!(engine.read(large, 1999 << 17, 10).unwrap(), b"x");
    assert!(engine.inodes_in_memory().unwrap() < 10);
    let (mut cookie, mut names) = (0, std::collections::BTreeSet::new());
    while let Some(last) = engine
        .list(directory, cookie, 100)
        .unwrap()
        .into_iter()
        .map(|entry| (names.insert(entry.name), entry.cookie).1)
        .last()
    {
        cookie = last;
    }
    assert_eq!(names.len(), 3002);
    engine.unlink(ROOT, b"large").unwrap();
    assert_eq!(engine.usage().unwrap().bytes, 0);
}

#[test]
fn a_state_that_something_else_includes_is_forked_as_long_as_that_is_there() {
    let place = Place::new();
    let (node, volume) = (place.node("one"), place.volume("ws"));
    write_file(volume.engine(), "a", b"one");
    volume.snapshot("s", "").unwrap();
    let state = place.head("volumes/ws/snapshots/s").manifest;
    let (by, strange) = (place.keep("checkpoint/warm", &[state]).name, place.keep("checkpoint/other", &[]).name);
    write_file(volume.engine(), "later", b"x");
    volume.close().unwrap();
    drop(volume);
    node.remove(&snapshot("ws", "s")).unwrap();
    node.remove(&Origin::Volume("ws".to_owned())).unwrap();

    node.fork_included(&by, state, "fork").unwrap();
    // Also one with the name, and so with the log, of what it comes from.
    node.fork_included(&by, state, "ws").unwrap();
    for name in ["fork", "ws"] {
        let fork = node.open(name).unwrap();
        assert_eq!(read_file(fork.engine(), "a"), Some(b"one".to_vec()));
        assert_eq!(read_file(fork.engine(), "later"), None);
        write_file(fork.engine(), "mine", name.as_bytes());
        fork.sync().unwrap();
        drop(fork);
        let again = node.open(name).unwrap();
        assert_eq!(read_file(again.engine(), "mine").unwrap(), name.as_bytes());
        again.close().unwrap();
    }
    assert!(matches!(node.fork_included(&by, state, "fork"), Err(VolumeError::Exists { .. })));
    let missing = "checkpoint/gone".parse().unwrap();
    for keeper in [&strange, &missing] {
        let refused = node.fork_included(keeper, state, "second");
        assert!(matches!(&refused, Err(VolumeError::NotKept { .. })), "{refused:?}");
    }
    assert_eq!(node.list(None).unwrap(), ["fork", "ws"]);
    assert_eq!(place.leases(), 0);
}

#[test]
fn a_fork_takes_no_log_of_an_earlier_volume_of_its_name_for_its_own() {
    let place = Place::new();
    let (node, volume) = (place.node("one"), place.volume("ws"));
    write_file(volume.engine(), "committed", b"1");
    volume.commit().unwrap();
    let ws = Origin::Volume("ws".to_owned());
    node.fork(&ws, "fork").unwrap();
    assert!(matches!(node.fork(&ws, "fork"), Err(VolumeError::Exists { .. })));
    write_file(volume.engine(), "only in the log", b"2");
    volume.sync().unwrap();
    drop(volume);
    // The fork still names the manifest that the log goes on from.
    node.remove(&ws).unwrap();
    node.fork(&Origin::Volume("fork".to_owned()), "ws").unwrap();
    assert!(matches!(node.adopt("ws"), Err(VolumeError::NotOurs { .. })));
    for name in ["ws", "fork"] {
        let opened = node.open(name).unwrap();
        assert_eq!(read_file(opened.engine(), "only in the log"), None, "{name}");
        write_file(opened.engine(), "later", name.as_bytes());
        opened.sync().unwrap();
        drop(opened);
        let again = node.open(name).unwrap();
        assert_eq!(read_file(again.engine(), "later").unwrap(), name.as_bytes());
    }
}
