//! One superblock's requests, as `fuser` hands them over, and the replies.
//!
//! Nothing is opened: `OPEN`, `OPENDIR` and `FLUSH` are said to be unknown once, and the kernel never sends them again, nor `RELEASE`.
//! What is open rests on the kernel's count of lookups ([`Shared::told`]). Locks are the kernel's own.

use std::{
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::io::Errno;
use volume::{Attributes, Kind};

use self::operations::{Place, SetAttributes, new_inode};
use crate::{
    convert::{NAMES_VALID, VALID, attributes, errno, file_type, ino, kind, nothing},
    crew::Crew,
    handshake,
    session::Options,
    warm_up::{self, WarmUp},
};

mod operations;
mod replies;
mod shared;

pub(crate) use self::shared::Shared;

/// Most bytes of one write or read: what the kernel sends in one request at most, unless it is told otherwise.
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// Requests without a waiting program (read-ahead, written-back pages) that may be in flight; the kernel's default is 12.
const BACKGROUND_MAX: u16 = 64;

/// Blocks of `statfs`.
const BLOCK_BYTES: u32 = 4096;

/// Inode numbers are never used twice.
const GENERATION: Generation = Generation(0);

/// Entries of a directory that are asked for at a time.
const LISTED: usize = 64;

/// See the module.
pub(crate) struct Adapter {
    crew: Arc<Crew>,
    warm_up: Arc<WarmUp>,
    options: Options,
}

impl Adapter {
    pub(crate) fn new(crew: Arc<Crew>, warm_up: Arc<WarmUp>, options: Options) -> Self {
        Self { crew, warm_up, options }
    }

    /// How long the kernel may believe a name.
    fn names_valid(&self) -> Duration {
        if self.crew.has_epochs() { VALID } else { NAMES_VALID }
    }

    fn entry(&self, reply: ReplyEntry, result: Result<Attributes, Errno>) {
        match result {
            Ok(found) => {
                let attributes = attributes(found.ino, &found.inode);
                reply.entry_with_ttls(&VALID, &self.names_valid(), &attributes, GENERATION);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    /// Changes and the answer belong together: what is answered need not be known if the kernel asks again.
    fn serving(&self, request: &Request, work: impl FnOnce()) {
        self.crew.engine().serving(request.unique().0 & !shared::ASKED_AGAIN, work);
    }
}

fn place<'a>(directory: INodeNo, name: &'a OsStr) -> Place<'a> {
    Place { directory: ino(directory), name: name.as_bytes() }
}

/// `FUSE_ALLOW_IDMAP` (Linux 6.12), which `fuser` lacks: mounts can show other ids to a user namespace. Requests that make nothing then do not
/// tell the caller's user.
pub(crate) const ALLOW_IDMAP: InitFlags = InitFlags::from_bits_retain(1 << 40);

/// What is asked of the kernel at the beginning; it must have all of it.
pub(crate) fn wanted(options: Options) -> InitFlags {
    // Without FUSE_ASYNC_DIO: such a write ends without the kernel dropping what a reader cached meanwhile, which stays stale.
    let mut wanted = ALLOW_IDMAP
        | InitFlags::FUSE_ASYNC_READ
        | InitFlags::FUSE_BIG_WRITES
        | InitFlags::FUSE_CACHE_SYMLINKS
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_EXPORT_SUPPORT
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | InitFlags::FUSE_HANDLE_KILLPRIV_V2
        | InitFlags::FUSE_HAS_RESEND
        | InitFlags::FUSE_MAX_PAGES
        | InitFlags::FUSE_PARALLEL_DIROPS;
    wanted |= match options.changes_by_itself {
        true => InitFlags::FUSE_AUTO_INVAL_DATA,
        false => InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    };
    if options.writeback {
        wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
    }
    wanted
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = wanted(self.options);
        let missing = |flags: InitFlags| io::Error::other(format!("this kernel's FUSE lacks {flags:?}"));
        config.add_capabilities(wanted).map_err(missing)?;
        let odd = |_| io::Error::other("this kernel's FUSE refuses a bound");
        config.set_max_write(REQUEST_BYTES_MAX).map_err(odd)?;
        config.set_max_background(BACKGROUND_MAX).map_err(|_| io::Error::other("no background requests"))?;
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.crew.work().find(place(parent, name)) {
            Err(Errno::NOENT) => reply.entry(&self.names_valid(), &nothing(), GENERATION),
            found => self.entry(reply, found),
        }
    }

    fn forget(&self, request: &Request, node: INodeNo, count: u64) {
        match node.0 {
            warm_up::NODE => self.warm_up.attend(request),
            _ => {
                let is_known = || handshake::is_known(self.crew.device(), node.0);
                self.crew.work().forgotten(ino(node), count, is_known);
            }
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        replies::attributes(reply, self.crew.work().engine().attributes(ino(node)));
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttributes { mode, uid, gid, size, accessed, modified };
        replies::attributes(reply, self.crew.work().set_attributes(ino(node), &set));
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        replies::data(reply, self.crew.work().engine().read_link(ino(node)));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.serving(request, || {
            let made = kind(mode).ok_or(Errno::INVAL).and_then(|kind| {
                let new = new_inode(request, kind, mode, b"");
                self.crew.work().make(request, place(parent, name), volume::New { device: rdev, ..new })
            });
            self.entry(reply, made);
        });
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        self.serving(request, || {
            let new = new_inode(request, Kind::Directory, mode, b"");
            self.entry(reply, self.crew.work().make(request, place(parent, name), new));
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.serving(request, || {
            replies::empty(reply, self.crew.work().unlink(request, place(parent, name)));
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.serving(request, || {
            replies::empty(reply, self.crew.work().remove_directory(request, place(parent, name)));
        });
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        self.serving(request, || {
            let new = new_inode(request, Kind::Symlink, 0o777, target.as_os_str().as_bytes());
            self.entry(reply, self.crew.work().make(request, place(parent, name), new));
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.serving(request, || {
            replies::empty(
                reply,
                self.crew.work().rename(request, place(parent, name), place(new_parent, new_name), flags),
            );
        });
    }

    fn link(&self, request: &Request, node: INodeNo, new_parent: INodeNo, new_name: &OsStr, reply: ReplyEntry) {
        self.serving(request, || {
            self.entry(reply, self.crew.work().link(request, ino(node), place(new_parent, new_name)));
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.serving(request, || match self.crew.work().create(request, place(parent, name), mode, flags) {
            Ok(made) => {
                reply.created(
                    &self.names_valid(),
                    &attributes(made.ino, &made.inode),
                    GENERATION,
                    FileHandle(0),
                    FopenFlags::FOPEN_KEEP_CACHE,
                );
            }
            Err(error) => reply.error(errno(error)),
        });
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        replies::data(reply, self.crew.work().engine().read(ino(node), offset, size));
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let drop_privileges = flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        replies::written(reply, self.crew.work().write(ino(node), offset, data, drop_privileges));
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        replies::empty(reply, self.crew.work().volume().sync());
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        replies::empty(reply, self.crew.work().volume().sync());
    }

    fn readdir(&self, _: &Request, node: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.crew.work().list(ino(node), offset, |entry| {
            let name = OsStr::from_bytes(&entry.name);
            reply.add(INodeNo(entry.ino.0), entry.cookie, file_type(entry.kind), name)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdirplus(&self, _: &Request, node: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let valid = self.names_valid();
        let listed = self.crew.work().list_told(ino(node), offset, |entry, attr| {
            let name = OsStr::from_bytes(&entry.name);
            reply.add(attr.ino, entry.cookie, name, &valid, attr, GENERATION)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let work = self.crew.work();
        let known = work.engine().usage().and_then(|usage| Ok((usage, work.volume().bytes_available()?)));
        match known {
            Ok((usage, available)) => {
                let block = u64::from(BLOCK_BYTES);
                let free = usage.bytes_max.saturating_sub(usage.bytes) / block;
                let inodes_free = usage.inodes_max.saturating_sub(usage.inodes);
                let name_bytes_max = volume::limits::NAME_BYTES_MAX as u32;
                let blocks = usage.bytes_max / block;
                reply.statfs(
                    blocks,
                    free,
                    available / block,
                    usage.inodes_max,
                    inodes_free,
                    BLOCK_BYTES,
                    name_bytes_max,
                    BLOCK_BYTES,
                );
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.serving(request, || {
            replies::empty(reply, self.crew.work().set_xattr(request, ino(node), (name.as_bytes(), value), flags));
        });
    }

    fn getxattr(&self, _: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        replies::xattr(reply, size, self.crew.work().xattr(ino(node), name.as_bytes()));
    }

    fn listxattr(&self, _: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        replies::xattr(reply, size, self.crew.work().xattr_names(ino(node)));
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.serving(request, || {
            replies::empty(reply, self.crew.work().remove_xattr(request, ino(node), name.as_bytes()));
        });
    }

    fn fallocate(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        replies::empty(reply, self.crew.work().allocate(ino(node), offset, length, mode));
    }

    fn lseek(&self, _: &Request, node: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        match self.crew.work().seek(ino(node), offset, whence) {
            Ok(offset) => reply.offset(offset),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn copy_file_range(
        &self,
        _: &Request,
        from: INodeNo,
        _: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _: FileHandle,
        to_offset: u64,
        length: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        replies::written(reply, self.crew.work().copy((ino(from), from_offset), (ino(to), to_offset), length));
    }
}
