//! How fast `fuser` can be: a filesystem in memory that does as little as it can, mounted on a directory: `ceiling DIR [THREADS]`.
//!
//! It knows what `calls` and small-file workloads need, tells the kernel the same as a volume does (nothing is opened, all may be cached
//! for an hour; there may be extended attributes), keeps no log, checks nothing and forgets nothing. Ends when DIR is unmounted.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::{OsStr, OsString},
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr, Request, SessionACL,
    TimeOrNow, WriteFlags,
};

const VALID: Duration = Duration::from_secs(3600);
const GENERATION: Generation = Generation(0);

struct Node {
    attr: FileAttr,
    data: Vec<u8>,
    entries: BTreeMap<OsString, u64>,
}

struct Nodes {
    by_ino: HashMap<u64, Node>,
    next: u64,
}

struct Ceiling(Mutex<Nodes>);

fn node(ino: u64, kind: FileType, perm: u16) -> Node {
    let now = SystemTime::now();
    let attr = FileAttr {
        ino: INodeNo(ino),
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        kind,
        perm,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    };
    Node { attr, data: Vec::new(), entries: BTreeMap::new() }
}

impl Nodes {
    fn make(&mut self, parent: INodeNo, name: &OsStr, kind: FileType, mode: u32) -> Option<FileAttr> {
        let ino = self.next;
        self.next += 1;
        self.by_ino.get_mut(&parent.0)?.entries.insert(name.to_owned(), ino);
        let made = node(ino, kind, (mode & 0o7777) as u16);
        let attr = made.attr;
        self.by_ino.insert(ino, made);
        Some(attr)
    }

    fn find(&self, parent: INodeNo, name: &OsStr) -> Option<FileAttr> {
        let ino = self.by_ino.get(&parent.0)?.entries.get(name)?;
        Some(self.by_ino.get(ino)?.attr)
    }

    fn remove(&mut self, parent: INodeNo, name: &OsStr) -> Option<()> {
        let ino = self.by_ino.get_mut(&parent.0)?.entries.remove(name)?;
        self.by_ino.remove(&ino).map(drop)
    }

    fn rename(&mut self, from: (INodeNo, &OsStr), to: (INodeNo, &OsStr)) -> Option<()> {
        let ino = self.by_ino.get_mut(&from.0.0)?.entries.remove(from.1)?;
        self.by_ino.get_mut(&to.0.0)?.entries.insert(to.1.to_owned(), ino);
        Some(())
    }
}

impl Ceiling {
    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Filesystem for Ceiling {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_PARALLEL_DIROPS;
        config.add_capabilities(wanted).map_err(|_| io::ErrorKind::Unsupported.into())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.nodes().find(parent, name);
        reply.entry(&VALID, &found.unwrap_or_else(|| node(0, FileType::RegularFile, 0).attr), GENERATION);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let attr = self.nodes().by_ino.get(&ino.0).map(|node| node.attr);
        attr.map_or_else(|| (), |attr| reply.attr(&VALID, &attr));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut nodes = self.nodes();
        let Some(node) = nodes.by_ino.get_mut(&ino.0) else { return reply.error(Errno::ENOENT) };
        if let Some(size) = size {
            node.data.resize(size as usize, 0);
            node.attr.size = size;
        }
        let attr = node.attr;
        drop(nodes);
        reply.attr(&VALID, &attr);
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let made = self.nodes().make(parent, name, FileType::Directory, mode);
        made.map_or_else(|| (), |attr| reply.entry(&VALID, &attr, GENERATION));
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, _: i32, reply: ReplyCreate) {
        let made = self.nodes().make(parent, name, FileType::RegularFile, mode);
        let Some(attr) = made else { return reply.error(Errno::ENOENT) };
        reply.created(&VALID, &attr, GENERATION, FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.nodes().remove(parent, name);
        reply.ok();
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.nodes().remove(parent, name);
        reply.ok();
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.nodes().rename((parent, name), (new_parent, new_name));
        reply.ok();
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let nodes = self.nodes();
        let Some(node) = nodes.by_ino.get(&ino.0) else { return reply.error(Errno::ENOENT) };
        let from = (offset as usize).min(node.data.len());
        let to = (from + size as usize).min(node.data.len());
        reply.data(&node.data[from..to]);
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut nodes = self.nodes();
        let Some(node) = nodes.by_ino.get_mut(&ino.0) else { return reply.error(Errno::ENOENT) };
        let end = offset as usize + data.len();
        if node.data.len() < end {
            node.data.resize(end, 0);
            node.attr.size = end as u64;
        }
        node.data[offset as usize..end].copy_from_slice(data);
        drop(nodes);
        reply.written(data.len() as u32);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::NO_XATTR);
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let nodes = self.nodes();
        let Some(node) = nodes.by_ino.get(&ino.0) else { return reply.error(Errno::ENOENT) };
        for (at, (name, child)) in node.entries.iter().enumerate().skip(offset as usize) {
            let Some(child) = nodes.by_ino.get(child) else { continue };
            if reply.add(child.attr.ino, at as u64 + 1, child.attr.kind, name) {
                break;
            }
        }
        drop(nodes);
        reply.ok();
    }

    fn readdirplus(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let nodes = self.nodes();
        let Some(node) = nodes.by_ino.get(&ino.0) else { return reply.error(Errno::ENOENT) };
        for (at, (name, child)) in node.entries.iter().enumerate().skip(offset as usize) {
            let Some(child) = nodes.by_ino.get(child) else { continue };
            if reply.add(child.attr.ino, at as u64 + 1, name, &VALID, &child.attr, GENERATION) {
                break;
            }
        }
        drop(nodes);
        reply.ok();
    }
}

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let directory = words.next().ok_or_else(|| anyhow::anyhow!("usage: ceiling DIR [THREADS]"))?;
    let root = node(1, FileType::Directory, 0o755);
    let nodes = Nodes { by_ino: HashMap::from([(1, root)]), next: 2 };
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("ceiling".into()), MountOption::DefaultPermissions];
    config.acl = SessionACL::All;
    config.n_threads = Some(words.next().map_or(Ok(2), |threads| threads.parse())?);
    fuser::mount(Ceiling(Mutex::new(nodes)), directory, &config)?;
    Ok(())
}
