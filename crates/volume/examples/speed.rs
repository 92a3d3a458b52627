//! What the engine itself does per second, without FUSE: `cargo run --release -p pando-volume --example speed [FILES [BYTES]]`. The log is on, and
//! is synced where a line says so. Lines that name the disk do the same with files of the disk that the log is on (`TMPDIR` says which). Compare
//! lines of one run, not runs.

#![allow(clippy::unwrap_used, reason = "a measurement fails by panicking")]

use std::{
    fs::File,
    io::{Read, Write},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use store::{
    Store,
    heads::Heads,
    keys::{MasterKeys, RealmKeys},
    object::Objects,
};
use volume::{Engine, Ino, Kind, New, Options, Origin, ROOT, Rename, Volume, Volumes};

/// Of a file that is synced by itself.
const FILE_BYTES: usize = 4096;
const FILES_PER_DIRECTORY: usize = 1000;

fn main() {
    let argument = |at, default| std::env::args().nth(at).map_or(default, |text| text.parse().unwrap());
    let (files, bytes): (usize, usize) = (argument(1, 30_000), argument(2, FILE_BYTES));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let volumes_of = |node: &str| {
        let objects = folder.path().join("o").to_str().unwrap().parse().unwrap();
        let objects = Objects::open(&objects, Default::default()).unwrap();
        let master = MasterKeys::parse(&format!("test:{}", "42".repeat(32)), "here").unwrap();
        let keys = RealmKeys::new(objects.clone(), Arc::new(master), "test".parse().unwrap());
        let store = Store::new(objects, keys, None, None);
        let heads = runtime.block_on(Heads::open_file(&folder.path().join("heads.db"))).unwrap();
        Volumes::new(heads, store, runtime.handle().clone(), folder.path().join(node))
    };
    let volumes = volumes_of("a node");
    let room = Options { bytes_max: 100 << 30, ..Options::default() };
    volumes.create("ws", &room).unwrap();
    let volume = volumes.open("ws").unwrap();
    let inos = bulk(volume.engine(), files, bytes);
    timed("commit", files, || volume.commit().unwrap());
    println!("{:<34} {:>12.0} MiB", "memory of the process", resident_mib());
    timed("snapshot (nothing changed)", 20, || {
        (0..20).for_each(|number| drop(volume.snapshot(&format!("s{number}"), "").unwrap()));
    });
    timed("fork", 20, || {
        let origin = Origin::Snapshot { volume: "ws".to_owned(), snapshot: "s0".to_owned() };
        (0..20).for_each(|number| volumes.fork(&origin, &format!("f{number}")).unwrap());
    });
    timed("restore, all in memory", 1, || volume.restore("s0", "b").unwrap());
    timed("restore", 10, || (0..10).for_each(|number| drop(volume.restore("s0", &format!("b{number}")).unwrap())));
    for threads in [1, 8, 32] {
        for round in 0..3 {
            synced_on_disk(folder.path(), threads, round);
            synced(&volume, threads, round);
        }
    }
    sequential(&volume, folder.path());
    volume.close().unwrap();
    let volume = timed("open", 1, || volumes.open("ws").unwrap());
    timed("first read", 1, || read(volume.engine(), &inos[..1]));
    drop(volume);
    let other = volumes_of("another node");
    let volume = timed("open on another node, first read", 1, || {
        let volume = other.open("ws").unwrap();
        read(volume.engine(), &inos[..1]);
        volume
    });
    println!("{:<34} {:>12.0} MiB", "memory before a listing of all", resident_mib());
    list_all(volume.engine());
    println!("{:<34} {:>12.0} MiB", "memory after it", resident_mib());
    timed("read, cold", files, || read(volume.engine(), &inos));
    remove(volume.engine(), files);
}

fn bulk(engine: &Engine, files: usize, bytes: usize) -> Vec<Ino> {
    let directories: Vec<Ino> = (0..files.div_ceil(FILES_PER_DIRECTORY))
        .map(|number| engine.make(ROOT, format!("d{number}").as_bytes(), new(Kind::Directory)).unwrap().ino)
        .collect();
    let directory = |number: usize| directories[number / FILES_PER_DIRECTORY];
    let data = vec![7; bytes];
    let inos = timed("create, write", files, || {
        let make = |number| {
            let ino = engine.make(directory(number), name(number).as_bytes(), new(Kind::File)).unwrap().ino;
            engine.write(ino, 0, &data, false).unwrap();
            ino
        };
        (0..files).map(make).collect::<Vec<_>>()
    });
    timed("lookup, read", files, || {
        for number in 0..files {
            let ino = engine.lookup(directory(number), name(number).as_bytes()).unwrap().ino;
            assert_eq!(engine.read(ino, 0, 1 << 20).unwrap().len(), bytes);
        }
    });
    timed("list, attributes", files, || {
        for directory in &directories {
            let mut cookie = 0;
            while let Some(last) = list(engine, *directory, cookie) {
                cookie = last;
            }
        }
    });
    timed("lookup of nothing", files, || {
        (0..files).for_each(|number| assert!(engine.lookup(directory(number), b"nothing").is_err()));
    });
    timed("rename", files, || {
        for number in 0..files {
            let (directory, name) = (directory(number), name(number));
            engine.rename(directory, name.as_bytes(), directory, b"x", Rename::Replace).unwrap();
            engine.rename(directory, b"x", directory, name.as_bytes(), Rename::Replace).unwrap();
        }
    });
    inos
}

/// Takes all inodes into memory.
fn list_all(engine: &Engine) {
    let listed = engine.list(ROOT, 2, 1 << 20).unwrap().into_iter();
    for directory in listed.filter(|entry| entry.kind == Kind::Directory) {
        let mut cookie = 0;
        while let Some(last) = list(engine, directory.ino, cookie) {
            cookie = last;
        }
    }
}

fn list(engine: &Engine, directory: Ino, cookie: u64) -> Option<u64> {
    let listed = engine.list(directory, cookie, 200).unwrap();
    listed.iter().for_each(|entry| drop(engine.attributes(entry.ino).unwrap()));
    listed.last().map(|entry| entry.cookie)
}

fn read(engine: &Engine, inos: &[Ino]) {
    inos.iter().for_each(|ino| assert!(!engine.read(*ino, 0, 1 << 20).unwrap().is_empty()));
}

const SYNCS: usize = 400;

fn synced(volume: &Volume, threads: usize, round: usize) {
    let each = SYNCS / threads;
    timed(&format!("create, write, sync: {threads} threads"), threads * each, || {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || {
                    for number in 0..each {
                        let name = format!("s{threads}-{thread}-{number}-{round}");
                        let ino = volume.engine().make(ROOT, name.as_bytes(), new(Kind::File)).unwrap().ino;
                        volume.engine().write(ino, 0, &[7; FILE_BYTES], false).unwrap();
                        volume.sync().unwrap();
                    }
                });
            }
        });
    });
}

fn synced_on_disk(folder: &Path, threads: usize, round: usize) {
    let each = SYNCS / threads;
    timed(&format!("  the same on the disk: {threads} threads"), threads * each, || {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || {
                    for number in 0..each {
                        let path = folder.join(format!("s{threads}-{thread}-{number}-{round}"));
                        let mut file = File::create(path).unwrap();
                        file.write_all(&[7; FILE_BYTES]).unwrap();
                        file.sync_all().unwrap();
                    }
                });
            }
        });
    });
}

/// A gigabyte of one file, in pieces as the kernel gives them, with a sync at the end.
fn sequential(volume: &Volume, folder: &Path) {
    const PIECE: usize = 1 << 20;
    const PIECES: usize = 1 << 10;
    let mut piece = vec![0; PIECE];
    (0..PIECE).for_each(|at| piece[at] = (at.wrapping_mul(2_654_435_761) >> 13) as u8);
    let path = folder.join("sequential");
    timed("  1 GiB in order to the disk (MiB)", PIECES, || {
        let mut file = File::create(&path).unwrap();
        (0..PIECES).for_each(|_| file.write_all(&piece).unwrap());
        file.sync_all().unwrap();
    });
    let engine = volume.engine();
    let ino = engine.make(ROOT, b"sequential", new(Kind::File)).unwrap().ino;
    timed("1 GiB in order (MiB)", PIECES, || {
        (0..PIECES).for_each(|at| engine.write(ino, (at * PIECE) as u64, &piece, false).unwrap());
        volume.sync().unwrap();
    });
    timed("commit of it (MiB)", PIECES, || volume.commit().unwrap());
    timed("read of it (MiB)", PIECES, || {
        (0..PIECES)
            .for_each(|at| assert_eq!(engine.read(ino, (at * PIECE) as u64, PIECE as u32).unwrap().len(), PIECE));
    });
    timed("  the same from the disk (MiB)", PIECES, || {
        let mut file = File::open(&path).unwrap();
        (0..PIECES).for_each(|_| file.read_exact(&mut piece).unwrap());
    });
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim_end_matches("kB").trim().parse::<f64>().unwrap() / 1024.0
}

fn remove(engine: &Engine, files: usize) {
    timed("unlink, cold", files, || {
        for number in 0..files {
            let name_of = format!("d{}", number / FILES_PER_DIRECTORY);
            let directory = engine.lookup(ROOT, name_of.as_bytes()).unwrap().ino;
            engine.unlink(directory, name(number).as_bytes()).unwrap();
        }
    });
}

fn name(number: usize) -> String {
    format!("file-{number}")
}

fn new(kind: Kind) -> New<'static> {
    New { kind, mode: 0o755, uid: 0, gid: 0, device: 0, target: b"" }
}

fn timed<T>(what: &str, count: usize, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let took: Duration = start.elapsed();
    println!("{what:<34} {:>12.3} ms {:>12.0} /s", took.as_secs_f64() * 1e3, count as f64 / took.as_secs_f64());
    result
}
