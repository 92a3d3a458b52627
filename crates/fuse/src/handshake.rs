//! Makes a `fuser` session on a device, whether the kernel is at the beginning of its conversation or in the midst of it.
//!
//! `fuser` takes a descriptor and begins with the handshake on it. A superblock that another process has served before shakes no hands
//! again. So the session is begun on a socket, on which we are the kernel; then the device is put in the socket's place:
//!
//! ```text
//!   new superblock       device ─ INIT ─► us ─► socket ─► fuser ─ reply ─► socket ─► us ─► device
//!   running superblock                    us ─ INIT ─► socket ─► fuser ─ reply ─► dropped
//!   then                 device ◄────────────── put in the socket's place ──────────────► fuser
//! ```

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use fuser::{Config, Filesystem, InitFlags, Session, SessionACL};
use rustix::io::{Errno, read, write};

use crate::adapter::ALLOW_IDMAP;

/// Least buffer that the kernel reads requests into (FUSE_MIN_READ_BUFFER).
const READ_BUFFER_BYTES: usize = 8192;

const FUSE_INIT: u32 = 26;

/// Of each request.
const HEADER_BYTES: usize = 40;

/// Whose conversation it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// The kernel says INIT.
    New,
    /// Another process has answered INIT; all that it negotiated holds.
    Running,
}

/// A session that is ready to run, on the other end of this socket, in whose place the device has to be put.
pub(crate) fn session<F: Filesystem>(
    filesystem: F,
    config: Config,
    device: BorrowedFd<'_>,
    beginning: Beginning,
) -> io::Result<(Session<F>, OwnedFd)> {
    let (ours, theirs) = sys::seqpacket::pair()?;
    let init = match beginning {
        Beginning::New => read_request(device)?,
        Beginning::Running => made_up_init(),
    };
    write(&ours, &init)?;
    let session = Session::from_fd(filesystem, theirs, SessionACL::All, config)?;
    if beginning == Beginning::New {
        let mut reply = [0; READ_BUFFER_BYTES];
        let length = read(&ours, &mut reply)?;
        write(device, &reply[..length])?;
    }
    Ok((session, ours))
}

/// What `fuser` has no function for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Notification {
    /// Every request that a process which has died has read and not answered comes again (FUSE_NOTIFY_RESEND). Before threads read
    /// the device: what they have read would come again, too.
    Resend = 7,
    /// No name that was looked up before is believed any more (FUSE_NOTIFY_INC_EPOCH).
    ForgetNames = 8,
}

/// Tells the kernel.
pub(crate) fn notify(device: &OwnedFd, notification: Notification) -> io::Result<()> {
    let mut header = [0; 16];
    // fuse_out_header: length, code instead of an error, and 0, which no request has.
    header[0..4].copy_from_slice(&16u32.to_ne_bytes());
    header[4..8].copy_from_slice(&(notification as i32).to_ne_bytes());
    write(device, &header)?;
    Ok(())
}

/// Whether the kernel has an inode. Asking has it read the inode's attributes anew (FUSE_NOTIFY_INVAL_INODE).
pub(crate) fn is_known(device: &OwnedFd, ino: u64) -> bool {
    let mut message = [0; 40];
    message[0..4].copy_from_slice(&40u32.to_ne_bytes());
    message[4..8].copy_from_slice(&2i32.to_ne_bytes());
    message[16..24].copy_from_slice(&ino.to_ne_bytes());
    // Its pages stay as they are.
    message[24..32].copy_from_slice(&(-1i64).to_ne_bytes());
    !matches!(write(device, &message), Err(rustix::io::Errno::NOENT))
}

/// Whether the kernel knows [`Notification::ForgetNames`] (Linux 6.16). New kernels (7.2) hear it only when their INIT was answered. Asking has it look each name up once more.
pub(crate) fn has_epochs(device: &OwnedFd) -> bool {
    // Any other failure is that of the superblock, which tells the next who asks.
    !matches!(notify(device, Notification::ForgetNames), Err(error) if error.kind() == io::ErrorKind::InvalidInput)
}

fn read_request(device: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut request = vec![0; READ_BUFFER_BYTES];
    let length = rustix::io::retry_on_intr(|| match read(device, &mut request) {
        // The request was taken back before it was read.
        Err(Errno::NOENT) => Err(Errno::INTR),
        other => other,
    })?;
    request.truncate(length);
    Ok(request)
}

/// What the kernel offers in its INIT, which nobody has read yet. It is answered: nothing of it is wanted.
pub(crate) fn offered(device: BorrowedFd<'_>) -> io::Result<InitFlags> {
    let request = read_request(device)?;
    let word = |at: usize| {
        let bytes = request.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_ne_bytes).ok_or_else(|| io::Error::other("the kernel's first request is too short"))
    };
    // After the header: major, minor, how much is read ahead, flags; more flags if one of these says so.
    let low = u64::from(word(HEADER_BYTES + 12)?);
    let extended = InitFlags::from_bits_retain(low).contains(InitFlags::FUSE_INIT_EXT);
    answer_init(device, &request)?;
    let high = if extended { u64::from(word(HEADER_BYTES + 16)?) } else { 0 };
    Ok(InitFlags::from_bits_retain(low | high << 32))
}

fn answer_init(device: BorrowedFd<'_>, request: &[u8]) -> io::Result<()> {
    let (major, minor, write_bytes_max) = (7u32, 31u32, 4096u32);
    let mut answer = [0; 16 + 64];
    // fuse_out_header: length, no error, the request's number; fuse_init_out.
    answer[0..4].copy_from_slice(&80u32.to_ne_bytes());
    answer[8..16].copy_from_slice(request.get(8..16).unwrap_or(&[0; 8]));
    for (at, word) in [(16, major), (20, minor), (36, write_bytes_max)] {
        answer[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    write(device, &answer)?;
    Ok(())
}

/// An INIT of a kernel that can do all that is ever asked for: whether it was granted was settled by the process before.
fn made_up_init() -> Vec<u8> {
    let flags = (InitFlags::all() | ALLOW_IDMAP).bits();
    let (header_bytes, body_bytes) = (HEADER_BYTES as u32, 64u32);
    let mut init = Vec::new();
    for word in [header_bytes + body_bytes, FUSE_INIT] {
        init.extend_from_slice(&word.to_ne_bytes());
    }
    let unique = 1u64;
    init.extend_from_slice(&unique.to_ne_bytes());
    // The rest of fuse_in_header: node, user, group, process, padding.
    init.resize(header_bytes as usize, 0);
    let (major, minor, readahead_bytes_max) = (7u32, 40u32, 128u32 << 10);
    for word in [major, minor, readahead_bytes_max, flags as u32, (flags >> 32) as u32] {
        init.extend_from_slice(&word.to_ne_bytes());
    }
    init.resize((header_bytes + body_bytes) as usize, 0);
    init
}
