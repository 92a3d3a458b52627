//! Processes that share memory and their table of descriptors, so that the death of one closes nothing.

use std::{
    io,
    ops::Range,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::AtomicU64,
};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Zeroed memory that is the same in this process and in all that are forked from it. It is never unmapped.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    words: &'static [AtomicU64],
}

impl Region {
    /// Room for `words` words of 8 bytes; memory is taken when they are touched.
    pub fn new(words: usize) -> io::Result<Self> {
        let file = memfd_create("pando-shared", MemfdFlags::CLOEXEC)?;
        let bytes = words * size_of::<u64>();
        ftruncate(&file, bytes as u64)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at a place that the kernel chooses.
        let place = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), 0) };
        if place == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping has `bytes` bytes, is aligned to pages and stays for ever; all access to it is atomic.
        let words = unsafe { std::slice::from_raw_parts(place.cast::<AtomicU64>(), words) };
        Ok(Self { words })
    }

    /// The words.
    pub fn words(self) -> &'static [AtomicU64] {
        self.words
    }

    /// Makes these words zero and gives their memory back. The range must begin and end at a page (512 words).
    pub fn clear(self, range: Range<usize>) -> io::Result<()> {
        let part = &self.words[range];
        // SAFETY: the pages stay mapped and read as zeros, which is a value of every word.
        let result = unsafe { libc::madvise(part.as_ptr() as *mut libc::c_void, size_of_val(part), libc::MADV_REMOVE) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Forks a child that has its own memory but the *same* table of descriptors: what one opens the other has, and what one closes is
/// closed for both. The child runs `child` and exits with what it returns (101 if it panics); it is killed should the calling thread
/// end before [`outlive_parent`] is called. The caller must be single-threaded: a lock that another thread holds would stay locked.
pub fn fork_sharing_descriptors(child: impl FnOnce() -> i32) -> io::Result<i32> {
    let parent = rustix::process::getpid();
    // SAFETY: clone_args is plain data; all zero is its documented "nothing special".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = libc::CLONE_FILES as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: `args` is a valid clone_args of the size given. Without CLONE_VM the child has its own copy of all memory and goes on here
    // on its own copy of the stack. The caller is single-threaded, so no lock can be held by a thread that does not exist in the child.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let run = || {
                // SAFETY: sets a property of this process.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                // The parent may have ended before that.
                if rustix::process::getppid() == Some(parent) { child() } else { 101 }
            };
            let status = catch_unwind(AssertUnwindSafe(run)).unwrap_or(101);
            // SAFETY: _exit ends the child without running the parent's exit handlers and destructors.
            unsafe { libc::_exit(status) }
        }
        pid => Ok(pid as i32),
    }
}

/// The end of the parent is no longer the end of this process.
pub fn outlive_parent() {
    // SAFETY: sets a property of this process.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) };
}

/// Takes the descriptor with this number of a shared table over. Whoever calls has agreed with the other processes (by shared memory) that
/// nobody else owns it. Fails if it is not open.
pub fn adopt(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: asks for a flag of a descriptor; harmless for any number.
    if number < 0 || unsafe { libc::fcntl(number, libc::F_GETFD) } == -1 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: it is open, and by agreement nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn memory_reads_as_zeros_again_after_it_was_given_back() {
        let region = Region::new(1024).unwrap();
        region.words()[700].store(7, Ordering::Relaxed);
        region.clear(512..1024).unwrap();
        assert_eq!(region.words()[700].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_number_that_is_not_open_is_refused() {
        assert!(adopt(-1).is_err());
        assert!(adopt(1 << 20).is_err());
    }
}
