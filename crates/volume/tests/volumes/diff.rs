//! What two states differ in.

use std::{collections::BTreeSet, ops::ControlFlow};

use volume::{Change, Changes, Engine, Kind, Links, New, Origin, ROOT, Rename, SetXattr, Volume, Volumes};

use crate::place::{Place, file, new, write_file};

fn of_snapshot(snapshot: &str) -> Origin {
    Origin::Snapshot { volume: "ws".to_owned(), snapshot: snapshot.to_owned() }
}

/// Each as one line.
fn changes(node: &Volumes, volume: &Volume, from: &str) -> BTreeSet<String> {
    volume.commit().unwrap();
    let mut told = Vec::new();
    node.diff(&of_snapshot(from), &Origin::Volume("ws".to_owned()), &mut |changed| {
        let path = String::from_utf8(changed.path).unwrap();
        told.push(match changed.change {
            Change::Added => format!("+ {path}"),
            Change::Removed => format!("- {path}"),
            Change::Modified => format!("M {path}"),
            Change::Metadata => format!("m {path}"),
            Change::Renamed { from } => format!("{} > {path}", String::from_utf8(from).unwrap()),
        });
        ControlFlow::Continue(())
    })
    .unwrap();
    let lines: BTreeSet<_> = told.iter().cloned().collect();
    assert_eq!(lines.len(), told.len(), "each is told once: {told:?}");
    lines
}

fn lines(expected: &[&str]) -> BTreeSet<String> {
    expected.iter().map(|line| (*line).to_owned()).collect()
}

fn make(engine: &Engine, path: &str) -> volume::Ino {
    let (directory, name) = engine.make_parents(path.as_bytes(), new(Kind::Directory), |_, _| ()).unwrap();
    let ino = engine.make(directory, &name, file()).unwrap().ino;
    engine.write(ino, 0, path.as_bytes(), false).unwrap();
    ino
}

fn remove(engine: &Engine, path: &str) {
    let (directory, name) = engine.resolve_parent(path.as_bytes()).unwrap();
    engine.unlink(directory, &name).unwrap();
}

fn rename(engine: &Engine, from: &str, to: &str) {
    let ((from, name), (to, new_name)) =
        (engine.resolve_parent(from.as_bytes()).unwrap(), engine.resolve_parent(to.as_bytes()).unwrap());
    engine.rename(from, &name, to, &new_name, Rename::Replace).unwrap();
}

#[test]
fn changes_are_told_by_path() {
    let place = Place::new();
    let (node, volume) = (place.node("one"), place.volume("ws"));
    let engine = volume.engine();
    for path in [
        "d/e/same",
        "d/e/data",
        "d/mode",
        "d/xattr",
        "d/gone",
        "moved/inside",
        "moved/edited",
        "saved",
        "grown",
        "away",
    ] {
        make(engine, path);
    }
    volume.snapshot("s", "").unwrap();
    assert_eq!(changes(&node, &volume, "s"), lines(&[]));
    let ino = |path: &str| engine.resolve(path.as_bytes(), Links::Keep).unwrap().ino;
    engine.write(ino("d/e/data"), 0, b"x", false).unwrap();
    engine.change(ino("d/mode"), Changes { mode: Some(0o600), ..Changes::default() }).unwrap();
    engine.set_xattr(ino("d/xattr"), b"user.a", b"1", SetXattr::Either).unwrap();
    engine.change(ino("grown"), Changes { size: Some(1 << 30), ..Changes::default() }).unwrap();
    remove(engine, "d/gone");
    make(engine, "new/deep/file");
    engine.make(ROOT, b"link", New { target: b"d", ..new(Kind::Symlink) }).unwrap();
    rename(engine, "moved", "d/to");
    engine.write(ino("d/to/edited"), 0, b"x", false).unwrap();
    // As editors save.
    write_file(engine, "saved~", b"new");
    rename(engine, "saved~", "saved");
    rename(engine, "away", "d/e/away");
    engine.write(ino("d/e/away"), 0, b"x", false).unwrap();
    let expected = [
        "M d/e/data",
        "m d/mode",
        "m d/xattr",
        "M grown",
        "- d/gone",
        "+ new",
        "+ new/deep",
        "+ new/deep/file",
        "+ link",
        "moved > d/to",
        "M d/to/edited",
        "M saved",
        "away > d/e/away",
        "M d/e/away",
    ];
    assert_eq!(changes(&node, &volume, "s"), lines(&expected));
    // And the other way round.
    volume.snapshot("t", "").unwrap();
    volume.restore("s", "before").unwrap();
    let back = changes(&node, &volume, "t");
    assert!(back.contains("d/to > moved") && back.contains("- new/deep/file") && back.contains("+ d/gone"), "{back:?}");
    assert_eq!(back.len(), expected.len());
}

#[test]
fn hard_links_are_told_by_a_name_that_they_have() {
    let place = Place::new();
    let (node, volume) = (place.node("one"), place.volume("ws"));
    let engine = volume.engine();
    let ino = make(engine, "d/a");
    let other = engine.resolve(b"d", Links::Keep).unwrap().ino;
    engine.link(ino, ROOT, b"b").unwrap();
    engine.link(ino, other, b"newest").unwrap();
    volume.snapshot("s", "").unwrap();
    engine.link(ino, ROOT, b"c").unwrap();
    assert_eq!(changes(&node, &volume, "s"), lines(&["+ c"]));
    volume.snapshot("t", "").unwrap();
    // The newest name goes, and then the data changes: no inode says where its other names are.
    engine.unlink(ROOT, b"c").unwrap();
    engine.write(ino, 0, b"x", false).unwrap();
    let told = changes(&node, &volume, "t");
    assert!(
        told.contains("- c")
            && told.len() == 2
            && ["M d/a", "M b", "M d/newest"].iter().any(|line| told.contains(*line))
    );
}

#[test]
fn a_fork_is_compared_with_its_parent_and_what_both_have_is_not_read() {
    let place = Place::new();
    let (node, volume) = (place.node("one"), place.volume("ws"));
    for number in 0..3000 {
        write_file(volume.engine(), &format!("f{number}"), b"same");
    }
    volume.snapshot("s", "").unwrap();
    node.fork(&of_snapshot("s"), "fork").unwrap();
    let fork = node.open("fork").unwrap();
    // Both give out the same number.
    write_file(volume.engine(), "of ws", b"1");
    write_file(fork.engine(), "of fork", b"2");
    fork.close().unwrap();
    volume.commit().unwrap();
    let mut told = BTreeSet::new();
    let (ws, fork) = (Origin::Volume("ws".to_owned()), Origin::Volume("fork".to_owned()));
    let mut tell = |changed: volume::Changed| {
        told.insert((changed.path, changed.change));
        ControlFlow::Continue(())
    };
    node.diff(&ws, &fork, &mut tell).unwrap();
    let names = told.iter().map(|(path, _)| String::from_utf8_lossy(path).into_owned()).collect::<Vec<_>>();
    assert!(told.contains(&(b"of ws".to_vec(), Change::Removed)), "{names:?}");
    assert!(names.iter().any(|name| name == "of fork") && told.len() <= 3, "{names:?}");
    let mut first = 0;
    node.diff(&ws, &fork, &mut |_| {
        first += 1;
        ControlFlow::Break(())
    })
    .unwrap();
    assert_eq!(first, 1);
}
