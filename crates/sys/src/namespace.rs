//! Settings of the namespaces that the calling process is in.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

/// Switches the loopback interface of this network namespace on.
pub fn loopback_up() -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: ifreq is plain data; all zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads one ifreq, which lives until the call returns.
    if unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sets the host name of this UTS namespace.
pub fn set_hostname(name: &str) -> io::Result<()> {
    // SAFETY: the kernel reads `len` bytes of the text.
    if unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
