//! A pseudo-terminal of the sandbox's own devpts, so that programs inside find their terminal by name.

use std::{os::fd::OwnedFd, path::Path};

use model::TerminalSize;
use rustix::{
    fs::{Mode, OFlags, ResolveFlags, open, openat2},
    pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use crate::error::{Context, Result};

/// Opens a new terminal of a size inside the sandbox whose pid 1 is `init`: (master, slave).
pub(super) fn open_sized(init: i32, size: TerminalSize) -> Result<(OwnedFd, OwnedFd)> {
    let root = Path::new("/proc").join(init.to_string()).join("root");
    let root = open(&root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).at("open the root of the sandbox", &root)?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    // Inside its root only: whatever links there are, the path never leaves the sandbox.
    let master = openat2(&root, "dev/pts/ptmx", flags, Mode::empty(), ResolveFlags::IN_ROOT)
        .doing("open a terminal in the sandbox")?;
    unlockpt(&master).doing("unlock the terminal")?;
    let peer = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = ioctl_tiocgptpeer(&master, peer).doing("open the terminal's other side")?;
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).doing("resize the terminal")?;
    Ok((master, slave))
}
