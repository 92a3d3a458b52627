//! Files that appear with all their bytes or not at all: written without a name, then linked to one. A crash leaves nothing to sweep.

use std::{fs, fs::File, io, os::fd::AsRawFd, path::Path};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};

/// A file without a name on the filesystem of `folder`, for its owner only.
pub(crate) fn create(folder: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)?))
}

/// Gives `file` the name `target`, whose folders are made. An existing one is never replaced: `AlreadyExists`.
pub(crate) fn link(file: &File, target: &Path) -> io::Result<()> {
    // By way of /proc, which needs no privilege; AT_EMPTY_PATH does.
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = || rustix::fs::linkat(CWD, source.as_str(), CWD, target, AtFlags::SYMLINK_FOLLOW);
    match link() {
        Err(rustix::io::Errno::NOENT) => {
            fs::create_dir_all(target.parent().unwrap_or(Path::new("/")))?;
            Ok(link()?)
        }
        other => Ok(other?),
    }
}
