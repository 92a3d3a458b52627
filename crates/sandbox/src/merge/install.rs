//! The part of a merge that writes.

use std::{
    collections::HashMap,
    ffi::{CStr, CString, OsStr},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use base::limits::IDS_PER_SANDBOX;
use procfs::ProcessIdentity;
use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, linkat, mkdirat, open, openat, openat2, renameat,
        statat,
    },
    io::Errno,
    process::{Gid, Uid, dumpable_behavior, set_dumpable_behavior},
    thread::{CapabilitySet, CapabilitySets, set_capabilities, set_thread_res_gid, set_thread_res_uid},
};

use super::Step;
use crate::{
    attributes::{LEVELS_MAX, open_dir},
    capabilities::OF_ROOTS_HAND,
    compare::Files,
    entry::{Place, copy_data, drop_xattrs, finish_open, make, open_source, remove},
    error::{Context, Error},
    ids::Ids,
    machine::{IDENTITY_FILES, is_one_of},
};

/// Where copies are made, in the root of the sandbox. One that a killed node has left is removed by the next merge.
pub(super) const STAGING: &str = ".pando-merge";
const STAGING_NAME: &CStr = c".pando-merge";

/// The files of a sandbox that runs, as its processes see them.
pub(super) struct Ours {
    root: OwnedFd,
    /// How much higher ids are outside than on the disk.
    shift: u32,
}

impl Ours {
    pub(super) fn open(init: ProcessIdentity) -> Result<Self, Error> {
        let shift = Ids::of(init)?.outside(0);
        let path = format!("/proc/{}/root", init.pid);
        let root = open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let root = root.at("open", Path::new(&path))?;
        // Else its number may be another process' by now.
        if init.is_alive() { Ok(Self { root, shift }) } else { Err(Errno::SRCH).at("open", Path::new(&path)) }
    }

    /// Makes copies of all that is put, and then does the steps in their order, on a thread that is root of the sandbox.
    pub(super) fn take(&self, theirs: &Files, steps: &[Step], stop: &AtomicBool) -> Result<(), Error> {
        thread::scope(|scope| {
            let taking = scope.spawn(|| {
                become_root_of(self.shift).doing("become root of a sandbox")?;
                self.take_as_root(theirs, steps, stop)
            });
            taking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn take_as_root(&self, theirs: &Files, steps: &[Step], stop: &AtomicBool) -> Result<(), Error> {
        let staging = Staging::make(&self.root)?;
        let (directory, links) = (&staging.directory, HashMap::new());
        let mut copying = Copying { shift: self.shift, staging: directory, links, clone: true, stop };
        for (number, step) in steps.iter().enumerate() {
            if let Step::Put(difference) = step {
                let path = &difference.path;
                let (parent, name) = place(theirs.root(), path).at("open", path)?;
                let to = numbered(number);
                let entry = Entry { from: (&parent, &name), to: (directory, &to), path: path.as_os_str().as_bytes() };
                copying.entry(&entry, to.to_bytes(), 0).at("copy", path)?;
            }
        }
        for (number, step) in steps.iter().enumerate() {
            let path = &step.difference().path;
            self.step(theirs, step, (directory, &numbered(number))).at("merge", path)?;
        }
        Ok(())
    }

    fn step(&self, theirs: &Files, step: &Step, staged: Place<'_>) -> rustix::io::Result<()> {
        let path = &step.difference().path;
        let (parent, name) = place(&self.root, path)?;
        match step {
            Step::Remove(_) => remove(&parent, &name),
            Step::Attributes(_) => {
                let (from, from_name) = place(theirs.root(), path)?;
                let (from, to) = (open_dir(&from, &from_name)?, open_dir(&parent, &name)?);
                drop_xattrs((&from, c"."), (&to, c"."))?;
                let stat = shifted(fstat(&from)?, self.shift)?;
                finish_open((&from, c"."), (&to, c"."), &to, &stat, self.shift)
            }
            Step::Put(_) => {
                let is_directory = |place: Place<'_>| kind(place).map(|kind| kind == Some(FileType::Directory));
                // A file is replaced in one step.
                if is_directory(staged)? || is_directory((&parent, &name))? {
                    remove(&parent, &name)?;
                }
                renameat(staged.0, staged.1, &parent, &name)
            }
        }
    }
}

/// What this thread makes belongs to root of the sandbox from the beginning: the filesystem has no place for the host's users. It may change files,
/// whosever they are, and nothing else.
fn become_root_of(shift: u32) -> rustix::io::Result<()> {
    let dumpable = dumpable_behavior()?;
    set_thread_res_gid(None, Gid::from_raw(shift), None)?;
    set_thread_res_uid(None, Uid::from_raw(shift), None)?;
    let effective = OF_ROOTS_HAND.union(CapabilitySet::SETFCAP);
    let sets = CapabilitySets { effective, permitted: effective, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)?;
    // A change of user takes it from the whole process.
    set_dumpable_behavior(dumpable)
}

fn kind((directory, name): Place<'_>) -> rustix::io::Result<Option<FileType>> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(FileType::from_raw_mode(found.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn numbered(number: usize) -> CString {
    CString::new(number.to_string()).unwrap_or_default()
}

/// The directory that an entry is in, reached without leaving this mount.
fn place(root: &OwnedFd, path: &Path) -> rustix::io::Result<(OwnedFd, CString)> {
    let name = path.file_name().ok_or(Errno::INVAL)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let parent = openat2(root, parent, flags, Mode::empty(), resolve)?;
    Ok((parent, CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?))
}

/// With the owner of the copy.
fn shifted(mut stat: Stat, shift: u32) -> rustix::io::Result<Stat> {
    for id in [&mut stat.st_uid, &mut stat.st_gid] {
        // One that no sandbox has must not become another one's.
        let is_own = shift == 0 || u64::from(*id) < u64::from(IDS_PER_SANDBOX);
        *id = id.checked_add(shift).filter(|_| is_own).ok_or(Errno::OVERFLOW)?;
    }
    Ok(stat)
}

/// A directory for copies, in the sandbox's root, where no process of it but root's comes in. It goes with what is left in it.
struct Staging<'a> {
    root: &'a OwnedFd,
    directory: OwnedFd,
}

impl<'a> Staging<'a> {
    fn make(root: &'a OwnedFd) -> Result<Self, Error> {
        let make = || {
            remove(root, STAGING_NAME)?;
            mkdirat(root, STAGING_NAME, Mode::RWXU)?;
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
            openat2(root, STAGING_NAME, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), resolve)
        };
        Ok(Self { root, directory: make().at("make", Path::new(STAGING))? })
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        if let Err(error) = remove(self.root, STAGING_NAME) {
            tracing::warn!(%error, "copies of a merge are left in /{STAGING} of the sandbox");
        }
    }
}

struct Copying<'a> {
    shift: u32,
    staging: &'a OwnedFd,
    /// Files with several names: device and inode there, and where the first copy is below `staging`.
    links: HashMap<(u64, u64), Vec<u8>>,
    clone: bool,
    stop: &'a AtomicBool,
}

struct Entry<'a> {
    from: Place<'a>,
    to: Place<'a>,
    /// From the root of the sandbox.
    path: &'a [u8],
}

impl Copying<'_> {
    /// Copies an entry, with all below it. `staged`: where the copy is below `staging`.
    fn entry(&mut self, entry: &Entry<'_>, staged: &[u8], level: usize) -> rustix::io::Result<()> {
        let Entry { from, to, path } = *entry;
        if self.stop.load(Ordering::Relaxed) {
            return Err(Errno::CANCELED);
        }
        // Each sandbox has its own.
        if is_one_of(&IDENTITY_FILES, path) {
            return Ok(());
        }
        let stat = shifted(statat(from.0, from.1, AtFlags::SYMLINK_NOFOLLOW)?, self.shift)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            return self.directory(entry, &stat, staged, level);
        }
        let (key, is_linked) = ((stat.st_dev, stat.st_ino), stat.st_nlink > 1);
        if let Some(first) = self.links.get(&key).filter(|_| is_linked) {
            let (parent, name) = place(self.staging, Path::new(OsStr::from_bytes(first)))?;
            return linkat(&parent, &name, to.0, to.1, AtFlags::empty());
        }
        match kind {
            FileType::RegularFile => {
                let opened = open_source(from)?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let copy = openat(to.0, to.1, flags, Mode::RWXU)?;
                copy_data(&opened, &copy, stat.st_size as u64, &mut self.clone)?;
                finish_open(from, to, &copy, &stat, self.shift)?;
            }
            // No program in a sandbox can make one.
            FileType::CharacterDevice | FileType::BlockDevice => return Err(Errno::PERM),
            _ => make(from, to, &stat, self.shift)?,
        }
        if is_linked {
            self.links.insert(key, staged.to_vec());
        }
        Ok(())
    }

    fn directory(&mut self, entry: &Entry<'_>, stat: &Stat, staged: &[u8], level: usize) -> rustix::io::Result<()> {
        let Entry { from, to, path } = *entry;
        if level >= LEVELS_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        mkdirat(to.0, to.1, Mode::RWXU)?;
        let (inner, copy) = (open_dir(from.0, from.1)?, open_dir(to.0, to.1)?);
        for name in sys::tree::list(&inner)? {
            let below = |path: &[u8]| [path, b"/", name.to_bytes()].concat();
            let entry = Entry { from: (&inner, &name), to: (&copy, &name), path: &below(path) };
            self.entry(&entry, &below(staged), level + 1)?;
        }
        // The times would not survive the entries.
        finish_open((&inner, c"."), (&copy, c"."), &copy, stat, self.shift)
    }
}
