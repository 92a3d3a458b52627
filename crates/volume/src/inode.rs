//! Inodes: what `stat` shows, and what a tree holds for it.

use serde::{Deserialize, Serialize};

/// Number of an inode. Never used twice in a volume, so it needs no generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ino(pub u64);

/// The top directory.
pub const ROOT: Ino = Ino(1);

/// What an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)] // the words say it
pub enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

/// A moment, by the clock of the node that was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Time {
    /// Since 1970; may be before.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanos: u32,
}

impl Time {
    /// Now.
    pub fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Self { seconds: now.tv_sec, nanos: now.tv_nsec as u32 }
    }
}

/// Set-user-id, set-group-id and sticky bits; execution by the group.
pub(crate) const SET_UID: u16 = 0o4000;
pub(crate) const SET_GID: u16 = 0o2000;
pub(crate) const GROUP_EXECUTE: u16 = 0o010;
/// All bits of a mode but the kind.
pub(crate) const MODE_MASK: u16 = 0o7777;

/// One inode. Access times are those of changes: reading writes nothing (noatime).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    /// What it is; never changes.
    pub kind: Kind,
    /// The twelve bits below the kind.
    pub mode: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Names that it has; of a directory two, and one for each directory in it.
    pub links: u32,
    /// Bytes of a file, or of a symbolic link's target; entries of a directory.
    pub size: u64,
    /// Bytes of data, holes left out.
    pub allocated: u64,
    /// Of a device: its number as `makedev` makes it.
    pub device: u32,
    /// Last access that was set.
    pub accessed: Time,
    /// Last change of data or entries.
    pub modified: Time,
    /// Last change of anything.
    pub changed: Time,
    /// When it was made.
    pub born: Time,
    /// Of a directory: the one that it is in. Of others: the one of the newest name, which may be gone.
    pub parent: Ino,
    /// The cookie of that name in it.
    pub(crate) cookie: u64,
    /// Where a symbolic link leads.
    #[serde(with = "serde_bytes")]
    pub target: Vec<u8>,
}

impl Inode {
    /// Is it a directory?
    pub fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }

    pub(crate) fn touch(&mut self, now: Time) {
        self.modified = now;
        self.changed = now;
    }

    /// What a write or a change of owner by an ordinary user takes away.
    pub(crate) fn drop_privileges(&mut self) {
        if self.kind == Kind::File {
            self.mode &= !SET_UID;
            if self.mode & GROUP_EXECUTE != 0 {
                self.mode &= !SET_GID;
            }
        }
    }
}
