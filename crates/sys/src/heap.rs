//! The C library's allocator.

/// Large allocations of this process are mappings of their own from now on, given back to the kernel when they are freed, whichever
/// thread made them. Without this the library raises that bound by itself, up to 32 MiB, and keeps an arena for each thread: a server that
/// handles large buffers on many threads holds several times what it uses.
pub fn return_large_allocations() {
    const LARGE_BYTES: i32 = 128 << 10;
    // SAFETY: sets a number of the allocator; it fails only for numbers that are too large.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES) };
}
