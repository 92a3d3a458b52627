//! Damage of every kind that can be in a tree whose parts all open, planted one by one: a verification finds each, and says where.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use store::{
    Store,
    heads::Heads,
    keys::{MasterKeys, RealmKeys},
    object::{Objects, RequestOptions},
    segment::SegmentWriter,
    tree::{Batch, apply},
};
use tokio::runtime::Runtime;

use super::{Options, Origin, Volumes, head_name};
use crate::{
    Verified,
    compact::Use,
    directory::{Dirent, SLOTS, first_cookie},
    engine::Engine,
    extents::{Piece, Source, Window},
    inode::{Ino, Inode, Kind, ROOT},
    key::Key,
    materialise::Layout,
    op::New,
    pack::Segments,
};

/// In the order in which they are made.
const DIRECTORY: Ino = Ino(2);
const FILE: Ino = Ino(3);
const LINKED: Ino = Ino(4);
const SYMLINK: Ino = Ino(5);
const BELOW: Ino = Ino(6);

struct Place {
    _directory: tempfile::TempDir,
    runtime: Runtime,
    volumes: Volumes,
}

/// A state that is being damaged.
struct Planting<'a> {
    place: &'a Place,
    layout: Layout,
    files: Batch,
    usage: Batch,
    writer: SegmentWriter,
}

impl Place {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let heads = runtime.block_on(Heads::open_file(&root.join("heads.db"))).unwrap();
        let objects =
            Objects::open(&root.join("objects").to_str().unwrap().parse().unwrap(), RequestOptions::default());
        let master = MasterKeys::parse(&format!("test:{}", "42".repeat(32)), "a test").unwrap();
        let objects = objects.unwrap();
        let keys = RealmKeys::new(objects.clone(), Arc::new(master), "test".parse().unwrap());
        let store = Store::new(objects, keys, None, None);
        let volumes = Volumes::new(heads, store, runtime.handle().clone(), root.join("node"));
        let place = Self { _directory: directory, runtime, volumes };
        place.volumes.create("ws", &Options::default()).unwrap();
        let volume = place.volumes.open("ws").unwrap();
        fill(volume.engine());
        volume.close().unwrap();
        place
    }

    /// What a verification says of the volume once it is damaged.
    fn verify(&self, damage: fn(&mut Planting<'_>)) -> Verified {
        let name = head_name(&Origin::Volume("ws".to_owned())).unwrap();
        let volumes = &self.volumes;
        let (committed, mut lease) = self.runtime.block_on(volumes.open_under_lease(&name)).unwrap();
        let finished = Default::default();
        let mut segments = Segments { heads: &volumes.heads, store: &volumes.store, lease: &mut lease, finished };
        let writer = self.runtime.block_on(segments.begin()).unwrap();
        let layout = committed.layout.clone();
        let mut planting = Planting { place: self, layout, files: Batch::new(), usage: Batch::new(), writer };
        damage(&mut planting);
        let Planting { mut layout, files, usage, mut writer, .. } = planting;
        let store = &volumes.store;
        self.runtime.block_on(async {
            layout.files = apply(store, &mut writer, &layout.files, &files).await.unwrap();
            layout.usage = apply(store, &mut writer, &layout.usage, &usage).await.unwrap();
            segments.finish(writer).await.unwrap();
            layout.segments.append(&mut segments.finished);
        });
        self.runtime.block_on(volumes.target("ws").commit(store, &committed.head, layout, &lease)).unwrap();
        volumes.verify(&Origin::Volume("ws".to_owned())).unwrap()
    }
}

fn new(kind: Kind, target: &[u8]) -> New<'_> {
    New { kind, mode: 0o755, uid: 1000, gid: 1000, device: 0, target }
}

fn fill(engine: &Engine) {
    let directory = engine.make(ROOT, b"d", new(Kind::Directory, b"")).unwrap().ino;
    let file = engine.make(directory, b"file", new(Kind::File, b"")).unwrap().ino;
    let data: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    engine.write(file, 0, &data, false).unwrap();
    let linked = engine.make(ROOT, b"linked", new(Kind::File, b"")).unwrap().ino;
    engine.link(linked, directory, b"again").unwrap();
    let symlink = engine.make(ROOT, b"symlink", new(Kind::Symlink, b"d")).unwrap().ino;
    let below = engine.make(directory, b"below", new(Kind::Directory, b"")).unwrap().ino;
    assert_eq!([directory, file, linked, symlink, below], [DIRECTORY, FILE, LINKED, SYMLINK, BELOW]);
}

impl Planting<'_> {
    fn get<T: DeserializeOwned>(&self, key: Key) -> T {
        postcard::from_bytes(&self.raw(key)).unwrap()
    }

    fn raw(&self, key: Key) -> Bytes {
        let (store, key) = (&self.place.volumes.store, key.encode());
        self.place.runtime.block_on(self.layout.files.get(store, &key)).unwrap().expect("it is there")
    }

    fn put(&mut self, key: Key, value: &impl Serialize) {
        self.put_raw(key, Some(postcard::to_stdvec(value).unwrap()));
    }

    fn put_raw(&mut self, key: Key, value: Option<Vec<u8>>) {
        self.files.insert(Bytes::copy_from_slice(&key.encode()), value.map(Bytes::from));
    }

    fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Inode)) {
        let mut inode: Inode = self.get(Key::inode(ino));
        change(&mut inode);
        self.put(Key::inode(ino), &inode);
    }

    fn entry(&self, directory: Ino, name: &str) -> Key {
        Key::entry(directory, first_cookie(&self.layout.superblock.salt, name.as_bytes()))
    }

    fn name(&mut self, directory: Ino, name: &str, (ino, kind): (Ino, Kind)) {
        let key = self.entry(directory, name);
        self.put(key, &Dirent { ino, kind, name: name.as_bytes().to_vec() });
    }
}

/// What to plant, where it is found, and what is said of it.
type Case = (fn(&mut Planting<'_>), Option<&'static str>, &'static str);

const CASES: &[Case] = &[
    (
        |state| drop(state.files.insert(Bytes::from_static(b"foreign"), Some(Bytes::from_static(b"x")))),
        None,
        "a key of the tree is none of a volume",
    ),
    (|state| state.put_raw(Key::inode(SYMLINK), Some(vec![0xff])), None, "what the tree holds for it cannot be read"),
    (|state| state.put_raw(Key::inode(SYMLINK), None), None, "entries name it, and it does not exist"),
    (|state| state.put_raw(Key::xattrs(FILE), Some(vec![0xff])), Some("d/file"), "cannot be read"),
    (|state| state.put_raw(Key::window(LINKED, 0), Some(vec![0xff])), Some("d/again"), "cannot be read"),
    (|state| state.put_raw(state.entry(ROOT, "x"), Some(vec![0xff])), Some(""), "cannot be read"),
    (|state| state.change(FILE, |inode| inode.allocated += 1), Some("d/file"), "bytes of data and says"),
    (|state| state.change(DIRECTORY, |inode| inode.size += 1), Some("d"), "it has 3 entries and says 4"),
    (|state| state.name(ROOT, "nobody", (Ino(99), Kind::File)), None, "1 entries name it, and it does not exist"),
    (|state| state.put_raw(Key::orphan(Ino(99)), Some(Vec::new())), None, "0 entries name it, and it does not exist"),
    (
        |state| state.name(ROOT, "symlink", (SYMLINK, Kind::File)),
        Some("symlink"),
        "it is of kind Symlink, and an entry",
    ),
    (|state| state.change(LINKED, |inode| inode.links = 3), Some("d/again"), "it says that it has 3 links and has 2"),
    (
        |state| {
            state.put_raw(state.entry(ROOT, "symlink"), None);
            state.change(SYMLINK, |inode| inode.links = 0);
        },
        None,
        "it has 0 names",
    ),
    (|state| state.name(ROOT, "second", (BELOW, Kind::Directory)), Some("d/below"), "it has 2 names"),
    (
        |state| state.change(BELOW, |inode| inode.parent = ROOT),
        None,
        "it says that it is in inode 1, and is in inode 2",
    ),
    (
        |state| {
            state.put_raw(state.entry(ROOT, "d"), None);
            state.name(BELOW, "d", (DIRECTORY, Kind::Directory));
            state.change(DIRECTORY, |inode| inode.parent = BELOW);
        },
        None,
        "it is below itself",
    ),
    (
        |state| {
            let Key { part, .. } = state.entry(ROOT, "symlink");
            let crate::key::Part::Entry(cookie) = part else { unreachable!("it is an entry") };
            let entry = Dirent { ino: SYMLINK, kind: Kind::Symlink, name: b"symlink".to_vec() };
            state.put(Key::entry(ROOT, cookie + SLOTS), &entry);
        },
        Some(""),
        "its entry \"symlink\" is not where that name is looked for",
    ),
    (
        |state| {
            let cookie = first_cookie(&state.layout.superblock.salt, b"linked");
            let entry = Dirent { ino: LINKED, kind: Kind::File, name: b"linked".to_vec() };
            state.put(Key::entry(ROOT, cookie + 1), &entry);
        },
        Some(""),
        "it has two entries \"linked\"",
    ),
    (|state| state.layout.superblock.next_ino = BELOW.0, Some("d/below"), "its number is one that will be given out"),
    (|state| state.layout.superblock.inodes += 1, None, "the volume has 6 inodes and says 7"),
    (|state| state.layout.superblock.bytes -= 1, None, "the volume has 400000 bytes of data and says 399999"),
    (
        |state| {
            let segment = segment_of_data(state);
            state.layout.segments.remove(&segment);
        },
        None,
        "its manifest does not name segment",
    ),
    (
        |state| {
            let used = Use { live: 1, written: 400_000 };
            state.usage.insert(Bytes::copy_from_slice(&segment_of_data(state).0), Some(used.encode()));
        },
        None,
        "400000 bytes of segment",
    ),
    (
        |state| drop(state.usage.insert(Bytes::copy_from_slice(&segment_of_data(state).0), None)),
        None,
        "of which it has no account",
    ),
    (
        |state| drop(state.usage.insert(Bytes::from_static(b"foreign"), Some(Bytes::from_static(b"x")))),
        None,
        "an entry that is none",
    ),
    (
        |state| {
            let chunk = state.place.runtime.block_on(state.writer.append(&[0xff; 64])).unwrap();
            let piece = Piece { start: 0, length: 64, source: Source::Chunk { chunk, offset: 0 } };
            state.put_raw(Key::window(LINKED, 0), Window::from_pieces(vec![piece]).encode());
        },
        Some("d/again"),
        "its data cannot be unpacked",
    ),
];

fn segment_of_data(state: &Planting<'_>) -> store::id::SegmentId {
    let window = Window::decode(&state.raw(Key::window(FILE, 0))).unwrap();
    window.stored_bytes().next().expect("it has data").0
}

#[test]
fn damage_of_every_kind_is_found_and_named() {
    for (number, (damage, path, what)) in CASES.iter().enumerate() {
        let place = Place::new();
        assert_eq!(place.verify(|_| ()).findings, [], "before {what:?}");
        let verified = place.verify(*damage);
        let path = path.map(str::as_bytes);
        let is_found = verified.findings.iter().any(|found| {
            found.what.contains(what) && !found.out_of_reach && (path.is_none() || found.path.as_deref() == path)
        });
        assert!(is_found, "{number}: {what:?} is not among {verified:?}");
    }
}
