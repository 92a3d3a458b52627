//! Parsers that are private, for the fuzz targets in `fuzz/`. A failed assertion is a finding.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use store::id::Realm;
use tokio::runtime::{Builder, Runtime};

use crate::{Durable, PeerSettings, Settings, transfer};

/// What a manifest says of a checkpoint.
pub fn checkpoint(payload: &[u8]) {
    crate::checkpoint::fuzz(payload);
}

/// What a manifest says of a paused sandbox.
pub fn paused(payload: &[u8]) {
    crate::paused::fuzz(payload);
}

/// What the pager is told of a checkpoint's memory.
pub fn image_roots(payload: &[u8]) {
    crate::pages::fuzz(payload);
}

/// A store into which checkpoint files are imported.
pub struct Importer {
    folder: PathBuf,
    runtime: Runtime,
    durable: Option<Durable>,
    imports: AtomicU64,
}

impl Importer {
    /// In `folder`, which is emptied again and again.
    pub fn new(folder: PathBuf) -> std::io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        Ok(Self { folder, runtime, durable: None, imports: AtomicU64::new(0) })
    }

    /// Imports `file` as a node does: all of it into the store, read back, and named.
    pub fn import(&mut self, file: &[u8]) -> crate::Result<()> {
        const KEPT: u64 = 256;
        if self.imports.fetch_add(1, Relaxed).is_multiple_of(KEPT) {
            self.durable = None;
            // It may not be there.
            let _ = std::fs::remove_dir_all(&self.folder);
        }
        let settings = Settings {
            realm: Realm::default(),
            objects: None,
            database: None,
            master_keys: None,
            cache_bytes: 64 << 20,
            peers: PeerSettings::default(),
        };
        let durable = match self.durable.take() {
            Some(durable) => durable,
            None => self.runtime.block_on(Durable::open(&settings, &self.folder, "fuzz"))?,
        };
        let durable = self.durable.insert(durable);
        let scratch = self.folder.join("scratch");
        let import = transfer::Import { name: None, replace: true, admit: |_| Ok(()), scratch: &scratch };
        let handle = self.runtime.handle().clone();
        let imported = transfer::import(import, durable, &handle, &mut transfer::NoArchives, file);
        assert!(!scratch.exists(), "what was unpacked to be checked is still there");
        imported.map(drop)
    }
}
