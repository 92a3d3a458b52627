//! What this kernel's FUSE can do, tried on a superblock that is served by nobody.

use std::os::fd::AsFd;

use crate::{
    adapter,
    error::{Doing, FuseError},
    handshake,
    mount::{clones_trees, mount},
    session::Options,
};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features {
    /// What the kernel does not offer and volumes need: names of FUSE's flags. Without one no volume can be mounted.
    pub lacking: Option<String>,
    /// The kernel can be told to forget all names at once (Linux 6.16).
    pub epochs: bool,
    /// A mount that is attached nowhere can be cloned (Linux 6.15).
    pub clones: bool,
}

/// Tries them. Nothing is left.
pub fn features() -> Result<Features, FuseError> {
    let mounted = mount("features")?;
    let offered = handshake::offered(mounted.device.as_fd()).doing("read the kernel's first request")?;
    let lacking = adapter::wanted(Options::default()).difference(offered);
    let names: Vec<_> = lacking.iter_names().map(|(name, _)| name).collect();
    let epochs = handshake::has_epochs(&mounted.device);
    let clones = clones_trees(mounted.tree.as_fd());
    Ok(Features { lacking: (!names.is_empty()).then(|| names.join(", ")), epochs, clones })
}
