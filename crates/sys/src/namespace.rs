//! Settings of the namespaces that the calling process is in.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::OnceLock,
};

use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space, move_into_thread_name_spaces};

use serde::{Deserialize, Serialize};

/// Moves the calling thread into new namespaces (unshare(2)).
#[allow(deprecated, reason = "deprecated for CLONE_FILES only, which is not used")]
pub fn unshare(flags: rustix::thread::UnshareFlags) -> io::Result<()> {
    Ok(rustix::thread::unshare(flags)?)
}

/// A namespace that a thread can visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Interfaces, ports, routes.
    Network,
    /// System V objects.
    Ipc,
    /// Where the children are that it forks. It stays in its own.
    PidOfChildren,
}

impl Kind {
    /// As it is entered and left, and where the caller's own is.
    fn way(self) -> (ThreadNameSpaceType, LinkNameSpaceType, &'static str) {
        match self {
            Self::Network => (ThreadNameSpaceType::NETWORK, LinkNameSpaceType::Network, "/proc/thread-self/ns/net"),
            Self::Ipc => (
                ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION,
                LinkNameSpaceType::InterProcessCommunication,
                "/proc/thread-self/ns/ipc",
            ),
            Self::PidOfChildren => (ThreadNameSpaceType::PROCESS_ID, LinkNameSpaceType::ProcessID, "/proc/self/ns/pid"),
        }
    }
}

/// Does something in the namespace that a process is in; `process` is its pidfd. The calling thread comes back afterwards, also after a panic. If it
/// cannot, the process aborts: all that it did from then on would happen there.
///
/// Not by another thread: a process that forks must have one only, and one that was joined is still counted for a moment.
///
/// # Errors
/// The namespace cannot be entered.
pub fn inside<T>(process: BorrowedFd<'_>, kind: Kind, visit: impl FnOnce() -> T) -> io::Result<T> {
    let (entered, left, own) = kind.way();
    // A pidfd of this process would name the namespace that it is in by then.
    let home = fs::File::open(own)?;
    move_into_thread_name_spaces(process, entered)?;
    let way_back = WayBack { home, kind: left };
    let result = visit();
    drop(way_back);
    Ok(result)
}

/// Goes back when it is dropped.
struct WayBack {
    home: fs::File,
    kind: LinkNameSpaceType,
}

impl Drop for WayBack {
    fn drop(&mut self) {
        if let Err(error) = move_into_link_name_space(self.home.as_fd(), Some(self.kind)) {
            eprintln!("cannot leave another namespace, aborting: {error}");
            std::process::abort();
        }
    }
}

/// What the two clocks of a time namespace show, or by how much they differ from the machine's, in nanoseconds (time_namespaces(7)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockOffsets {
    /// Of `CLOCK_MONOTONIC`.
    pub monotonic_ns: i64,
    /// Of `CLOCK_BOOTTIME`.
    pub boottime_ns: i64,
}

const SECOND_NS: i64 = 1_000_000_000;

/// Makes a time namespace for the children of the caller (`CLONE_NEWTIME`, which libc does not have).
pub const CLONE_NEWTIME: i32 = 0x80;

/// Bytes of [`ClockOffsets::to_text`].
pub const CLOCK_TEXT_BYTES: usize = 66;

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

    /// As `/proc/PID/timens_offsets` takes them, always of the same length.
    pub fn to_text(self) -> String {
        let line = |clock: &str, ns: i64| {
            format!("{clock:9} {:12} {:9}\n", ns.div_euclid(SECOND_NS), ns.rem_euclid(SECOND_NS))
        };
        line("monotonic", self.monotonic_ns) + &line("boottime", self.boottime_ns)
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            monotonic_ns: self.monotonic_ns.saturating_add(other.monotonic_ns),
            boottime_ns: self.boottime_ns.saturating_add(other.boottime_ns),
        }
    }

    /// The difference of both.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            monotonic_ns: self.monotonic_ns.saturating_sub(other.monotonic_ns),
            boottime_ns: self.boottime_ns.saturating_sub(other.boottime_ns),
        }
    }
}

/// What the machine's own clocks show now, also where this process is in a time namespace with offsets.
pub fn machine_clocks() -> io::Result<ClockOffsets> {
    /// A process that has begun never changes its time namespace.
    static OWN: OnceLock<ClockOffsets> = OnceLock::new();
    let own = match OWN.get() {
        Some(own) => *own,
        None => {
            let own = ClockOffsets::of(std::process::id() as i32)?;
            *OWN.get_or_init(|| own)
        }
    };
    let ns = |clock| {
        let time = rustix::time::clock_gettime(clock);
        time.tv_sec * SECOND_NS + time.tv_nsec
    };
    let shown = ClockOffsets {
        monotonic_ns: ns(rustix::time::ClockId::Monotonic),
        boottime_ns: ns(rustix::time::ClockId::Boottime),
    };
    Ok(shown.minus(own))
}

/// A new user namespace in which `count` ids from 0 on are those from `first` on here. It has no process.
pub fn of_users(first: u32, count: u32) -> io::Result<OwnedFd> {
    let mut pidfd = -1i32;
    // SAFETY: clone_args is plain data; all zero is its documented "nothing special".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = (libc::CLONE_NEWUSER | libc::CLONE_PIDFD) as u64;
    args.pidfd = &raw mut pidfd as u64;
    // No signal: code that waits for other children does not see this one.
    // SAFETY: `args` is a valid clone_args of the size given. The child has its own copy of all memory, and makes one system call.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) };
    match pid {
        -1 => return Err(io::Error::last_os_error()),
        0 => loop {
            // SAFETY: waits for a signal, and runs no handler's code of ours before it ends by SIGKILL.
            unsafe { libc::syscall(libc::SYS_pause) };
        },
        _ => {}
    }
    // SAFETY: CLONE_PIDFD stored a new descriptor there that nothing else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let map = format!("0 {first} {count}\n");
    let namespace = ["gid_map", "uid_map"]
        .iter()
        .try_for_each(|name| fs::write(format!("/proc/{pid}/{name}"), &map))
        .and_then(|()| crate::pidfd::user_namespace(pidfd.as_fd()));
    rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL)?;
    let mut status = 0;
    // SAFETY: reaps the child made above, which nothing else waits for; __WCLONE because it has no exit signal.
    unsafe { libc::waitpid(pid as i32, &raw mut status, libc::__WCLONE) };
    namespace
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

    #[test]
    fn offsets_are_written_with_the_same_length_whatever_they_are() {
        for ns in [0, 1, -1, -1_500_000_000, i64::MAX, i64::MIN / 2] {
            let offsets = ClockOffsets { monotonic_ns: ns, boottime_ns: ns / 3 };
            let text = offsets.to_text();
            assert_eq!((text.len(), ClockOffsets::parse(&text)), (CLOCK_TEXT_BYTES, Some(offsets)), "{text}");
        }
    }
}
