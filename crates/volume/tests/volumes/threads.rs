//! Many threads at once, with commits in the background: nothing that was written is lost, and nobody waits for a commit.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::io::Errno;
use volume::{Committer, Engine, Kind, Memory, Options, ROOT, Volume, limits::DIRTY_KEY_BYTES};

use crate::place::{Place, file, new, read_file, write_file};

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
    let volume = place.node("one").open("ws").unwrap();
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
    let volume = place.node("one").open("ws").unwrap();
    assert_eq!(volume.engine().attributes(ROOT).unwrap().inode.size, 400);
}

/// How much may be dirty in the next two tests.
const DIRTY_MAX: u64 = 1 << 20;

/// Has `change` done `count` times, of which `each` bytes at most become dirty, while the store is away and then when it is back.
fn changes_wait(change: fn(&Engine, u32), count: u32, each: u64) -> (Place, Arc<Volume>) {
    let place = Place::new();
    let node = place.node("one").with_memory(Memory { dirty_bytes_max: DIRTY_MAX, ..Memory::default() });
    node.create("ws", &Options::default()).unwrap();
    let volume = Arc::new(node.open("ws").unwrap());
    let committer = Committer::start(volume.clone(), Duration::from_secs(3600)).unwrap();
    let all = volume.bytes_available().unwrap();
    place.set_outage(true);
    let writer = std::thread::spawn({
        let volume = volume.clone();
        move || (0..count).for_each(|number| change(volume.engine(), number))
    });
    let dirty = || volume.engine().dirty_bytes().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while (dirty() <= DIRTY_MAX || volume.health().failure.is_none()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(200));
    assert!(!writer.is_finished());
    assert!(dirty() <= DIRTY_MAX + each);
    assert_eq!(volume.bytes_available().unwrap(), 0);
    assert!(volume.engine().list(ROOT, 0, 10).is_ok(), "what is here can be read");
    place.set_outage(false);
    writer.join().unwrap();
    drop(committer);
    volume.commit().unwrap();
    assert!(dirty() == 0 && volume.bytes_available().unwrap() > all / 2);
    (place, volume)
}

#[test]
fn writers_wait_while_the_store_is_away_and_nothing_is_dropped() {
    const BYTES: usize = 100_000;
    let write = |engine: &Engine, number| {
        write_file(engine, &format!("f{number}"), &[number as u8; BYTES]);
    };
    let (place, _volume) = changes_wait(write, 50, BYTES as u64 + 8 * DIRTY_KEY_BYTES);
    let other = place.node("two").open("ws").unwrap();
    assert!((0..50).all(|number| read_file(other.engine(), &format!("f{number}")).unwrap() == [number; BYTES]));
}

#[test]
fn whoever_makes_names_waits_too() {
    let make = |engine: &Engine, number| drop(engine.make(ROOT, format!("d{number}").as_bytes(), new(Kind::Directory)));
    let (place, _volume) = changes_wait(make, 3000, 8 * DIRTY_KEY_BYTES);
    let other = place.node("two").open("ws").unwrap();
    assert_eq!(other.engine().attributes(ROOT).unwrap().inode.links, 3002);
}

#[test]
fn a_committer_commits_by_itself_and_ends_when_the_volume_is_taken_over() {
    let place = Place::new();
    let volume = Arc::new(place.volume("ws"));
    let _committer = Committer::start(volume.clone(), Duration::from_millis(10)).unwrap();
    write_file(volume.engine(), "a", b"1");
    let deadline = Instant::now() + Duration::from_secs(20);
    while volume.engine().dirty_bytes().unwrap() > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let other = place.node("two").open("ws").unwrap();
    assert_eq!(read_file(other.engine(), "a"), Some(b"1".to_vec()));
    write_file(volume.engine(), "b", b"2");
    while !volume.engine().is_read_only() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(volume.engine().make(ROOT, b"c", file()).err(), Some(Errno::ROFS));
}
