//! The file of the log that is written.
//!
//! Filling new pages of a file takes several times as long as copying into those it has, and new blocks have to be found when they are synced.
//! So whoever writes much goes on in a file that a commit has overtaken, with another header and name (as PostgreSQL does with its log).
//! What is behind the last batch then is not zeros but batches of before, which do not open: they are sealed with the key of the file before.
//! A reader takes them for a torn tail, and sees by the next file's first operation that nothing is missing.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use store::{
    id::{Realm, SegmentId},
    keys::DataKey,
    seal::SegmentKey,
};

use super::{Header, failed};
use crate::{
    crash,
    error::WalError,
    limits::{WAL_FILL_BYTES, WAL_SYNCS_MIN},
};

/// A file with nothing that is needed any more.
pub(super) struct Spare {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// See the module.
pub(super) struct Open {
    pub(super) file: Arc<File>,
    /// Where the next batch goes.
    end: u64,
    /// Up to here the file has bytes: of before, or zeros.
    filled: u64,
    syncs: u32,
    pub(super) path: PathBuf,
    pub(super) key: SegmentKey,
    pub(super) header: Header,
    /// Number of the next batch.
    pub(super) number: u32,
    /// The last operation in the file.
    pub(super) last: u64,
}

impl Open {
    /// Begins a file for operations after `last`.
    pub(super) fn create(
        folder: &Path,
        realm: &Realm,
        key: &DataKey,
        (epoch, last): ([u8; 16], u64),
        spare: Option<Spare>,
    ) -> Result<Self, WalError> {
        let header = Header { file: SegmentId::random(), key: key.id(), epoch, first: last + 1 };
        let path = folder.join(header.file_name());
        let bytes = header.encode();
        let make = || -> io::Result<File> {
            let Some(spare) = &spare else {
                let file = File::options().write(true).create_new(true).open(&path)?;
                file.write_all_at(&bytes, 0)?;
                return Ok(file);
            };
            let file = File::options().write(true).open(&spare.path)?;
            file.write_all_at(&bytes, 0)?;
            crash::point("log file taken over");
            // A reader takes no file for one of the log whose name and header are not of each other.
            fs::rename(&spare.path, &path)?;
            Ok(file)
        };
        let file = Arc::new(make().map_err(failed("begin", &path))?);
        let end = bytes.len() as u64;
        let filled = spare.map_or(end, |spare| spare.bytes.max(end));
        crash::point("log begun");
        let key = SegmentKey::derive(key, realm, header.file);
        Ok(Self { file, end, filled, syncs: 0, path, key, header, number: 0, last })
    }

    /// Bytes that were written since it was begun.
    pub(super) fn written(&self) -> u64 {
        self.end
    }

    /// Bytes of the file.
    pub(super) fn bytes(&self) -> u64 {
        self.filled
    }

    pub(super) fn append(&mut self, batch: &[u8]) -> io::Result<()> {
        self.file.write_all_at(batch, self.end)?;
        self.end += batch.len() as u64;
        self.filled = self.filled.max(self.end);
        Ok(())
    }

    /// Gives back what will not be reached soon.
    pub(super) fn trim(&mut self) -> Result<(), WalError> {
        if self.filled - self.end > WAL_FILL_BYTES {
            self.file.set_len(self.end).map_err(failed("cut", &self.path))?;
            self.filled = self.end;
        }
        Ok(())
    }

    /// Writes zeros before they are reached, where syncs are frequent: a sync of bytes that are there already needs no commit of the
    /// disk's filesystem, and takes half as long. If it fails, the next batch will say so.
    pub(super) fn fill_ahead(&mut self) {
        self.syncs = self.syncs.saturating_add(1);
        let wanted = self.syncs > WAL_SYNCS_MIN && self.filled - self.end < WAL_FILL_BYTES / 4;
        if wanted && self.file.write_all_at(&[0; WAL_FILL_BYTES as usize], self.filled).is_ok() {
            self.filled += WAL_FILL_BYTES;
        }
    }
}
