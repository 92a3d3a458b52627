//! What is known of descriptors and shared memory since version 3 of a program's state.

use serde::{Deserialize, Serialize};

use super::{End, ProgramImage, SocketPath};

/// By the place of the open file or object that it belongs to, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Added {
    pub(crate) sockets: Vec<(usize, AddedSocket)>,
    pub(crate) owners: Vec<(usize, SignalOwner)>,
    pub(crate) objects: Vec<(usize, ObjectStatus)>,
    pub(crate) reused: Vec<Reused>,
    /// In no order.
    pub(crate) passed: Vec<Passed>,
}

impl Added {
    /// What was added about the socket at this place of [`ProgramImage::files`].
    pub(crate) fn socket(&self, file: usize) -> Option<&AddedSocket> {
        find(&self.sockets, file)
    }

    pub(crate) fn object(&self, object: usize) -> Option<&ObjectStatus> {
        find(&self.objects, object)
    }

    /// Whether all that it refers to is there.
    pub(crate) fn is_sound(&self, image: &ProgramImage) -> bool {
        let file = |place: usize| place < image.files.len();
        self.sockets.iter().all(|(place, state)| file(*place) && state.is_sound())
            && self.owners.iter().all(|(place, _)| file(*place))
            && self.objects.iter().all(|(place, _)| *place < image.objects.len())
            && self.reused.iter().all(|reused| file(reused.set))
            && self.passed.iter().all(|passed| passed.is_sound(image))
    }
}

fn find<T>(all: &[(usize, T)], place: usize) -> Option<&T> {
    let at = all.binary_search_by_key(&place, |(at, _)| *at).ok()?;
    Some(&all[at].1)
}

/// Level, name and value of a socket option.
pub(crate) type SocketOption = (i32, i32, Vec<u8>);

/// What a socket is beside its addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AddedSocket {
    /// In the order in which they are set.
    pub(crate) options: Vec<SocketOption>,
    /// A classic BPF filter, one instruction a word.
    pub(crate) filter: Vec<u64>,
    /// Memberships of multicast groups, each a `struct group_filter`.
    pub(crate) groups: Vec<Vec<u8>>,
    /// Of a socket that is no end of a pair: 1 receiving, 2 sending, 3 both.
    pub(crate) shutdown: u8,
    /// Of an end of a pair of unix sockets.
    pub(crate) name: Option<SocketName>,
    /// Of a unix datagram socket that is no end of a pair.
    pub(crate) queue: Vec<Message>,
}

impl AddedSocket {
    /// Whether what is taken apart is as long as it has to be.
    fn is_sound(&self) -> bool {
        const GROUP_FILTER_BYTES: usize = 144;
        self.shutdown <= 3
            && self.options.iter().all(|(_, _, value)| !value.is_empty())
            && self.groups.iter().all(|group| group.len() >= GROUP_FILTER_BYTES)
    }
}

/// The address of an end of a pair of unix sockets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SocketName {
    /// As a `sockaddr`.
    pub(crate) address: Vec<u8>,
    /// Its file, if it is there.
    pub(crate) path: Option<SocketPath>,
}

/// A datagram that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Message {
    /// The address of a socket of the program, or empty.
    pub(crate) from: Vec<u8>,
    pub(crate) bytes: Vec<u8>,
}

/// Who gets a signal when something happens at an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SignalOwner {
    /// As in `struct f_owner_ex`; the id as in the sandbox.
    pub(crate) kind: i32,
    pub(crate) id: i32,
    /// `F_SETSIG`.
    pub(crate) signal: i32,
}

/// Attributes of a shared object's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObjectStatus {
    pub(crate) mode: u32,
    /// Seconds and nanoseconds of the last access and change.
    pub(crate) times: [(i64, u64); 2],
    /// Extended attributes: names and values.
    pub(crate) attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A registration in an epoll set by a number that names another file by now, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reused {
    /// The place of the set in [`ProgramImage::files`].
    pub(crate) set: usize,
    /// The place of the entry among the set's.
    pub(crate) entry: usize,
    /// A descriptor of the file.
    pub(crate) fd: i32,
}

/// Descriptors on their way: files that come with a message of a pair of unix sockets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Passed {
    pub(crate) pair: usize,
    /// The end at which the message waits.
    pub(crate) end: End,
    /// Its place in the queue there.
    pub(crate) message: usize,
    /// Places of the files in [`ProgramImage::files`], in their order.
    pub(crate) files: Vec<usize>,
}

impl Passed {
    /// `SCM_MAX_FD`
    const FILES_MAX: usize = 253;

    fn is_sound(&self, image: &ProgramImage) -> bool {
        let queue = image.pairs.get(self.pair).map(|pair| &pair.queues[self.end as usize]);
        queue.is_some_and(|queue| self.message < queue.len())
            && (1..=Self::FILES_MAX).contains(&self.files.len())
            && self.files.iter().all(|place| image.files.get(*place).is_some_and(|file| !file.numbers.is_empty()))
    }
}
