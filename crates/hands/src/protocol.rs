//! Messages between a node and a hand. Both ends are the same binary, and a hand ends with its node: messages have no versions.
//!
//! Each message is one SEQPACKET message of at most [`MESSAGE_BYTES_MAX`] bytes: the number of the request, then the body, in postcard.
//! A `Read`, `Write` or `Unpack` has one descriptor: the hand's end of the pipe with the bytes of the file.
//!
//! ```text
//! Stat, MakeDir, Rename, Compose, SetMetadata   -> Entry
//! Account                                       -> Account
//! Remove                                        -> Done
//! List                                          -> Entries ... Done
//! Read  -> Opened, bytes in the pipe, its end   -> Done
//! Write, Unpack -> Opened, bytes in the pipe, its end, Commit -> Entry
//! Watch -> Done, then Events until Cancel
//! any   -> Failed
//! ```

mod path;
mod problem;
mod source;
mod wire;

use std::collections::BTreeMap;

use base::limits::MESSAGE_BYTES_MAX;
use serde::{Deserialize, Serialize};

pub use path::RawPath;
pub use problem::Problem;
pub use source::CopySource;
pub use wire::{BUFFER_BYTES, Letter, Received, receive};

const _: () = assert!(MESSAGE_BYTES_MAX > 8 * base::limits::PATH_BYTES_MAX, "a few paths fit into a message");

/// Metadata of a file: extended attributes `user.e2b.KEY`, by key.
pub type Metadata = BTreeMap<String, String>;

/// What the node sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToHand {
    /// Do this.
    Do {
        /// After this many milliseconds the hand gives up, if it can.
        deadline_ms: u64,
        /// What to do.
        request: Request,
    },
    /// All bytes of a `Write` are in the pipe, and these are as many.
    Commit {
        /// Bytes that were sent.
        bytes: u64,
    },
    /// Nothing waits for the answer any more.
    Cancel,
}

/// What a hand can do. Paths are absolute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Describes one file. A link in the last place is described itself.
    Stat {
        /// Which file.
        path: RawPath,
    },
    /// Says who a user of the sandbox is.
    Account {
        /// Its name.
        name: String,
    },
    /// Lists what is below a directory. Links below it are not followed.
    List {
        /// The directory. Links on the way are followed.
        path: RawPath,
        /// Levels; 1: only the directory itself.
        depth: u32,
    },
    /// Makes a directory, with those above it that are missing. Fails if it is there.
    MakeDir {
        /// Which directory.
        path: RawPath,
    },
    /// Renames a file or directory. Makes the directories above the new name that are missing.
    Rename {
        /// The old name.
        from: RawPath,
        /// The new name. A file there is replaced.
        to: RawPath,
    },
    /// Removes a file, a link, or a directory with all that is below it. Follows no link.
    Remove {
        /// What to remove.
        path: RawPath,
    },
    /// Joins files to one, then removes them.
    Compose {
        /// The files, in order.
        sources: Vec<RawPath>,
        /// The new file. A file there is replaced when the new one is complete.
        target: RawPath,
    },
    /// Replaces all metadata of a file or directory.
    SetMetadata {
        /// Which file.
        path: RawPath,
        /// The new metadata.
        metadata: Metadata,
    },
    /// Sends the bytes of a regular file.
    Read {
        /// Which file.
        path: RawPath,
        /// The first byte.
        offset: u64,
        /// At most so many bytes; none: up to the end.
        length: Option<u64>,
    },
    /// Replaces the content of a regular file. Makes the file and the directories above it that are missing.
    Write {
        /// Which file.
        path: RawPath,
        /// Replaces its metadata; none: the metadata stays.
        metadata: Option<Metadata>,
    },
    /// Copies what is in a tar archive, as `COPY` of a Dockerfile does.
    Unpack {
        /// Where to. With a slash at its end, and if it is a directory, files go into it.
        path: RawPath,
        /// What, and whose it is then.
        copying: Copying,
    },
    /// Reports changes in a directory.
    Watch {
        /// The directory.
        path: RawPath,
        /// Whether those below it count, also those that appear later.
        recursive: bool,
        /// Whether each event describes its file.
        entries: bool,
    },
}

/// What is copied out of an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copying {
    /// The path of a file or directory in the archive; parts of it may be patterns with `*`, `?` and `[]`. Empty: nothing, and the directory is
    /// made.
    pub source: String,
    /// The user that has what is new.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Permission bits of what is new; none: those in the archive.
    pub mode: Option<u32>,
}

/// What a hand sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromHand {
    /// It is done.
    Done,
    /// It is done, and this is the file now.
    Entry(Box<Entry>),
    /// This is the user.
    Account(Box<Account>),
    /// A part of a list.
    Entries(Vec<Entry>),
    /// The file is open, and bytes follow, or can be sent.
    Opened(Opened),
    /// What has happened.
    Events(Vec<WatchEvent>),
    /// It is not done.
    Failed(Problem),
}

/// An open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Size of the whole file in bytes. Files of the kernel have the size of their content.
    pub size: u64,
    /// Bytes that will be sent. 0 for a `Write`.
    pub length: u64,
    /// Time of the last change, in nanoseconds since 1970.
    pub modified_ns: i64,
}

/// A user of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Its number inside.
    pub uid: u32,
    /// The number of its own group.
    pub gid: u32,
    /// Its other groups.
    pub groups: Vec<u32>,
    /// Its home directory, absolute.
    pub home: String,
}

/// A file, as clients see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its path: what was asked for, or that and the way below it.
    pub path: RawPath,
    /// What it is; of a link: what it leads to.
    pub kind: Kind,
    /// Size in bytes; of a link: the link's own.
    pub size: u64,
    /// Permission bits; of a link: those of what it leads to.
    pub mode: u32,
    /// As Go prints a file mode: `-rw-r--r--`, `drwxr-xr-x`, `Lrwxrwxrwx`.
    pub permissions: String,
    /// Name of its user in the sandbox, else the number.
    pub owner: String,
    /// Name of its group in the sandbox, else the number.
    pub group: String,
    /// Time of the last change, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Where a link leads: absolute, with links resolved as far as they lead anywhere.
    pub link_target: Option<RawPath>,
    /// Its metadata, as far as the user may read it.
    pub metadata: Metadata,
}

impl Entry {
    /// Memory that it takes, in bytes, roughly: its texts, and 128.
    pub fn bytes(&self) -> usize {
        let length = |path: &RawPath| path.as_path().as_os_str().len();
        let metadata: usize = self.metadata.iter().map(|(key, value)| key.len() + value.len() + 8).sum();
        length(&self.path) + self.link_target.as_ref().map_or(0, length) + metadata + 128
    }
}

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A link that leads nowhere.
    BrokenLink,
    /// A pipe, socket or device.
    Other,
}

/// Something has happened in a watched directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatchEvent {
    /// To one file.
    Change {
        /// Path below the watched directory; `.` is the directory itself.
        name: RawPath,
        /// What has happened.
        kind: EventKind,
        /// The file, if this was asked for and the file is there.
        entry: Option<Box<Entry>>,
    },
    /// Some events are lost: they came faster than they were taken.
    Lost,
    /// A directory that appeared is not watched: there are too many.
    Unwatched {
        /// Path below the watched directory.
        name: RawPath,
    },
}

impl WatchEvent {
    /// Memory that it takes, in bytes, roughly.
    pub fn bytes(&self) -> usize {
        let text = |name: &RawPath| name.as_path().as_os_str().len();
        64 + match self {
            Self::Change { name, entry, .. } => text(name) + entry.as_ref().map_or(0, |entry| entry.bytes()),
            Self::Unwatched { name } => text(name),
            Self::Lost => 0,
        }
    }
}

/// What has happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    /// It appeared: made, or moved here.
    Create,
    /// Its content changed.
    Write,
    /// It was removed.
    Remove,
    /// It was moved away.
    Rename,
    /// Its mode, owner, times or metadata changed.
    Chmod,
}

#[cfg(test)]
mod tests {
    use std::{os::fd::AsFd, path::Path};

    use super::*;

    fn exchange<T>(seq: u64, body: &T) -> T
    where
        T: Serialize + serde::de::DeserializeOwned,
    {
        let (ours, theirs) = sys::seqpacket::pair().unwrap();
        Letter::new(seq, body).unwrap().send(&ours, &[theirs.as_fd()]).unwrap();
        let received = receive::<T>(&theirs, &mut vec![0; BUFFER_BYTES]).unwrap().unwrap();
        assert_eq!((received.seq, received.descriptors.len()), (seq, 1));
        received.body.unwrap()
    }

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let path = RawPath::new(Path::new("/a/\u{fc} b\n")).unwrap();
        let metadata = Metadata::from([("k".to_owned(), "v".to_owned())]);
        let request = Request::Write { path: path.clone(), metadata: Some(metadata) };
        let sent = ToHand::Do { deadline_ms: 7, request };
        assert_eq!(exchange(3, &sent), sent);
        assert_eq!(exchange(4, &ToHand::Commit { bytes: u64::MAX }), ToHand::Commit { bytes: u64::MAX });
        let events = FromHand::Events(vec![
            WatchEvent::Lost,
            WatchEvent::Change { name: path, kind: EventKind::Rename, entry: None },
        ]);
        assert_eq!(exchange(u64::MAX, &events), events);
        assert_eq!(exchange(0, &FromHand::Failed(Problem::NoSpace)), FromHand::Failed(Problem::NoSpace));
    }

    #[test]
    fn a_message_that_is_too_long_is_not_sent() {
        let sources = vec![RawPath::new(Path::new(&format!("/{}", "x".repeat(4_000)))).unwrap(); 40];
        let request = Request::Compose { sources: sources.clone(), target: sources[0].clone() };
        let refused = Letter::new(1, &ToHand::Do { deadline_ms: 1, request }).err().unwrap();
        assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
    }

    #[test]
    fn bytes_that_are_no_message_fail_their_own_request() {
        let raw = |bytes: &[u8]| {
            let (ours, theirs) = sys::seqpacket::pair().unwrap();
            sys::seqpacket::send(&ours, bytes, &[]).unwrap();
            receive::<ToHand>(&theirs, &mut vec![0; BUFFER_BYTES]).unwrap().unwrap()
        };
        assert!(raw(&[1; 7]).body.is_err());
        let whole = [&9u64.to_le_bytes()[..], &postcard::to_stdvec(&ToHand::Commit { bytes: 300 }).unwrap()].concat();
        assert_eq!((raw(&whole).seq, raw(&whole).body), (9, Ok(ToHand::Commit { bytes: 300 })));
        for length in 8..whole.len() {
            assert_eq!((raw(&whole[..length]).seq, raw(&whole[..length]).body.is_err()), (9, true), "{length}");
        }
        assert!(raw(&[&whole[..], &[0]].concat()).body.is_err(), "bytes behind the message");
        let mut bytes = vec![0; 4096];
        for round in 0..2_000 {
            base::id::fill_random(&mut bytes);
            // Whatever it is understood as, its paths are paths.
            if let Ok(ToHand::Do { request: Request::Stat { path }, .. }) = raw(&bytes[..9 + round % 4000]).body {
                assert!(path.as_path().is_absolute() || path.as_path().as_os_str().is_empty() || !path.is_absolute());
            }
        }
    }

    #[test]
    fn the_end_of_the_peer_is_no_message() {
        let (ours, theirs) = sys::seqpacket::pair().unwrap();
        drop(ours);
        assert!(receive::<ToHand>(&theirs, &mut vec![0; BUFFER_BYTES]).unwrap().is_none());
    }
}
