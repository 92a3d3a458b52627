//! The controlling terminal of a session, read through its leader.

use std::os::fd::AsFd;

use procfs::{Fields, Stat};
use rustix::fs::{Mode, OFlags};
use sys::terminal;

use super::root;
use crate::{
    error::{Context, Error},
    image::{Stream, StreamFile, Terminal},
    refusal::Refusal,
};

/// Fields of `/proc/PID/stat`.
const TERMINAL: usize = 7;
const FOREGROUND: usize = 8;
/// The major number of pseudo-terminals.
const PSEUDO_TERMINAL: i64 = 136;

/// Whether a process has a controlling terminal.
pub(crate) fn has_one(pid: i32) -> Result<bool, Error> {
    Ok(Stat::read(&pid.to_string())?.field(TERMINAL) != 0)
}

/// What the session leader `pid` has as its terminal. That must be one of the streams: of another one the other side is not known.
pub(crate) fn read(pid: i32, streams: &[(StreamFile, Stream)]) -> Result<Result<Option<Terminal>, Refusal>, Error> {
    let stat = Stat::read(&pid.to_string())?;
    let device = stat.field(TERMINAL);
    if device == 0 {
        return Ok(Ok(None));
    }
    let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xfff00);
    let path = format!("/dev/pts/{minor}");
    let root = root::open_root(pid)?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(&root, path.as_str(), flags, Mode::empty(), root::INSIDE);
    let Some(opened) = opened.ok().filter(|_| major == PSEUDO_TERMINAL) else {
        return Ok(Err(Refusal::ControllingTerminal));
    };
    let status = rustix::fs::fstat(&opened).of("look at the terminal of", pid)?;
    let is_it = |(file, _): &&(StreamFile, Stream)| file.dev == status.st_dev && file.ino == status.st_ino;
    let Some((_, stream)) = streams.iter().find(is_it) else { return Ok(Err(Refusal::ControllingTerminal)) };
    Ok(Ok(Some(Terminal {
        stream: *stream,
        foreground: inside(stat.field(FOREGROUND) as i32),
        attributes: terminal::attributes(opened.as_fd()).of("read the terminal of", pid)?.to_vec(),
        size: terminal::size(opened.as_fd()).of("read the terminal of", pid)?,
    })))
}

/// What its sandbox calls a group that has a leader; 0 for another one.
fn inside(group: i32) -> i32 {
    let ids = Fields::read(format!("/proc/{group}/status")).and_then(|status| status.numbers("NSpid", 10));
    ids.ok().and_then(|ids| ids.last().copied()).unwrap_or_default() as i32
}
