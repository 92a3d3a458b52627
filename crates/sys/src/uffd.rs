//! userfaultfd: pages of another process's memory that are filled when it touches them.
//!
//! Kernel documents: `Documentation/admin-guide/mm/userfaultfd.rst`, ioctl_userfaultfd(2).

use std::{
    io,
    ops::Range,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    sync::atomic::{AtomicU64, Ordering},
};

/// Words of 8 bytes in one message of the kernel (`struct uffd_msg`).
pub const MESSAGE_WORDS: usize = 4;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
struct Span {
    start: u64,
    len: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    range: Span,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_copy`; `copied` is written by the kernel: bytes, or an error below zero.
#[repr(C)]
struct Copy {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

/// `struct uffdio_zeropage` and `struct uffdio_poison`.
#[repr(C)]
struct Fill {
    range: Span,
    mode: u64,
    filled: i64,
}

/// The kernel's `_IOC(direction, 0xaa, number, size)`.
const fn request(direction: u64, number: u64, size: usize) -> libc::Ioctl {
    (direction << 30 | (size as u64) << 16 | 0xaa << 8 | number) as libc::Ioctl
}

const READ: u64 = 2;
const READ_WRITE: u64 = 3;
const UFFDIO_API: libc::Ioctl = request(READ_WRITE, 0x3f, size_of::<Api>());
const UFFDIO_REGISTER: libc::Ioctl = request(READ_WRITE, 0x00, size_of::<Register>());
const UFFDIO_UNREGISTER: libc::Ioctl = request(READ, 0x01, size_of::<Span>());
const UFFDIO_WAKE: libc::Ioctl = request(READ, 0x02, size_of::<Span>());
const UFFDIO_COPY: libc::Ioctl = request(READ_WRITE, 0x03, size_of::<Copy>());
const UFFDIO_ZEROPAGE: libc::Ioctl = request(READ_WRITE, 0x04, size_of::<Fill>());
const UFFDIO_POISON: libc::Ioctl = request(READ_WRITE, 0x08, size_of::<Fill>());

const _: () = assert!(size_of::<Api>() == 24 && UFFDIO_API as u32 == 0xc018_aa3f);
const _: () = assert!(size_of::<Register>() == 32 && UFFDIO_REGISTER as u32 == 0xc020_aa00);
const _: () = assert!(size_of::<Span>() == 16 && UFFDIO_UNREGISTER as u32 == 0x8010_aa01);
const _: () = assert!(UFFDIO_WAKE as u32 == 0x8010_aa02);
const _: () = assert!(size_of::<Copy>() == 40 && UFFDIO_COPY as u32 == 0xc028_aa03);
const _: () = assert!(size_of::<Fill>() == 32 && UFFDIO_ZEROPAGE as u32 == 0xc020_aa04);
const _: () = assert!(UFFDIO_POISON as u32 == 0xc020_aa08);

/// `UFFD_API`.
const API_VERSION: u64 = 0xaa;
/// `UFFD_FEATURE_EVENT_FORK | _REMAP | _REMOVE | _UNMAP`.
const EVENT_FEATURES: u64 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;
/// `UFFDIO_REGISTER_MODE_MISSING`.
const MODE_MISSING: u64 = 1;
/// What became of a request to fill pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// So many bytes were filled, from the start on; fewer than asked for when a later page stood in the way.
    Done(u64),
    /// The first page is already there.
    Exists,
    /// The process changes its mappings: read its events first.
    Again,
    /// The process is gone.
    Gone,
    /// The pages are not, or not all, in one mapping that is registered here.
    NoMapping,
}

/// What the kernel tells of a process. Addresses are multiples of the page size but for those of faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It waits for the page at this address.
    Fault(u64),
    /// It has forked; the number of the descriptor that stands for the child. Nobody owns that yet.
    Fork(RawFd),
    /// Pages were moved.
    Remap {
        /// Where they were.
        from: u64,
        /// Where they are.
        to: u64,
        /// Bytes.
        len: u64,
    },
    /// The contents of pages are about to be given up; they read as zeros afterwards.
    Remove(Range<u64>),
    /// Pages were unmapped.
    Unmap(Range<u64>),
}

impl Event {
    /// Reads the message that `words` begins with; `None` if there is none (all zeros) or none that was asked for.
    pub fn decode(words: &[AtomicU64]) -> Option<Self> {
        let word = |index: usize| words[index].load(Ordering::Acquire);
        match word(0) & 0xff {
            0x12 => Some(Self::Fault(word(2))),
            0x13 => Some(Self::Fork(word(1) as u32 as RawFd)),
            0x14 => Some(Self::Remap { from: word(1), to: word(2), len: word(3) }),
            0x15 => Some(Self::Remove(word(1)..word(2))),
            0x16 => Some(Self::Unmap(word(1)..word(2))),
            _ => None,
        }
    }
}

/// A userfaultfd.
#[derive(Debug)]
pub struct Uffd(OwnedFd);

impl From<OwnedFd> for Uffd {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<Uffd> for OwnedFd {
    fn from(uffd: Uffd) -> Self {
        uffd.0
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Uffd {
    /// One for this process's memory, non-blocking and close-on-exec, that tells of forks and changed mappings.
    pub fn new() -> io::Result<Self> {
        // SAFETY: makes a descriptor; no memory is involved.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if fd == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it, and nothing else owns it.
        let uffd = Self(unsafe { OwnedFd::from_raw_fd(fd as RawFd) });
        let mut api = Api { api: API_VERSION, features: EVENT_FEATURES, ioctls: 0 };
        uffd.ioctl(UFFDIO_API, &mut api)?;
        Ok(uffd)
    }

    /// `argument` is the struct whose size is part of the request's number.
    fn ioctl<T>(&self, request: libc::Ioctl, argument: &mut T) -> io::Result<()> {
        // SAFETY: the kernel reads and writes the `size_of::<T>()` bytes that are part of the request's number. Memory
        // that the argument names is another process's, or borrowed by the caller for the time of the call.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), request, std::ptr::from_mut(argument)) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// From here on, the first touch of each absent page in `range` waits for it.
    pub fn register(&self, range: Range<u64>) -> io::Result<()> {
        let mut argument = Register { range: span(&range), mode: MODE_MISSING, ioctls: 0 };
        self.ioctl(UFFDIO_REGISTER, &mut argument)
    }

    /// Absent pages of `range` are zeros again, as the kernel's own; whoever waits goes on.
    pub fn unregister(&self, range: Range<u64>) -> io::Result<()> {
        self.ioctl(UFFDIO_UNREGISTER, &mut span(&range))
    }

    /// Whoever waits in `range` tries again; if the page is still absent, its fault is reported again.
    pub fn wake(&self, range: Range<u64>) -> io::Result<()> {
        self.ioctl(UFFDIO_WAKE, &mut span(&range))
    }

    /// Fills pages from `address` on, and wakes whoever waits for them. `bytes` are whole pages.
    pub fn copy(&self, address: u64, bytes: &[u8]) -> io::Result<Outcome> {
        let mut argument =
            Copy { dst: address, src: bytes.as_ptr() as u64, len: bytes.len() as u64, mode: 0, copied: 0 };
        let result = self.ioctl(UFFDIO_COPY, &mut argument);
        outcome(result, argument.copied)
    }

    /// Fills `range` with zeros, and wakes whoever waits for it.
    pub fn zeropage(&self, range: Range<u64>) -> io::Result<Outcome> {
        let mut argument = Fill { range: span(&range), mode: 0, filled: 0 };
        let result = self.ioctl(UFFDIO_ZEROPAGE, &mut argument);
        outcome(result, argument.filled)
    }

    /// Makes every touch of `range` a bus error (Linux 6.6), and wakes whoever waits for it.
    pub fn poison(&self, range: Range<u64>) -> io::Result<Outcome> {
        let mut argument = Fill { range: span(&range), mode: 0, filled: 0 };
        let result = self.ioctl(UFFDIO_POISON, &mut argument);
        outcome(result, argument.filled)
    }

    /// Reads messages into `log`, which has room for a whole number of them ([`MESSAGE_WORDS`] each): how many.
    /// `WouldBlock` if there is none. What was read is gone from the kernel, so `log` may be memory that outlives the process: once a
    /// message is taken, it is in `log` even if the process is killed in the call, provided that the pages of `log` are resident.
    pub fn read(&self, log: &[AtomicU64]) -> io::Result<usize> {
        // SAFETY: the kernel writes at most the bytes of `log`, whose words may be written while they are shared.
        let result = unsafe { libc::read(self.0.as_raw_fd(), log.as_ptr() as *mut libc::c_void, size_of_val(log)) };
        match result {
            -1 => Err(io::Error::last_os_error()),
            bytes => Ok(bytes as usize / (MESSAGE_WORDS * size_of::<u64>())),
        }
    }
}

fn span(range: &Range<u64>) -> Span {
    Span { start: range.start, len: range.end.saturating_sub(range.start) }
}

/// The kernel reports a partial success as the error EAGAIN and a count above zero.
fn outcome(result: io::Result<()>, filled: i64) -> io::Result<Outcome> {
    match result {
        Ok(()) => Ok(Outcome::Done(filled as u64)),
        Err(_) if filled > 0 => Ok(Outcome::Done(filled as u64)),
        Err(error) => match error.raw_os_error() {
            Some(libc::EEXIST) => Ok(Outcome::Exists),
            Some(libc::EAGAIN) => Ok(Outcome::Again),
            Some(libc::ESRCH) => Ok(Outcome::Gone),
            Some(libc::ENOENT) => Ok(Outcome::NoMapping),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of this process that is unmapped at the end.
    struct Mapping(*mut libc::c_void);

    const LEN: usize = 4 * 4096;

    impl Mapping {
        fn new() -> Self {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping at a place that the kernel chooses.
            let place = unsafe { libc::mmap(std::ptr::null_mut(), LEN, protection, flags, -1, 0) };
            assert_ne!(place, libc::MAP_FAILED);
            Self(place)
        }

        fn page(&self, index: u64) -> Range<u64> {
            let start = self.0 as u64 + index * 4096;
            start..start + 4096
        }

        fn byte(&self, index: u64) -> u8 {
            // SAFETY: inside the mapping, which lives as long as `self`.
            unsafe { *(self.page(index).start as *const u8) }
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: nothing refers to it any more.
            unsafe { libc::munmap(self.0, LEN) };
        }
    }

    #[test]
    fn pages_are_filled_once_and_outcomes_are_told_apart() {
        let mapping = Mapping::new();
        let uffd = Uffd::new().unwrap();
        uffd.register(mapping.page(0).start..mapping.page(3).end).unwrap();
        assert_eq!(uffd.copy(mapping.page(1).start, &[7; 4096]).unwrap(), Outcome::Done(4096));
        assert_eq!(uffd.copy(mapping.page(1).start, &[8; 4096]).unwrap(), Outcome::Exists);
        assert_eq!(uffd.copy(mapping.page(0).start, &[9; 8192]).unwrap(), Outcome::Done(4096), "up to what is there");
        assert_eq!(uffd.zeropage(mapping.page(2)).unwrap(), Outcome::Done(4096));
        assert_eq!((mapping.byte(0), mapping.byte(1), mapping.byte(2)), (9, 7, 0));
        uffd.unregister(mapping.page(0).start..mapping.page(3).end).unwrap();
        assert_eq!(mapping.byte(3), 0);
        assert_eq!(uffd.copy(mapping.page(3).start, &[7; 4096]).unwrap(), Outcome::NoMapping);
    }

    #[test]
    fn a_fault_and_a_removal_are_reported() {
        let mapping = Mapping::new();
        let uffd = Uffd::new().unwrap();
        uffd.register(mapping.page(0).start..mapping.page(3).end).unwrap();
        let (start, page) = (mapping.page(2).start, mapping.page(2));
        let toucher = std::thread::spawn(move || {
            // SAFETY: inside the mapping, which outlives the thread (it is joined).
            let byte = unsafe { *(start as *const u8) };
            // SAFETY: gives up pages of the mapping, which hold plain bytes.
            unsafe { libc::madvise(start as *mut libc::c_void, 4096, libc::MADV_DONTNEED) };
            byte
        });
        let log: Vec<AtomicU64> = (0..4 * MESSAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
        let next = || {
            loop {
                match uffd.read(&log) {
                    Ok(count) => break (0..count).filter_map(|i| Event::decode(&log[i * MESSAGE_WORDS..])).collect(),
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
                std::thread::yield_now();
            }
        };
        let events: Vec<Event> = next();
        assert_eq!(events, [Event::Fault(start)]);
        assert_eq!(uffd.copy(start, &[5; 4096]).unwrap(), Outcome::Done(4096));
        assert_eq!(next(), [Event::Remove(page)]);
        assert_eq!(toucher.join().unwrap(), 5);
    }
}
