//! Open files of a program, and what they are made again from.

use serde::{Deserialize, Serialize};

use super::TimerValue;

/// Which open file is one of the sandbox's standard streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamFile {
    /// Device number, as `stat` gives it.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}

/// A standard stream, by its number: three of the process that the sandbox was started with, then three of each command that goes with it, then
/// both sides of each terminal that the program has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stream(u32);

impl Stream {
    /// Descriptor 0 of the sandbox's program at its start.
    pub const STDIN: Self = Self(0);
    /// Descriptor 1.
    pub const STDOUT: Self = Self(1);
    /// Descriptor 2.
    pub const STDERR: Self = Self(2);

    /// Descriptor `descriptor` (0 to 2) of a command at its start; `command` is its place in [`crate::CaptureSpec::commands`].
    pub fn of_command(command: usize, descriptor: u32) -> Self {
        Self(3 * (command as u32 + 1) + descriptor)
    }

    /// As many are of the program.
    pub(crate) const FIRST_OF_COMMANDS: Self = Self(3);

    pub(crate) fn number(self) -> u32 {
        self.0
    }

    pub(crate) fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The first one of the next command.
    pub(crate) fn next_command(self) -> Self {
        Self(3 * (self.0 / 3 + 1))
    }
}

/// An open file and the descriptors that name it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OpenFile {
    /// Numbers, each with its close-on-exec flag.
    pub(crate) numbers: Vec<(i32, bool)>,
    /// Status flags and access mode, as `F_GETFL`.
    pub(crate) flags: i32,
    pub(crate) kind: FileKind,
}

/// Bits of an access mode, as in `access(2)` and in a file's mode.
pub(crate) const WRITE: u32 = 2;
pub(crate) const READ: u32 = 4;

/// The access mode of an open file with these flags; 0 if it only names a file (`O_PATH`).
pub(crate) fn access_mode(flags: i32) -> u32 {
    match flags & libc::O_ACCMODE {
        _ if flags & libc::O_PATH != 0 => 0,
        libc::O_RDONLY => READ,
        libc::O_WRONLY => WRITE,
        _ => READ | WRITE,
    }
}

/// Whose lock it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LockKind {
    /// `flock`: the open file's, of the whole file.
    OpenFile,
    /// `F_OFD_SETLK`: the open file's.
    OpenFileRange,
    /// `F_SETLK`: the process's.
    Process,
}

/// A lock on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileLock {
    /// A descriptor by which it can be taken.
    pub(crate) fd: i32,
    pub(crate) kind: LockKind,
    pub(crate) exclusive: bool,
    pub(crate) start: u64,
    /// 0: to the end, wherever that will be.
    pub(crate) length: u64,
}

/// A registration in an epoll set.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct EpollEntry {
    pub(crate) fd: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
}

/// One watch of an inotify instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Watch {
    pub(crate) wd: i32,
    pub(crate) mask: u32,
    pub(crate) path: Vec<u8>,
}

/// How an open file is made again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum FileKind {
    Stream(Stream),
    Path {
        path: Vec<u8>,
        offset: u64,
    },
    Pipe {
        pipe: usize,
        end: End,
    },
    Fifo {
        path: Vec<u8>,
        content: Vec<u8>,
    },
    Eventfd {
        count: u64,
        semaphore: bool,
    },
    Timerfd {
        clock: i32,
        ticks: u64,
        value: TimerValue,
    },
    Signalfd {
        mask: u64,
    },
    Epoll {
        entries: Vec<EpollEntry>,
    },
    Inotify {
        watches: Vec<Watch>,
    },
    Memfd {
        object: usize,
        offset: u64,
    },
    UnixPair {
        pair: usize,
        end: End,
    },
    Socket(Socket),
    /// A connection: the copy finds it reset by its peer.
    ResetConnection {
        family: i32,
    },
    /// A directory that was deleted. Not in versions 1 and 2 of a program's state.
    GoneDirectory {
        path: Vec<u8>,
        mode: u32,
    },
    /// An end of a TCP connection whose other end the program has, too.
    Connection {
        connection: usize,
        end: End,
    },
    /// A process, by its number in the sandbox; none: it is gone.
    Pidfd {
        pid: Option<i32>,
    },
}

/// Which end of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// A pipe's reading end; the socket met first.
    First,
    /// A pipe's writing end; its peer.
    Second,
}

/// A pipe whose ends are in the program, or closed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Pipe {
    pub(crate) capacity: u32,
    /// Waiting packets, or one run of bytes.
    pub(crate) content: Vec<Vec<u8>>,
    pub(crate) packets: bool,
}

/// A socket pair whose ends are in the program, or closed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UnixPair {
    pub(crate) kind: i32,
    /// Messages (or, for a stream, one run of bytes) waiting at the first and at the second end.
    pub(crate) queues: [Vec<Vec<u8>>; 2],
    /// Of states of versions 1 and 2.
    pub(crate) options: [Vec<IntegerOption>; 2],
    /// Directions shut down at each end: 1 receiving, 2 sending, 3 both.
    pub(crate) shutdown: [u8; 2],
}

/// Level, name and value of a socket option, as versions 1 and 2 of a program's state have them.
pub(crate) type IntegerOption = (i32, i32, i32);

/// A socket without a connection.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Socket {
    pub(crate) family: i32,
    pub(crate) kind: i32,
    pub(crate) protocol: i32,
    /// Of states of versions 1 and 2.
    pub(crate) options: Vec<IntegerOption>,
    /// The bound address as a `sockaddr`, if any.
    pub(crate) address: Option<Vec<u8>>,
    /// The connected address of a datagram socket.
    pub(crate) peer: Option<Vec<u8>>,
    /// Backlog, when it listens.
    pub(crate) listening: Option<u32>,
    /// The file of a bound unix socket.
    pub(crate) path: Option<SocketPath>,
}

/// The file of a bound unix socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SocketPath {
    /// As it was given to `bind`.
    pub(crate) path: Vec<u8>,
    /// As the program sees it.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u32,
}
