//! A process that served a mount dies, and another takes its place: what the kernel knows stays.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::io::Errno;
use volume::{Kind, Origin, ROOT, Rename, Volume, VolumeError};

use crate::place::{Place, file, new, read_file, write_file};

#[test]
fn files_without_a_name_stay_until_the_kernel_forgets_them() {
    let place = Place::new();
    let volume = place.volume("ws");
    let (engine, names) = (volume.engine(), ["before commit", "before crash", "after crash"]);
    let inos = names.map(|name| write_file(engine, name, name.as_bytes()));
    inos.iter().for_each(|ino| engine.pin(*ino).unwrap());
    engine.unlink(ROOT, b"before commit").unwrap();
    volume.commit().unwrap();
    engine.unlink(ROOT, b"before crash").unwrap();
    engine.write_log().unwrap();
    drop(volume);
    for _ in 0..2 {
        let volume = place.node("one").adopt("ws").unwrap();
        let engine = volume.engine();
        for (ino, name) in inos.iter().zip(names) {
            assert_eq!(engine.read(*ino, 0, 100).unwrap(), name.as_bytes());
            engine.write(*ino, 0, name.as_bytes(), false).unwrap();
        }
        engine.write_log().unwrap();
    }
    let volume = place.node("one").adopt("ws").unwrap();
    let engine = volume.engine();
    engine.unlink(ROOT, b"after crash").unwrap();
    assert!(engine.read(inos[2], 0, 100).is_ok(), "it was known before the crash");
    // The kernel takes back what it was told by both processes, at once.
    engine.pin(inos[0]).unwrap();
    engine.unpin(inos[0], 2).unwrap();
    engine.unpin(inos[1], 1).unwrap();
    assert_eq!(inos.map(|ino| engine.read(ino, 0, 1).is_ok()), [false, false, true]);
    // Files of after the crash are exact.
    let young = write_file(engine, "young", b"");
    engine.unlink(ROOT, b"young").unwrap();
    assert_eq!(engine.read(young, 0, 1), Err(Errno::STALE));
    volume.close().unwrap();
    assert_eq!(engine.usage().unwrap().inodes, 1);
    assert_eq!(engine.make(ROOT, b"x", file()).err(), Some(Errno::ROFS));
}

/// A file with two names: the kernel forgets it with the first, and finds it again by the second before that is heard of.
#[test]
fn what_the_kernel_took_back_before_it_was_told_again_takes_no_file_away() {
    let place = Place::new();
    let volume = place.volume("ws");
    let ino = write_file(volume.engine(), "second", b"data");
    (0..5).for_each(|_| volume.engine().pin(ino).unwrap());
    volume.engine().write_log().unwrap();
    drop(volume);
    let volume = place.node("one").adopt("ws").unwrap();
    let engine = volume.engine();
    engine.pin(ino).unwrap();
    engine.unlink(ROOT, b"second").unwrap();
    engine.unpin_unless(ino, 5, || true).unwrap();
    assert_eq!(engine.read(ino, 0, 9).unwrap(), b"data");
    engine.unpin_unless(ino, 1, || false).unwrap();
    assert_eq!(engine.read(ino, 0, 9), Err(Errno::STALE));
}

#[test]
fn whoever_works_on_a_file_keeps_it() {
    let place = Place::new();
    let volume = place.volume("ws");
    let engine = volume.engine();
    let ino = write_file(engine, "a", b"data");
    let hold = engine.hold(ino).unwrap();
    let second = engine.hold(ino).unwrap();
    engine.unlink(ROOT, b"a").unwrap();
    drop(second);
    assert_eq!(engine.read(hold.ino(), 0, 9).unwrap(), b"data");
    drop(hold);
    assert_eq!(engine.read(ino, 0, 9), Err(Errno::STALE));
}

#[test]
fn what_was_done_of_a_request_is_known_to_the_next_process() {
    let place = Place::new();
    let volume = place.volume("ws");
    let engine = volume.engine();
    let made = engine.serving(4, || engine.make(ROOT, b"d", new(Kind::Directory))).unwrap();
    let gone = write_file(engine, "gone", b"x");
    engine.serving(6, || engine.unlink(ROOT, b"gone")).unwrap();
    assert_eq!(engine.serving(8, || engine.rename(ROOT, b"none", ROOT, b"x", Rename::Replace)), Err(Errno::NOENT));
    let nobodys = engine.make(ROOT, b"e", new(Kind::Directory)).unwrap();
    engine.write_log().unwrap();
    assert_eq!(engine.done(4), None, "of this process the kernel knows itself");
    drop(volume);
    let volume = place.node("one").adopt("ws").unwrap();
    let done = [4, 6, 8, 0].map(|request| volume.engine().done(request).map(|done| done.ino));
    assert_eq!(done, [Some(Some(made.ino)), Some(Some(gone)), None, None]);
    assert!(volume.engine().attributes(nobodys.ino).is_ok());
}

#[test]
fn what_was_done_of_a_request_that_is_not_answered_is_known_beside_a_commit() {
    let place = Place::new();
    let volume = place.volume("ws");
    // It is committed before it is answered, and the process dies.
    let made = volume.engine().serving(4, || {
        let made = volume.engine().make(ROOT, b"d", new(Kind::Directory)).unwrap();
        std::thread::scope(|scope| scope.spawn(|| volume.commit().unwrap()).join()).unwrap();
        made
    });
    let done = |volume: &Volume, request| volume.engine().done(request).map(|done| done.ino);
    drop(volume);
    // Whoever comes after it dies, too, before the kernel has asked again.
    for round in 0..3 {
        let volume = place.node("one").adopt("ws").unwrap();
        assert_eq!(done(&volume, 4), Some(Some(made.ino)), "round {round}");
        volume.keep_requests_until(|| false);
        volume
            .engine()
            .serving(5 + round, || volume.engine().make(ROOT, format!("{round}").as_bytes(), file()))
            .unwrap();
        volume.commit().unwrap();
    }
    let volume = place.node("one").adopt("ws").unwrap();
    assert!((4..8).all(|request| done(&volume, request).is_some()));
    let files = || std::fs::read_dir(place.log("one", "ws")).unwrap().count();
    let ended = Arc::new(AtomicBool::new(false));
    let asked = ended.clone();
    volume.keep_requests_until(move || asked.load(Ordering::Relaxed));
    let change_and_commit = || {
        write_file(volume.engine(), "a", b"1");
        volume.engine().unlink(ROOT, b"a").unwrap();
        volume.commit().unwrap();
        files()
    };
    let before = files();
    assert!(change_and_commit() > before);
    ended.store(true, Ordering::Relaxed);
    assert_eq!(change_and_commit(), 1);
    drop(volume);
    assert_eq!(done(&place.node("one").adopt("ws").unwrap(), 4), None);
}

#[test]
fn all_that_was_given_to_the_kernel_is_there_and_nothing_is_committed_for_it() {
    let place = Place::new();
    let volume = place.volume("ws");
    for number in 0..100 {
        write_file(volume.engine(), &format!("f{number}"), &[number; 1000]);
        volume.engine().write_log().unwrap();
    }
    drop(volume);
    let stored = place.stored_bytes();
    let volume = place.node("one").adopt("ws").unwrap();
    assert_eq!(place.stored_bytes(), stored);
    assert!((0..100).all(|number| read_file(volume.engine(), &format!("f{number}")).unwrap() == [number; 1000]));
}

#[test]
fn a_volume_that_another_node_has_written_is_not_adopted_and_not_taken_from_it() {
    let place = Place::new();
    let volume = place.volume("ws");
    write_file(volume.engine(), "a", b"1");
    drop(volume);
    let other = place.node("two").open("ws").unwrap();
    assert!(matches!(place.node("one").adopt("ws"), Err(VolumeError::NotOurs { .. })));
    write_file(other.engine(), "b", b"2");
    other.commit().unwrap();
    assert!(place.log("one", "ws").exists(), "the log is left where it is");
}

#[test]
fn whoever_dies_between_a_restore_and_its_log_is_adopted() {
    let place = Place::new();
    let volume = place.volume("ws");
    let a = write_file(volume.engine(), "a", b"1");
    volume.snapshot("one", "").unwrap();
    volume.engine().write(a, 0, b"2", false).unwrap();
    volume.sync().unwrap();
    // The log as it is until the restore is done.
    let (log, kept) = (place.log("one", "ws"), place.log("one", "ws").with_extension("kept"));
    copy_folder(&log, &kept);
    volume.restore("one", "before").unwrap();
    drop(volume);
    std::fs::remove_dir_all(&log).unwrap();
    std::fs::rename(&kept, &log).unwrap();
    let volume = place.node("one").adopt("ws").unwrap();
    assert!(volume.was_restored());
    assert_eq!(read_file(volume.engine(), "a").unwrap(), b"1");
    write_file(volume.engine(), "b", b"3");
    volume.sync().unwrap();
    drop(volume);
    let volume = place.node("one").adopt("ws").unwrap();
    assert!(!volume.was_restored());
    assert_eq!(read_file(volume.engine(), "b").unwrap(), b"3");
    let before = Origin::Snapshot { volume: "ws".to_owned(), snapshot: "before".to_owned() };
    assert_eq!(read_file(place.node("one").open_to_read(&before).unwrap().engine(), "a").unwrap(), b"2");
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}
