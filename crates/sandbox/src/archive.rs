//! Archives of a layer: everything that a sandbox changed in its root filesystem, as one stream of bytes.
//!
//! A checkpoint carries one to another node. It holds what a copy of the layer on the same node holds (`snapshot`):
//! directories, files with their holes, symbolic and hard links, pipes, sockets, whiteouts, owners, modes, times of
//! modification and all extended attributes, overlay's own included. Device nodes are refused, and the files that make
//! a sandbox a machine of its own are left out. The layout is in docs/formats/layer-archive.md.
//!
//! What it promises:
//! - the same tree gives the same bytes, whatever filesystem it lies on;
//! - memory is bounded, whatever the tree or the archive ([`limits`]);
//! - an archive may be hostile: nothing outside the new directory is reached, and what is not sound is refused;
//! - a layer is unpacked whole or not at all.
//!
//! ```text
//! layer -> pack: walk, sorted -> Record -> Sink: frames, digest -> bytes -> Source: checked -> unpack: Maker -> layer
//! ```

mod limits;
mod make;
mod pack;
mod record;
#[cfg(test)]
mod tests;
mod unpack;

use std::{
    io::{Read, Write},
    path::Path,
};

use sys::tree::Partial;

use crate::error::{Context, Error};

/// What an archive holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArchiveTotals {
    /// Directories, files and all others, each further name of a file counted too; the layer itself is one.
    pub entries: u64,
    /// Bytes in files, without holes.
    pub data_bytes: u64,
    /// Length of the archive.
    pub archive_bytes: u64,
}

/// Writes the layer `dir` to `out`. Whoever changes the layer should stand still, or the archive is not of one moment.
///
/// Refused, with the path: device nodes, overlay marks that a layer of ours cannot have, and what exceeds the limits.
/// Needs root, without whom overlay's marks cannot be read.
pub fn pack_layer(dir: &Path, out: &mut dyn Write) -> Result<ArchiveTotals, Error> {
    pack::pack(dir, out)
}

/// Makes the new directory `into` from an archive, which is all of `input`: whole, with everything checked, or not at
/// all. Nothing is synced, so a crash of the host may leave less. A leftover of a killed unpacking (`into` with
/// `.partial`) is removed.
pub fn unpack_layer(input: &mut dyn Read, into: &Path) -> Result<ArchiveTotals, Error> {
    if into.symlink_metadata().is_ok() {
        return Err(Error::Exists(into.to_owned()));
    }
    let partial = Partial::create(into).at("create", into)?;
    let totals = unpack::unpack(input, partial.path())?;
    partial.complete().at("create", into)?;
    Ok(totals)
}
