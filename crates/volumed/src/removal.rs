//! Directories that are removed with all that is in them.

use rustix::io::Errno;
use volume::{Engine, Ino, Kind};

/// Entries that are listed before they are removed; with `.` and `..`.
const REMOVED_AT_ONCE: usize = 1026;

/// A directory that is to be emptied, and where it is.
struct Emptied {
    parent: Ino,
    name: Vec<u8>,
    ino: Ino,
}

/// Removes `name` of `parent`, the directory `ino`, with all that is in it; gives the inodes that went. Whoever works in it meanwhile may be
/// faster. Blocks.
pub(crate) fn remove_all(engine: &Engine, parent: Ino, name: &[u8], ino: Ino) -> Result<Vec<Ino>, Errno> {
    let mut gone = Vec::new();
    // A directory comes again when what is above it here is gone.
    let mut rest = vec![Emptied { parent, name: name.to_vec(), ino }];
    while let Some(next) = rest.pop() {
        let entries = match engine.list(next.ino, 0, REMOVED_AT_ONCE) {
            // Somebody has removed it.
            Err(Errno::STALE | Errno::NOENT) => continue,
            entries => entries?,
        };
        let parent = next.ino;
        match entries.len() {
            0..=2 => match engine.remove_directory(next.parent, &next.name) {
                Ok(()) => gone.push(next.ino),
                Err(Errno::NOENT) => {}
                // Somebody has put something into it.
                Err(Errno::NOTEMPTY) => rest.push(next),
                Err(errno) => return Err(errno),
            },
            _ => rest.push(next),
        }
        for entry in entries.into_iter().filter(|entry| !matches!(&entry.name[..], b"." | b"..")) {
            match entry.kind {
                Kind::Directory => rest.push(Emptied { parent, name: entry.name, ino: entry.ino }),
                _ => match engine.unlink(parent, &entry.name) {
                    Ok(()) => gone.push(entry.ino),
                    Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno),
                },
            }
        }
    }
    Ok(gone)
}
