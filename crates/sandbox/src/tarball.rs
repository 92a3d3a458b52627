//! Tarball images.

use std::{
    fs::File,
    io::{BufReader, Read, Seek},
    path::Path,
};

use flate2::bufread::MultiGzDecoder;

use crate::{
    error::{Context, Error},
    tree,
};

/// Unpacks a tar archive, plain or gzip, into the new directory `into`: whole or not at all.
///
/// Owners, modes and times are kept; device nodes are not made, and extended attributes are dropped, so that an archive
/// cannot contain overlay markers. No entry can reach outside `into`.
pub fn unpack_tarball(tarball: &Path, into: &Path) -> Result<(), Error> {
    tree::make_whole(into, |partial| unpack(tarball, partial))
}

fn unpack(tarball: &Path, into: &Path) -> Result<(), Error> {
    let mut file = BufReader::new(File::open(tarball).at("open", tarball)?);
    let mut magic = Vec::new();
    (&mut file).take(2).read_to_end(&mut magic).at("read", tarball)?;
    file.rewind().at("read", tarball)?;
    if magic == [0x1f, 0x8b] { extract(MultiGzDecoder::new(file), tarball, into) } else { extract(file, tarball, into) }
}

fn extract(reader: impl Read, tarball: &Path, into: &Path) -> Result<(), Error> {
    let mut archive = tar::Archive::new(reader);
    archive.set_preserve_permissions(true);
    archive.set_preserve_ownerships(true);
    archive.set_preserve_mtime(true);
    archive.set_unpack_xattrs(false);
    archive.unpack(into).at("unpack", tarball)
}
