//! Little-used segments go, and nothing that is in use goes with them.

use std::sync::atomic::{AtomicBool, Ordering};

use volume::{Effort, Origin, ROOT, Rename};

use crate::place::{Place, read_file, write_file};

fn ws() -> Origin {
    Origin::Volume("ws".to_owned())
}

#[test]
fn a_manifest_names_few_segments_however_many_commits_there_were() {
    let place = Place::new();
    let (node, volume) = (place.node("one"), place.volume("ws"));
    volume.snapshot("first", "").unwrap();
    for number in 0..300u32 {
        write_file(volume.engine(), &format!("kept{number}"), &number.to_le_bytes());
        if number > 0 {
            volume.engine().unlink(ROOT, format!("gone{}", number - 1).as_bytes()).unwrap();
        }
        write_file(volume.engine(), &format!("gone{number}"), b"short");
        volume.commit().unwrap();
    }
    let before = node.inspect(&ws()).unwrap();
    assert!(before.segments > 500);
    volume.snapshot("before", "").unwrap();
    assert!(volume.compact(Effort::Worthwhile).unwrap());
    // What had data that was moved goes with the commit after.
    volume.commit().unwrap();
    let after = node.inspect(&ws()).unwrap();
    assert!(after.segments < 10, "{}", after.segments);
    assert_eq!(after.usage, before.usage);
    assert_eq!(node.verify(&ws()).unwrap().findings, []);
    let mut told = 0;
    let snapshot = Origin::Snapshot { volume: "ws".to_owned(), snapshot: "before".to_owned() };
    let mut tell = |_| {
        told += 1;
        std::ops::ControlFlow::Continue(())
    };
    node.diff(&snapshot, &ws(), &mut tell).unwrap();
    assert_eq!(told, 0, "data that lies elsewhere is the same");
    place.collect();
    drop(volume);
    let other = place.node("two").open("ws").unwrap();
    for number in 0..300u32 {
        assert_eq!(read_file(other.engine(), &format!("kept{number}")).unwrap(), number.to_le_bytes());
    }
    assert!(!other.compact(Effort::Worthwhile).unwrap(), "there is nothing more to do");
    other.restore("before", "x").unwrap();
    assert!(read_file(other.engine(), "kept299").is_some());
    assert_eq!(node.verify(&ws()).unwrap().findings, []);
}

/// The source of the design lost files here: what it moved in the background it put over newer writes.
#[test]
fn what_is_written_while_everything_is_moved_is_all_there() {
    const FILES: u32 = 60;
    let place = Place::new();
    let volume = place.volume("ws");
    let (done, rounds) = (AtomicBool::new(false), 25);
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                volume.compact(Effort::All).unwrap();
                place.collect();
            }
        });
        let commits = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                volume.commit().unwrap();
            }
        });
        for round in 0..rounds {
            for number in 0..FILES {
                let (name, engine) = (format!("f{number}"), volume.engine());
                let content = format!("{round}-{number} ").repeat(30);
                match number % 3 {
                    0 if round > 0 => {
                        let ino = engine.lookup(ROOT, name.as_bytes()).unwrap().ino;
                        engine.write(ino, 0, content.as_bytes(), false).unwrap();
                    }
                    1 if round > 0 => {
                        // Shares what lies in a segment that may be on its way out.
                        let before = engine.lookup(ROOT, name.as_bytes()).unwrap().ino;
                        let copy = write_file(engine, "copy", b"");
                        engine.copy((before, 0), (copy, 0), 1 << 20).unwrap();
                        engine.rename(ROOT, b"copy", ROOT, name.as_bytes(), Rename::Replace).unwrap();
                        engine.write(copy, 0, content.as_bytes(), false).unwrap();
                    }
                    _ => {
                        write_file(engine, "new", content.as_bytes());
                        engine.rename(ROOT, b"new", ROOT, name.as_bytes(), Rename::Replace).unwrap();
                    }
                }
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        done.store(true, Ordering::Relaxed);
        mover.join().unwrap();
        commits.join().unwrap();
    });
    volume.commit().unwrap();
    place.collect();
    let check = |engine: &volume::Engine| {
        for number in 0..FILES {
            let content = format!("{}-{number} ", rounds - 1).repeat(30);
            assert_eq!(read_file(engine, &format!("f{number}")).unwrap(), content.as_bytes(), "{number}");
        }
    };
    check(volume.engine());
    drop(volume);
    check(place.node("two").open("ws").unwrap().engine());
    assert_eq!(place.node("one").verify(&ws()).unwrap().findings, []);
}
