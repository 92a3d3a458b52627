//! The layer that gives every image what a sandbox's root must have: devices, mount points, scratch directories, a home.

use std::path::Path;

use super::layer::{Access, Layer};
use crate::{error::Error, spec::PROGRAM_ID};

/// The character devices of a sandbox: name, major, minor.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// Makes `layer` the topmost layer for a directory or tarball image. Repeating it is harmless.
///
/// /dev, /proc, /sys, /run and the scratch directories hide the image's own: mounts and device nodes must land on
/// directories that the image cannot have turned into links.
pub fn prepare_base_layer(layer: &Path) -> Result<(), Error> {
    write_base(&Layer::open(layer)?)
}

pub(super) fn write_base(layer: &Layer) -> Result<(), Error> {
    let (plain, scratch) = (Access::root(0o755), Access::root(0o1777));
    for directory in ["dev", "proc", "sys", "run"] {
        layer.opaque(directory, plain)?;
    }
    layer.opaque("tmp", scratch)?;
    layer.directory("var", plain)?;
    layer.opaque("var/tmp", scratch)?;
    layer.directory("run/lock", scratch)?;
    layer.directory("etc", plain)?;
    // The older place of the machine's id, often a file of its own: the image's, then, or the host's.
    layer.directory("var/lib", plain)?;
    layer.opaque("var/lib/dbus", plain)?;
    layer.symlink("var/lib/dbus/machine-id", "/etc/machine-id")?;
    for (name, major, minor) in DEVICES {
        layer.device(&format!("dev/{name}"), major, minor)?;
    }
    for (name, target) in DEVICE_LINKS {
        layer.symlink(&format!("dev/{name}"), target)?;
    }
    // A mount point, like the next two.
    layer.directory("dev/shm", scratch)?;
    layer.directory("dev/pts", plain)?;
    layer.directory("dev/mqueue", scratch)?;
    layer.opaque("home", plain)?;
    layer.directory("home/user", Access { mode: 0o755, uid: PROGRAM_ID, gid: PROGRAM_ID })
}
