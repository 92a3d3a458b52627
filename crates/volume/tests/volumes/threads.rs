//! Many threads at once, with commits in the background: nothing that was written is lost, and nobody waits for a commit.

use std::sync::atomic::{AtomicBool, Ordering};

use volume::{Durability, Kind, ROOT};

use crate::place::{Place, file, new};

/// The source of the design lost 4,430 of 30,000 files here: its compaction put an older state over newer writes.
#[test]
fn files_written_while_commits_run_are_all_there() {
    const THREADS: u64 = 4;
    const FILES: u64 = 400;
    let place = Place::new();
    let volume = place.volume("ws");
    let done = AtomicBool::new(false);
    let content = |thread: u64, number: u64| format!("{thread}-{number}-").repeat(40).into_bytes();
    std::thread::scope(|scope| {
        let commits = scope.spawn(|| {
            let mut count = 0;
            while !done.load(Ordering::Relaxed) {
                volume.commit().unwrap();
                count += 1;
            }
            count
        });
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let engine = volume.engine();
                scope.spawn(move || {
                    let name = format!("d{thread}");
                    let directory = engine.make(ROOT, name.as_bytes(), new(Kind::Directory)).unwrap().ino;
                    for number in 0..FILES {
                        let ino = engine.make(directory, b"tmp", file()).unwrap().ino;
                        let content = content(thread, number);
                        let (first, rest) = content.split_at(100);
                        engine.write(ino, 100, rest, false).unwrap();
                        engine.write(ino, 0, first, false).unwrap();
                        let name = format!("f{number}");
                        engine.rename(directory, b"tmp", directory, name.as_bytes(), volume::Rename::Replace).unwrap();
                        std::thread::sleep(std::time::Duration::from_micros(500));
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::Relaxed);
        assert!(commits.join().unwrap() > 2);
    });
    volume.sync().unwrap();
    drop(volume);
    let volume = place.node("one").open("ws", Durability::Local).unwrap();
    let engine = volume.engine();
    for thread in 0..THREADS {
        let directory = engine.lookup(ROOT, format!("d{thread}").as_bytes()).unwrap();
        assert_eq!(directory.inode.size, FILES);
        for number in 0..FILES {
            let ino = engine.lookup(directory.ino, format!("f{number}").as_bytes()).unwrap().ino;
            assert_eq!(engine.read(ino, 0, 10_000).unwrap(), content(thread, number), "{thread} {number}");
        }
    }
}

#[test]
fn syncs_of_many_threads_are_all_kept() {
    let place = Place::new();
    let volume = place.volume("ws");
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let volume = &volume;
            scope.spawn(move || {
                for number in 0..50 {
                    let name = format!("{thread}-{number}");
                    volume.engine().make(ROOT, name.as_bytes(), file()).unwrap();
                    volume.sync().unwrap();
                }
            });
        }
    });
    drop(volume);
    let volume = place.node("one").open("ws", Durability::Local).unwrap();
    assert_eq!(volume.engine().attributes(ROOT).unwrap().inode.size, 400);
}
