//! What a forked child does to itself before it becomes a program or parks: descriptors, signals, privileges, exec.

use std::{
    ffi::{CStr, CString, c_char},
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Makes `streams` the descriptors 0, 1 and 2 of this process.
pub fn become_stdio(streams: [BorrowedFd<'_>; 3]) -> io::Result<()> {
    let mut aside = [-1; 3];
    for (slot, stream) in aside.iter_mut().zip(streams) {
        // Above 2 first: a stream may itself be 0, 1 or 2, and would be overwritten before its turn.
        // SAFETY: duplicates a descriptor that the borrow keeps open; no memory is involved.
        *slot = check(unsafe { libc::fcntl(stream.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) })?;
    }
    for (target, source) in aside.into_iter().enumerate() {
        // SAFETY: 0, 1 and 2 are replaced on purpose; std's handles name the numbers and stay valid.
        check(unsafe { libc::dup2(source, target as i32) })?;
    }
    Ok(())
}

/// Marks all descriptors from `first` on close-on-exec.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: changes a flag of this process's descriptors; closes none now.
    check(unsafe { libc::close_range(first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) }).map(drop)
}

/// Closes every descriptor of this process except `kept`. Only for a child that never returns to code that owns any.
pub fn close_all_except(kept: BorrowedFd<'_>) -> io::Result<()> {
    close_from_except(0, kept)
}

/// Closes every descriptor of this process from `first` on except `kept`, which is not below. Only for a child that never returns to code that owns
/// any.
pub fn close_from_except(first: u32, kept: BorrowedFd<'_>) -> io::Result<()> {
    let kept = kept.as_raw_fd() as u32;
    if kept > first {
        // SAFETY: the caller promises that this process uses none of them any more.
        check(unsafe { libc::close_range(first, kept - 1, 0) })?;
    }
    // SAFETY: as above.
    check(unsafe { libc::close_range(kept + 1, u32::MAX, 0) }).map(drop)
}

/// Closes all descriptors from `first` on. Only for a child that never returns to code that owns any of these.
pub fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: the caller promises that this process uses none of them any more.
    check(unsafe { libc::close_range(first, u32::MAX, 0) }).map(drop)
}

/// Closes every descriptor of this process. Only for a child that never returns to code that owns any.
pub fn close_all() -> io::Result<()> {
    close_from(0)
}

/// Sets every signal to its default action and, with `unblock`, empties the signal mask.
pub fn reset_signals(unblock: bool) {
    // struct kernel_sigaction: handler (SIG_DFL is 0), flags, restorer, mask.
    let default_action = [0u64; 4];
    for signal in 1..=64 {
        // By system call: the C library hides its two own signals, which may be inherited as ignored like any other.
        // SAFETY: the kernel reads one action of the given mask size, and the default action runs no code of ours.
        // SIGKILL and SIGSTOP are refused: fine.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default_action.as_ptr(), 0usize, 8usize) };
    }
    if unblock {
        // SAFETY: a signal set is plain data that sigemptyset fills; sigprocmask only reads it.
        unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        }
    }
}

/// Lets the kernel reap this process's children by itself, and those that it inherits as an init.
pub fn ignore_children() {
    // SAFETY: SIG_IGN runs no code of ours.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Gives up every capability: bounding, ambient, permitted, effective and inheritable set.
pub fn drop_capabilities() -> io::Result<()> {
    limit_bounding_set(0)?;
    clear_capabilities()
}

/// Leaves these bits in the capability bounding set: no program that is executed from here on can gain any other.
pub fn limit_bounding_set(kept: u64) -> io::Result<()> {
    for capability in (0..64).filter(|bit| kept >> bit & 1 == 0) {
        // SAFETY: changes only this process's credentials.
        match check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability as libc::c_ulong, 0, 0, 0) }) {
            Ok(_) => {}
            // The first number that the kernel does not know ends the list.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Empties the ambient, permitted, effective and inheritable sets.
pub fn clear_capabilities() -> io::Result<()> {
    // SAFETY: changes only this process's credentials.
    check(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0, 0, 0) })?;
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    let data = [0u32; 6];
    // SAFETY: the header is version and pid (0: self), the data two triples of 32-bit sets, as capset(2) reads them.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) };
    check(result as i32).map(drop)
}

/// A null-terminated array of C strings, made before a fork so that the child need not allocate.
pub struct CStrings {
    _owned: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl CStrings {
    /// Fails if a text contains a zero byte.
    pub fn new<T: Into<Vec<u8>>>(texts: impl IntoIterator<Item = T>) -> io::Result<Self> {
        let owned = texts.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>()?;
        let mut pointers: Vec<_> = owned.iter().map(|text| text.as_ptr()).collect();
        pointers.push(std::ptr::null());
        Ok(Self { _owned: owned, pointers })
    }
}

/// Replaces this process by the program at `path`; returns only if that failed.
pub fn execute(path: &CStr, argv: &CStrings, env: &CStrings) -> io::Error {
    // SAFETY: both arrays end with a null pointer and point to C strings that they own.
    unsafe { libc::execve(path.as_ptr(), argv.pointers.as_ptr(), env.pointers.as_ptr()) };
    io::Error::last_os_error()
}
