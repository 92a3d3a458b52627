//! A file in memory that several processes have mapped: words for counts, and bytes that only system calls and copies
//! touch.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr::NonNull,
    sync::atomic::AtomicU64,
};

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};

/// A shared mapping of the first bytes of a memfd. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to no thread. Its words are atomics, and its bytes are moved by the kernel or by copies
// that a caller may not race.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of `file`, for reading and writing. The file must be sealed against shrinking: a mapping
    /// past its end kills.
    pub fn new(file: impl AsFd, length: usize) -> io::Result<Self> {
        let file = file.as_fd();
        let sealed = fcntl_get_seals(file)?.contains(SealFlags::SHRINK);
        if !sealed || length == 0 || (fstat(file)?.st_size as u64) < length as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at a place that the kernel chooses, of a file that has these bytes for ever.
        let place =
            unsafe { libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if place == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(place.cast()).ok_or(io::ErrorKind::Other)?;
        Ok(Self { start, length })
    }

    /// Word `index` of the mapping.
    ///
    /// # Panics
    ///
    /// If the mapping does not have it.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(self.has(index * size_of::<u64>(), size_of::<u64>()), "word {index} of {} bytes", self.length);
        // SAFETY: the word is inside the mapping and aligned, because a mapping begins at a page. It lives as long as
        // `self`.
        unsafe { &*self.start.as_ptr().cast::<AtomicU64>().add(index) }
    }

    /// Reads from a descriptor straight into the mapping: at most `length` bytes to `offset`.
    pub fn read_from(&self, from: BorrowedFd<'_>, offset: usize, length: usize) -> io::Result<usize> {
        if !self.has(offset, length) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the kernel writes at most `length` bytes to a place inside the mapping. No reference to these bytes
        // exists.
        let read = unsafe { libc::read(from.as_raw_fd(), self.start.as_ptr().add(offset).cast(), length) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }

    /// Copies bytes at `offset` out of the mapping. The caller knows that no other process or thread writes them
    /// meanwhile.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) -> io::Result<()> {
        if !self.has(offset, into.len()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: both places have that many bytes, and `into` is memory of the caller's own.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr().add(offset), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn has(&self, offset: usize, length: usize) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.length)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference into it outlives the value.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use std::{os::fd::OwnedFd, sync::atomic::Ordering};

    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    fn file(seals: SealFlags) -> OwnedFd {
        let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 8192).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    #[test]
    fn bytes_read_into_one_mapping_are_in_the_other() {
        let file = file(SealFlags::SHRINK);
        let (one, other) = (Mapping::new(&file, 8192).unwrap(), Mapping::new(&file, 8192).unwrap());
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writer, b"hello").unwrap();
        assert_eq!(one.read_from(reader.as_fd(), 8000, 100).unwrap(), 5);
        one.word(3).store(7, Ordering::Release);
        let mut seen = [0; 5];
        other.copy_out(8000, &mut seen).unwrap();
        assert_eq!((&seen, other.word(3).load(Ordering::Acquire)), (b"hello", 7));
    }

    #[test]
    fn places_outside_are_refused() {
        let file = file(SealFlags::SHRINK);
        let mapping = Mapping::new(&file, 4096).unwrap();
        assert!(mapping.copy_out(4095, &mut [0; 2]).is_err());
        assert!(mapping.copy_out(usize::MAX, &mut [0; 2]).is_err());
        assert!(mapping.read_from(file.as_fd(), 4000, 97).is_err());
        assert!(Mapping::new(&file, 8193).is_err());
    }

    #[test]
    fn a_file_that_may_shrink_is_refused() {
        assert!(Mapping::new(file(SealFlags::GROW), 4096).is_err());
    }
}
