//! What is told of volumes and snapshots.

use volume::{Durability, Options, Origin, VolumeError, limits};

use crate::place::{Place, all_bytes, write_file};

#[test]
fn a_volume_tells_what_it_is_without_being_open() {
    let place = Place::new();
    let node = place.node("one");
    let origin = Origin::Volume("ws".to_owned());
    node.create("ws", &Options { durability: Durability::Object, bytes_max: 1 << 20, ..Options::default() }).unwrap();
    let first = node.inspect(&origin).unwrap();
    let volume = node.open("ws").unwrap();
    write_file(volume.engine(), "a", &[1; 5000]);
    volume.sync().unwrap();
    let then = node.inspect(&origin).unwrap();
    assert_eq!(
        (then.durability, then.usage.bytes, then.usage.inodes, then.usage.bytes_max),
        (Durability::Object, 5000, 2, 1 << 20)
    );
    assert_eq!(then.created, first.created);
    assert!(then.manifest != first.manifest && then.generation > first.generation);
    volume.snapshot("s", "").unwrap();
    node.fork(&Origin::Snapshot { volume: "ws".to_owned(), snapshot: "s".to_owned() }, "fork").unwrap();
    let fork = node.inspect(&Origin::Volume("fork".to_owned())).unwrap();
    assert_eq!((fork.durability, fork.usage), (then.durability, then.usage));
    assert!(fork.created > then.created);
    assert!(matches!(node.inspect(&Origin::Volume("none".to_owned())), Err(VolumeError::NotFound { .. })));
}

#[test]
fn what_a_node_has_committed_it_need_not_fetch_to_tell_of_it_and_what_is_verified_is_fetched() {
    let place = Place::new();
    let (node, origin) = (place.node("one"), Origin::Volume("ws".to_owned()));
    node.create("ws", &Options::default()).unwrap();
    let volume = node.open("ws").unwrap();
    write_file(volume.engine(), "a", &[1; 5000]);
    volume.snapshot("s", "").unwrap();
    place.set_outage(true);
    assert_eq!(node.inspect(&origin).unwrap().usage.bytes, 5000);
    node.fork(&origin, "fork").unwrap();
    assert_eq!(node.inspect(&Origin::Volume("fork".to_owned())).unwrap().usage.bytes, 5000);
    assert!(node.verify(&origin).is_err());
    assert!(place.node("two").inspect(&origin).is_err());
    place.set_outage(false);
    assert!(node.verify(&origin).is_ok());
}

#[test]
fn snapshots_are_told_newest_first_with_their_notes_which_lie_nowhere_in_the_open() {
    let place = Place::new();
    let (node, volume) = (place.node("one"), place.volume("ws"));
    volume.snapshot("z", "the first, about canary-7f3a").unwrap();
    write_file(volume.engine(), "a", b"1");
    let second = volume.snapshot("a", "").unwrap();
    volume.restore("z", "m").unwrap();
    let log = node.log("ws").unwrap();
    let told: Vec<_> = log.iter().map(|snapshot| (&*snapshot.name, &*snapshot.note)).collect();
    assert_eq!(told, [("m", "before z was restored"), ("a", ""), ("z", "the first, about canary-7f3a")]);
    assert_eq!(log[1], second);
    let bytes = all_bytes(place.directory.path());
    assert!(!bytes.windows(11).any(|window| window == b"canary-7f3a"));
    let long = "x".repeat(limits::NOTE_BYTES_MAX + 1);
    assert!(matches!(volume.snapshot("b", &long), Err(VolumeError::Note { .. })));
    assert!(volume.snapshot("b", &long[1..]).is_ok());
    assert!(node.log("none").unwrap().is_empty());
}
