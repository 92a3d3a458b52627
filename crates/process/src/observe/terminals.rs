//! Terminals that processes of the program have made (`/dev/ptmx`): both sides are in it.
//!
//! Copies are given both sides, as they are given streams: the number of a terminal is that of its sandbox's devpts, and only its caller can choose
//! it.

use std::{
    collections::BTreeMap,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
};

use base::limits::FORKED_COMMANDS_MAX;
use procfs::Fields;
use rustix::{
    fs::{Mode, OFlags},
    process::{Pid, PidfdFlags, pidfd_open},
};
use sys::{remote, terminal};

use super::root;
use crate::{
    error::{Context, Error},
    image::{OwnTerminal, Stream, StreamFile},
    refusal::Refusal,
};

/// The names of the device that makes terminals.
const MAKERS: [&[u8]; 2] = [b"/dev/ptmx", b"/dev/pts/ptmx"];
/// Where a sandbox has its terminals, from its root.
const DIRECTORY: &str = "dev/pts";

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Terminals {
    pub(crate) own: Vec<OwnTerminal>,
    /// Which files are the program's sides of them.
    pub(crate) files: Vec<(StreamFile, Stream)>,
}

impl Terminals {
    /// The stream that an open file is, if it is the master of a terminal.
    pub(crate) fn of_master(&self, link: &[u8], info: &Fields) -> Option<Stream> {
        let number = number_of(link, info)?;
        self.own.iter().find(|own| own.number == number).map(|own| own.stream.next())
    }
}

/// Finds those of these processes. `streams` are known already.
pub(crate) fn find(
    pids: &[i32],
    streams: &[(StreamFile, Stream)],
    refusals: &mut Vec<Refusal>,
) -> Result<Terminals, Error> {
    let Some(first) = pids.first() else { return Ok(Terminals::default()) };
    let others = others(*first, streams)?;
    if others.is_empty() {
        return Ok(Terminals::default());
    }
    let mut sides = Sides::default();
    for pid in pids {
        sides.add(*pid)?;
    }
    let mut next = streams.iter().fold(Stream::FIRST_OF_COMMANDS, |next, (_, stream)| next.max(stream.next_command()));
    let mut found = Terminals::default();
    for (number, master) in sides.masters {
        let Some(file) = others.get(&number) else { continue };
        let waits = |side: &OwnedFd| terminal::waiting(side.as_fd()).of("read what waits at a terminal", *first);
        let bytes = waits(&master)? + sides.slaves.get(&number).map_or(Ok(0), waits)?;
        if bytes > 0 || terminal::in_packet_mode(master.as_fd()).of("read a terminal", *first)? {
            refusals.push(Refusal::BusyTerminal { number, bytes });
        }
        found.files.push((file.0, next));
        found.own.push(OwnTerminal {
            stream: next,
            number,
            mode: file.1,
            attributes: terminal::attributes(master.as_fd()).of("read a terminal", *first)?.to_vec(),
            size: terminal::size(master.as_fd()).of("read a terminal", *first)?,
        });
        next = next.next().next();
    }
    if next.number() as usize > 3 * (FORKED_COMMANDS_MAX + 1) {
        let max = 3 * (FORKED_COMMANDS_MAX + 1) / 2;
        refusals.push(Refusal::TooMany { what: "terminals".into(), found: found.own.len(), max });
    }
    Ok(found)
}

/// Terminals of the sandbox that are no streams: number -> file and mode.
fn others(pid: i32, streams: &[(StreamFile, Stream)]) -> Result<BTreeMap<u32, (StreamFile, u32)>, Error> {
    let root = root::open_root(pid)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::openat2(&root, DIRECTORY, flags, Mode::empty(), root::INSIDE) else {
        return Ok(BTreeMap::new());
    };
    let mut others = BTreeMap::new();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&directory));
    for number in procfs::numbers(&path)? {
        // It has just gone.
        let Ok(status) = std::fs::symlink_metadata(format!("{path}/{number}")) else { continue };
        let file = StreamFile { dev: status.dev(), ino: status.ino() };
        if !streams.iter().any(|(known, _)| *known == file) {
            others.insert(number as u32, (file, status.mode() & 0o777));
        }
    }
    Ok(others)
}

/// Descriptors of terminals, by their numbers.
#[derive(Debug, Default)]
struct Sides {
    masters: BTreeMap<u32, OwnedFd>,
    slaves: BTreeMap<u32, OwnedFd>,
}

impl Sides {
    fn add(&mut self, pid: i32) -> Result<(), Error> {
        let process = Pid::from_raw(pid).ok_or(Error::Unexpected { pid, what: "is no process id".into() })?;
        let process = pidfd_open(process, PidfdFlags::empty()).of("open", pid)?;
        for fd in procfs::numbers(&format!("/proc/{pid}/fd"))? {
            let Ok(link) = procfs::link(&format!("/proc/{pid}/fd/{fd}")) else { continue };
            let (sides, number) = if MAKERS.contains(&link.as_slice()) {
                let info = Fields::read(format!("/proc/{pid}/fdinfo/{fd}")).ok();
                (&mut self.masters, info.and_then(|info| number_of(&link, &info)))
            } else {
                let number =
                    link.strip_prefix(b"/dev/pts/").and_then(|number| str::from_utf8(number).ok()?.parse().ok());
                (&mut self.slaves, number)
            };
            let Some(number) = number else { continue };
            if let std::collections::btree_map::Entry::Vacant(entry) = sides.entry(number) {
                entry.insert(remote::take_descriptor(process.as_fd(), fd).of("duplicate a descriptor", pid)?);
            }
        }
        Ok(())
    }
}

/// The number of a terminal whose master this open file is.
fn number_of(link: &[u8], info: &Fields) -> Option<u32> {
    let number = MAKERS.contains(&link).then(|| info.number("tty-index", 10).ok())??;
    u32::try_from(number).ok()
}
