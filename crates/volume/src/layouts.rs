//! What the manifests that were written or read last say, so that they need not be fetched: a manifest never changes.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, PoisonError},
};

use lru::LruCache;
use store::{Store, id::ManifestId};

use crate::{
    VolumeError,
    limits::{LAYOUT_SEGMENTS_MAX, LAYOUTS_KNOWN},
    materialise::Layout,
};

/// Of one realm. Clones share it.
#[derive(Clone)]
pub(crate) struct Layouts(Arc<Mutex<LruCache<ManifestId, Layout>>>);

impl Layouts {
    pub(crate) fn none_yet() -> Self {
        let count = NonZeroUsize::new(LAYOUTS_KNOWN).unwrap_or(NonZeroUsize::MIN);
        Self(Arc::new(Mutex::new(LruCache::new(count))))
    }

    /// What manifest `id` says. It has to be kept by a head or a lease, or else it may be gone although this succeeds.
    pub(crate) async fn read(&self, store: &Store, id: ManifestId) -> Result<Layout, VolumeError> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        if let Some(layout) = known {
            return Ok(layout);
        }
        let layout = Layout::read(store, id).await?;
        self.know(id, &layout);
        Ok(layout)
    }

    /// Manifest `id` says this.
    pub(crate) fn know(&self, id: ManifestId, layout: &Layout) {
        if layout.segments.len() <= LAYOUT_SEGMENTS_MAX {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).put(id, layout.clone());
        }
    }
}
