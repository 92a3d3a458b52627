//! Files that lost the name they were opened by, and have another in the same directory.
//!
//! The kernel shows the old name, as deleted. The C library's `sem_open` makes every semaphore so: under a name of its own, which it links to
//! the right one and removes.

use std::{
    fs::Metadata,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
};

use procfs::MapLine;
use rustix::fs::{Mode, OFlags};

use crate::observe::{
    gone::{MARK, is_named},
    root,
};

/// So many entries of a directory are looked at.
const ENTRIES_MAX: usize = 10_000;

/// Gives mappings of such files, if they are shared, the names that the files have.
pub(crate) fn name_mapped(pid: i32, lines: &mut [MapLine]) {
    for line in lines.iter_mut().filter(|line| line.shared && !line.path.starts_with(b"/memfd:")) {
        if let Some(name) = other_name(pid, &line.path, || std::fs::metadata(line.link(pid)).ok()) {
            line.path = name;
        }
    }
}

/// The other name of a file that `link` shows as deleted.
pub(crate) fn other_name(pid: i32, link: &[u8], status: impl FnOnce() -> Option<Metadata>) -> Option<Vec<u8>> {
    let path = link.strip_suffix(MARK).filter(|path| path.starts_with(b"/"))?;
    let status = status().filter(|status| status.is_file() && status.nlink() > 0 && !is_named(pid, link, status))?;
    let directory = Path::new(std::ffi::OsStr::from_bytes(path)).parent()?;
    let inside = directory.strip_prefix("/").ok()?;
    let root = root::open_root(pid).ok()?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(&root, inside_or_here(inside), flags, Mode::empty(), root::INSIDE).ok()?;
    let entries = rustix::fs::Dir::new(opened).ok()?;
    let mut names = entries.flatten().take(ENTRIES_MAX).filter(|entry| entry.ino() == status.ino());
    names.find_map(|entry| {
        let name = directory.join(std::ffi::OsStr::from_bytes(entry.file_name().to_bytes()));
        let name = name.as_os_str().as_bytes();
        is_named(pid, name, &status).then(|| name.to_vec())
    })
}

/// The root directory itself has no name inside.
fn inside_or_here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_was_linked_and_lost_its_first_name_has_the_other() {
        let directory = std::env::temp_dir().join(format!("pando-links-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let [first, second] = ["first", "second"].map(|name| directory.join(name));
        let file = fs::File::create(&first).unwrap();
        fs::hard_link(&first, &second).unwrap();
        fs::remove_file(&first).unwrap();
        let own = std::process::id() as i32;
        let link = [first.as_os_str().as_bytes(), MARK].concat();
        let found = |link: &[u8]| other_name(own, link, || file.metadata().ok());
        assert_eq!(found(&link).as_deref(), Some(second.as_os_str().as_bytes()));
        assert_eq!(found(first.as_os_str().as_bytes()), None, "not shown as deleted");
        fs::remove_file(&second).unwrap();
        assert_eq!(found(&link), None, "no name is left");
        fs::remove_dir(&directory).unwrap();
    }
}
