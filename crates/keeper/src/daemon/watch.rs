//! An epoll set whose members leave it when they are dropped.
//!
//! A member is removed explicitly: a forked builder holds duplicates for a moment, and the kernel reports a closed member as long as any
//! duplicate is open.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
};

use base::id::ZygoteId;
use rustix::event::epoll;

/// What a ready descriptor belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// The server's socket.
    Server,
    /// The pidfd of a watched process, by its serial number.
    Process(u64),
    /// The result socket of a builder, by its zygote.
    Builder(ZygoteId),
    /// The control socket of a zygote.
    Zygote(ZygoteId),
}

impl Source {
    const NUMBER_BITS: u32 = 56;

    fn encode(self) -> u64 {
        let (kind, number) = match self {
            Self::Server => (0, 0),
            Self::Process(serial) => (1, serial),
            Self::Builder(zygote) => (2, zygote.0),
            Self::Zygote(zygote) => (3, zygote.0),
        };
        (kind << Self::NUMBER_BITS) | number
    }

    fn decode(data: u64) -> Self {
        let number = data & ((1 << Self::NUMBER_BITS) - 1);
        match data >> Self::NUMBER_BITS {
            0 => Self::Server,
            1 => Self::Process(number),
            2 => Self::Builder(ZygoteId(number)),
            _ => Self::Zygote(ZygoteId(number)),
        }
    }
}

/// The epoll set.
#[derive(Debug, Clone)]
pub(super) struct Watcher {
    epoll: Rc<OwnedFd>,
}

impl Watcher {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { epoll: Rc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?) })
    }

    /// Reports `fd` as `source` whenever it is readable, until the result is dropped.
    pub(super) fn watch<F: AsFd>(&self, fd: F, source: Source) -> io::Result<Watched<F>> {
        epoll::add(&*self.epoll, fd.as_fd(), epoll::EventData::new_u64(source.encode()), epoll::EventFlags::IN)?;
        Ok(Watched { epoll: Rc::clone(&self.epoll), source, fd })
    }

    /// Waits for members that are ready, at most `timeout_ms` milliseconds if given. After a signal the result is empty.
    pub(super) fn wait(&self, timeout_ms: Option<i64>) -> io::Result<Vec<Source>> {
        let timeout = timeout_ms.map(|ms| rustix::fs::Timespec { tv_sec: ms / 1000, tv_nsec: (ms % 1000) * 1_000_000 });
        let mut events = Vec::with_capacity(64);
        match epoll::wait(&*self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) => Ok(events.iter().map(|event| Source::decode(event.data.u64())).collect()),
            Err(rustix::io::Errno::INTR) => Ok(Vec::new()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// A member of the set.
#[derive(Debug)]
pub(super) struct Watched<F: AsFd> {
    epoll: Rc<OwnedFd>,
    source: Source,
    fd: F,
}

impl<F: AsFd> Watched<F> {
    pub(super) fn get(&self) -> &F {
        &self.fd
    }
}

impl<F: AsFd> Watched<F> {
    /// From now on reports only that it hung up, not that it is readable.
    pub(super) fn watch_hangup_only(&self) -> io::Result<()> {
        let data = epoll::EventData::new_u64(self.source.encode());
        Ok(epoll::modify(&*self.epoll, self.fd.as_fd(), data, epoll::EventFlags::empty())?)
    }
}

impl<F: AsFd> AsFd for Watched<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<F: AsFd> Drop for Watched<F> {
    fn drop(&mut self) {
        // A member is in the set since `watch`: it fails only if the descriptor was closed elsewhere.
        let _ = epoll::delete(&*self.epoll, self.fd.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_survives_its_encoding() {
        for source in
            [Source::Server, Source::Process(7), Source::Builder(ZygoteId(1 << 40)), Source::Zygote(ZygoteId(0))]
        {
            assert_eq!(Source::decode(source.encode()), source);
        }
    }

    #[test]
    fn a_dropped_member_is_not_reported_though_a_duplicate_is_open() {
        let watcher = Watcher::new().unwrap();
        let (ours, theirs) = sys::seqpacket::pair().unwrap();
        let _duplicate = rustix::io::dup(&ours).unwrap();
        let member = watcher.watch(ours, Source::Builder(ZygoteId(1))).unwrap();
        drop(theirs);
        assert_eq!(watcher.wait(Some(1000)).unwrap(), [Source::Builder(ZygoteId(1))]);
        drop(member);
        assert_eq!(watcher.wait(Some(0)).unwrap(), []);
    }
}
