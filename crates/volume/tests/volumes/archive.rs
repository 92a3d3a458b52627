//! Volumes as archives: both ways, with other programs, and against hostile ones.

use std::{fs, io::Write, os::unix::fs::FileExt, path::Path, process::Command};

use rustix::io::Errno;
use volume::{
    Changes, Engine, Ino, Kind, Links, New, ROOT, SetXattr, Time,
    archive::{ArchiveError, export, import},
};

use crate::place::{Place, file, new, write_file};

/// All that there is, as lines.
fn lines(engine: &Engine) -> Vec<String> {
    let (mut lines, mut first) = (Vec::new(), std::collections::HashMap::new());
    below(engine, ROOT, String::new(), &mut lines, &mut first);
    lines.sort();
    lines
}

fn below(
    engine: &Engine,
    ino: Ino,
    path: String,
    lines: &mut Vec<String>,
    seen: &mut std::collections::HashMap<Ino, u32>,
) {
    let inode = engine.attributes(ino).unwrap().inode;
    let data = match inode.kind {
        Kind::File if inode.size < 1 << 21 => engine.read(ino, 0, 1 << 21).unwrap(),
        _ => Vec::new(),
    };
    let sum = data.iter().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
    let xattrs: Vec<_> =
        engine.xattrs(ino).unwrap().into_iter().map(|name| (engine.xattr(ino, &name).unwrap(), name)).collect();
    let (kind, mode, uid, gid, links) = (inode.kind, inode.mode, inode.uid, inode.gid, inode.links);
    let (size, allocated, device, modified) = (inode.size, inode.allocated, inode.device, inode.modified);
    lines.push(format!(
        "{path} {kind:?} {mode:o} {uid} {gid} {links} {size} {allocated} {device} {modified:?} {:?} {sum} {xattrs:?} {:?}",
        inode.accessed, inode.target
    ));
    seen.insert(ino, 1);
    if inode.kind == Kind::Directory {
        for entry in engine.list(ino, 2, 100_000).unwrap() {
            below(engine, entry.ino, format!("{path}/{}", String::from_utf8_lossy(&entry.name)), lines, seen);
        }
    }
}

fn fill(engine: &Engine) {
    let time = |seconds, nanos| Some(Time { seconds, nanos });
    let long = "l".repeat(200);
    let (directory, name) =
        engine.make_parents(format!("d/{long}/{long}/file").as_bytes(), new(Kind::Directory), |_, _| ()).unwrap();
    let ino = engine.make(directory, &name, New { uid: 5_000_000, gid: 7, mode: 0o4755, ..file() }).unwrap().ino;
    engine.write(ino, 0, &[7; 70_001], false).unwrap();
    engine.set_xattr(ino, b"user.bytes", &[0, 10, 61, 255], SetXattr::Either).unwrap();
    engine.set_xattr(ROOT, b"user.top", b"1", SetXattr::Either).unwrap();
    engine.link(ino, ROOT, b"second name").unwrap();
    let times = Changes { modified: time(-3, 500), accessed: time(1_700_000_000, 1), ..Changes::default() };
    engine.change(ino, times).unwrap();
    for (kind, device) in [(Kind::Fifo, 0), (Kind::Socket, 0), (Kind::CharDevice, 0x0103), (Kind::BlockDevice, 0x0801)]
    {
        engine.make(ROOT, format!("{kind:?}").as_bytes(), New { device, ..new(kind) }).unwrap();
    }
    for (name, target) in [("short", "../outside"), ("long", &*long)] {
        engine.make(ROOT, name.as_bytes(), New { target: target.as_bytes(), ..new(Kind::Symlink) }).unwrap();
    }
    let sparse = write_file(engine, "sparse", b"");
    for at in [1 << 20, 5 << 20, 100 << 30] {
        engine.write(sparse, at, &[9; 5000], false).unwrap();
    }
    engine.change(sparse, Changes { size: Some(200 << 30), ..Changes::default() }).unwrap();
    let hole = write_file(engine, "hole", b"");
    engine.change(hole, Changes { size: Some(12_345), ..Changes::default() }).unwrap();
    write_file(engine, "empty", b"");
    write_file(engine, "block", &[1; 512]);
    let inner = engine.resolve(b"d", Links::Keep).unwrap().ino;
    engine.change(inner, Changes { mode: Some(0o1777), modified: time(5, 5), ..Changes::default() }).unwrap();
}

#[test]
fn an_archive_makes_the_same_volume_again() {
    let place = Place::new();
    let volume = place.volume("ws");
    fill(volume.engine());
    let mut archive = Vec::new();
    export(volume.engine(), ROOT, &mut archive).unwrap();
    assert!(archive.len() < 1 << 20 && archive.len().is_multiple_of(512));
    let copy = place.volume("copy");
    for _ in 0..2 {
        // The second time over what the first one made.
        import(copy.engine(), ROOT, &archive[..]).unwrap();
        assert_eq!(lines(copy.engine()), lines(volume.engine()));
    }
    for length in (0..archive.len()).step_by(1009) {
        // A connection that breaks off is told, or nothing was missing.
        if import(place.volume(&format!("cut{length}")).engine(), ROOT, &archive[..length]).is_ok() {
            assert!(length.is_multiple_of(512) || length > archive.len() - 1024, "{length}");
        }
        if length > 20_000 {
            break;
        }
    }
}

#[test]
fn other_programs_read_what_is_written_and_write_what_is_read() {
    let place = Place::new();
    let volume = place.volume("ws");
    let engine = volume.engine();
    fill(engine);
    for device in ["CharDevice", "BlockDevice", "Socket"] {
        engine.unlink(ROOT, device.as_bytes()).unwrap();
    }
    let mut archive = Vec::new();
    export(engine, ROOT, &mut archive).unwrap();
    let path = place.directory.path().join("a.tar");
    fs::write(&path, &archive).unwrap();
    let out = place.directory.path().join("out");
    fs::create_dir(&out).unwrap();
    run("tar", &["--extract", "--sparse", "--xattrs", "--same-permissions", "--file"], &path, &out);
    let again = place.directory.path().join("again.tar");
    run("tar", &["--create", "--format=pax", "--sparse", "--xattrs", "--file"], &again, &out);
    let copy = place.volume("copy");
    import(copy.engine(), ROOT, fs::File::open(&again).unwrap()).unwrap();
    let of = |engine: &Engine| {
        // Tools touch times of access, and find holes as large as the disk's.
        let path = |line: &str| line.split(" Time").next().unwrap().replace("Symlink 777", "Symlink 755");
        lines(engine).iter().map(|line| path(line)).filter(|line| !line.contains("/sparse")).collect::<Vec<_>>()
    };
    assert_eq!(of(copy.engine()), of(engine));
    let sparse = copy.engine().resolve(b"sparse", Links::Keep).unwrap();
    assert_eq!(sparse.inode.size, 200 << 30);
    assert_eq!(copy.engine().read(sparse.ino, (100 << 30) - 2, 10).unwrap(), [0, 0, 9, 9, 9, 9, 9, 9, 9, 9]);
    assert!(sparse.inode.allocated < 1 << 20);
}

/// GNU tar tells of holes in four ways; a file with more than 4 stretches of data needs a longer map in each.
#[test]
fn files_with_holes_are_read_in_every_format_of_gnu_tar() {
    let place = Place::new();
    let tree = place.directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let file = fs::File::create(tree.join("holes")).unwrap();
    for part in 0..40_u8 {
        file.write_all_at(&[part + 1; 4096], u64::from(part) << 20).unwrap();
    }
    file.set_len(100 << 20).unwrap();
    let expected = fs::read(tree.join("holes")).unwrap();
    let formats = [
        &["--format=gnu"][..],
        &["--format=pax", "--sparse-version=0.0"],
        &["--format=pax", "--sparse-version=0.1"],
        &["--format=pax", "--sparse-version=1.0"],
    ];
    for (number, format) in formats.into_iter().enumerate() {
        let archive = place.directory.path().join(format!("{number}.tar"));
        run("tar", &[&["--create", "--sparse"], format, &["--file"]].concat(), &archive, &tree);
        let volume = place.volume(&format!("v{number}"));
        import(volume.engine(), ROOT, fs::File::open(&archive).unwrap()).unwrap();
        let found = volume.engine().resolve(b"holes", Links::Keep).unwrap();
        assert_eq!(found.inode.size, 100 << 20, "{format:?}");
        assert!(found.inode.allocated <= 1 << 20, "{format:?}: {} bytes", found.inode.allocated);
        for part in 0..100 {
            let (at, length) = (part << 20, 8192);
            let read = volume.engine().read(found.ino, at, length).unwrap();
            assert!(read[..] == expected[at as usize..][..length as usize], "{format:?}: another content at {at}");
        }
    }
}

fn run(program: &str, arguments: &[&str], archive: &Path, directory: &Path) {
    let (archive, directory) = (archive.to_str().unwrap(), directory.to_str().unwrap());
    let status = Command::new(program).args(arguments).args([archive, "--directory", directory, "."]).status();
    assert!(status.unwrap().success(), "{program} {arguments:?}");
}

/// A member with a header that says what it likes.
fn member(name: &str, kind: u8, link: &str, size: u64, records: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    if !records.is_empty() {
        bytes.extend(member("x", b'x', "", records.len() as u64, b""));
        bytes.extend_from_slice(records);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_size(size);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    bytes.write_all(header.as_bytes()).unwrap();
    bytes
}

#[test]
fn hostile_archives_are_refused_and_nothing_leaves_the_directory() {
    let place = Place::new();
    let volume = place.volume("ws");
    let engine = volume.engine();
    write_file(engine, "outside", b"mine");
    let top = engine.make(ROOT, b"top", new(Kind::Directory)).unwrap().ino;
    let sparse = |map: &str, size: u64| {
        let records = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n".to_vec();
        let record = format!("GNU.sparse.realsize={size}\n");
        let records = [&records[..], format!("{} {record}", record.len() + 3).as_bytes()].concat();
        let mut archive = member("s", b'0', "", 1024, &records);
        archive.extend_from_slice(map.as_bytes());
        archive.resize(archive.len().next_multiple_of(512) + 512, 0);
        archive
    };
    let through = [member("l", b'2', "..", 0, b""), member("l/outside", b'0', "", 0, b"")].concat();
    let cases = [
        ("out of it", member("../outside", b'0', "", 0, b"")),
        ("out of it below", member("a/../../outside", b'0', "", 0, b"")),
        ("through a link", through),
        ("a link to outside", member("h", b'1', "../outside", 0, b"")),
        ("a huge header", member("x", b'x', "", 1 << 30, b"")),
        ("records that lie", member("f", b'0', "", 0, b"99 path=x\n")),
        ("more data than there is", member("f", b'0', "", 1 << 40, b"")),
        ("a kind of its own", member("f", b'V', "", 0, b"")),
        ("a long name", member("f", b'0', "", 0, format!("265 path={}\n", "n".repeat(255 + 1)).as_bytes())),
        ("parts beyond the end", sparse("1\n0\n512\n", 100)),
        ("parts that overlap", sparse("2\n0\n300\n200\n100\n", 10_000)),
        ("parts without end", sparse("99999999999\n", 10_000)),
        ("no map", sparse("x", 10_000)),
        ("garbage", vec![7; 1024]),
        ("half a block", vec![0x20; 100]),
    ];
    for (what, archive) in cases {
        let imported = import(engine, top, &archive[..]);
        assert!(imported.is_err(), "{what}");
    }
    let outside = engine.lookup(ROOT, b"outside").unwrap();
    assert_eq!((engine.read(outside.ino, 0, 9).unwrap(), outside.inode.links), (b"mine".to_vec(), 1));
    assert_eq!(engine.attributes(ROOT).unwrap().inode.size, 2);
    // What fits the bounds of an archive has to fit the volume, too.
    let node = place.node("one");
    node.create("small", &volume::Options { bytes_max: 1000, ..Default::default() }).unwrap();
    let small = node.open("small").unwrap();
    let mut archive = member("f", b'0', "", 2000, b"");
    archive.resize(archive.len() + 2048, 1);
    match import(small.engine(), ROOT, &archive[..]) {
        Err(ArchiveError::Volume { source: Errno::NOSPC, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(small.engine().usage().unwrap().inodes, 1, "half a file is none");
}
