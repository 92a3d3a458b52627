//! Writing an overlay layer: entries with exact owners and modes, opaque directories, whiteouts. Everything here can be
//! repeated on a finished layer without effect.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, XattrFlags, getxattr, makedev, mknodat, setxattr},
    io::Errno,
};

use crate::{
    attributes::OPAQUE,
    error::{Context, Error},
};

pub(super) struct Layer {
    root: PathBuf,
}

/// Mode bits and owner of an entry.
#[derive(Clone, Copy)]
pub(super) struct Access {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Access {
    pub(super) const fn root(mode: u32) -> Self {
        Self { mode, uid: 0, gid: 0 }
    }
}

impl From<&fs::Metadata> for Access {
    fn from(found: &fs::Metadata) -> Self {
        Self { mode: found.mode() & 0o7777, uid: found.uid(), gid: found.gid() }
    }
}

impl Layer {
    pub(super) fn open(root: &Path) -> Result<Self, Error> {
        fs::create_dir_all(root).at("create", root)?;
        let layer = Self { root: root.to_owned() };
        // An overlay's root has the mode of its topmost layer's root.
        layer.set_access(root, Access::root(0o755))?;
        Ok(layer)
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.root.join(inside.trim_start_matches('/'))
    }

    /// A directory that merges with those of the layers below.
    pub(super) fn directory(&self, inside: &str, access: Access) -> Result<(), Error> {
        let path = self.path(inside);
        tolerate_existing(fs::create_dir(&path)).at("create", &path)?;
        self.set_access(&path, access)
    }

    /// A directory that hides those of the layers below.
    pub(super) fn opaque(&self, inside: &str, access: Access) -> Result<(), Error> {
        self.directory(inside, access)?;
        let path = self.path(inside);
        setxattr(&path, OPAQUE, b"y", XattrFlags::empty()).at("make opaque", &path)
    }

    /// Hides an entry of the layers below.
    pub(super) fn whiteout(&self, inside: &str) -> Result<(), Error> {
        self.node(inside, 0, 0, Access::root(0))
    }

    /// A character device. 0:0 is a whiteout.
    pub(super) fn device(&self, inside: &str, major: u32, minor: u32) -> Result<(), Error> {
        self.node(inside, major, minor, Access::root(0o666))
    }

    fn node(&self, inside: &str, major: u32, minor: u32, access: Access) -> Result<(), Error> {
        let path = self.path(inside);
        let device = makedev(major, minor);
        match mknodat(CWD, &path, FileType::CharacterDevice, Mode::from_raw_mode(access.mode), device) {
            Err(Errno::EXIST) if is_device(&path, device) => {}
            result => result.at("create the node", &path)?,
        }
        // A whiteout has neither owner nor mode that anybody sees.
        if device == 0 { Ok(()) } else { self.set_access(&path, access) }
    }

    pub(super) fn symlink(&self, inside: &str, target: &str) -> Result<(), Error> {
        let path = self.path(inside);
        tolerate_existing(symlink(target, &path)).at("create the link", &path)
    }

    /// A file of root's, readable by all, replaced whole if its content differs.
    pub(super) fn file(&self, inside: &str, content: &[u8]) -> Result<(), Error> {
        let path = self.path(inside);
        if fs::read(&path).is_ok_and(|found| found == content) {
            return Ok(());
        }
        let new = path.with_extension("new");
        fs::write(&new, content).at("write", &new)?;
        self.set_access(&new, Access::root(0o644))?;
        fs::rename(&new, &path).at("replace", &path)
    }

    /// Whether the layer itself has an entry there.
    pub(super) fn has(&self, inside: &str) -> bool {
        fs::symlink_metadata(self.path(inside)).is_ok()
    }

    /// Whether `inside` or a directory above it is opaque or a whiteout, so that nothing below shows through.
    pub(super) fn covers(&self, inside: &Path) -> bool {
        inside.ancestors().filter_map(Path::to_str).any(|ancestor| {
            let path = self.path(ancestor);
            is_device(&path, 0) || getxattr(&path, OPAQUE, &mut [0u8; 1][..]).is_ok_and(|length| length == 1)
        })
    }

    fn set_access(&self, path: &Path, access: Access) -> Result<(), Error> {
        // The owner first: a change of owner clears mode bits.
        chown(path, Some(access.uid), Some(access.gid)).at("set the owner of", path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(access.mode)).at("set the mode of", path)
    }
}

fn is_device(path: &Path, device: u64) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_char_device() && found.rdev() == device)
}

fn tolerate_existing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}
