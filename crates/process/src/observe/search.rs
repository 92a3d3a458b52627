//! Searches a root filesystem for the paths of inodes.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    ffi::{CStr, OsStr},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Statx, StatxFlags};

use crate::{
    error::{Context, Error},
    observe::{rights::Rights, root},
};

/// The directory for shared memory in every root filesystem.
const SHARED_MEMORY: &[u8] = b"/dev/shm";

/// A file as the kernel shows it of a watch. Inodes of the layers of an overlay may have one number, and handles differ.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct FileHandle {
    pub(crate) inode: u64,
    /// Empty where the kernel shows none (before Linux 6.5 of overlays).
    pub(crate) handle: Vec<u8>,
}

/// Where a file was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundPath {
    pub(crate) path: Vec<u8>,
    /// The file is itself a symbolic link.
    pub(crate) is_link: bool,
}

/// How far a search goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reach {
    pub(crate) directories: usize,
    pub(crate) entries: usize,
}

/// Where to look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Where<'a> {
    /// Paths that are looked at first, with the directories above them.
    pub(crate) likely: &'a [Vec<u8>],
    /// Inodes of directories whose watches see that they or what is in them is listed: these are listed last.
    pub(crate) loud: &'a HashSet<u64>,
    /// Inodes that are directories: their watches want events that only directories have.
    pub(crate) directories: &'a HashSet<u64>,
}

/// The paths of these files in the root filesystem of a process, as far as found. After the likely ones the places where programs watch are
/// looked through, then all others, each breadth first.
pub(crate) fn find(
    pid: i32,
    wanted: &HashSet<FileHandle>,
    places: &Where<'_>,
    reach: Reach,
) -> Result<HashMap<FileHandle, FoundPath>, Error> {
    if wanted.is_empty() {
        return Ok(HashMap::new());
    }
    let root = root::open_root(pid)?;
    let mut search = Search {
        wanted,
        inodes: wanted.iter().map(|wanted| wanted.inode).collect(),
        places,
        reader: Rights::of(pid)?,
        found: HashMap::new(),
        mounts: vec![statx(root.as_fd(), c"").of("read the root directory", pid)?.stx_mnt_id],
        reach,
        listed: HashSet::new(),
        queue: VecDeque::new(),
        later: VecDeque::new(),
    };
    // If it is a filesystem of its own, one in memory that goes with the program.
    let shared = open(root.as_fd(), SHARED_MEMORY, OFlags::PATH).and_then(|shared| statx(shared.as_fd(), c""));
    search.mounts.extend(shared.map(|shared| shared.stx_mnt_id));
    let above = |path| Path::new(OsStr::from_bytes(path)).ancestors().map(|above| above.as_os_str().as_bytes());
    for path in places.likely.iter().flat_map(|path| above(path)).collect::<HashSet<_>>() {
        search.look_at(root.as_fd(), path);
    }
    let cwd = procfs::link(&format!("/proc/{pid}/cwd"))?;
    for path in [cwd.as_slice(), b"/tmp", b"/home/user", b"/run", b"/etc", SHARED_MEMORY, b"/"] {
        if let Some(directory) = search.look_at(root.as_fd(), path) {
            search.enqueue(directory, false);
        }
        search.walk(root.as_fd());
    }
    while let Some(directory) = search.later.pop_front().filter(|_| !search.is_done()) {
        search.queue.push_back(directory);
        search.walk(root.as_fd());
    }
    Ok(search.found)
}

/// Which file `path` below `root` is.
pub(crate) fn identity(root: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<(FileHandle, FoundPath)> {
    let file = open(root, path, OFlags::PATH)?;
    let status = statx(file.as_fd(), c"")?;
    let handle = sys::file::handle(file.as_fd(), c"").unwrap_or_default();
    Ok((FileHandle { inode: status.stx_ino, handle }, place(path, &status)))
}

fn place(path: &[u8], status: &Statx) -> FoundPath {
    let is_link = FileType::from_raw_mode(u32::from(status.stx_mode)).is_symlink();
    FoundPath { path: path.to_vec(), is_link }
}

fn open(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> rustix::io::Result<std::os::fd::OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(root, OsStr::from_bytes(path), flags, Mode::empty(), root::INSIDE)
}

fn statx(directory: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    rustix::fs::statx(directory, name, flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)
}

/// Whether who watches can read what is watched. By its mode: a file with an access list has there what any of those in it may do at most.
fn may_read(reader: &Rights, status: &Statx) -> bool {
    let readable = match reader.class(status.stx_uid, status.stx_gid) {
        6 => 0o400,
        3 => 0o040,
        _ => 0o044,
    };
    reader.overrides || u32::from(status.stx_mode) & readable != 0
}

/// A directory that is to be listed.
struct Directory {
    path: Vec<u8>,
    mount: u64,
    inode: u64,
}

struct Search<'a> {
    wanted: &'a HashSet<FileHandle>,
    inodes: HashSet<u64>,
    places: &'a Where<'a>,
    reader: Rights,
    found: HashMap<FileHandle, FoundPath>,
    /// Of the root filesystem and of shared memory: others are not searched. Devices do not tell: an overlay's files show those of their layers.
    mounts: Vec<u64>,
    reach: Reach,
    /// Mounts and inodes.
    listed: HashSet<(u64, u64)>,
    queue: VecDeque<Directory>,
    /// Directories that are listed last, when nothing else is left.
    later: VecDeque<Directory>,
}

impl Search<'_> {
    fn is_done(&self) -> bool {
        self.reach.directories == 0 || self.reach.entries == 0 || self.found.len() == self.wanted.len()
    }

    fn look_at(&mut self, root: BorrowedFd<'_>, path: &[u8]) -> Option<Directory> {
        let file = open(root, path, OFlags::PATH).ok()?;
        self.look(file.as_fd(), c"", path)
    }

    /// Notes `path`, which `name` below `directory` names as well, if it is wanted. Gives it if it is a directory that can be listed.
    fn look(&mut self, directory: BorrowedFd<'_>, name: &CStr, path: &[u8]) -> Option<Directory> {
        // It may be removed between the two.
        let status = statx(directory, name).ok().filter(|status| self.mounts.contains(&status.stx_mnt_id))?;
        let is_directory = FileType::from_raw_mode(u32::from(status.stx_mode)).is_dir();
        if self.inodes.contains(&status.stx_ino) {
            let handle = sys::file::handle(directory, name).unwrap_or_default();
            let same = |wanted: &[u8]| wanted.is_empty() || handle.is_empty() || wanted == handle;
            let may_be = |wanted: &FileHandle| {
                (is_directory || !self.places.directories.contains(&wanted.inode)) && may_read(&self.reader, &status)
            };
            let is_it = |wanted: &&FileHandle| wanted.inode == status.stx_ino && same(&wanted.handle) && may_be(wanted);
            if let Some(wanted) = self.wanted.iter().find(is_it) {
                self.found.entry(wanted.clone()).or_insert_with(|| place(path, &status));
            }
        }
        is_directory.then(|| Directory { path: path.to_vec(), mount: status.stx_mnt_id, inode: status.stx_ino })
    }

    fn enqueue(&mut self, directory: Directory, parent_is_loud: bool) {
        match parent_is_loud || self.places.loud.contains(&directory.inode) {
            true => self.later.push_back(directory),
            false => self.queue.push_back(directory),
        }
    }

    fn walk(&mut self, root: BorrowedFd<'_>) {
        while let Some(directory) = self.queue.pop_front().filter(|_| !self.is_done()) {
            // A directory that cannot be listed was removed meanwhile. The search goes on.
            let _ = self.list(root, &directory);
        }
    }

    fn list(&mut self, root: BorrowedFd<'_>, Directory { path, mount, inode }: &Directory) -> rustix::io::Result<()> {
        if !self.listed.insert((*mount, *inode)) {
            return Ok(());
        }
        self.reach.directories -= 1;
        let is_loud = self.places.loud.contains(inode);
        let directory = open(root, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if self.is_done() {
                break;
            }
            self.reach.entries -= 1;
            // Of what is no directory the list tells the inode, on overlays too: few are looked at.
            let may_be_directory = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
            if may_be_directory || self.inodes.contains(&entry.ino()) {
                let parent = if path == b"/" { &[][..] } else { path };
                let path = [parent, b"/", name.to_bytes()].concat();
                if let Some(found) = self.look(directory.as_fd(), name, &path) {
                    self.enqueue(found, is_loud);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_found(path: &str, directories: &HashSet<u64>) -> bool {
        let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (file, _) = identity(root.as_fd(), path.as_bytes()).unwrap();
        let likely = [path.as_bytes().to_vec()];
        let places = Where { likely: &likely, loud: &HashSet::new(), directories };
        let reach = Reach { directories: 0, entries: 0 };
        !find(std::process::id() as i32, &HashSet::from([file]), &places, reach).unwrap().is_empty()
    }

    #[test]
    fn a_file_with_the_number_of_a_watched_directory_is_not_taken_for_it() {
        let (directory, file) = ("/etc", "/etc/passwd");
        let number = |path| HashSet::from([statx(rustix::fs::CWD, path).unwrap().stx_ino]);
        assert!(is_found(file, &HashSet::new()));
        assert!(!is_found(file, &number(c"/etc/passwd")));
        assert!(is_found(directory, &number(c"/etc")));
    }

    #[test]
    fn who_watches_a_file_can_read_it() {
        let reader = Rights { user: 1000, groups: vec![1000, 50], overrides: false };
        let may = |uid: u32, gid: u32, mode: u16| {
            let mut status = statx(rustix::fs::CWD, c".").unwrap();
            (status.stx_uid, status.stx_gid, status.stx_mode) = (uid, gid, mode);
            may_read(&reader, &status)
        };
        assert!(may(1000, 0, 0o400) && may(0, 50, 0o640) && may(0, 0, 0o604));
        // The group may be that of an access list.
        assert!(may(0, 0, 0o640));
        assert!(!may(1000, 0, 0o044) && !may(0, 50, 0o604) && !may(0, 0, 0o600));
        let root = Rights { user: 0, groups: Vec::new(), overrides: true };
        assert!(may_read(&root, &statx(rustix::fs::CWD, c".").unwrap()));
    }
}
