//! Reading what another node writes.

use std::sync::atomic::{AtomicBool, Ordering};

use volume::{Engine, Forget, Options, Origin, ROOT, VolumeError};

use crate::place::{Place, read_file, write_file};

/// In the place of what the file has, if it is there.
fn write_over(engine: &Engine, name: &str, data: &[u8]) {
    match engine.lookup(ROOT, name.as_bytes()) {
        Ok(found) => engine.write(found.ino, 0, data, false).unwrap(),
        Err(_) => drop(write_file(engine, name, data)),
    }
}

fn ws() -> Origin {
    Origin::Volume("ws".to_owned())
}

#[test]
fn a_reader_goes_on_with_every_commit_and_takes_nothing_over() {
    let place = Place::new();
    let writer = place.volume("ws");
    write_file(writer.engine(), "same", b"same");
    write_file(writer.engine(), "changed", b"1");
    write_file(writer.engine(), "removed", b"1");
    writer.commit().unwrap();
    drop(place.node("two").open_to_follow("ws").unwrap());
    // The kernel may know all that were there when the reader before it died.
    let reader = place.node("two").adopt_to_follow("ws").unwrap();
    let ino = |name: &str| writer.engine().lookup(ROOT, name.as_bytes()).unwrap().ino;
    let (same, changed, removed) = (ino("same"), ino("changed"), ino("removed"));
    assert_eq!(read_file(reader.engine(), "changed"), Some(b"1".to_vec()));
    assert_eq!(reader.follow().unwrap(), None);
    write_over(writer.engine(), "changed", b"22");
    writer.engine().unlink(ROOT, b"removed").unwrap();
    write_file(writer.engine(), "new", b"new");
    assert_eq!(reader.follow().unwrap(), None, "it is not committed");
    writer.commit().unwrap();
    assert_eq!(read_file(reader.engine(), "changed"), Some(b"1".to_vec()), "nobody has asked for it");
    let Some(Forget::These { mut names, inodes }) = reader.follow().unwrap() else { panic!("a list was expected") };
    names.sort_unstable();
    let names: Vec<&[u8]> = names.iter().map(|(_, name)| &name[..]).collect();
    assert_eq!(names, [&b"new"[..], b"removed"]);
    assert!([changed, removed, ROOT].iter().all(|ino| inodes.contains(ino)) && !inodes.contains(&same), "{inodes:?}");
    let read = |name| read_file(reader.engine(), name);
    assert_eq!(
        ["same", "changed", "removed", "new"].map(read),
        [Some(b"same".to_vec()), Some(b"22".to_vec()), None, Some(b"new".to_vec())]
    );
    assert!(reader.engine().unlink(ROOT, b"same").is_err());
    for round in 0..20_u8 {
        write_over(writer.engine(), "round", &[round]);
        writer.commit().unwrap();
        reader.follow().unwrap();
        assert_eq!(read("round"), Some(vec![round]));
    }
    writer.snapshot("then", "").unwrap();
    write_over(writer.engine(), "changed", b"333");
    writer.restore("then", "before").unwrap();
    reader.follow().unwrap();
    assert_eq!(read("changed"), Some(b"22".to_vec()));
    reader.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn a_reader_sees_no_other_volume_of_the_same_name() {
    let place = Place::new();
    let writer = place.volume("ws");
    write_file(writer.engine(), "a", b"old");
    writer.commit().unwrap();
    let (first, second) = (place.node("one"), place.node("two"));
    let reader = second.open_to_follow("ws").unwrap();
    first.remove(&ws()).unwrap();
    assert!(matches!(reader.follow(), Err(VolumeError::NotFound { .. })));
    assert!(reader.health().failure.is_some());
    drop(writer);
    first.create("ws", &Options::default()).unwrap();
    let writer = first.open("ws").unwrap();
    write_file(writer.engine(), "a", b"new");
    writer.commit().unwrap();
    assert!(matches!(reader.follow(), Err(VolumeError::Replaced { .. })));
    assert!(matches!(second.adopt_to_follow("ws"), Err(VolumeError::Replaced { .. })));
    assert_eq!(read_file(reader.engine(), "a"), Some(b"old".to_vec()), "its lease keeps it");
}

#[test]
fn what_another_node_writes_is_not_taken_away_by_who_does_not_insist() {
    let place = Place::new();
    let (first, second) = (place.node("one"), place.node("two"));
    let refused = |opened: Result<volume::Volume, VolumeError>| matches!(opened, Err(VolumeError::Elsewhere { .. }));
    first.create("ws", &Options::default()).unwrap();
    let volume = first.open_unless_elsewhere("ws").unwrap();
    assert!(refused(second.open_unless_elsewhere("ws")));
    write_file(volume.engine(), "a", b"1");
    volume.close().unwrap();
    drop(volume);
    assert!(refused(second.open_unless_elsewhere("ws")), "its log is there");
    drop(first.open_unless_elsewhere("ws").unwrap());
    let volume = second.open("ws").unwrap();
    assert!(refused(first.open_unless_elsewhere("ws")));
    first.fork(&ws(), "fork").unwrap();
    drop(second.open_unless_elsewhere("fork").unwrap());
    assert!(refused(first.open_unless_elsewhere("fork")));
    let named = first.snapshot("ws", "named", "by a node that does not write it").unwrap();
    assert_eq!(first.log("ws").unwrap(), [named]);
    assert!(matches!(first.snapshot("ws", "named", ""), Err(VolumeError::Exists { .. })));
    volume.commit().unwrap();
}

#[test]
fn a_volume_is_removed_although_it_is_committed_all_the_time() {
    let place = Place::new();
    for round in 0..10 {
        let name = format!("ws{round}");
        let (volume, done) = (place.volume(&name), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0_u32.. {
                    // From the removal on it is fenced off.
                    if done.load(Ordering::Relaxed) || volume.engine().is_read_only() {
                        break;
                    }
                    write_over(volume.engine(), "a", &number.to_le_bytes());
                    let _ = volume.commit();
                }
            });
            let removed = place.node("one").remove(&Origin::Volume(name.clone()));
            done.store(true, Ordering::Relaxed);
            removed.unwrap();
        });
    }
}
