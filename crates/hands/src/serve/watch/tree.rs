//! Which directories are watched for which requests, and what an event of the kernel means to each.

use std::{
    collections::{BTreeMap, HashMap},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

use base::limits::HAND_WATCHED_DIRECTORIES_MAX;
use rustix::{
    fs::{
        FileType, OFlags,
        inotify::{self, Event, ReadFlags, WatchFlags},
        lstat,
    },
    io::Errno,
};

use super::{super::list, Options};
use crate::protocol::{EventKind, Problem, RawPath, WatchEvent};

/// What fsnotify asks the kernel for, of directories only.
const WANTED: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// Names of a directory that are looked at when it appears.
const NAMES_MAX: usize = 100_000;

/// Events, in order, with the request that each belongs to.
#[derive(Debug, Default)]
pub(super) struct Happened {
    pub(super) events: Vec<(u64, WatchEvent)>,
}

impl Happened {
    fn change(&mut self, seq: u64, name: &Path, kind: EventKind) {
        if let Some(name) = RawPath::new(name) {
            self.events.push((seq, WatchEvent::Change { name, kind, entry: None }));
        }
    }

    fn unwatched(&mut self, seq: u64, name: &Path) {
        if let Some(name) = RawPath::new(name) {
            self.events.push((seq, WatchEvent::Unwatched { name }));
        }
    }
}

/// A directory that was moved away, until its new place is known.
#[derive(Debug)]
struct Moved {
    cookie: u32,
    seq: u64,
    from: PathBuf,
}

/// All watches.
#[derive(Debug, Default)]
pub(super) struct Watches {
    by_seq: BTreeMap<u64, Options>,
    /// By the kernel's number: for which requests, and where below their roots the directory is.
    by_wd: HashMap<i32, BTreeMap<u64, PathBuf>>,
    moved: Vec<Moved>,
}

impl Watches {
    /// Begins to watch for a request. After a failure, [`Self::end`] it.
    pub(super) fn begin(&mut self, inotify: &OwnedFd, seq: u64, options: Options) -> Result<(), Problem> {
        let recursive = options.recursive;
        self.by_seq.insert(seq, options);
        self.add(inotify, seq, Path::new(""))?;
        if recursive {
            // Files that are there already are no events.
            self.add_below(inotify, seq, Path::new(""), &mut |_, found| match found {
                Found::Unwatched => Err(Problem::TooManyWatches { max: HAND_WATCHED_DIRECTORIES_MAX }),
                Found::File | Found::Directory => Ok(()),
            })?;
        }
        Ok(())
    }

    /// Ends the watches of a request.
    pub(super) fn end(&mut self, inotify: &OwnedFd, seq: u64) {
        self.drop_below(inotify, seq, Path::new(""));
        self.by_seq.remove(&seq);
        self.moved.retain(|moved| moved.seq != seq);
    }

    /// Where a watch has its files, if its events describe them.
    pub(super) fn wants_entries(&self, seq: u64) -> Option<PathBuf> {
        self.by_seq.get(&seq).filter(|options| options.entries).map(|options| options.root.clone())
    }

    /// Whether a directory was moved and its new place is not known.
    pub(super) fn awaits_move(&self) -> bool {
        !self.moved.is_empty()
    }

    /// Directories that were moved and did not come back have left the watched trees.
    pub(super) fn end_moves(&mut self, inotify: &OwnedFd) {
        for Moved { seq, from, .. } in std::mem::take(&mut self.moved) {
            self.drop_below(inotify, seq, &from);
        }
    }

    /// An event of the kernel.
    pub(super) fn on(&mut self, inotify: &OwnedFd, event: &Event<'_>, happened: &mut Happened) {
        let mask = event.events();
        if mask.contains(ReadFlags::QUEUE_OVERFLOW) {
            happened.events.extend(self.by_seq.keys().map(|seq| (*seq, WatchEvent::Lost)));
            return;
        }
        let Some(places) = self.by_wd.get(&event.wd()).cloned() else { return };
        if mask.intersects(ReadFlags::IGNORED | ReadFlags::UNMOUNT) {
            self.by_wd.remove(&event.wd());
            return;
        }
        for (seq, directory) in places {
            match event.file_name() {
                None => self.on_directory(inotify, seq, &directory, mask, happened),
                Some(name) => {
                    let name = list::below(&directory, name.to_bytes());
                    self.on_file(inotify, seq, &name, mask, event.cookie(), happened);
                }
            }
        }
    }

    /// To a watched directory itself. What its parent reports is not repeated.
    fn on_directory(
        &mut self,
        inotify: &OwnedFd,
        seq: u64,
        directory: &Path,
        mask: ReadFlags,
        happened: &mut Happened,
    ) {
        let is_root = directory.as_os_str().is_empty();
        let name = list::below(directory, b"");
        if mask.contains(ReadFlags::ATTRIB) {
            happened.change(seq, &name, EventKind::Chmod);
        }
        if is_root && mask.contains(ReadFlags::DELETE_SELF) {
            happened.change(seq, &name, EventKind::Remove);
        }
        if is_root && mask.contains(ReadFlags::MOVE_SELF) {
            happened.change(seq, &name, EventKind::Rename);
            // Its path leads elsewhere by now.
            self.drop_below(inotify, seq, directory);
        }
    }

    /// To something in a watched directory.
    fn on_file(
        &mut self,
        inotify: &OwnedFd,
        seq: u64,
        name: &Path,
        mask: ReadFlags,
        cookie: u32,
        happened: &mut Happened,
    ) {
        let appeared = mask.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
        let kinds = [
            (appeared, EventKind::Create),
            (mask.contains(ReadFlags::MOVED_FROM), EventKind::Rename),
            (mask.contains(ReadFlags::ATTRIB), EventKind::Chmod),
            (mask.contains(ReadFlags::MODIFY), EventKind::Write),
            (mask.contains(ReadFlags::DELETE), EventKind::Remove),
        ];
        for (_, kind) in kinds.into_iter().filter(|(is_it, _)| *is_it) {
            happened.change(seq, name, kind);
        }
        let recursive = self.by_seq.get(&seq).is_some_and(|options| options.recursive);
        if !recursive || !mask.contains(ReadFlags::ISDIR) {
            return;
        }
        if mask.contains(ReadFlags::MOVED_FROM) {
            self.moved.push(Moved { cookie, seq, from: name.to_owned() });
        }
        if appeared {
            self.follow_move(seq, cookie, name);
            self.on_new_directory(inotify, seq, name, happened);
        }
    }

    /// If the directory was moved inside the tree, what is watched below it has another path.
    fn follow_move(&mut self, seq: u64, cookie: u32, to: &Path) {
        let is_it = |moved: &Moved| cookie != 0 && moved.cookie == cookie && moved.seq == seq;
        let Some(at) = self.moved.iter().position(is_it) else { return };
        let from = self.moved.swap_remove(at).from;
        for place in self.by_wd.values_mut().filter_map(|places| places.get_mut(&seq)) {
            if let Ok(rest) = place.strip_prefix(&from) {
                *place = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
            }
        }
    }

    /// Watches a directory that appeared. Files that are in it already are reported.
    fn on_new_directory(&mut self, inotify: &OwnedFd, seq: u64, name: &Path, happened: &mut Happened) {
        match self.add(inotify, seq, name) {
            Ok(()) => {}
            Err(Problem::TooManyWatches { .. }) => return happened.unwatched(seq, name),
            // It is gone, or became something else.
            Err(_) => return,
        }
        let _ = self.add_below(inotify, seq, name, &mut |path, found| {
            happened.change(seq, path, EventKind::Create);
            if found == Found::Unwatched {
                happened.unwatched(seq, path);
            }
            Ok(())
        });
    }

    /// Watches one directory.
    fn add(&mut self, inotify: &OwnedFd, seq: u64, directory: &Path) -> Result<(), Problem> {
        let options = self.by_seq.get(&seq).ok_or(Problem::Cancelled)?;
        let is_root = directory.as_os_str().is_empty();
        let path = if is_root { options.root.clone() } else { options.root.join(directory) };
        // The top may be reached by a link.
        let flags = if is_root { WANTED } else { WANTED | WatchFlags::DONT_FOLLOW };
        let too_many = Problem::TooManyWatches { max: HAND_WATCHED_DIRECTORIES_MAX };
        if self.by_wd.len() >= HAND_WATCHED_DIRECTORIES_MAX {
            return Err(too_many);
        }
        let wd = match inotify::add_watch(inotify, &path, flags) {
            // The kernel's own bound for all processes of the user.
            Err(Errno::NOSPC) => return Err(too_many),
            wd => wd?,
        };
        self.by_wd.entry(wd).or_default().insert(seq, directory.to_owned());
        Ok(())
    }

    /// Watches all directories below one, and names what is there: each directory before what is in it.
    fn add_below(
        &mut self,
        inotify: &OwnedFd,
        seq: u64,
        top: &Path,
        found: &mut dyn FnMut(&Path, Found) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let Some(root) = self.by_seq.get(&seq).map(|options| options.root.clone()) else { return Ok(()) };
        let mut directories = vec![top.to_owned()];
        while let Some(directory) = directories.pop() {
            let flags = if directory.as_os_str().is_empty() { OFlags::empty() } else { OFlags::NOFOLLOW };
            // Without a slash at the end, which would follow a link.
            let path = if directory.as_os_str().is_empty() { root.clone() } else { root.join(&directory) };
            let mut names = list::names(&path, flags, NAMES_MAX).unwrap_or_default();
            names.sort_unstable();
            for name in names {
                let name = list::below(&directory, name.as_bytes());
                let Ok(stat) = lstat(root.join(&name)) else { continue };
                if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                    found(&name, Found::File)?;
                    continue;
                }
                match self.add(inotify, seq, &name) {
                    Ok(()) => {
                        found(&name, Found::Directory)?;
                        directories.push(name);
                    }
                    Err(Problem::TooManyWatches { .. }) => found(&name, Found::Unwatched)?,
                    // The user may not read it, or it is gone.
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Ends what is watched for a request at and below a directory.
    fn drop_below(&mut self, inotify: &OwnedFd, seq: u64, top: &Path) {
        let mut unused = Vec::new();
        for (wd, places) in &mut self.by_wd {
            if places.get(&seq).is_some_and(|place| place.starts_with(top)) {
                places.remove(&seq);
                if places.is_empty() {
                    unused.push(*wd);
                }
            }
        }
        for wd in unused {
            self.by_wd.remove(&wd);
            // It fails if the directory is gone.
            let _ = inotify::remove_watch(inotify, wd);
        }
    }
}

/// What was found in a directory that appeared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    File,
    Directory,
    Unwatched,
}
