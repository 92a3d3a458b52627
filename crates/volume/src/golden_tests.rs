//! What volumes write is what docs/formats says: compared with bytes that an independent program wrote.

use std::{collections::BTreeMap, fmt::Debug};

use serde::{Deserialize, Serialize};
use store::{
    id::{KeyId, SegmentId},
    segment::ChunkRef,
};

use crate::{
    apply::Outcome,
    directory::Dirent,
    extents::{Piece, Source, Window},
    inode::{Ino, Inode, Kind, Time},
    op::{Changes, New, Op, Record, Rename, SetXattr},
    state::{Durability, Superblock, encode_xattrs},
    wal::{Header, encode_record},
};

fn both_ways<'a, T: Serialize + Deserialize<'a> + PartialEq + Debug>(value: &T, golden: &'a [u8]) {
    assert_eq!(postcard::to_stdvec(value).unwrap(), golden);
    assert_eq!(&postcard::from_bytes::<T>(golden).unwrap(), value);
}

#[test]
fn an_inode_is_the_documented_one() {
    let inode = Inode {
        kind: Kind::Symlink,
        mode: 0o777,
        uid: 1000,
        gid: 100,
        links: 1,
        size: 6,
        allocated: 0,
        device: 0,
        accessed: Time { seconds: -1, nanos: 999_999_999 },
        modified: Time { seconds: 1_700_000_000, nanos: 5 },
        changed: Time { seconds: 1_700_000_001, nanos: 6 },
        born: Time::default(),
        parent: Ino(300),
        cookie: 1 << 62 | 8,
        target: b"target".to_vec(),
    };
    both_ways(&inode, include_bytes!("../tests/golden/inode-v1.bin"));
}

#[test]
fn an_entry_and_extended_attributes_are_the_documented_ones() {
    let entry = Dirent { ino: Ino(300), kind: Kind::Directory, name: b"name".to_vec() };
    both_ways(&entry, include_bytes!("../tests/golden/entry-v1.bin"));
    let xattrs = BTreeMap::from([(b"user.a".to_vec(), b"1".to_vec()), (b"user.b".to_vec(), Vec::new())]);
    assert_eq!(encode_xattrs(&xattrs).unwrap(), include_bytes!("../tests/golden/xattrs-v1.bin"));
}

#[test]
fn a_window_is_the_documented_one_and_no_other_is_taken() {
    let golden = include_bytes!("../tests/golden/window-v1.bin");
    let chunk = ChunkRef { segment: SegmentId(*b"0123456789abcdef"), offset: 4096, length: 70_000, number: 3 };
    let piece = |start, length, offset| Piece { start, length, source: Source::Chunk { chunk, offset } };
    let window = Window::from_pieces(vec![piece(0, 100, 7), piece(4096, 126_976, 200)]);
    assert_eq!(window.encode().unwrap(), golden);
    assert_eq!(Window::decode(golden).unwrap().encode().unwrap(), golden);
    let overlapping = Window::from_pieces(vec![piece(0, 100, 0), piece(99, 1, 0)]).encode().unwrap();
    let too_long = Window::from_pieces(vec![piece(1, 128 << 10, 0)]).encode().unwrap();
    let empty = Window::from_pieces(vec![piece(1, 0, 0)]).encode().unwrap();
    assert!([&overlapping, &too_long, &empty].into_iter().all(|bytes| Window::decode(bytes).is_none()));
    for length in 0..golden.len() {
        assert!(Window::decode(&golden[..length]).is_none(), "cut to {length}");
    }
}

#[test]
fn a_superblock_is_the_documented_one() {
    let superblock = Superblock {
        salt: std::array::from_fn(|at| at as u8),
        epoch: *b"epoch of 16 byte",
        sequence: 300,
        next_ino: 77,
        bytes: 1 << 40,
        inodes: 65,
        bytes_max: 10 << 30,
        inodes_max: 10 << 20,
        durability: Durability::Object,
        created: Time { seconds: 1_700_000_000, nanos: 7 },
        incarnation: *b"sixteen bytes it",
    };
    both_ways(&superblock, include_bytes!("../tests/golden/superblock-v1.bin"));
}

#[test]
fn the_header_and_the_records_of_a_log_are_the_documented_ones() {
    let header = Header {
        file: SegmentId(*b"0123456789abcdef"),
        key: KeyId(*b"keyidkey"),
        epoch: *b"epoch of 16 byte",
        first: 12,
    };
    assert_eq!(header.encode(), include_bytes!("../tests/golden/log-header-v1.bin"));
    let mut records = Vec::new();
    for op in operations() {
        let start = records.len();
        let record = Record { request: 300, op, outcome: None };
        encode_record(&record, &mut records);
        assert_eq!(Record::decode(&records[start + 4..]).unwrap(), record);
    }
    assert_eq!(records, include_bytes!("../tests/golden/log-records-v1.bin"));
    let mut answered = Vec::new();
    for (ino, bytes) in [(None, 0), (Some(Ino(300)), 70_000)] {
        let outcome = Some(Outcome { ino, bytes });
        let (start, record) = (answered.len(), Record { request: 300, op: operations()[2], outcome });
        encode_record(&record, &mut answered);
        assert_eq!(Record::decode(&answered[start + 4..]).unwrap(), record);
    }
    assert_eq!(answered, include_bytes!("../tests/golden/log-answered-v1.bin"));
}

fn operations() -> [Op<'static>; 16] {
    let (now, ino, directory) = (Time { seconds: 1_700_000_000, nanos: 123 }, Ino(7), Ino(1));
    let (name, attribute) = (&b"name"[..], &b"user.a"[..]);
    let new = New { kind: Kind::Directory, mode: 0o755, uid: 1, gid: 2, device: 0, target: b"" };
    let changes = Changes {
        mode: Some(0o600),
        size: Some(5),
        modified: Some(Time { seconds: 9, nanos: 9 }),
        drop_privileges: true,
        ..Changes::default()
    };
    [
        Op::Make { directory, name, new, now },
        Op::Link { ino, directory, name, now },
        Op::Unlink { directory, name, now },
        Op::RemoveDirectory { directory, name, now },
        Op::Rename { directory, name: b"a", to: Ino(2), new_name: b"b", how: Rename::Exchange, now },
        Op::Reap { ino },
        Op::Change { ino, changes, now },
        Op::Write { ino, offset: 4096, data: b"data", drop_privileges: true, now },
        Op::Punch { ino, offset: 1, length: 2, now },
        Op::Copy { from: ino, from_offset: 1, to: Ino(8), to_offset: 2, length: 3, now },
        Op::SetXattr { ino, name: attribute, value: b"v", how: SetXattr::Create, now },
        Op::RemoveXattr { ino, name: attribute, now },
        Op::MakeUnnamed { directory, new, now },
        Op::Place { ino, directory, name, now },
        Op::Rename { directory, name: b"a", to: Ino(2), new_name: b"b", how: Rename::Whiteout, now },
        Op::Mounted,
    ]
}
