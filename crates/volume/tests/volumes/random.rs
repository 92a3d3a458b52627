//! Generated operations on a volume and on the model, with commits, crashes, snapshots, forks and restores among them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rustix::io::Errno;
use volume::{
    Changes, Effort, Engine, Ino, Kind, Memory, New, Options, Origin, ROOT, Rename, SetXattr, Volume, Volumes,
};

use crate::{
    model::{Model, Thing},
    place::{Place, few_cases},
};

type Path = Vec<u8>;

#[derive(Debug, Clone)]
enum Step {
    Make(Path, Kind, u16),
    Link(Path, Path),
    Unlink(Path),
    RemoveDirectory(Path),
    Rename(Path, Path, Rename),
    Write(Path, u32, u32, u8),
    /// A file that was written before it got its name.
    Place(Path, u16, u32, u8),
    Resize(Path, u32),
    Punch(Path, u32, u32),
    Copy(Path, u32, Path, u32, u32),
    Mode(Path, u16),
    Xattr(Path, u8, Option<u8>),
    Sync,
    Commit,
    /// The object store is away.
    FailedCommit,
    /// Everything is moved to other segments.
    Compact,
    /// The process is killed: what was not synced is gone.
    Crash,
    Close,
    Snapshot,
    Restore(prop::sample::Index),
    /// Goes on in a fork.
    Fork,
}

fn path() -> impl Strategy<Value = Path> {
    proptest::collection::vec(b'a'..b'd', 1..4)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = prop_oneof![
        4 => Just(Kind::File),
        4 => Just(Kind::Directory),
        1 => Just(Kind::Symlink),
        1 => Just(Kind::Fifo),
    ];
    let how = prop_oneof![3 => Just(Rename::Replace), 1 => Just(Rename::Refuse), 2 => Just(Rename::Exchange), 1 => Just(Rename::Whiteout)];
    // Around the ends of windows as often as elsewhere.
    let place = || prop_oneof![0..5_000u32, 130_000..132_000u32, 0..400_000u32];
    let bytes = || prop_oneof![0..200u32, 0..5_000u32, 1..200_000u32];
    let step = prop_oneof![
        8 => (path(), kind, 0..0o7777u16).prop_map(|(path, kind, mode)| Step::Make(path, kind, mode)),
        2 => (path(), path()).prop_map(|(from, to)| Step::Link(from, to)),
        3 => path().prop_map(Step::Unlink),
        2 => path().prop_map(Step::RemoveDirectory),
        5 => (path(), path(), how).prop_map(|(from, to, how)| Step::Rename(from, to, how)),
        12 => (path(), place(), bytes(), 1..9u8).prop_map(|(path, at, bytes, fill)| Step::Write(path, at, bytes, fill)),
        3 => (path(), 0..0o7777u16, bytes(), 1..9u8).prop_map(|(path, mode, bytes, fill)| Step::Place(path, mode, bytes, fill)),
        2 => (path(), place()).prop_map(|(path, size)| Step::Resize(path, size)),
        3 => (path(), place(), 1..150_000u32).prop_map(|(path, at, bytes)| Step::Punch(path, at, bytes)),
        3 => (path(), place(), path(), place(), bytes())
            .prop_map(|(from, at, to, to_at, bytes)| Step::Copy(from, at, to, to_at, bytes)),
        1 => (path(), 0..0o7777u16).prop_map(|(path, mode)| Step::Mode(path, mode)),
        2 => (path(), 0..3u8, any::<Option<u8>>()).prop_map(|(path, name, value)| Step::Xattr(path, name, value)),
        2 => Just(Step::Sync),
        2 => Just(Step::Commit),
        1 => Just(Step::FailedCommit),
        2 => Just(Step::Crash),
        2 => Just(Step::Compact),
        1 => Just(Step::Close),
        1 => Just(Step::Snapshot),
        1 => any::<prop::sample::Index>().prop_map(Step::Restore),
        1 => Just(Step::Fork),
    ];
    proptest::collection::vec(step, 1..120)
}

/// A volume, the model of what it is, and of what it was when that was last made durable.
struct Pair<'a> {
    place: &'a Place,
    volumes: Volumes,
    volume: Option<Volume>,
    model: Model,
    durable: Model,
    snapshots: Vec<(String, Model)>,
    count: u32,
}

impl Pair<'_> {
    fn volume(&self) -> &Volume {
        self.volume.as_ref().unwrap()
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let found = on_volume(self.volume().engine(), step);
        let expected = on_model(&mut self.model, step);
        if let (Some(found), Some(expected)) = (found, expected) {
            prop_assert_eq!(found, expected, "{:?}", step);
            return Ok(());
        }
        match step {
            Step::Sync => self.volume().sync().unwrap(),
            Step::Commit => self.volume().commit().unwrap(),
            Step::Compact => {
                self.volume().commit().unwrap();
                self.volume().compact(Effort::All).unwrap();
            }
            Step::FailedCommit => {
                self.place.set_outage(true);
                let wrote = self.volume().engine().dirty_bytes().unwrap() > 0;
                prop_assert!(self.volume().commit().is_err() || !wrote);
                self.place.set_outage(false);
            }
            Step::Crash => {
                self.reopen(false);
                self.model = self.durable.clone();
            }
            Step::Close => self.reopen(true),
            Step::Snapshot => {
                let name = self.fresh();
                self.volume().snapshot(&name, "").unwrap();
                self.snapshots.push((name, self.model.clone()));
            }
            Step::Restore(which) if !self.snapshots.is_empty() => {
                let (name, model) = which.get(&self.snapshots).clone();
                let before = self.fresh();
                self.volume().restore(&name, &before).unwrap();
                self.snapshots.push((before, self.model.clone()));
                self.model = model;
            }
            Step::Fork => {
                self.volume().commit().unwrap();
                let name = self.fresh();
                self.volumes.fork(&Origin::Volume(self.volume().name().to_owned()), &name).unwrap();
                self.volume = Some(self.volumes.open(&name).unwrap());
                self.snapshots.clear();
            }
            _ => return Ok(()),
        }
        self.durable = self.model.clone();
        self.check()
    }

    fn reopen(&mut self, close: bool) {
        let volume = self.volume.take().unwrap();
        let name = volume.name().to_owned();
        match close {
            true => volume.close().unwrap(),
            false => drop(volume),
        }
        self.volume = Some(self.volumes.open(&name).unwrap());
    }

    fn fresh(&mut self) -> String {
        self.count += 1;
        format!("n{}", self.count)
    }

    fn check(&self) -> Result<(), TestCaseError> {
        compare(self.volume().engine(), &self.model)
    }
}

pub(crate) fn compare(engine: &Engine, model: &Model) -> Result<(), TestCaseError> {
    let (mut found, expected) = (BTreeMap::new(), model.dump());
    let mut seen = BTreeMap::new();
    dump(engine, ROOT, &mut Vec::new(), &mut found, &mut seen);
    prop_assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (path, thing) in expected {
        prop_assert!(found[&path] == thing, "{:?} differs: {:?}", path, (&found[&path].kind, found[&path].links));
    }
    // The account is what there is.
    let usage = engine.usage().unwrap();
    prop_assert_eq!((usage.inodes, usage.bytes), (seen.len() as u64, seen.values().sum::<u64>()));
    Ok(())
}

fn dump(engine: &Engine, ino: Ino, path: &mut Path, found: &mut BTreeMap<Path, Thing>, seen: &mut BTreeMap<Ino, u64>) {
    let inode = engine.attributes(ino).unwrap().inode;
    seen.insert(ino, inode.allocated);
    let data = match inode.kind {
        Kind::File => engine.read(ino, 0, u32::MAX).unwrap(),
        Kind::Symlink => engine.read_link(ino).unwrap(),
        _ => Vec::new(),
    };
    assert!(inode.kind == Kind::Directory || data.len() as u64 == inode.size);
    let names = engine.xattrs(ino).unwrap();
    let xattrs = names.into_iter().map(|name| (name.clone(), engine.xattr(ino, &name).unwrap())).collect();
    found.insert(path.clone(), Thing { kind: inode.kind, mode: inode.mode, links: inode.links, data, xattrs });
    if inode.kind == Kind::Directory {
        let mut cookie = 2;
        // Few at a time, so that a listing goes on where it was.
        while let Some(last) = engine
            .list(ino, cookie, 2)
            .unwrap()
            .iter()
            .map(|entry| {
                path.extend_from_slice(&entry.name);
                dump(engine, entry.ino, path, found, seen);
                path.truncate(path.len() - entry.name.len());
                entry.cookie
            })
            .last()
        {
            cookie = last;
        }
    }
}

fn resolve(engine: &Engine, path: &[u8]) -> Result<Ino, Errno> {
    path.iter().try_fold(ROOT, |directory, name| Ok(engine.lookup(directory, &[*name])?.ino))
}

/// The directory and the last name; fails where the model fails.
fn place(engine: &Engine, path: &[u8]) -> Result<(Ino, [u8; 1]), Errno> {
    let (name, above) = path.split_last().unwrap();
    let directory = resolve(engine, above)?;
    match engine.lookup(directory, &[*name]) {
        Ok(_) | Err(Errno::NOENT) => Ok((directory, [*name])),
        Err(errno) => Err(errno),
    }
}

fn on_volume(engine: &Engine, step: &Step) -> Option<Result<(), Errno>> {
    let run = || -> Option<Result<(), Errno>> {
        Some(match step {
            Step::Make(path, kind, mode) => place(engine, path).and_then(|(directory, name)| {
                let target = if *kind == Kind::Symlink { &b"target"[..] } else { b"" };
                let new = New { kind: *kind, mode: *mode & 0o5777, uid: 1, gid: 2, device: 0, target };
                engine.make(directory, &name, new).map(drop)
            }),
            Step::Link(from, to) => resolve(engine, from).and_then(|ino| {
                let (directory, name) = place(engine, to)?;
                engine.link(ino, directory, &name).map(drop)
            }),
            Step::Unlink(path) => place(engine, path).and_then(|(directory, name)| engine.unlink(directory, &name)),
            Step::RemoveDirectory(path) => {
                place(engine, path).and_then(|(directory, name)| engine.remove_directory(directory, &name))
            }
            Step::Rename(from, to, how) => place(engine, from).and_then(|(directory, name)| {
                engine.lookup(directory, &name)?;
                let (to, new_name) = place(engine, to)?;
                engine.rename(directory, &name, to, &new_name, *how)
            }),
            Step::Write(path, offset, bytes, fill) => resolve(engine, path)
                .and_then(|ino| engine.write(ino, (*offset).into(), &vec![*fill; *bytes as usize], false)),
            Step::Place(path, mode, bytes, fill) => place(engine, path).and_then(|(directory, name)| {
                let new = New { kind: Kind::File, mode: *mode & 0o5777, uid: 1, gid: 2, device: 0, target: b"" };
                let file = engine.make_unnamed(directory, new)?;
                engine.write(file.ino(), 0, &vec![*fill; *bytes as usize], false)?;
                engine.place(file.ino(), directory, &name)
            }),
            Step::Resize(path, size) => resolve(engine, path).and_then(|ino| {
                let changes = Changes { size: Some((*size).into()), ..Changes::default() };
                engine.change(ino, changes).map(drop)
            }),
            Step::Punch(path, offset, bytes) => {
                resolve(engine, path).and_then(|ino| engine.punch(ino, (*offset).into(), (*bytes).into()))
            }
            Step::Copy(from, offset, to, to_offset, bytes) => resolve(engine, from).and_then(|from| {
                engine.read(from, 0, 0)?;
                let to = resolve(engine, to)?;
                let (from, to) = ((from, (*offset).into()), (to, (*to_offset).into()));
                engine.copy(from, to, (*bytes).into()).map(drop)
            }),
            Step::Mode(path, mode) => resolve(engine, path).and_then(|ino| {
                engine.change(ino, Changes { mode: Some(*mode & 0o5777), ..Changes::default() }).map(drop)
            }),
            Step::Xattr(path, name, value) => resolve(engine, path).and_then(|ino| match value {
                Some(value) => engine.set_xattr(ino, &[b'u', *name], &[*value; 100], SetXattr::Either),
                None => engine.remove_xattr(ino, &[b'u', *name]),
            }),
            _ => return None,
        })
    };
    run()
}

fn on_model(model: &mut Model, step: &Step) -> Option<Result<(), Errno>> {
    Some(match step {
        Step::Make(path, kind, mode) => model.make(path, *kind, *mode & 0o5777),
        Step::Link(from, to) => model.link(from, to),
        Step::Unlink(path) => model.unlink(path),
        Step::RemoveDirectory(path) => model.remove_directory(path),
        Step::Rename(from, to, how) => model.rename(from, to, *how),
        Step::Write(path, offset, bytes, fill) => model.write(path, *offset as usize, &vec![*fill; *bytes as usize]),
        Step::Place(path, mode, bytes, fill) => model.replace(path, *mode & 0o5777, &vec![*fill; *bytes as usize]),
        Step::Resize(path, size) => model.resize(path, *size as usize),
        Step::Punch(path, offset, bytes) => model.punch(path, *offset as usize, *bytes as usize),
        Step::Copy(from, offset, to, to_offset, bytes) => {
            model.copy(from, *offset as usize, to, *to_offset as usize, *bytes as usize)
        }
        Step::Mode(path, mode) => model.set_mode(path, *mode & 0o5777),
        Step::Xattr(path, name, value) => {
            model.set_xattr(path, &[b'u', *name], value.map(|value| [value; 100]).as_ref().map(|value| &value[..]))
        }
        _ => return None,
    })
}

proptest! {
    #![proptest_config(few_cases())]

    #[test]
    fn a_volume_is_what_the_model_is_whatever_happens(steps in steps(), inodes_max in prop_oneof![Just(0), Just(1000)]) {
        let place = Place::new();
        let (model, volumes) = (Model::new(), place.node("one").with_memory(Memory { inodes_max, ..Memory::default() }));
        volumes.create("n0", &Options::default()).unwrap();
        let volume = Some(volumes.open("n0").unwrap());
        let (durable, snapshots) = (model.clone(), Vec::new());
        let mut pair = Pair { place: &place, volumes, volume, durable, model, snapshots, count: 0 };
        for step in &steps {
            pair.step(step)?;
        }
        pair.check()?;
        for (snapshot, model) in &pair.snapshots {
            let volume = pair.volume().name().to_owned();
            let read = pair.volumes.open_to_read(&Origin::Snapshot { volume, snapshot: snapshot.clone() }).unwrap();
            compare(read.engine(), model)?;
            read.close().unwrap();
        }
        pair.volume.take().unwrap().close().unwrap();
    }
}
