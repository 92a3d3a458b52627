//! Settings of the namespaces that the calling process is in.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, AsRawFd},
};

use serde::{Deserialize, Serialize};

/// By how many nanoseconds a time namespace's clocks differ from the machine's (time_namespaces(7)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockOffsets {
    /// Of `CLOCK_MONOTONIC`.
    pub monotonic_ns: i64,
    /// Of `CLOCK_BOOTTIME`.
    pub boottime_ns: i64,
}

const SECOND_NS: i64 = 1_000_000_000;

impl ClockOffsets {
    /// Those of the time namespace that `pid` is in; none on a kernel without time namespaces.
    pub fn of(pid: i32) -> io::Result<Self> {
        match fs::read_to_string(format!("/proc/{pid}/timens_offsets")) {
            // "monotonic           0         0": seconds and nanoseconds.
            Ok(text) => {
                Self::parse(&text).ok_or_else(|| io::Error::other("the offsets of clocks have an unknown form"))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The file is also absent when the process is.
                fs::metadata(format!("/proc/{pid}/stat")).map(|_| Self::default())
            }
            Err(error) => Err(error),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let offset = |clock: &str| -> Option<i64> {
            let mut words = text.lines().find_map(|line| line.strip_prefix(clock))?.split_ascii_whitespace();
            let (seconds, nanoseconds): (i64, i64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            seconds.checked_mul(SECOND_NS)?.checked_add(nanoseconds)
        };
        Some(Self { monotonic_ns: offset("monotonic")?, boottime_ns: offset("boottime")? })
    }

    /// Puts the calling process, which has one thread, and its children into a new time namespace whose clocks have these offsets.
    pub fn enter(&self) -> io::Result<()> {
        const CLONE_NEWTIME: i32 = 0x80;
        // SAFETY: takes one integer.
        if unsafe { libc::unshare(CLONE_NEWTIME) } == -1 {
            return Err(io::Error::last_os_error());
        }
        let line =
            |clock: &str, ns: i64| format!("{clock} {} {}\n", ns.div_euclid(SECOND_NS), ns.rem_euclid(SECOND_NS));
        let text = line("monotonic", self.monotonic_ns) + &line("boottime", self.boottime_ns);
        fs::write("/proc/self/timens_offsets", text)?;
        // unshare moves children only, and a child that shares memory is not made across time namespaces.
        let namespace = File::open("/proc/self/ns/time_for_children")?;
        // SAFETY: takes a descriptor, which is open, and an integer.
        if unsafe { libc::setns(namespace.as_raw_fd(), CLONE_NEWTIME) } == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// What the machine's clocks show now, in nanoseconds, as offsets from zero.
pub fn machine_clocks() -> ClockOffsets {
    let ns = |clock| {
        let time = rustix::time::clock_gettime(clock);
        time.tv_sec * SECOND_NS + time.tv_nsec
    };
    ClockOffsets {
        monotonic_ns: ns(rustix::time::ClockId::Monotonic),
        boottime_ns: ns(rustix::time::ClockId::Boottime),
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_as_the_kernel_writes_them() {
        let text = "monotonic          -2  500000000\nboottime           10         7\n";
        let offsets = ClockOffsets { monotonic_ns: -1_500_000_000, boottime_ns: 10_000_000_007 };
        assert_eq!(ClockOffsets::parse(text), Some(offsets));
        assert_eq!(ClockOffsets::parse("monotonic x"), None);
    }
}
