//! A pseudo-terminal of the sandbox's own devpts, so that programs inside find their terminal by name.

use std::{io, os::fd::OwnedFd, path::Path};

use model::TerminalSize;
use process::TerminalFacts;
use procfs::IdMaps;
use rustix::{
    fs::{Mode, OFlags, ResolveFlags, Uid, fchmod, fchown, open, openat2},
    io::{FdFlags, fcntl_setfd},
    pty::{OpenptFlags, ioctl_tiocgptpeer, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use crate::error::{Context, Result};

/// A new terminal.
pub(super) struct Opened {
    pub(super) master: OwnedFd,
    pub(super) slave: OwnedFd,
    /// The N of `/dev/pts/N`.
    pub(super) number: u32,
}

/// Opens a new terminal inside the sandbox whose pid 1 is `init`.
pub(super) fn open_new(init: i32) -> Result<Opened> {
    let (master, number) = open_master(init)?;
    complete(master, number)
}

fn open_master(init: i32) -> Result<(OwnedFd, u32)> {
    let root = Path::new("/proc").join(init.to_string()).join("root");
    let root = open(&root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).at("open the root of the sandbox", &root)?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    // Inside its root only: whatever links there are, the path never leaves the sandbox.
    let master = openat2(&root, "dev/pts/ptmx", flags, Mode::empty(), ResolveFlags::IN_ROOT)
        .doing("open a terminal in the sandbox")?;
    let name = ptsname(&master, Vec::new()).doing("read the number of the terminal")?;
    let number = name.to_str().ok().and_then(|name| name.rsplit('/').next()?.parse().ok());
    let number = number.ok_or(io::ErrorKind::InvalidData).doing("read the number of the terminal")?;
    Ok((master, number))
}

fn complete(master: OwnedFd, number: u32) -> Result<Opened> {
    unlockpt(&master).doing("unlock the terminal")?;
    // Opened with close-on-exec, the terminal itself would have that flag in /proc/PID/fdinfo, whatever the flags of descriptors are.
    let peer = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let slave = ioctl_tiocgptpeer(&master, peer).doing("open the terminal's other side")?;
    fcntl_setfd(&slave, FdFlags::CLOEXEC).doing("open the terminal's other side")?;
    Ok(Opened { master, slave, number })
}

/// The same with a number that it must have. The kernel gives the lowest that is free, and a sandbox has few.
pub(super) fn open_as(init: i32, number: u32) -> Result<Opened> {
    let mut others = Vec::new();
    loop {
        let (master, opened) = open_master(init)?;
        if opened == number {
            return complete(master, number);
        }
        if opened > number {
            return Err(io::ErrorKind::AddrInUse).doing("open a terminal with the number that it had");
        }
        others.push(master);
    }
}

/// Gives a terminal the owner and mode that a program of the sandbox had given it.
pub(super) fn hand_over(slave: &OwnedFd, init: i32, TerminalFacts { owner, mode, .. }: &TerminalFacts) -> Result<()> {
    let users = IdMaps::of(init).map_err(io::Error::other).doing("read the users of the sandbox")?;
    if let Some(owner) = users.user_outside(*owner) {
        fchown(slave, Some(Uid::from_raw(owner)), None).doing("hand over a terminal")?;
    }
    fchmod(slave, Mode::from_raw_mode(*mode)).doing("hand over a terminal")
}

/// Tells a terminal its size.
pub(super) fn resize(master: &OwnedFd, size: TerminalSize) -> Result<()> {
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(master, size).doing("resize the terminal")
}
