//! The stub: a forked child that gives itself up to the blob.

use std::{
    arch::asm,
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr, slice,
};

use crate::clone::{ForkOptions, Forked, fork};

/// What a stub becomes.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Where the arena is to be mapped; must be free in this process.
    pub base: u64,
    /// The arena's bytes, whole pages; the first page is the blob.
    pub bytes: &'a [u8],
    /// Address of the first operation.
    pub entry: u64,
    /// Descriptors that it needs, each with the number it is to have there.
    pub descriptors: &'a [(BorrowedFd<'a>, i32)],
}

/// Forks a child that maps the arena, blocks all signals and runs the operations at `entry`. It has no descriptors but those of the plan,
/// keeps this process's memory until its operations give that away, and never returns here.
///
/// Its exit status is the errno if the arena could not be mapped.
pub fn spawn(plan: &Plan<'_>) -> io::Result<Forked> {
    fork(&ForkOptions::default(), || match enter(plan) {
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    })
}

fn enter(plan: &Plan<'_>) -> Result<std::convert::Infallible, io::Error> {
    const PAGE: usize = 4096;
    place_descriptors(plan.descriptors)?;
    assert!(plan.bytes.len() >= PAGE && plan.bytes.len().is_multiple_of(PAGE));
    let (start, len) = (ptr::without_provenance_mut::<libc::c_void>(plan.base as usize), plan.bytes.len());
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: NOREPLACE: the mapping is new, so nothing of this process is changed.
    let mapped = unsafe { libc::mmap(start, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `mapped` is `len` writable bytes that nothing else refers to.
    unsafe { slice::from_raw_parts_mut(mapped.cast::<u8>(), len) }.copy_from_slice(plan.bytes);
    // SAFETY: the first page of the new mapping only: code is not writable, data is not executable.
    if unsafe { libc::mprotect(mapped, PAGE, libc::PROT_READ | libc::PROT_EXEC) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // All of them: a copy inherits the program's handlers, and none may run before it has given up its privileges.
    let blocked = u64::MAX;
    let mask = (&raw const blocked).addr();
    // The C library would keep its own two signals unblocked; the kernel call does not.
    // SAFETY: `mask` is one word, the size of the kernel's signal set.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, mask, 0, size_of::<u64>()) };
    // SAFETY: control passes to the blob for ever; it uses registers only, and the operations are the plan's. Without a stack any
    // signal that should reach a thread in the blob ends it.
    unsafe {
        asm!(
            "xor esp, esp",
            "xor ebp, ebp",
            "mov rbx, rcx",
            "jmp rax",
            in("rax") plan.base,
            in("rcx") plan.entry,
            options(noreturn)
        );
    }
}

/// Gives descriptors their numbers, and closes all others. All are first moved above these, because one may sit where another belongs.
fn place_descriptors(descriptors: &[(BorrowedFd<'_>, i32)]) -> io::Result<()> {
    let above = descriptors.iter().map(|(_, number)| number + 1).max().unwrap_or(0);
    let mut moved = Vec::with_capacity(descriptors.len());
    for (descriptor, number) in descriptors {
        // SAFETY: duplicates a descriptor that the borrow keeps open.
        let copy = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, above) };
        if copy == -1 {
            return Err(io::Error::last_os_error());
        }
        moved.push((copy, *number));
    }
    for (copy, number) in moved {
        // SAFETY: replaces whatever has the number: this child runs no code that owns descriptors any more.
        if unsafe { libc::dup2(copy, number) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    let mut numbers: Vec<u32> = descriptors.iter().map(|(_, number)| *number as u32).collect();
    numbers.sort_unstable();
    let mut first = 0;
    for number in numbers {
        if number > first {
            close_range(first, number - 1)?;
        }
        first = number + 1;
    }
    close_range(first, u32::MAX)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: this child runs no code that owns descriptors any more.
    if unsafe { libc::close_range(first, last, 0) } == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
