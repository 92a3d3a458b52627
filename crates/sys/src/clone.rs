//! Forking into new namespaces and a chosen cgroup.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
};

const _: () = assert!(size_of::<libc::clone_args>() == 88, "the kernel's CLONE_ARGS_SIZE_VER2");

/// The libc crate's constant overflowed its type.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Whose child a forked process is: who gets its `SIGCHLD` and reaps it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Parent {
    /// The process that forks it.
    #[default]
    Caller,
    /// That process's own parent.
    ParentOfCaller,
}

/// What differs from a plain fork.
#[derive(Default)]
pub struct ForkOptions<'a> {
    /// `CLONE_NEW*` flags.
    pub namespaces: i32,
    /// The cgroup v2 directory that the child begins in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// Whose child it is.
    pub parent: Parent,
}

/// A child that was forked.
pub struct Forked {
    /// Its pid, as the caller sees it.
    pub pid: i32,
    /// It cannot be mistaken for another process, even after it was reaped.
    pub pidfd: OwnedFd,
}

/// Forks a copy-on-write child that runs `child` and exits with what it returns (101 if it panics).
///
/// The child's end is announced to its parent by `SIGCHLD`. The caller must be single-threaded: a lock that another thread holds at
/// this moment would stay locked in the child for ever. Debug builds check it.
pub fn fork(options: &ForkOptions<'_>, child: impl FnOnce() -> i32) -> io::Result<Forked> {
    debug_assert_eq!(threads(), Some(1), "only a single-threaded process may fork");
    let mut pidfd = -1i32;
    // SAFETY: clone_args is plain data; all zero is its documented "nothing special".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = libc::CLONE_PIDFD as u64 | u64::from(options.namespaces as u32);
    args.pidfd = &raw mut pidfd as u64;
    match options.parent {
        Parent::Caller => args.exit_signal = libc::SIGCHLD as u64,
        // The signal is the caller's own then (clone(2)).
        Parent::ParentOfCaller => args.flags |= libc::CLONE_PARENT as u64,
    }
    if let Some(cgroup) = options.cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: `args` is a valid clone_args of the size given. Without CLONE_VM the child has its own copy of all memory
    // and goes on here on its own copy of the stack. The caller is single-threaded (checked above), so no lock of this
    // process, the allocator's included, can be held by a thread that does not exist in the child.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let status = catch_unwind(AssertUnwindSafe(child)).unwrap_or(101);
            // SAFETY: _exit ends the child without running the parent's exit handlers and destructors.
            unsafe { libc::_exit(status) }
        }
        pid => {
            // SAFETY: CLONE_PIDFD stored a new descriptor there that nothing else owns.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Forked { pid: pid as i32, pidfd })
        }
    }
}

/// How many threads this process has; `None` without `/proc`.
fn threads() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}
