//! Who the processes of a sandbox are on the host.

use anyhow::{Context, Result, ensure};
use base::limits::IDS_FIRST;
use procfs::IdMaps;
use sandbox::PROGRAM_ID;

/// The user and group of the host that the program's user is, in the user namespace of process `pid`. Fails if that is the host's.
pub fn program(pid: i32) -> Result<u32> {
    let root = IdMaps::of(pid)?.user_outside(0).context("no user is root in its user namespace")?;
    ensure!(root >= IDS_FIRST, "{pid} has the ids of the host: its root is {root}");
    Ok(root + PROGRAM_ID)
}
