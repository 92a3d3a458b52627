//! What a pidfd tells about a process that is not a child.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// `_IO(0xFF, 1)`: a descriptor of the process's cgroup namespace (Linux 6.11).
pub const PIDFD_GET_CGROUP_NAMESPACE: u64 = 0xff01;
/// `_IO(0xFF, 9)`: a descriptor of the process's user namespace (Linux 6.11).
const PIDFD_GET_USER_NAMESPACE: libc::Ioctl = 0xff09;

/// `struct pidfd_info` of the kernel's `include/uapi/linux/pidfd.h` (Linux 6.15), as far as version 0 goes.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    /// pid, tgid, ppid, and four pairs of user and group ids.
    ids: [u32; 11],
    exit_code: i32,
}

const _: () = assert!(size_of::<PidfdInfo>() == 64, "the kernel's PIDFD_INFO_SIZE_VER0");

/// `PIDFD_INFO_EXIT`: the exit code is asked for, and was filled in.
const MASK_EXIT: u64 = 1 << 3;

/// `_IOWR(0xFF, 11, struct pidfd_info)`.
const PIDFD_GET_INFO: libc::Ioctl = 0xc040_ff0b_u32 as libc::Ioctl;

/// How a process ended, as wait(2) encodes it, whoever its parent was. None as long as its parent has not reaped it, and
/// on kernels before 6.15 (a caller that waits for it waits in vain). The descriptor must have been opened while the process lived.
pub fn exit_status(pidfd: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let mut info = PidfdInfo { mask: MASK_EXIT, ..PidfdInfo::default() };
    // SAFETY: the kernel writes at most the 64 bytes whose size is part of the request's number, and `info` has them.
    let result = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    match result {
        -1 => {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // Not reaped yet, or asked of a kernel that does not know it.
                Some(libc::ESRCH | libc::ENOTTY | libc::EINVAL) => Ok(None),
                _ => Err(error),
            }
        }
        _ => Ok((info.mask & MASK_EXIT != 0).then_some(info.exit_code)),
    }
}

/// The user namespace of a process.
pub fn user_namespace(pidfd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the request takes no argument, and gives a new descriptor or an error.
    match unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_USER_NAMESPACE, 0) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: nothing else owns the new descriptor.
        made => Ok(unsafe { OwnedFd::from_raw_fd(made) }),
    }
}

#[cfg(test)]
mod tests {
    use std::{os::fd::AsFd, process::Command};

    use super::*;

    #[test]
    fn the_status_is_known_once_the_parent_has_reaped() {
        let mut child = Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        assert_eq!(exit_status(pidfd.as_fd()).unwrap(), None);
        child.wait().unwrap();
        assert_eq!(exit_status(pidfd.as_fd()).unwrap(), Some(7 << 8));
    }
}
