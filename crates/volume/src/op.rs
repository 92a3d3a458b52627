//! Operations that change a volume, as values: what the log records is what the state applies, now and when the log is replayed.
//!
//! An operation names all that it depends on besides the state: the time, too. The encoding is postcard's; a variant or a field is only
//! ever added at the end, with a new version of the log.

use serde::{Deserialize, Serialize};

use crate::{
    apply::Outcome,
    inode::{Ino, Kind, Time},
};

/// What a new inode shall be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct New<'a> {
    /// What it is.
    pub kind: Kind,
    /// The twelve bits below the kind.
    pub mode: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group, unless the directory's is inherited.
    pub gid: u32,
    /// Number of a device.
    pub device: u32,
    /// Where a symbolic link leads.
    #[serde(with = "serde_bytes")]
    pub target: &'a [u8],
}

/// What to change of an inode; `None` leaves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Changes {
    /// The twelve bits below the kind.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes of a file.
    pub size: Option<u64>,
    /// Time of access.
    pub accessed: Option<Time>,
    /// Time of modification.
    pub modified: Option<Time>,
    /// Take set-user-id and set-group-id bits away: the caller is an ordinary user.
    pub drop_privileges: bool,
}

/// What a rename does if the new name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the words say it
pub enum Rename {
    Replace,
    Refuse,
    Exchange,
    /// As `Replace`; a character device 0:0 stays at the old name.
    Whiteout,
}

/// What a write of an extended attribute does if it exists, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the words say it
pub enum SetXattr {
    Either,
    Create,
    Replace,
}

/// A change as the log has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record<'a> {
    /// The number of the kernel's request for it; 0 if it was none.
    pub(crate) request: u64,
    #[serde(borrow)]
    pub(crate) op: Op<'a>,
    /// What the request is answered with. Behind the other fields, if there is one: logs of before it was kept go without.
    #[serde(skip)]
    pub(crate) outcome: Option<Outcome>,
}

impl<'a> Record<'a> {
    /// Appends it.
    pub(crate) fn encode(&self, bytes: Vec<u8>) -> postcard::Result<Vec<u8>> {
        let bytes = postcard::to_extend(self, bytes)?;
        match &self.outcome {
            Some(outcome) => postcard::to_extend(outcome, bytes),
            None => Ok(bytes),
        }
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> postcard::Result<Self> {
        let (record, rest) = postcard::take_from_bytes::<Self>(bytes)?;
        let outcome = (!rest.is_empty()).then(|| postcard::from_bytes(rest)).transpose()?;
        Ok(Self { outcome, ..record })
    }
}

/// One change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Op<'a> {
    Make {
        directory: Ino,
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        #[serde(borrow)]
        new: New<'a>,
        now: Time,
    },
    Link {
        ino: Ino,
        directory: Ino,
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        now: Time,
    },
    Unlink {
        directory: Ino,
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        now: Time,
    },
    RemoveDirectory {
        directory: Ino,
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        now: Time,
    },
    Rename {
        directory: Ino,
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        to: Ino,
        #[serde(with = "serde_bytes")]
        new_name: &'a [u8],
        how: Rename,
        now: Time,
    },
    /// An inode without a name is not used any more.
    Reap {
        ino: Ino,
    },
    Change {
        ino: Ino,
        changes: Changes,
        now: Time,
    },
    Write {
        ino: Ino,
        offset: u64,
        #[serde(with = "serde_bytes")]
        data: &'a [u8],
        drop_privileges: bool,
        now: Time,
    },
    /// Makes a hole.
    Punch {
        ino: Ino,
        offset: u64,
        length: u64,
        now: Time,
    },
    /// Shares data of one file with another.
    Copy {
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        length: u64,
        now: Time,
    },
    SetXattr {
        ino: Ino,
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        #[serde(with = "serde_bytes")]
        value: &'a [u8],
        how: SetXattr,
        now: Time,
    },
    RemoveXattr {
        ino: Ino,
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        now: Time,
    },
    /// An inode that has no name yet, as if it were made in `directory`.
    MakeUnnamed {
        directory: Ino,
        #[serde(borrow)]
        new: New<'a>,
        now: Time,
    },
    /// Gives an inode without a name one, which it takes from whoever has it.
    Place {
        ino: Ino,
        directory: Ino,
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        now: Time,
    },
    /// The kernel has a new superblock of the volume, which numbers its requests from the beginning.
    Mounted,
}
