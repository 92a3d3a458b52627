//! What outlives either process: sockets, mounts, and who holds them. Guardian and worker each have it whole.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use crate::message::{self, Source, Telling};

/// The folder's lock, and the sockets in which clients wait while there is no worker.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) lock: OwnedFd,
    pub(crate) http: OwnedFd,
    pub(crate) control: OwnedFd,
}

/// One superblock.
#[derive(Debug)]
pub(crate) struct Mount {
    pub(crate) holders: Vec<String>,
    /// The mount that all others of it are cloned from: it keeps the superblock.
    pub(crate) tree: OwnedFd,
    /// Its connection with the kernel, and clones of that: as long as somebody has them, no request on them is lost.
    pub(crate) devices: Vec<OwnedFd>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) shared: Shared,
    pub(crate) mounts: BTreeMap<Source, Mount>,
}

/// What hearing a message has led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Changed,
    Ready,
    End,
}

impl Mount {
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        std::iter::once(&self.tree).chain(&self.devices).map(AsFd::as_fd).collect()
    }

    /// Tells the other process of it.
    pub(crate) fn tell(&self, socket: &OwnedFd, source: &Source) -> io::Result<()> {
        let telling = Telling::Mount { source: source.clone(), holders: self.holders.clone() };
        message::send(socket, &telling, &self.descriptors())
    }
}

impl Held {
    pub(crate) fn new(shared: Shared) -> Self {
        Self { shared, mounts: BTreeMap::new() }
    }

    /// All that the process at the other end of `socket` tells before it is ready.
    pub(crate) fn receive(socket: &OwnedFd) -> io::Result<Self> {
        let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let (first, descriptors) = message::receive(socket)?.ok_or_else(ended)?;
        let (Telling::Shared, Ok([lock, http, control])) = (first, <[OwnedFd; 3]>::try_from(descriptors)) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let mut held = Self::new(Shared { lock, http, control });
        loop {
            let (telling, descriptors) = message::receive(socket)?.ok_or_else(ended)?;
            match held.hear(telling, descriptors)? {
                Heard::Changed => {}
                Heard::Ready => return Ok(held),
                Heard::End => return Err(ended()),
            }
        }
    }

    /// Tells all of it.
    pub(crate) fn tell(&self, socket: &OwnedFd) -> io::Result<()> {
        let Shared { lock, http, control } = &self.shared;
        message::send(socket, &Telling::Shared, &[lock, http, control].map(AsFd::as_fd))?;
        self.mounts.iter().try_for_each(|(source, mount)| mount.tell(socket, source))?;
        message::send(socket, &Telling::Ready, &[])
    }

    /// Makes the change that the other process tells of.
    pub(crate) fn hear(&mut self, telling: Telling, descriptors: Vec<OwnedFd>) -> io::Result<Heard> {
        match telling {
            Telling::Shared => return Err(io::ErrorKind::InvalidData.into()),
            Telling::Mount { source, holders } => {
                let mut descriptors = descriptors.into_iter();
                let tree = descriptors.next().ok_or(io::ErrorKind::InvalidData)?;
                self.mounts.insert(source, Mount { holders, tree, devices: descriptors.collect() });
            }
            Telling::Holders { source, holders } => {
                if let Some(mount) = self.mounts.get_mut(&source) {
                    mount.holders = holders;
                }
            }
            Telling::Unmount { source } => drop(self.mounts.remove(&source)),
            Telling::Ready => return Ok(Heard::Ready),
            Telling::End => return Ok(Heard::End),
        }
        Ok(Heard::Changed)
    }
}
