//! From the working state to the store: data and nodes into segments, a manifest that names them, and then the head.
//!
//! ```text
//!   freeze (O(1)) ─ capture, a few keys at a time ─ data segments ─ tree ─ manifest ─ head ─ install
//!        └ work goes on ────────────────────────────────────────────────────────────┘
//! ```
//!
//! A commit that fails changes nothing: its segments are garbage, and what was frozen is dirty again.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use store::{
    Store,
    heads::{Head, HeadName, Heads, Lease, Protected},
    id::{ManifestId, SegmentId},
    manifest::Manifest,
    tree::{Batch, Tree, apply, move_out},
};

use crate::{
    VolumeError,
    compact::{Plan, Use},
    crash,
    engine::Engine,
    error::Cause,
    extents::Window,
    inode::{Inode, ROOT},
    key::Key,
    layouts::Layouts,
    limits::{CAPTURE_KEYS, COMMIT_LEASE},
    loader::Loader,
    pack::{Packer, Segments},
    state::{Frozen, Stored, Superblock, Usage, Value, encode_xattrs},
};

/// What the manifest of a volume says it is.
pub(crate) const MANIFEST_KIND: u16 = 2;
/// Of keys, values and the client's bytes.
pub(crate) const MANIFEST_VERSION: u16 = 1;

/// Places of the trees in a manifest: files, and bytes of data in use by segment.
const FILES: usize = 0;
const USAGE: usize = 1;

/// A committed state.
#[derive(Debug, Clone)]
pub(crate) struct Committed {
    pub(crate) head: Head,
    pub(crate) layout: Layout,
    /// Segments that the last commit has moved all data out of.
    pub(crate) leaving: BTreeSet<SegmentId>,
}

impl Committed {
    pub(crate) fn new(head: Head, layout: Layout) -> Self {
        Self { head, layout, leaving: BTreeSet::new() }
    }
}

/// What a manifest says of a volume.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) superblock: Superblock,
    pub(crate) files: Tree,
    pub(crate) usage: Tree,
    pub(crate) segments: BTreeSet<SegmentId>,
}

impl Layout {
    /// A volume with nothing but a top directory.
    pub(crate) async fn first(
        segments: &mut Segments<'_>,
        superblock: Superblock,
        root: Inode,
    ) -> Result<Self, VolumeError> {
        let batch = Batch::from([(encoded(Key::inode(ROOT)), encode(Value::Inode(Box::new(root)))?)]);
        let mut writer = segments.begin().await?;
        let store = segments.store;
        let files = apply(store, &mut writer, &Tree::EMPTY, &batch).await.map_err(failed("write the tree"))?;
        segments.finish(writer).await?;
        Ok(Self { superblock, files, usage: Tree::EMPTY, segments: std::mem::take(&mut segments.finished) })
    }

    /// Reads manifest `id`.
    pub(crate) async fn read(store: &Store, id: ManifestId) -> Result<Self, VolumeError> {
        let manifest = Manifest::read(store, id).await.map_err(failed("read the volume's manifest"))?;
        let foreign = || VolumeError::NotAVolume { manifest: id.to_string() };
        if manifest.kind != MANIFEST_KIND || manifest.version > MANIFEST_VERSION || manifest.trees.len() != 2 {
            return Err(foreign());
        }
        let superblock = postcard::from_bytes(&manifest.client).map_err(|_| foreign())?;
        let (files, usage) = (manifest.trees[FILES], manifest.trees[USAGE]);
        Ok(Self { superblock, files, usage, segments: manifest.segments })
    }
}

/// Where a commit goes.
pub(crate) struct Target<'a> {
    pub(crate) heads: &'a Heads,
    pub(crate) layouts: &'a Layouts,
    pub(crate) volume: &'a str,
}

impl Target<'_> {
    /// Takes a lease for a commit or another short work on the volume.
    pub(crate) async fn lease(&self, store: &Store) -> Result<Lease, VolumeError> {
        let lease = self.heads.lease(store.realm(), &self.holder(), COMMIT_LEASE).await;
        lease.map_err(VolumeError::heads(self.volume))
    }

    /// As [`Target::lease`], of what a head names.
    pub(crate) async fn open(&self, store: &Store, name: &HeadName) -> Result<(Head, Lease), VolumeError> {
        let opened = self.heads.open_leased(store.realm(), name, &self.holder(), COMMIT_LEASE).await;
        opened.map_err(VolumeError::heads(name.as_str()))
    }

    fn holder(&self) -> String {
        format!("volume {}", self.volume)
    }

    /// Writes a manifest that says `layout`, kept by `lease`.
    pub(crate) async fn write_manifest(
        &self,
        store: &Store,
        layout: &Layout,
        lease: &Lease,
    ) -> Result<ManifestId, VolumeError> {
        let id = ManifestId::random();
        let client = postcard::to_stdvec(&layout.superblock).map_err(failed("encode the volume's manifest"))?;
        let manifest = Manifest {
            kind: MANIFEST_KIND,
            version: MANIFEST_VERSION,
            trees: vec![layout.files, layout.usage],
            segments: layout.segments.clone(),
            client: client.into(),
            ..Manifest::default()
        };
        self.heads.protect(lease, &[Protected::Manifest(id)]).await.map_err(failed("keep a manifest"))?;
        manifest.write(store, id).await.map_err(failed("write the volume's manifest"))?;
        self.layouts.know(id, layout);
        Ok(id)
    }

    /// Moves the head to a state that is written already. The lease ends with it.
    pub(crate) async fn commit(
        &self,
        store: &Store,
        head: &Head,
        layout: Layout,
        lease: &Lease,
    ) -> Result<Committed, VolumeError> {
        let id = self.write_manifest(store, &layout, lease).await?;
        let head = self.heads.commit(head, id, lease).await.map_err(VolumeError::heads(self.volume))?;
        Ok(Committed::new(head, layout))
    }

    /// Writes what has changed in `engine` since `last`, moves what `plan` says, and moves the head. Gives back `last` if there is nothing to do. One
    /// at a time. `fixed` is called as soon as it is settled what is written: what is done from then on is not in it.
    pub(crate) async fn materialise(
        &self,
        engine: &Engine,
        last: &Committed,
        plan: &Plan,
        fixed: impl FnOnce(),
    ) -> Result<Committed, VolumeError> {
        let frozen = {
            let mut state = lock(engine)?;
            let idle = plan.is_empty() && last.leaving.is_empty();
            if idle && !state.is_dirty() && state.superblock().sequence == last.layout.superblock.sequence {
                // Whoever waits may have been told of what is gone by now: a restore ends it, or told late.
                engine.pressure().set(state.dirty_bytes());
                drop(state);
                fixed();
                return Ok(last.clone());
            }
            state.freeze()
        };
        fixed();
        match self.write(engine, &frozen, last, plan).await {
            Ok((committed, stored)) => {
                let mut state = lock(engine)?;
                state.install(committed.layout.files, stored);
                state.evict(engine.memory().inodes_max);
                engine.pressure().set(state.dirty_bytes());
                Ok(committed)
            }
            Err(error) => {
                lock(engine)?.thaw();
                Err(error)
            }
        }
    }

    async fn write(
        &self,
        engine: &Engine,
        frozen: &Frozen,
        last: &Committed,
        plan: &Plan,
    ) -> Result<(Committed, Vec<Stored>), VolumeError> {
        let store = engine.loader().store();
        let mut lease = self.lease(store).await?;
        match self.write_under(engine, frozen, last, plan, &mut lease).await {
            Ok(written) => Ok(written),
            Err(error) => {
                // Best effort: it expires by itself.
                if let Err(error) = self.heads.release(lease).await {
                    tracing::debug!(%error, "the lease of a failed commit is left to expire");
                }
                Err(error)
            }
        }
    }

    async fn write_under(
        &self,
        engine: &Engine,
        frozen: &Frozen,
        last: &Committed,
        plan: &Plan,
        lease: &mut Lease,
    ) -> Result<(Committed, Vec<Stored>), VolumeError> {
        let (loader, store) = (engine.loader(), engine.loader().store());
        let mut segments = Segments { heads: self.heads, store, lease, finished: BTreeSet::new() };
        let base = moved_trees(loader, &mut segments, frozen.base.tree, last.layout.usage, plan).await?;
        let (mut batch, mut windows) = captured(engine, plan)?;
        add_moved(loader, &frozen.base.tree, plan, &batch, &mut windows).await?;
        let mut packer = Packer::new(&mut segments, loader, plan);
        for (key, window) in windows {
            packer.add(key, window).await?;
        }
        let stored = packer.finish().await?;
        crash::point("data written");
        let mut usage = frozen.usage.clone();
        for Stored { frozen, stored, .. } in &stored {
            count(&mut usage, frozen, -1);
            count(&mut usage, stored, 1);
        }
        let placed = stored.iter().map(|Stored { key, stored, .. }| (encoded(*key), stored.encode().map(Bytes::from)));
        batch.append(&mut placed.collect());
        let mut writer = segments.begin().await?;
        let unwritten = writer.bytes();
        let files = apply(loader, &mut writer, &base.files, &batch).await.map_err(failed("write the tree"))?;
        let account = account(loader, &base.usage, &usage, &last.leaving, plan).await?;
        let usage = apply(loader, &mut writer, &base.usage, &account.batch).await.map_err(failed("write the tree"))?;
        if writer.bytes() > unwritten {
            segments.finish(writer).await?;
        }
        crash::point("tree written");
        let mut named = last.layout.segments.clone();
        named.append(&mut segments.finished);
        named.retain(|id| !account.unused.contains(id) && !plan.nodes.contains(id) && !plan.dead.contains(id));
        let layout = Layout { superblock: frozen.superblock.clone(), files, usage, segments: named };
        let id = self.write_manifest(store, &layout, lease).await?;
        crash::point("manifest written");
        let head = self.heads.commit(&last.head, id, lease).await.map_err(VolumeError::heads(self.volume))?;
        crash::point("head moved");
        Ok((Committed { head, layout, leaving: account.leaving }, stored))
    }
}

/// Trees that a commit goes on from.
struct Trees {
    files: Tree,
    usage: Tree,
}

/// The trees with the nodes moved that shall be. Their new segment is whole then: what follows reads them.
async fn moved_trees(
    loader: &Loader,
    segments: &mut Segments<'_>,
    files: Tree,
    usage: Tree,
    plan: &Plan,
) -> Result<Trees, VolumeError> {
    if plan.nodes.is_empty() {
        return Ok(Trees { files, usage });
    }
    let mut writer = segments.begin().await?;
    let unwritten = writer.bytes();
    let moved = || failed("move nodes of the tree");
    let files = move_out(loader, &mut writer, &files, &plan.nodes).await.map_err(moved())?;
    let usage = move_out(loader, &mut writer, &usage, &plan.nodes).await.map_err(moved())?;
    if writer.bytes() > unwritten {
        segments.finish(writer).await?;
    }
    crash::point("nodes moved");
    Ok(Trees { files, usage })
}

/// What the freeze holds: values as they are, and windows that need a place for their data, in order.
fn captured(engine: &Engine, plan: &Plan) -> Result<(Batch, BTreeMap<Key, Window>), VolumeError> {
    let (mut values, mut windows) = (Vec::new(), BTreeMap::new());
    loop {
        // Programs go on between two helpings, also while one is encoded.
        let Some(captured) = lock(engine)?.capture(CAPTURE_KEYS) else { break };
        for (key, value) in captured {
            match value {
                Value::Window(window) if Packer::wants(&window, plan) => drop(windows.insert(key, window)),
                value => values.push((key, encode(value)?)),
            }
        }
    }
    // Keys compare faster than their bytes, and a map is made of what is in order at once.
    values.sort_unstable_by_key(|(key, _)| *key);
    Ok((values.into_iter().map(|(key, value)| (encoded(key), value)).collect(), windows))
}

/// Adds windows that have not changed, and shall move, as the tree has them now.
async fn add_moved(
    loader: &Loader,
    tree: &Tree,
    plan: &Plan,
    batch: &Batch,
    windows: &mut BTreeMap<Key, Window>,
) -> Result<(), VolumeError> {
    for key in &plan.windows {
        if windows.contains_key(key) || batch.contains_key(&key.encode()[..]) {
            continue;
        }
        let value = tree.get(loader, &key.encode()).await.map_err(failed("read a window that shall move"))?;
        let Some(window) = value.and_then(|value| Window::decode(&value)) else { continue };
        if plan.moves(&window) {
            windows.insert(*key, window);
        }
    }
    Ok(())
}

/// What a commit makes of the use of segments.
struct Account {
    batch: Batch,
    /// Nothing uses them any more.
    unused: BTreeSet<SegmentId>,
    /// Nothing in the tree uses them, but what has changed in memory since the freeze may: they stay for one more commit.
    leaving: BTreeSet<SegmentId>,
}

async fn account(
    loader: &Loader,
    tree: &Tree,
    usage: &Usage,
    leaving: &BTreeSet<SegmentId>,
    plan: &Plan,
) -> Result<Account, VolumeError> {
    let mut account = Account { batch: Batch::new(), unused: BTreeSet::new(), leaving: BTreeSet::new() };
    let changed = usage.iter().filter(|(_, change)| **change != 0).map(|(segment, _)| segment);
    let concerned: BTreeSet<&SegmentId> = changed.chain(leaving).chain(&plan.data).collect();
    for segment in concerned {
        let change = usage.get(segment).copied().unwrap_or(0);
        let before = tree.get(loader, &segment.0).await.map_err(failed("read the use of segments"))?;
        let before = before.and_then(|bytes| Use::decode(&bytes));
        let live = before.map_or(0, |used| used.live) + change;
        let used = Use { live, written: before.map_or(live, |used| used.written) };
        let value = match live {
            ..=0 if plan.data.contains(segment) && before.is_some() => {
                account.leaving.insert(*segment);
                Some(Use { live: 0, ..used })
            }
            ..=0 => {
                account.unused.insert(*segment);
                None
            }
            _ => Some(used),
        };
        account.batch.insert(Bytes::copy_from_slice(&segment.0), value.map(Use::encode));
    }
    Ok(account)
}

fn lock(engine: &Engine) -> Result<std::sync::MutexGuard<'_, crate::state::State>, VolumeError> {
    engine.lock().map_err(failed("go on: an operation broke off in its middle"))
}

fn count(usage: &mut Usage, window: &Window, sign: i64) {
    for (segment, bytes) in window.stored_bytes() {
        *usage.entry(segment).or_default() += sign * bytes as i64;
    }
}

fn encoded(key: Key) -> Bytes {
    Bytes::copy_from_slice(&key.encode())
}

fn encode(value: Value) -> Result<Option<Bytes>, VolumeError> {
    let bytes = match value {
        Value::Absent => return Ok(None),
        Value::Inode(inode) => postcard::to_stdvec(&inode),
        Value::Xattrs(xattrs) => encode_xattrs(&xattrs),
        Value::Entry(entry) => postcard::to_stdvec(&entry),
        Value::Window(window) => return Ok(window.encode().map(Bytes::from)),
        Value::Orphan => Ok(Vec::new()),
    };
    bytes.map(|bytes| Some(bytes.into())).map_err(failed("encode an inode"))
}

fn failed<E: Into<Cause>>(action: &'static str) -> impl FnOnce(E) -> VolumeError {
    VolumeError::store(action)
}
