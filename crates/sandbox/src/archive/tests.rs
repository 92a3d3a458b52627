//! Archives of small trees, and hostile ones. They need no root; what needs it is in the host tests.

use std::{
    error::Error as _,
    fs::{self, File},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

use base::frame::HEADER_BYTES;
use rustix::{
    fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr},
    process::{getegid, geteuid},
};
use tempfile::TempDir;

use super::{
    ArchiveTotals,
    limits::{FILE_BYTES_MAX, RECORD_BYTES_MAX},
    pack_layer,
    record::{Attributes, Node, Record, Sink},
    unpack_layer,
};
use crate::error::Error;

const GOLDEN: &[u8] = include_bytes!("../../tests/golden/layer-archive-v1.bin");

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Unpacks to `name`; a refusal must leave nothing.
    fn unpack(&self, archive: &[u8], name: &str) -> Result<ArchiveTotals, Error> {
        let before = fs::read_dir(self.0.path()).unwrap().count();
        let result = unpack_layer(&mut &archive[..], &self.at(name));
        let more = fs::read_dir(self.0.path()).unwrap().count() - before;
        assert_eq!(more, usize::from(result.is_ok()), "{result:?}");
        result
    }
}

fn pack(dir: &Path) -> Vec<u8> {
    let mut archive = Vec::new();
    let totals = pack_layer(dir, &mut archive).unwrap();
    assert_eq!(totals.archive_bytes, archive.len() as u64);
    archive
}

/// A sound archive of whatever records; the layer's own are around them.
fn archive(records: &[Record<'_>]) -> Vec<u8> {
    let mut all = vec![entry(b"", Node::Directory)];
    all.extend(records);
    all.push(Record::End);
    raw(&all)
}

fn raw(records: &[Record<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut sink = Sink::new(&mut bytes);
    let (mut entries, mut data_bytes) = (0, 0);
    for record in records {
        sink.put(record).unwrap();
        match record {
            Record::Entry { .. } | Record::Link { .. } => entries += 1,
            Record::Data { bytes, .. } => data_bytes += bytes.len() as u64,
            Record::Xattr { .. } | Record::End | Record::Trailer { .. } => {}
        }
    }
    sink.finish(entries, data_bytes).unwrap();
    bytes
}

fn entry<'a>(name: &'a [u8], node: Node<'a>) -> Record<'a> {
    Record::Entry { name, attributes: own(), node }
}

fn own() -> Attributes {
    Attributes { mode: 0o755, uid: geteuid().as_raw(), gid: getegid().as_raw(), seconds: -7, nanoseconds: 5 }
}

/// The frames of an archive, each of which is sound by itself.
fn frames(mut archive: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    while !archive.is_empty() {
        let length = u32::from_le_bytes(archive[8..12].try_into().unwrap()) as usize;
        let (frame, rest) = archive.split_at(HEADER_BYTES + length);
        frames.push(frame);
        archive = rest;
    }
    frames
}

/// One of everything that needs no root.
fn small_tree(dir: &Path) {
    fs::create_dir_all(dir.join("d/e")).unwrap();
    fs::write(dir.join("d/text"), "some text").unwrap();
    fs::hard_link(dir.join("d/text"), dir.join("another name")).unwrap();
    symlink("../../nowhere", dir.join("d/e/link")).unwrap();
    fs::write(dir.join(std::ffi::OsStr::from_bytes(b"\xff\n")), "").unwrap();
    let sparse = File::create(dir.join("sparse")).unwrap();
    sparse.write_at(b"end", 3 << 20).unwrap();
    setxattr(dir.join("d/text"), "user.a", b"\0\n", XattrFlags::empty()).unwrap();
    setxattr(dir.join("d"), "user.b", b"", XattrFlags::empty()).unwrap();
    mknodat(CWD, dir.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    mknodat(CWD, dir.join("gone"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    UnixListener::bind(dir.join("socket")).unwrap();
}

#[test]
fn what_is_unpacked_packs_to_the_same_bytes() {
    let place = Place::new();
    small_tree(&place.at("from"));
    let packed = pack(&place.at("from"));
    let totals = place.unpack(&packed, "to").unwrap();
    assert_eq!(totals, ArchiveTotals { entries: 11, data_bytes: 12, archive_bytes: packed.len() as u64 });
    assert_eq!(pack(&place.at("to")), packed);
    let sparse = fs::metadata(place.at("to/sparse")).unwrap();
    assert_eq!(sparse.len(), (3 << 20) + 3);
    assert!(sparse.blocks() < 64, "holes stay holes");
    let inode = |name| fs::metadata(place.at(name)).unwrap().ino();
    assert_eq!(inode("to/d/text"), inode("to/another name"));
}

#[test]
fn zeros_and_holes_are_the_same() {
    let place = Place::new();
    let contents = [vec![0; 400_000], [vec![1; 5_000], vec![0; 300_001], vec![2; 70_000]].concat(), vec![3; 131_073]];
    for (name, holes) in [("zeros", false), ("holes", true)] {
        fs::create_dir(place.at(name)).unwrap();
        for (number, content) in contents.iter().enumerate() {
            let file = File::create(place.at(name).join(number.to_string())).unwrap();
            file.set_len(content.len() as u64).unwrap();
            for (page, bytes) in content.chunks(4096).enumerate() {
                if !holes || bytes.iter().any(|byte| *byte != 0) {
                    file.write_all_at(bytes, page as u64 * 4096).unwrap();
                }
            }
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
        }
        File::open(place.at(name)).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    let packed = pack(&place.at("zeros"));
    assert!(packed == pack(&place.at("holes")));
    place.unpack(&packed, "to").unwrap();
    for (number, content) in contents.iter().enumerate() {
        assert!(fs::read(place.at("to").join(number.to_string())).unwrap() == *content, "{number}");
    }
}

#[test]
fn every_truncation_every_bit_flip_and_every_addition_is_refused() {
    let place = Place::new();
    small_tree(&place.at("from"));
    let packed = pack(&place.at("from"));
    for length in 0..packed.len() {
        place.unpack(&packed[..length], "to").unwrap_err();
    }
    // Each bit as a soak, one of each byte without `PANDO_ROUNDS`.
    let all = std::env::var_os("PANDO_ROUNDS").is_some();
    for bit in (0..packed.len() * 8).filter(|bit| all || bit % 8 == bit / 8 % 8) {
        let mut damaged = packed.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(place.unpack(&damaged, "to").is_err(), "bit {bit}");
    }
    place.unpack(&[&packed[..], b"\0"].concat(), "to").unwrap_err();
}

#[test]
fn missing_repeated_and_exchanged_records_are_refused() {
    let place = Place::new();
    small_tree(&place.at("from"));
    let packed = pack(&place.at("from"));
    let sound = frames(&packed);
    for at in 0..sound.len() {
        let (before, from) = sound.split_at(at);
        let missing = [before, &from[1..]].concat();
        let repeated = [before, &from[..1], from].concat();
        for frames in [missing, repeated] {
            assert!(place.unpack(&frames.concat(), "to").is_err(), "{at}");
        }
        for other in (0..at).filter(|other| sound[*other] != sound[at]) {
            let mut exchanged = sound.clone();
            exchanged.swap(at, other);
            assert!(place.unpack(&exchanged.concat(), "to").is_err(), "{at} {other}");
        }
    }
}

#[test]
fn an_existing_directory_is_left_alone() {
    let place = Place::new();
    fs::create_dir(place.at("to")).unwrap();
    let before = fs::metadata(place.at("to")).unwrap();
    let error = place.unpack(&archive(&[]), "to");
    assert!(matches!(error, Err(Error::Exists(_))));
    assert_eq!(fs::metadata(place.at("to")).unwrap().mtime_nsec(), before.mtime_nsec());
}

#[test]
fn hostile_archives_are_refused() {
    let place = Place::new();
    fs::write(place.at("outside"), "kept").unwrap();
    let file = |name| entry(name, Node::File { size: 10 });
    let with = |attributes| Record::Entry { name: b"a", attributes, node: Node::Pipe };
    let data = |at, bytes| Record::Data { at, bytes };
    let xattr = |name, value| Record::Xattr { name, value };
    let long = [b'a'; 300];
    let huge = vec![0; (64 << 10) + 1];
    let end = || Record::End;
    let cases: Vec<(&str, Vec<Record<'_>>)> = vec![
        ("not sound", vec![file(b".."), end()]),
        ("not sound", vec![file(b"."), end()]),
        ("not sound", vec![file(b"../outside"), end()]),
        ("not sound", vec![file(b"/etc/x"), end()]),
        ("not sound", vec![file(b"a\0"), end()]),
        ("not sound", vec![file(&long), end()]),
        ("not sound", vec![file(b""), end()]),
        ("no name", vec![entry(b"", Node::Directory), end()]),
        ("twice", vec![file(b"a"), end(), file(b"a"), end()]),
        ("out of order", vec![file(b"b"), end(), file(b"a"), end()]),
        ("no directory", vec![file(b"a"), file(b"b"), end(), end()]),
        ("no directory", vec![entry(b"a", Node::Symlink { target: b".." }), file(b"b"), end(), end()]),
        ("behind", vec![xattr(b"user.a", b""), file(b"a"), end()]),
        ("too large", vec![entry(b"a", Node::File { size: FILE_BYTES_MAX + 1 }), end()]),
        ("too large", vec![entry(b"a", Node::File { size: u64::MAX }), end()]),
        ("target", vec![entry(b"a", Node::Symlink { target: b"" }), end()]),
        ("target", vec![entry(b"a", Node::Symlink { target: b"a\0b" }), end()]),
        ("target", vec![entry(b"a", Node::Symlink { target: &huge[..4096] }), end()]),
        ("not in a file", vec![data(0, b"x")]),
        ("out of place", vec![entry(b"a", Node::Pipe), data(0, b"x"), end()]),
        ("out of place", vec![file(b"a"), data(9, b"xy"), end()]),
        ("out of place", vec![file(b"a"), data(u64::MAX, b"x"), end()]),
        ("out of place", vec![file(b"a"), data(0, b""), end()]),
        ("out of place", vec![file(b"a"), data(0, b"xy"), data(1, b"x"), end()]),
        ("out of place", vec![file(b"a"), xattr(b"user.a", b""), data(1, b"x"), end()]),
        ("attributes", vec![with(Attributes { mode: 0o10000, ..own() }), end()]),
        ("attributes", vec![with(Attributes { uid: u32::MAX, ..own() }), end()]),
        ("attributes", vec![with(Attributes { gid: u32::MAX, ..own() }), end()]),
        ("attributes", vec![with(Attributes { nanoseconds: 1_000_000_000, ..own() }), end()]),
        // UTIME_NOW
        ("attributes", vec![with(Attributes { nanoseconds: (1 << 30) - 1, ..own() }), end()]),
        ("extended attribute", vec![xattr(b"", b"")]),
        ("extended attribute", vec![xattr(b"user.a\0", b"")]),
        ("extended attribute", vec![xattr(&long, b"")]),
        ("extended attribute", vec![xattr(b"user.a", &huge)]),
        ("twice", vec![xattr(b"user.a", b""), xattr(b"user.a", b"")]),
        ("set an attribute", vec![xattr(b"nothing.known", b"")]),
        ("redirect", vec![xattr(b"trusted.overlay.redirect", b"/../x")]),
        ("another layer", vec![file(b"a"), xattr(b"trusted.overlay.metacopy", b""), end()]),
        ("sound path", vec![Record::Link { name: b"a", first: b"../outside" }]),
        ("sound path", vec![Record::Link { name: b"a", first: b"/outside" }]),
        ("sound path", vec![Record::Link { name: b"a", first: b"" }]),
        ("link", vec![Record::Link { name: b"a", first: b"outside" }]),
        ("link", vec![entry(b"d", Node::Directory), end(), Record::Link { name: b"e", first: b"d" }]),
        (
            "link",
            vec![entry(b"a", Node::Symlink { target: b".." }), end(), Record::Link { name: b"b", first: b"a/outside" }],
        ),
        ("too early", vec![Record::Trailer { entries: 1, data_bytes: 0, digest: [0; 32] }]),
        ("its end", vec![end()]),
    ];
    for (reason, records) in cases {
        let error = place.unpack(&archive(&records), "to").unwrap_err();
        assert!(error.to_string().contains(reason), "{reason}: {error} {:?} {records:?}", error.source());
    }
    for records in [vec![file(b"a"), end()], vec![Record::Link { name: b"a", first: b"b" }], vec![end()], vec![]] {
        place.unpack(&raw(&records), "to").unwrap_err();
    }
    assert_eq!(fs::read(place.at("outside")).unwrap(), b"kept");
}

#[test]
fn shuffled_records_never_reach_outside() {
    let place = Place::new();
    fs::write(place.at("outside"), "kept").unwrap();
    let names: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b".."];
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut unpacked = 0;
    for round in 0..20_000 {
        let count = 1 + random(8);
        let records: Vec<Record<'_>> = (0..count)
            .map(|_| match random(8) {
                0 => entry(names[random(5)], Node::Directory),
                1 => entry(names[random(4)], Node::Symlink { target: b"../outside" }),
                2 => entry(names[random(4)], Node::File { size: 9 }),
                3 => Record::Link { name: names[random(4)], first: names[random(4)] },
                4 => Record::Data { at: random(9) as u64, bytes: b"x" },
                5 => Record::Xattr { name: b"user.a", value: b"" },
                _ => Record::End,
            })
            .collect();
        if place.unpack(&archive(&records), "to").is_ok() {
            unpacked += 1;
            fs::remove_dir_all(place.at("to")).unwrap();
        }
        assert!(round % 1_000 > 0 || fs::read(place.at("outside")).unwrap() == b"kept");
    }
    assert!(unpacked > 100, "{unpacked}");
    assert_eq!(fs::metadata(place.at("outside")).unwrap().nlink(), 1);
}

#[test]
fn nesting_is_bounded() {
    let place = Place::new();
    let nested = |levels: usize| {
        let begins = (0..levels).map(|_| entry(b"d", Node::Directory));
        archive(&begins.chain((0..levels).map(|_| Record::End)).collect::<Vec<_>>())
    };
    place.unpack(&nested(255), "deep").unwrap();
    assert!(pack(&place.at("deep")) == nested(255));
    let error = place.unpack(&nested(256), "to").unwrap_err();
    assert!(error.to_string().contains("too deep"), "{error}");
    fs::create_dir(place.at("above")).unwrap();
    fs::rename(place.at("deep"), place.at("above/d")).unwrap();
    let error = pack_layer(&place.at("above"), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, Error::TooDeep { .. }));
}

#[test]
fn a_record_is_not_read_before_its_length_is_checked() {
    let place = Place::new();
    let mut bytes = archive(&[]);
    bytes[8..12].copy_from_slice(&(RECORD_BYTES_MAX as u32 + 1).to_le_bytes());
    let error = place.unpack(&bytes, "to").unwrap_err();
    assert!(error.source().unwrap().to_string().contains("too long"), "{error:?}");
}

#[test]
fn the_layout_is_the_documented_one() {
    let attributes =
        |mode, id| Attributes { mode, uid: id, gid: id + 1, seconds: 1_700_000_000, nanoseconds: 123_456_789 };
    let entry = |name, mode, node| Record::Entry { name, attributes: attributes(mode, 1000), node };
    let records = [
        entry(b"", 0o755, Node::Directory),
        entry(b"dir", 0o2750, Node::Directory),
        entry(b"file", 0o4711, Node::File { size: 8_196 }),
        Record::Data { at: 8_192, bytes: b"text" },
        Record::Xattr { name: b"user.key", value: b"value" },
        Record::End,
        Record::Xattr { name: b"trusted.overlay.opaque", value: b"y" },
        Record::End,
        entry(b"gone", 0, Node::Whiteout),
        Record::End,
        Record::Link { name: b"link", first: b"dir/file" },
        entry(b"pipe", 0o600, Node::Pipe),
        Record::End,
        entry(b"socket", 0o700, Node::Socket),
        Record::End,
        entry(b"symlink", 0o777, Node::Symlink { target: b"/away" }),
        Record::End,
        Record::End,
    ];
    assert_eq!(raw(&records), GOLDEN);
}
