//! What a restored volume is until its next commit: its head names the snapshot's manifest.

use volume::{Durability, Options, Origin, ROOT, VolumeError};

use crate::place::{Place, read_file, write_file};

fn ws() -> Origin {
    Origin::Volume("ws".to_owned())
}

#[test]
fn a_restore_writes_no_object_and_holds_for_whoever_opens_forks_or_keeps_the_volume_then() {
    let place = Place::new();
    let (node, volume) = (place.node("one"), place.volume("ws"));
    let created = node.inspect(&ws()).unwrap().created;
    write_file(volume.engine(), "a", b"one");
    volume.snapshot("s", "").unwrap();
    let later = write_file(volume.engine(), "later", b"x");
    volume.commit().unwrap();
    let stored = place.stored_bytes();
    assert!(matches!(volume.restore("s", "s"), Err(VolumeError::Exists { .. })));
    volume.restore("s", "before").unwrap();
    assert_eq!((place.stored_bytes(), place.leases()), (stored, 0));
    let snapshot = place.head("volumes/ws/snapshots/s").manifest;
    assert_eq!(place.head("volumes/ws/head").manifest, snapshot);
    // Again, from that state to itself.
    volume.restore("s", "again").unwrap();
    assert_eq!(place.head("volumes/ws/snapshots/again").manifest, snapshot);
    assert_eq!(node.inspect(&ws()).unwrap().created, created);

    volume.snapshot("kept", "").unwrap();
    node.fork(&ws(), "fork").unwrap();
    let state = place.head("volumes/ws/head").manifest;
    node.fork_included(&place.keep("checkpoint/warm", &[state]).name, state, "included").unwrap();
    place.collect();
    let reader = place.node("two").open_to_follow("ws").unwrap();
    assert_eq!(read_file(reader.engine(), "later"), None);
    write_file(volume.engine(), "only in the log", b"y");
    volume.sync().unwrap();
    drop(volume);
    let volume = node.open("ws").unwrap();
    assert_eq!(read_file(volume.engine(), "only in the log"), Some(b"y".to_vec()));
    volume.restore("kept", "once-more").unwrap();
    drop(volume);
    for name in ["fork", "included"] {
        let fork = place.node("two").open(name).unwrap();
        assert_eq!(["a", "later"].map(|name| read_file(fork.engine(), name)), [Some(b"one".to_vec()), None]);
    }

    // Another node, which has no log of it.
    let volume = place.node("two").open("ws").unwrap();
    let read = ["a", "later", "only in the log"].map(|name| read_file(volume.engine(), name));
    assert_eq!(read, [Some(b"one".to_vec()), None, None]);
    assert!(write_file(volume.engine(), "new", b"z") > later, "the kernel knows numbers of the state that was left");
    volume.commit().unwrap();
    assert_ne!(place.head("volumes/ws/head").manifest, snapshot);
    assert_eq!(node.inspect(&ws()).unwrap().created, created);
    // It is the same volume, to who followed it all the while.
    reader.follow().unwrap();
    assert_eq!(read_file(reader.engine(), "new"), Some(b"z".to_vec()));
}

#[test]
fn a_restore_that_cannot_read_what_it_needs_changes_nothing() {
    let place = Place::new();
    let node = place.node("one");
    node.create("ws", &Options::default()).unwrap();
    let volume = node.open("ws").unwrap();
    write_file(volume.engine(), "a", b"one");
    volume.snapshot("s", "").unwrap();
    write_file(volume.engine(), "b", b"two");
    volume.close().unwrap();
    drop(volume);
    // The node remembers the manifests, and no node of the trees.
    let volume = node.open("ws").unwrap();
    let head = place.head("volumes/ws/head");
    place.set_outage(true);
    assert!(volume.restore("s", "before").is_err());
    place.set_outage(false);
    assert_eq!(place.head("volumes/ws/head"), head);
    assert_eq!((node.list(Some("ws")).unwrap().len(), place.leases()), (1, 0));
    write_file(volume.engine(), "c", b"three");
    volume.close().unwrap();
    place.collect();
    assert!(node.verify(&ws()).unwrap().findings.is_empty());
    let volume = place.node("two").open("ws").unwrap();
    let read = ["a", "b", "c"].map(|name| read_file(volume.engine(), name).unwrap());
    assert_eq!(read, [&b"one"[..], b"two", b"three"]);
}

#[test]
fn a_state_of_an_earlier_volume_of_the_name_is_restored_within_the_bounds_of_the_present_one() {
    let place = Place::new();
    let (node, first) = (place.node("one"), place.volume("ws"));
    write_file(first.engine(), "a", b"one");
    first.snapshot("s", "").unwrap();
    drop(first);
    node.remove(&ws()).unwrap();
    let bounds = Options { bytes_max: 1 << 20, durability: Durability::Object, ..Options::default() };
    node.create("ws", &bounds).unwrap();
    let volume = node.open("ws").unwrap();
    let created = node.inspect(&ws()).unwrap().created;
    volume.restore("s", "before").unwrap();
    node.fork(&ws(), "fork").unwrap();
    let ino = volume.engine().lookup(ROOT, b"a").unwrap().ino;
    assert!(volume.engine().write(ino, 0, &vec![1; (1 << 20) + 1], false).is_err());
    drop(volume);
    for name in ["ws", "fork"] {
        let about = node.inspect(&Origin::Volume(name.to_owned())).unwrap();
        assert_eq!((about.usage.bytes_max, about.durability), (1 << 20, Durability::Object), "{name}");
        assert_eq!(about.created == created, name == "ws");
        assert_eq!(read_file(node.open(name).unwrap().engine(), "a"), Some(b"one".to_vec()));
    }
}
