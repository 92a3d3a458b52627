//! Where a sandbox's changes to its root filesystem lie: a directory with overlay's upper and work directories in it.
//!
//! On btrfs that directory is a subvolume. Then a layer of it is a snapshot, taken in milliseconds however much was changed, and a sandbox that starts
//! from such a layer has a snapshot of it as its own upper directory: it sees what the source saw, with the same inode numbers, hard links that are
//! links, and files that are no lower layer's. On all other filesystems a layer is a copy, which is stacked below an empty upper directory.
//!
//! ```text
//! btrfs:  CHANGES/ID/{upper,work} --prepare: dirty data is written--> --finish: snapshot--> CHANGES/POINT/upper
//! else:   DIR/ID/{upper,work}     --prepare: copied, in rounds----> --finish: the rest-----> DIR/POINT/layer
//! ```

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, Mode, mkdirat};
use sys::tree::place;

use crate::{
    attributes::open_dir,
    error::{Context, Error},
    mirror::{Hot, Mirror, Processes},
    sweep::remove_directory,
};

/// The directory below a sandbox's changes with the changes themselves.
pub const UPPER: &str = "upper";
pub(crate) const WORK: &str = "work";

/// Makes the new directory `changes`: a snapshot, if they begin with those of the layer `from`. At most `bytes` more can be written to it. A failure may
/// leave some of it.
pub(crate) fn make(changes: &Path, from: Option<&Path>, bytes: Option<u64>) -> Result<(), Error> {
    begin(changes, from)?;
    match bytes {
        Some(bytes) => sys::btrfs::limit(open_dir(CWD, changes).at("open", changes)?, bytes).at("limit", changes),
        None => Ok(()),
    }
}

fn begin(changes: &Path, from: Option<&Path>) -> Result<(), Error> {
    match from {
        Some(layer) => {
            let source = subvolume(layer)?;
            take(&source, changes).at("take a snapshot of", layer)?;
            // The kernel refuses one of another overlay that was `volatile`.
            remove_directory(&changes.join(WORK))?;
            directory(&changes.join(WORK), 0o700)
        }
        None => {
            let (parent, name) = place(changes).at("create", changes)?;
            let made = match sys::btrfs::is_here(&parent).at("create", changes)? {
                true => sys::btrfs::create_subvolume(&parent, name),
                false => mkdirat(&parent, name, Mode::RWXU).map_err(io::Error::from),
            };
            match made {
                // The sandbox's own directory.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made.at("create", changes)?,
            }
            directory(&changes.join(UPPER), 0o755)?;
            directory(&changes.join(WORK), 0o700)
        }
    }
}

fn directory(path: &Path, mode: u32) -> Result<(), Error> {
    fs::create_dir(path).at("create", path)?;
    // Not by mkdir's mode: the caller's umask must not decide what a sandbox can read.
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).at("set the mode of", path)
}

/// A layer of a sandbox's changes that is going to be taken.
#[derive(Debug)]
pub struct Capture {
    changes: PathBuf,
    layer: PathBuf,
    way: Way,
}

/// How it is taken.
#[derive(Debug)]
enum Way {
    Snapshot(OwnedFd),
    Copy(Box<(Mirror, Hot)>),
    Done,
}

/// So little of a copy may be done while the sandbox stands still; with more, one round more is tried before.
const REST_BYTES: u64 = 16 << 20;
const REST_ENTRIES: u64 = 1_000;
/// Most rounds while it runs.
const ROUNDS_MAX: u32 = 4;

impl Capture {
    /// Does what can be done while the sandbox runs, so that little is left for the moment in which it stands still. `changes` are those of a
    /// sandbox with these `processes`; `layer` is not there yet, nor is its directory.
    pub fn prepare(changes: &Path, layer: &Path, processes: &dyn Fn() -> Vec<i32>) -> Result<Self, Error> {
        let opened = open_dir(CWD, changes).at("open", changes)?;
        let (changes, layer) = (changes.to_owned(), layer.to_owned());
        let point = layer.parent().ok_or(io::ErrorKind::InvalidInput).at("create", &layer)?;
        let way = if sys::btrfs::is_subvolume(&opened).at("open", &changes)? {
            // A snapshot has what is dirty written first, of this subvolume alone: syncfs(2) would write all, and does nothing on a volatile overlay.
            take(&opened, point).at("write down the changes in", &changes)?;
            remove_directory(point)?;
            Way::Snapshot(opened)
        } else {
            fs::create_dir_all(point).at("create", point)?;
            ahead(Mirror::begin(&changes.join(UPPER), &layer)?, processes)?
        };
        Ok(Self { changes, layer, way })
    }

    /// Takes it: of one moment, if the sandbox stands still, with these `processes`. A failure leaves nothing.
    pub fn finish(&mut self, processes: &[i32]) -> Result<(), Error> {
        match std::mem::replace(&mut self.way, Way::Done) {
            Way::Snapshot(subvolume) => {
                let point = self.layer.parent().unwrap_or(&self.layer);
                take(&subvolume, point).at("take a snapshot of", &self.changes)
            }
            Way::Copy(copy) => {
                let (mut mirror, hot) = *copy;
                let rest = mirror.round(&Hot::look(processes, hot)?, Processes::StandStill)?;
                tracing::debug!(rest.bytes, rest.entries, "copied the rest of the changes");
                mirror.keep();
                Ok(())
            }
            Way::Done => Err(io::Error::from(io::ErrorKind::AlreadyExists)).at("take once more", &self.layer),
        }
    }
}

/// Copies the changes of a sandbox that stands still, with these `processes`, into the new directory `layer`, which may be on another filesystem.
pub fn copy_still(changes: &Path, layer: &Path, processes: &[i32]) -> Result<u64, Error> {
    let mut mirror = Mirror::begin(&changes.join(UPPER), layer)?;
    let copied = mirror.round(&Hot::look(processes, Hot::default())?, Processes::StandStill)?;
    mirror.keep();
    Ok(copied.bytes)
}

/// Copies until little changes meanwhile.
fn ahead(mut mirror: Mirror, processes: &dyn Fn() -> Vec<i32>) -> Result<Way, Error> {
    let (mut hot, mut earlier) = (Hot::default(), u64::MAX);
    for _ in 0..ROUNDS_MAX {
        if !mirror.can_run_ahead() {
            break;
        }
        hot = Hot::look(&processes(), hot)?;
        let done = mirror.round(&hot, Processes::Run)?;
        // What was mapped during the round counts for the next one as well.
        hot = Hot::look(&processes(), hot)?;
        let is_little = done.bytes <= REST_BYTES && done.entries <= REST_ENTRIES;
        if is_little || done.bytes > earlier {
            break;
        }
        earlier = done.bytes;
    }
    Ok(Way::Copy(Box::new((mirror, hot))))
}

/// The subvolume that a layer lies in.
fn subvolume(layer: &Path) -> Result<OwnedFd, Error> {
    let parent = layer.parent().ok_or(io::ErrorKind::InvalidInput).at("open", layer)?;
    open_dir(CWD, parent).at("open", parent)
}

fn take(source: &OwnedFd, into: &Path) -> io::Result<()> {
    let (parent, name) = place(into)?;
    sys::btrfs::snapshot(source, &parent, name)
}
