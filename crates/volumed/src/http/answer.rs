//! The engine's words in the API's.

use api::volume::{FileInfo, FileKind, VolumeDurability, VolumeUsage};
use volume::{Attributes, Durability, Kind, Time, Usage};

use crate::percent;

pub(super) fn info(name: &[u8], Attributes { ino, inode }: &Attributes) -> FileInfo {
    FileInfo {
        name: percent::encode(name),
        kind: kind(inode.kind),
        ino: ino.0,
        size: inode.size,
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        links: inode.links,
        modified_ns: nanos(inode.modified),
        changed_ns: nanos(inode.changed),
        accessed_ns: nanos(inode.accessed),
        born_ns: nanos(inode.born),
        target: (inode.kind == Kind::Symlink).then(|| percent::encode(&inode.target)),
    }
}

pub(super) fn kind(kind: Kind) -> FileKind {
    match kind {
        Kind::File => FileKind::File,
        Kind::Directory => FileKind::Directory,
        Kind::Symlink => FileKind::Symlink,
        Kind::Fifo => FileKind::Fifo,
        Kind::Socket => FileKind::Socket,
        Kind::CharDevice => FileKind::CharDevice,
        Kind::BlockDevice => FileKind::BlockDevice,
    }
}

/// Times before 1678 and after 2262 are the nearest of these.
fn nanos(time: Time) -> i64 {
    time.seconds.saturating_mul(1_000_000_000).saturating_add(time.nanos.into())
}

pub(super) fn millis(time: Time) -> u64 {
    let nanos = u64::try_from(nanos(time)).unwrap_or(0);
    nanos / 1_000_000
}

pub(super) fn usage(usage: Usage) -> VolumeUsage {
    let Usage { bytes, bytes_max, inodes, inodes_max } = usage;
    VolumeUsage { bytes, bytes_max, inodes, inodes_max }
}

pub(super) fn durability(durability: Durability) -> VolumeDurability {
    match durability {
        Durability::Local => VolumeDurability::Local,
        Durability::Object => VolumeDurability::Object,
    }
}

/// What is named by an entity tag: as long as all these are the same, so are the bytes.
pub(super) fn tag(Attributes { ino, inode }: &Attributes) -> String {
    format!("\"{:x}-{:x}-{:x}\"", ino.0, nanos(inode.changed), inode.size)
}
