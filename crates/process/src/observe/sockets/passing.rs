//! Descriptors on their way: those that wait at unix sockets (`SCM_RIGHTS`), beside bytes.
//!
//! A look at a queue gives duplicates of them. So this process has what is on its way, and is read as the last of the program's processes. What no
//! process of the program has, too, is made for its way only.

use std::{
    collections::HashMap,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use super::queue::{Queue, Waiting};
use crate::{
    error::{Context, Error},
    image::{End, FileLock, Passed, table},
    observe::{
        descriptors::{Holder, refused},
        files::Files,
        listed::{self, Listed, bracketed},
    },
    refusal::Refusal,
};

/// The queues in which some wait.
#[derive(Debug, Default)]
pub(crate) struct Passing {
    /// All descriptors: those of the processes, and those that wait.
    known: usize,
    /// By the inode of the socket.
    queues: HashMap<u64, Result<Vec<Waiting>, Refusal>>,
    /// Number of a duplicate -> place of the process that has the socket, and its descriptor.
    sockets: HashMap<i32, (usize, i32)>,
    /// Pair, its end and the place of a message in its queue -> duplicates of what came with the message.
    noted: Vec<((usize, End, usize), Vec<OwnedFd>)>,
}

impl Passing {
    /// Looks into the queues of all sockets that have such descriptors, and into those of the sockets that are found there. `lists` are the
    /// descriptors of all `holders` but the last, which is this process: its list is added.
    pub(crate) fn find(
        holders: &[Holder<'_>],
        lists: &mut Vec<Vec<Listed>>,
    ) -> Result<Result<Self, Vec<Refusal>>, Error> {
        let own = holders.len() - 1;
        let mut found = Self { known: lists.iter().map(Vec::len).sum(), ..Self::default() };
        let mut on_their_way = Vec::new();
        for (at, list) in lists.iter().enumerate() {
            for listed in list {
                if let Err(refusal) = found.look(holders, (at, listed), &mut on_their_way)? {
                    return Ok(Err(holders[at].blame(at, vec![refusal])));
                }
            }
        }
        let mut list = Vec::new();
        while let Some((fd, socket)) = on_their_way.pop() {
            found.sockets.insert(fd, socket);
            if let Some(listed) = listed::one(holders[own].pid, fd, holders[socket.0].pid)? {
                if let Err(refusal) = found.look(holders, (own, &listed), &mut on_their_way)? {
                    return Ok(Err(found.blame(holders, fd, vec![refusal])));
                }
                list.push(listed);
            }
        }
        lists.push(list);
        Ok(Ok(found))
    }

    /// Adds what waits at this descriptor. Refuses too many; any other refusal is that of the socket.
    fn look(
        &mut self,
        holders: &[Holder<'_>],
        (at, listed): (usize, &Listed),
        on_their_way: &mut Vec<(i32, (usize, i32))>,
    ) -> Result<Result<(), Refusal>, Error> {
        let Some(inode) = bracketed(&listed.link, b"socket:[") else { return Ok(Ok(())) };
        let waiting = listed.info.number("scm_fds", 10).unwrap_or(0) as usize;
        if self.queues.contains_key(&inode) || waiting == 0 {
            return Ok(Ok(()));
        }
        let Holder { pid, .. } = holders[at];
        let socket = holders[at].duplicate(listed.fd)?;
        let option = |name| sys::sockets::option(socket.as_fd(), libc::SOL_SOCKET, name).of("read socket option", pid);
        // Some may have come with connections that wait, and go along only when those have been accepted.
        if option(libc::SO_ACCEPTCONN)? != 0 {
            return Ok(Ok(()));
        }
        let (fd, kind) = (listed.fd, option(libc::SO_TYPE)?);
        let queue = Queue { pid, fd, kind, socket: socket.as_fd(), known: self.known }.read();
        let queue = match queue.of("read waiting messages", pid)? {
            Ok(queue) => queue,
            Err(refusal @ Refusal::TooMany { .. }) => return Ok(Err(refusal)),
            Err(refusal) => {
                self.queues.insert(inode, Err(refusal));
                return Ok(Ok(()));
            }
        };
        let socket = self.sockets.get(&fd).filter(|_| at == holders.len() - 1).copied().unwrap_or((at, fd));
        let descriptors: Vec<i32> =
            queue.iter().flat_map(|message| &message.descriptors).map(AsRawFd::as_raw_fd).collect();
        let found = descriptors.len();
        if found != waiting {
            // Such as those of an empty datagram, which the kernel shows once.
            let what = format!("a socket at which {waiting} descriptors wait, and {found} could be read");
            self.queues.insert(inode, Err(Refusal::UnknownDescriptor { fd, what }));
            return Ok(Ok(()));
        }
        self.known += found;
        on_their_way.extend(descriptors.into_iter().map(|descriptor| (descriptor, socket)));
        self.queues.insert(inode, Ok(queue));
        Ok(Ok(()))
    }

    /// The place of the process at whose socket this descriptor of the present one waits.
    pub(crate) fn place(&self, fd: i32) -> usize {
        self.sockets.get(&fd).map_or(0, |(at, _)| *at)
    }

    /// What waits at the socket with this inode, if it has been read.
    pub(super) fn queue(&mut self, inode: u64) -> Option<Result<Vec<Waiting>, Refusal>> {
        self.queues.remove(&inode)
    }

    /// Notes what comes with a message that waits at an end of a pair. Whether it was found before.
    pub(super) fn note(&mut self, (pair, end): (usize, End), message: usize, descriptors: Vec<OwnedFd>) -> bool {
        let is_known = descriptors.iter().all(|descriptor| self.sockets.contains_key(&descriptor.as_raw_fd()));
        if is_known && !descriptors.is_empty() {
            self.noted.push(((pair, end, message), descriptors));
        }
        is_known
    }

    /// Says of refusals about what this process has for a moment at which socket it waits.
    pub(crate) fn blame(&self, holders: &[Holder<'_>], fd: i32, refusals: Vec<Refusal>) -> Vec<Refusal> {
        let (at, socket) = self.sockets.get(&fd).copied().unwrap_or((0, -1));
        let of_socket = |refusal: Refusal| {
            let what = format!("a socket with a descriptor on its way that cannot be made again ({refusal})");
            Refusal::UnknownDescriptor { fd: socket, what }
        };
        holders[at].blame(at, refusals.into_iter().map(of_socket).collect())
    }

    /// Refuses the descriptor that a number of [`table`] names.
    pub(crate) fn refused(&self, holders: &[Holder<'_>], number: i32, of: impl FnOnce(i32) -> Refusal) -> Vec<Refusal> {
        if table::process_of(number) + 1 == holders.len() {
            let fd = table::fd_of(number);
            return self.blame(holders, fd, vec![of(fd)]);
        }
        refused(holders, number, of)
    }

    /// Says of each message which files come with it, when all of them have been met.
    pub(crate) fn complete(&self, holders: &[Holder<'_>], files: &mut Files) {
        let own = holders.len() - 1;
        // Locks that no process's descriptor shows.
        let (locks, others) = files.locks.drain(..).partition(|lock| table::process_of(lock.fd) == own);
        files.locks = others;
        for FileLock { fd, .. } in Vec::into_iter(locks) {
            let of = |fd| Refusal::UnknownDescriptor { fd, what: "a locked file".into() };
            files.refusals.extend(self.refused(holders, fd, of));
        }
        let mut places = HashMap::new();
        for (place, file) in files.files.iter_mut().enumerate() {
            let (own, others) = file.numbers.iter().partition(|(number, _)| table::process_of(*number) == own);
            file.numbers = others;
            places.extend(Vec::into_iter(own).map(|(number, _)| (table::fd_of(number), place)));
        }
        for ((pair, end, message), descriptors) in &self.noted {
            let of_each = descriptors.iter().filter_map(|descriptor| places.get(&descriptor.as_raw_fd()).copied());
            // One that is missing was refused.
            files.added.passed.push(Passed { pair: *pair, end: *end, message: *message, files: of_each.collect() });
        }
    }
}
