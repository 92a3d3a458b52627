//! What single operations mean, where the model does not look.

use std::collections::BTreeSet;

use rustix::io::Errno;
use volume::{Changes, Kind, New, Options, ROOT, Rename, SetXattr};

use crate::place::{Place, file, new, write_file};

#[test]
fn names_that_no_kernel_would_ask_for_are_refused() {
    let place = Place::new();
    let volume = place.volume("ws");
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
        assert_eq!(volume.engine().make(ROOT, bad, file()).err(), Some(Errno::INVAL));
    }
    assert_eq!(volume.engine().make(ROOT, &[b'x'; 256], file()).err(), Some(Errno::NAMETOOLONG));
    assert!(volume.engine().make(ROOT, &[b'x'; 255], file()).is_ok());
    let long = [b'x'; 4096];
    let link = New { kind: Kind::Symlink, target: &long, ..file() };
    assert_eq!(volume.engine().make(ROOT, b"l", link).err(), Some(Errno::NAMETOOLONG));
}

#[test]
fn a_listing_goes_on_where_it_was_whatever_comes_and_goes() {
    let place = Place::new();
    let volume = place.volume("ws");
    let engine = volume.engine();
    for number in 0..200 {
        engine.make(ROOT, format!("stays{number}").as_bytes(), file()).unwrap();
        engine.make(ROOT, format!("goes{number}").as_bytes(), file()).unwrap();
    }
    let (mut cookie, mut seen, mut round) = (0, Vec::new(), 0);
    loop {
        let listed = engine.list(ROOT, cookie, 7).unwrap();
        let Some(last) = listed.last() else { break };
        cookie = last.cookie;
        seen.extend(listed.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()));
        let _ = engine.unlink(ROOT, format!("goes{round}").as_bytes());
        engine.make(ROOT, format!("comes{round}").as_bytes(), file()).unwrap();
        round += 1;
        if round % 10 == 0 {
            volume.commit().unwrap();
        }
    }
    let stays = seen.iter().filter(|name| name.starts_with("stays")).count();
    assert_eq!((stays, seen.len()), (200, seen.iter().collect::<BTreeSet<_>>().len()));
    assert_eq!(seen[..2], [".", ".."]);
}

#[test]
fn quotas_say_no_and_room_comes_back() {
    let place = Place::new();
    let node = place.node("one");
    node.create("small", &Options { bytes_max: 10_000, inodes_max: 3, ..Options::default() }).unwrap();
    let volume = node.open("small").unwrap();
    let engine = volume.engine();
    let ino = write_file(engine, "a", &[1; 9_000]);
    assert_eq!(engine.write(ino, 9_000, &[1; 1_001], false), Err(Errno::NOSPC));
    engine.write(ino, 1_000, &[2; 9_000], false).unwrap();
    assert_eq!(engine.allocate(ino, 0, 10_001), Err(Errno::NOSPC));
    engine.punch(ino, 0, 5_000).unwrap();
    assert_eq!(engine.usage().unwrap().bytes, 5_000);
    engine.make(ROOT, b"b", file()).unwrap();
    assert_eq!(engine.make(ROOT, b"c", file()).err(), Some(Errno::NOSPC));
    engine.unlink(ROOT, b"a").unwrap();
    write_file(engine, "c", &[1; 10_000]);
    volume.sync().unwrap();
    drop(volume);
    let volume = node.open("small").unwrap();
    let usage = volume.engine().usage().unwrap();
    assert_eq!((usage.bytes, usage.inodes), (10_000, 3));
}

#[test]
fn group_and_privileges_follow_the_directory_and_the_writer() {
    let place = Place::new();
    let volume = place.volume("ws");
    let engine = volume.engine();
    let shared = New { mode: 0o2775, gid: 7, ..new(Kind::Directory) };
    let shared = engine.make(ROOT, b"shared", shared).unwrap().ino;
    let below = engine.make(shared, b"below", new(Kind::Directory)).unwrap().inode;
    assert_eq!((below.gid, below.mode), (7, 0o2755));
    let program = engine.make(shared, b"program", New { mode: 0o6755, ..file() }).unwrap();
    assert_eq!((program.inode.gid, program.inode.mode), (7, 0o6755));
    engine.write(program.ino, 0, b"x", true).unwrap();
    assert_eq!(engine.attributes(program.ino).unwrap().inode.mode, 0o755);
    let locking = engine.change(program.ino, Changes { mode: Some(0o2644), ..Changes::default() }).unwrap();
    let dropped = Changes { uid: Some(5), drop_privileges: true, ..Changes::default() };
    let changed = engine.change(locking.ino, dropped).unwrap().inode;
    assert_eq!((changed.mode, changed.uid), (0o2644, 5), "set-group-id without execution is a lock, not a privilege");
}

#[test]
fn holes_are_found_and_take_no_room() {
    let place = Place::new();
    let volume = place.volume("ws");
    let engine = volume.engine();
    let ino = write_file(engine, "sparse", b"");
    let far = 100 << 30;
    engine.write(ino, far, b"end", false).unwrap();
    let check = || {
        assert_eq!((engine.seek_data(ino, 0), engine.seek_hole(ino, 0)), (Ok(far), Ok(0)));
        assert_eq!((engine.seek_hole(ino, far), engine.seek_data(ino, far + 3)), (Ok(far + 3), Err(Errno::NXIO)));
        assert_eq!(engine.seek_hole(ino, far + 3), Err(Errno::NXIO));
        assert_eq!(engine.attributes(ino).unwrap().inode.allocated, 3);
        assert_eq!(engine.read(ino, far - 2, 100).unwrap(), b"\0\0end");
    };
    check();
    volume.commit().unwrap();
    check();
    assert_eq!(engine.write(ino, i64::MAX as u64, b"xx", false), Err(Errno::FBIG));
}

#[test]
fn a_copy_shares_data_and_then_goes_its_own_way() {
    let place = Place::new();
    let volume = place.volume("ws");
    let engine = volume.engine();
    let from = write_file(engine, "from", &[7; 300_000]);
    let to = write_file(engine, "to", b"");
    volume.commit().unwrap();
    let before = place.stored_bytes();
    assert_eq!(engine.copy((from, 0), (to, 0), u64::MAX), Ok(300_000));
    assert_eq!(engine.copy((from, 1), (to, 300_001), 10), Ok(10));
    volume.commit().unwrap();
    assert!(place.stored_bytes() - before < 20_000);
    engine.write(from, 0, b"changed", false).unwrap();
    assert_eq!(engine.read(to, 299_999, 20).unwrap(), [&[7, 0][..], &[7; 10]].concat());
    assert_eq!(engine.read(to, 0, 7).unwrap(), [7; 7]);
}

#[test]
fn extended_attributes_have_their_rules() {
    let place = Place::new();
    let volume = place.volume("ws");
    let engine = volume.engine();
    engine.set_xattr(ROOT, b"user.a", b"1", SetXattr::Create).unwrap();
    assert_eq!(engine.set_xattr(ROOT, b"user.a", b"2", SetXattr::Create), Err(Errno::EXIST));
    assert_eq!(engine.set_xattr(ROOT, b"user.b", b"2", SetXattr::Replace), Err(Errno::NODATA));
    assert_eq!(engine.set_xattr(ROOT, b"user.b", &[0; 24 << 10], SetXattr::Either), Err(Errno::NOSPC));
    volume.commit().unwrap();
    assert_eq!((engine.xattr(ROOT, b"user.a"), engine.xattr(ROOT, b"user.b")), (Ok(b"1".to_vec()), Err(Errno::NODATA)));
}

#[test]
fn a_directory_cannot_be_moved_into_itself_nor_used_when_it_is_gone() {
    let place = Place::new();
    let volume = place.volume("ws");
    let engine = volume.engine();
    let above = engine.make(ROOT, b"above", new(Kind::Directory)).unwrap().ino;
    let below = engine.make(above, b"below", new(Kind::Directory)).unwrap().ino;
    assert_eq!(engine.rename(ROOT, b"above", below, b"x", Rename::Replace), Err(Errno::INVAL));
    assert_eq!(engine.rename(above, b"below", ROOT, b"above", Rename::Exchange), Err(Errno::INVAL));
    assert_eq!(engine.lookup(below, b"..").unwrap().ino, above);
    engine.pin(below).unwrap();
    engine.remove_directory(above, b"below").unwrap();
    assert_eq!(engine.make(below, b"x", file()).err(), Some(Errno::NOENT));
    assert_eq!(engine.attributes(below).unwrap().inode.links, 0);
    engine.unpin(below, 1).unwrap();
    assert_eq!(engine.attributes(below).err(), Some(Errno::STALE));
}

#[test]
fn many_small_pieces_of_a_file_become_few() {
    let place = Place::new();
    let volume = place.volume("ws");
    let engine = volume.engine();
    let mut expected = vec![1; 130_000];
    let ino = write_file(engine, "pieces", &expected);
    volume.commit().unwrap();
    for at in (0..130_000).step_by(300) {
        engine.write(ino, at as u64, b"23", false).unwrap();
        expected[at..at + 2].copy_from_slice(b"23");
    }
    volume.commit().unwrap();
    assert_eq!(engine.read(ino, 0, 200_000).unwrap(), expected);
    volume.close().unwrap();
    let volume = place.node("two").open("ws").unwrap();
    assert_eq!(volume.engine().read(ino, 0, 200_000).unwrap(), expected);
}
