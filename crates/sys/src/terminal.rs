//! What the kernel keeps of a terminal, as bytes that it takes again.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::ioctl_fionread,
};

/// Takes attributes (`struct termios2`): `_IOW('T', 0x2B, struct termios2)`.
pub const SET_ATTRIBUTES: u64 = 0x402c_542b;
/// Takes a size (`struct winsize`).
pub const SET_SIZE: u64 = libc::TIOCSWINSZ;
/// Makes it the controlling terminal of the session that the caller leads.
pub const TAKE_CONTROL: u64 = libc::TIOCSCTTY;
/// Takes the number of the process group in the foreground.
pub const SET_FOREGROUND: u64 = libc::TIOCSPGRP;

/// Bytes of a `struct termios2`.
pub const ATTRIBUTES_BYTES: usize = 44;
/// Bytes of a `struct winsize`.
pub const SIZE_BYTES: usize = 8;

/// `_IOR('T', 0x2A, struct termios2)`.
const GET_ATTRIBUTES: libc::Ioctl = 0x802c_542a_u32 as libc::Ioctl;

/// Modes, special characters and speeds.
pub fn attributes(terminal: BorrowedFd<'_>) -> io::Result<[u8; ATTRIBUTES_BYTES]> {
    read(terminal, GET_ATTRIBUTES)
}

/// Rows and columns, in characters and pixels.
pub fn size(terminal: BorrowedFd<'_>) -> io::Result<[u8; SIZE_BYTES]> {
    read(terminal, libc::TIOCGWINSZ as libc::Ioctl)
}

/// Whether what is read from a master has a byte of its own before what was written: `_IOR('T', 0x38, int)`.
pub fn in_packet_mode(master: BorrowedFd<'_>) -> io::Result<bool> {
    const GET_PACKET_MODE: libc::Ioctl = 0x8004_5438_u32 as libc::Ioctl;
    Ok(read::<4>(master, GET_PACKET_MODE)? != [0; 4])
}

/// Bytes that wait to be read at one side. Of a line that is not complete, which a program reads as a whole, none counts.
pub fn waiting(terminal: BorrowedFd<'_>) -> io::Result<u64> {
    // Bytes that were just written may not have come there yet: the kernel brings them before it answers this.
    let mut asked = [PollFd::from_borrowed_fd(terminal, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(ioctl_fionread(terminal)?)
}

fn read<const N: usize>(terminal: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the requests write as many bytes as their results have, and the callers ask for those.
    match unsafe { libc::ioctl(terminal.as_raw_fd(), request, bytes.as_mut_ptr()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_was_written_to_a_terminal_waits_at_once() {
        let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
        let master = rustix::pty::openpt(flags).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
        for _ in 0..1_000 {
            rustix::io::write(&slave, b"x").unwrap();
            assert_eq!(waiting(master.as_fd()).unwrap(), 1);
            rustix::io::read(&master, &mut [0; 8][..]).unwrap();
        }
    }

    #[test]
    fn a_terminal_has_attributes_and_a_size_and_another_file_has_none() {
        let master = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY).unwrap();
        assert!(attributes(master.as_fd()).unwrap().iter().any(|byte| *byte != 0));
        let wanted = rustix::termios::Winsize { ws_row: 7, ws_col: 300, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&master, wanted).unwrap();
        assert_eq!(size(master.as_fd()).unwrap(), [7, 0, 44, 1, 0, 0, 0, 0]);
        assert!(!in_packet_mode(master.as_fd()).unwrap());
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(attributes(null.as_fd()).is_err() && size(null.as_fd()).is_err());
    }
}
