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
    image::{End, Passed, table},
    observe::{
        descriptors::Holder,
        files::Files,
        listed::{self, Listed, bracketed},
    },
    refusal::Refusal,
};

/// The queues in which some wait.
#[derive(Debug, Default)]
pub(crate) struct Passing {
    /// By the inode of the socket.
    queues: HashMap<u64, Vec<Waiting>>,
    /// Number of a duplicate -> place of the process that has the socket, and its descriptor.
    sockets: HashMap<i32, (usize, i32)>,
    /// Pair, its end and the place of a message in its queue -> duplicates of what came with the message.
    noted: Vec<((usize, End, usize), Vec<OwnedFd>)>,
}

impl Passing {
    /// Looks into the queues of all sockets that have such descriptors, and into those of the sockets that are found there. `lists` are the
    /// descriptors of all `holders` but the last, which is this process: its list is added.
    pub(crate) fn find(holders: &[Holder<'_>], lists: &mut Vec<Vec<Listed>>) -> Result<Self, Error> {
        let (own, first) = (holders.len() - 1, holders[0].pid);
        let mut found = Self::default();
        let mut on_their_way = Vec::new();
        for (at, list) in lists.iter().enumerate() {
            for listed in list {
                found.look(holders, (at, listed), &mut on_their_way)?;
            }
        }
        let mut list = Vec::new();
        while let Some((fd, socket)) = on_their_way.pop() {
            found.sockets.insert(fd, socket);
            if let Some(listed) = listed::one(holders[own].pid, fd, first)? {
                found.look(holders, (own, &listed), &mut on_their_way)?;
                list.push(listed);
            }
        }
        lists.push(list);
        Ok(found)
    }

    /// Adds what waits at this descriptor.
    fn look(
        &mut self,
        holders: &[Holder<'_>],
        (at, listed): (usize, &Listed),
        on_their_way: &mut Vec<(i32, (usize, i32))>,
    ) -> Result<(), Error> {
        let Some(inode) = bracketed(&listed.link, b"socket:[") else { return Ok(()) };
        // Connections to a listener may have some, which is refused as connections.
        if self.queues.contains_key(&inode) || listed.info.number("scm_fds", 10).unwrap_or(0) == 0 {
            return Ok(());
        }
        let Holder { pid, .. } = holders[at];
        let socket = holders[at].duplicate(listed.fd)?;
        let kind =
            sys::sockets::option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TYPE).of("read socket option", pid)?;
        let queue = Queue { pid, fd: listed.fd, kind, socket: socket.as_fd() }.read();
        // A refusal comes again when the socket itself is read.
        if let Ok(queue) = queue.of("read waiting messages", pid)? {
            let socket = self.sockets.get(&listed.fd).filter(|_| at == holders.len() - 1).copied();
            let socket = socket.unwrap_or((at, listed.fd));
            let descriptors = queue.iter().flat_map(|message| &message.descriptors);
            on_their_way.extend(descriptors.map(|descriptor| (descriptor.as_raw_fd(), socket)));
            self.queues.insert(inode, queue);
        }
        Ok(())
    }

    /// What waits at the socket with this inode, if it has been read.
    pub(super) fn queue(&mut self, inode: u64) -> Option<Vec<Waiting>> {
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

    /// Says of each message which files come with it, when all of them have been met. `own` is the place of this process.
    pub(crate) fn complete(&self, own: usize, files: &mut Files) {
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
