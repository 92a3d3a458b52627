//! What people do with CRIU's images to keep them: pack them, and unpack them before each restore.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{Bench, Images, Kind, Tool};

/// As they are used: fast levels of the two that every host has.
const FILTERS: [&str; 2] = ["gzip -1", "zstd -3"];
const ROUNDS: u32 = 5;
const TAR_WAIT: Duration = Duration::from_secs(120);

/// One way of packing.
pub(in super::super) struct Archived {
    /// The command that packs.
    pub(in super::super) filter: &'static str,
    /// How long packing took, after the dump; nothing waited for the disk.
    pub(in super::super) packed: Duration,
    /// Of the archive.
    pub(in super::super) bytes: u64,
    /// From the begin of unpacking to the first answer of the program, restored eagerly.
    pub(in super::super) answered: Vec<Duration>,
}

impl Bench {
    /// Packs the images each way, and restores from what was packed.
    pub(super) fn archives(&self) -> Result<Vec<Archived>> {
        FILTERS.into_iter().map(|filter| self.archive(filter)).collect()
    }

    fn archive(&self, filter: &'static str) -> Result<Archived> {
        let packed = Images::new("packed")?;
        let file = packed.dir.join("images.tar");
        let began = Instant::now();
        self.tar("--create", filter, &file, &["."])?;
        let (took, bytes) = (began.elapsed(), packed.bytes()?);
        let mut answered = Vec::new();
        for round in 0..=ROUNDS {
            fs::remove_dir_all(&self.images.dir)?;
            fs::create_dir(&self.images.dir)?;
            let began = Instant::now();
            self.tar("--extract", filter, &file, &[])?;
            let unpacked = began.elapsed();
            let restored = self.restore(Kind::Eager, false)?;
            // The first one warms caches.
            if round > 0 {
                answered.push(unpacked + restored.answered);
            }
        }
        Ok(Archived { filter, packed: took, bytes, answered })
    }

    fn tar(&self, action: &str, filter: &str, file: &Path, members: &[&str]) -> Result<()> {
        let mut command = Command::new("tar");
        command.args([action, "--use-compress-program", filter]).arg("--file").arg(file);
        command.arg("--directory").arg(&self.images.dir).args(members);
        let mut tool = Tool::start(command)?;
        // It has no log: its status says enough.
        self.watch.until(TAR_WAIT, "tar", || tool.succeeded(Path::new("")))
    }
}
