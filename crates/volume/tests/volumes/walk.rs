//! Paths that are walked by the engine, and files that appear when they are whole.

use rustix::io::Errno;
use volume::{Engine, Kind, Links, New, ROOT};

use crate::place::{Place, file, new, read_file, write_file};

fn link(engine: &Engine, path: &[u8], target: &[u8]) {
    let (directory, name) = engine.resolve_parent(path).unwrap();
    engine.make(directory, &name, New { target, ..new(Kind::Symlink) }).unwrap();
}

#[test]
fn a_path_leads_where_it_says_and_never_out_of_the_volume() {
    let place = Place::new();
    let volume = place.volume("ws");
    let engine = volume.engine();
    let (directory, name) = engine.make_parents(b"/a/b//c", new(Kind::Directory), |_, _| ()).unwrap();
    assert_eq!((engine.resolve(b"a/b", Links::Keep).unwrap().ino, &*name), (directory, &b"c"[..]));
    let ino = engine.make(directory, b"c", file()).unwrap().ino;
    for (path, target) in [(&b"a/up"[..], &b"../a/b"[..]), (b"top", b"/a/up/"), (b"a/b/out", b"../../../../a/b/c")] {
        link(engine, path, target);
    }
    for path in ["a/b/c", "/a/./b/../b/c", "../../a/b/c", "top/c", "/a/up/out", "a/b/out"] {
        assert_eq!(engine.resolve(path.as_bytes(), Links::Follow).map(|found| found.ino), Ok(ino), "{path}");
    }
    let kept = engine.resolve(b"a/b/out", Links::Keep).unwrap();
    assert_eq!(kept.inode.kind, Kind::Symlink);
    assert_eq!(engine.resolve(b"top/", Links::Keep).unwrap().ino, directory);
    assert_eq!(engine.resolve(b"", Links::Keep).unwrap().ino, ROOT);
    assert_eq!(engine.make_parents(b"top/new/x", new(Kind::File), |_, _| ()).map(|found| found.1), Ok(b"x".to_vec()));
    assert!(engine.resolve(b"a/b/new", Links::Keep).unwrap().inode.is_directory());
    let cases = [("a/b/c/", Errno::NOTDIR), ("a/b/c/d", Errno::NOTDIR), ("a/x/y", Errno::NOENT), ("loop", Errno::LOOP)];
    link(engine, b"loop", b"loop");
    for (path, errno) in cases {
        assert_eq!(engine.resolve(path.as_bytes(), Links::Follow).err(), Some(errno), "{path}");
    }
    for (path, errno) in
        [("", Errno::INVAL), ("a/..", Errno::INVAL), ("a/b/c/d", Errno::NOTDIR), ("loop/x", Errno::LOOP)]
    {
        assert_eq!(engine.make_parents(path.as_bytes(), new(Kind::File), |_, _| ()).err(), Some(errno), "{path}");
    }
    for (path, nearest) in [("a/b/x", "a/b"), ("a/b/x/y/z", "a/b"), ("x/y", ""), ("top/x/y", "a/b")] {
        let expected = engine.resolve(nearest.as_bytes(), Links::Follow).unwrap().ino;
        assert_eq!(engine.nearest(path.as_bytes()), Ok(expected), "{path}");
    }
    assert_eq!(engine.nearest(b"a/b/c/x"), Err(Errno::NOTDIR));
    let mut made = Vec::new();
    engine
        .make_parents(b"a/b/1/2/x", new(Kind::File), |directory, name| made.push((directory, name.to_vec())))
        .unwrap();
    let first = engine.resolve(b"a/b/1", Links::Keep).unwrap().ino;
    assert_eq!(made, [(directory, b"1".to_vec()), (first, b"2".to_vec())]);
    link(engine, b"dangling", b"nothing");
    engine.make_parents(b"dangling/x", new(Kind::File), |_, _| ()).unwrap();
    assert!(engine.resolve(b"nothing", Links::Keep).unwrap().inode.is_directory(), "made where the link leads");
}

#[test]
fn forty_links_are_followed_and_no_more() {
    let place = Place::new();
    let volume = place.volume("ws");
    write_file(volume.engine(), "l0", b"");
    for number in 1..=41 {
        link(volume.engine(), format!("l{number}").as_bytes(), format!("l{}", number - 1).as_bytes());
    }
    assert!(volume.engine().resolve(b"l40", Links::Follow).is_ok());
    assert_eq!(volume.engine().resolve(b"l41", Links::Follow).err(), Some(Errno::LOOP));
}

#[test]
fn a_file_appears_when_it_is_whole_and_goes_without_a_trace_if_it_never_is() {
    let place = Place::new();
    let volume = place.volume("ws");
    let engine = volume.engine();
    write_file(engine, "a", b"old");
    let whole = engine.make_unnamed(ROOT, file()).unwrap();
    engine.write(whole.ino(), 0, b"new", false).unwrap();
    assert_eq!(read_file(engine, "a").unwrap(), b"old");
    engine.place(whole.ino(), ROOT, b"a").unwrap();
    drop(whole);
    assert_eq!(read_file(engine, "a").unwrap(), b"new");
    assert_eq!(engine.attributes(ROOT).unwrap().inode.size, 1);
    let broken = engine.make_unnamed(ROOT, file()).unwrap();
    engine.write(broken.ino(), 0, b"half", false).unwrap();
    drop(broken);
    let lost = engine.make_unnamed(ROOT, file()).unwrap();
    engine.write(lost.ino(), 0, b"lost by a crash", false).unwrap();
    volume.sync().unwrap();
    std::mem::forget(lost);
    drop(volume);
    let volume = place.node("one").open("ws").unwrap();
    let usage = volume.engine().usage().unwrap();
    assert_eq!((usage.inodes, usage.bytes), (2, 3));
    assert_eq!(volume.engine().place(ROOT, ROOT, b"x").err(), Some(Errno::INVAL));
}
