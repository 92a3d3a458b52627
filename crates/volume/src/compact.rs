//! What a commit moves so that little-used segments can go: found out in the background, on a state that stays what it is.
//!
//! ```text
//!   plan (no lock, last committed trees) ── which segments, and which windows lie in them
//!     └─► the next commit moves what still lies there. A window that has changed since is as it is now: nothing old comes back.
//! ```
//!
//! A plan says only what to move. Whether a segment leaves the manifest is decided by the commit's own account, so a plan that is late does
//! less, never wrong; after a restore it is dropped.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use store::{
    id::SegmentId,
    tree::{Scan, census},
};

use crate::{
    VolumeError,
    extents::Window,
    key::{Key, Part},
    limits::{
        DATA_SEGMENTS_SMALL, GARBAGE_BYTES_MIN, MOVED_DATA_BYTES, MOVED_NODE_BYTES, NODE_SEGMENTS, SMALL_SEGMENT_BYTES,
    },
    loader::Loader,
    materialise::Layout,
    pack::chunk_of,
};

/// How much of a data segment is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Use {
    /// Bytes that windows refer to.
    pub(crate) live: i64,
    /// That number when the segment was written.
    pub(crate) written: i64,
}

impl Use {
    pub(crate) fn encode(self) -> Bytes {
        Bytes::copy_from_slice(&[self.live.to_le_bytes(), self.written.to_le_bytes()].concat())
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (live, written) = bytes.split_first_chunk::<8>()?;
        Some(Self { live: i64::from_le_bytes(*live), written: i64::from_le_bytes(written.try_into().ok()?) })
    }
}

/// How much is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// What pays, as much as a commit can take along.
    Worthwhile,
    /// Everything.
    All,
}

/// What the next commit shall move.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    /// The log that the state belongs to: another one means another state.
    pub(crate) epoch: [u8; 16],
    /// Segments of nodes whose nodes shall move.
    pub(crate) nodes: BTreeSet<SegmentId>,
    /// Segments of nodes of which the trees use nothing. Nodes never come back into use.
    pub(crate) dead: BTreeSet<SegmentId>,
    /// Segments whose data shall move.
    pub(crate) data: BTreeSet<SegmentId>,
    /// Windows that had data in these.
    pub(crate) windows: BTreeSet<Key>,
}

impl Plan {
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.dead.is_empty() && self.data.is_empty()
    }

    /// Whether some of a window's data shall move.
    pub(crate) fn moves(&self, window: &Window) -> bool {
        !self.data.is_empty()
            && window.pieces().iter().filter_map(chunk_of).any(|chunk| self.data.contains(&chunk.segment))
    }
}

/// What is worth moving in a state.
pub(crate) async fn plan(loader: &Loader, layout: &Layout, effort: Effort) -> Result<Plan, VolumeError> {
    let mut plan = Plan { epoch: layout.superblock.epoch, ..Plan::default() };
    let used = read_use(loader, layout).await?;
    let nodes: BTreeSet<SegmentId> = layout.segments.iter().filter(|id| !used.contains_key(id)).copied().collect();
    let all = effort == Effort::All;
    if all || nodes.len() > NODE_SEGMENTS {
        let trees = [layout.files, layout.usage];
        let live = census(loader, &trees).await.map_err(VolumeError::store("count the nodes of a volume's trees"))?;
        let mut live: Vec<(u64, SegmentId)> = live.into_iter().map(|(id, bytes)| (bytes, id)).collect();
        plan.dead = nodes.iter().filter(|id| !live.iter().any(|(_, used)| used == *id)).copied().collect();
        live.sort_unstable();
        plan.nodes = if all { live.into_iter().map(|(_, id)| id).collect() } else { few(live, MOVED_NODE_BYTES) };
    }
    plan.data = if all { used.keys().copied().collect() } else { data_to_move(&used) };
    if !plan.data.is_empty() {
        plan.windows = windows_in(loader, layout, &plan.data).await?;
    }
    Ok(plan)
}

/// The smallest of some segments, which ascend, with so many bytes together; none if there is but one.
fn few(segments: Vec<(u64, SegmentId)>, bytes_max: u64) -> BTreeSet<SegmentId> {
    let mut sum = 0;
    let small = segments.into_iter().take_while(|(bytes, _)| {
        sum += bytes;
        sum <= bytes_max
    });
    let few: BTreeSet<_> = small.map(|(_, id)| id).collect();
    if few.len() > 1 { few } else { BTreeSet::new() }
}

/// Segments of which half is garbage, if there is much garbage; small ones, if there are many. Those that nothing uses, always.
fn data_to_move(used: &BTreeMap<SegmentId, Use>) -> BTreeSet<SegmentId> {
    let (live, written) = used.values().fold((0, 0), |sum, used| (sum.0 + used.live, sum.1 + used.written));
    let mut wasted: Vec<(u64, SegmentId)> = Vec::new();
    if written - live > (live / 2).max(GARBAGE_BYTES_MIN) {
        let half = used.iter().filter(|(_, used)| used.live * 2 < used.written);
        wasted.extend(half.map(|(id, used)| (used.live.unsigned_abs(), *id)));
    }
    let small: Vec<_> = used.iter().filter(|(_, used)| used.live < SMALL_SEGMENT_BYTES).collect();
    if small.len() > DATA_SEGMENTS_SMALL {
        wasted.extend(small.iter().map(|(id, used)| (used.live.unsigned_abs(), **id)));
    }
    wasted.sort_unstable();
    wasted.dedup();
    let mut moved = few(wasted, MOVED_DATA_BYTES);
    moved.extend(used.iter().filter(|(_, used)| used.live <= 0).map(|(id, _)| *id));
    moved
}

async fn read_use(loader: &Loader, layout: &Layout) -> Result<BTreeMap<SegmentId, Use>, VolumeError> {
    let damaged = VolumeError::Damaged { what: "the account of segments" };
    let (mut used, mut scan) = (BTreeMap::new(), Scan::all(loader, &layout.usage));
    while let Some(entry) = scan.next().await.map_err(VolumeError::store("read the use of segments"))? {
        let (Ok(id), Some(bytes)) = (entry.key[..].try_into(), Use::decode(&entry.value)) else { return Err(damaged) };
        used.insert(SegmentId(id), bytes);
    }
    Ok(used)
}

/// Windows with data in some segments: all entries are read for it.
async fn windows_in(
    loader: &Loader,
    layout: &Layout,
    segments: &BTreeSet<SegmentId>,
) -> Result<BTreeSet<Key>, VolumeError> {
    let (mut found, mut scan) = (BTreeSet::new(), Scan::all(loader, &layout.files));
    while let Some(entry) = scan.next().await.map_err(VolumeError::store("look for data to move"))? {
        let Some(key @ Key { part: Part::Window(_), .. }) = Key::decode(&entry.key) else { continue };
        let window = Window::decode(&entry.value).ok_or(VolumeError::Damaged { what: "a window" })?;
        if window.pieces().iter().filter_map(chunk_of).any(|chunk| segments.contains(&chunk.segment)) {
            found.insert(key);
        }
    }
    Ok(found)
}
