//! The C library's allocator, and pages of memory.

use std::io;

const PAGE: usize = 4096;

/// Large allocations of this process are mappings of their own from now on, given back to the kernel when they are freed, whichever
/// thread made them. Without this the library raises that bound by itself, up to 32 MiB, and keeps an arena for each thread: a server that
/// handles large buffers on many threads holds several times what it uses.
pub fn return_large_allocations() {
    const LARGE_BYTES: i32 = 128 << 10;
    // SAFETY: sets a number of the allocator; it fails only for numbers that are too large.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES) };
}

/// Memory of large allocations, below 16 MiB, is used again by later ones, of any thread, and up to 256 MiB at the end of a heap are kept. For a
/// process that has large buffers all the time: with [`return_large_allocations`] each of them costs page faults, and the end of each interrupts other
/// processors: two thirds of the time of a process that writes volumes.
pub fn reuse_large_allocations() {
    const KEPT_BYTES: i32 = 256 << 20;
    // The bound for mappings is above all buffers but those of FUSE's threads, of which most is never touched: out of a heap it would be cleared
    // first. Two heaps, for a moment's competition: one for each thread would hold what only that one can use.
    let numbers = [(libc::M_MMAP_THRESHOLD, 16 << 20), (libc::M_TRIM_THRESHOLD, KEPT_BYTES), (libc::M_ARENA_MAX, 2)];
    for (parameter, value) in numbers {
        // SAFETY: sets a number of the allocator; it fails only for numbers that are too large.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Gives what nobody uses of the heaps back to the kernel, whole pages of it. Takes milliseconds: for when much was freed.
pub fn return_unused() {
    // SAFETY: nothing that is allocated is touched (malloc_trim(3)).
    unsafe { libc::malloc_trim(0) };
}

/// Makes the pages of `bytes` bytes from `address` on, as if each were written; their contents stay. Fails if not all of them are mapped.
pub fn populate(address: usize, bytes: usize) -> io::Result<()> {
    let begin = address & !(PAGE - 1);
    let length = (address + bytes).next_multiple_of(PAGE) - begin;
    // SAFETY: changes no content and no mapping, whatever lies there (madvise(2), MADV_POPULATE_WRITE).
    let result = unsafe { libc::madvise(begin as *mut libc::c_void, length, libc::MADV_POPULATE_WRITE) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
