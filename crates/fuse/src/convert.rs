//! The engine's words in FUSE's, and the other way round.

use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use volume::{Ino, Inode, Kind, Time};

/// How long the kernel may believe what it was told: one node writes a volume, and tells the kernel what others than the kernel changed.
pub(crate) const VALID: Duration = Duration::from_secs(3600);

/// How long it may believe a name where it cannot be told to forget all of them (before Linux 6.16): a restore waits for so long.
pub(crate) const NAMES_VALID: Duration = Duration::from_secs(1);

/// What a file is read and written in at best.
const BLOCK_BYTES: u32 = 4096;

pub(crate) fn errno(errno: rustix::io::Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

pub(crate) fn ino(number: INodeNo) -> Ino {
    Ino(number.0)
}

pub(crate) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

/// What `mknod` shall make.
pub(crate) fn kind(mode: u32) -> Option<Kind> {
    use rustix::fs::FileType;
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Some(Kind::File),
        FileType::Fifo => Some(Kind::Fifo),
        FileType::Socket => Some(Kind::Socket),
        FileType::CharacterDevice => Some(Kind::CharDevice),
        FileType::BlockDevice => Some(Kind::BlockDevice),
        FileType::Directory | FileType::Symlink | FileType::Unknown => None,
    }
}

pub(crate) fn attributes(ino: Ino, inode: &Inode) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino.0),
        size: inode.size,
        blocks: inode.allocated.div_ceil(512),
        atime: system_time(inode.accessed),
        mtime: system_time(inode.modified),
        ctime: system_time(inode.changed),
        crtime: system_time(inode.born),
        kind: file_type(inode.kind),
        perm: inode.mode,
        nlink: inode.links,
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.device,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// Tells the kernel that there is no such name; it remembers.
pub(crate) fn nothing() -> FileAttr {
    bare(Ino(0), Kind::File)
}

/// No more than what an inode is.
pub(crate) fn bare(ino: Ino, kind: Kind) -> FileAttr {
    let epoch = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(ino.0),
        size: 0,
        blocks: 0,
        atime: epoch,
        mtime: epoch,
        ctime: epoch,
        crtime: epoch,
        kind: file_type(kind),
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

fn system_time(time: Time) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = match time.seconds >= 0 {
        true => SystemTime::UNIX_EPOCH.checked_add(seconds),
        false => SystemTime::UNIX_EPOCH.checked_sub(seconds),
    };
    let exact = whole.and_then(|whole| whole.checked_add(Duration::from_nanos(time.nanos.into())));
    exact.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// What `fuser` makes of a time before 1970 is the wrong side of the second: it takes the nanoseconds off instead of adding them.
pub(crate) fn time(time: TimeOrNow) -> Time {
    let time = match time {
        TimeOrNow::Now => return Time::now(),
        TimeOrNow::SpecificTime(time) => time,
    };
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => Time { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            Time { seconds: -(before.as_secs() as i64), nanos: before.subsec_nanos() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_are_kept() {
        let time = Time { seconds: -2, nanos: 800_000_000 };
        assert_eq!(system_time(time), SystemTime::UNIX_EPOCH - Duration::from_millis(1200));
    }
}
