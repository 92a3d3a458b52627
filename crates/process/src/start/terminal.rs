//! Terminals, which the sandbox of a copy has made for it: they are set as they were, and leaders of sessions take theirs.

use sys::terminal;

use super::Transit;
use crate::{
    image::{OwnTerminal, ProgramImage, Stream, Terminal},
    script::{Arena, Check, Script},
};

/// Adds what is set of terminals that the program has made.
pub(super) fn set_own(arena: &mut Arena, script: &mut Script, image: &ProgramImage, transit: Transit) {
    for OwnTerminal { stream, attributes, size, .. } in &image.own_terminals {
        let (attributes, size) = (arena.data(attributes, 4), arena.data(size, 4));
        control(script, *stream, transit, terminal::SET_ATTRIBUTES, attributes);
        control(script, *stream, transit, terminal::SET_SIZE, size);
    }
}

/// Adds the taking of its terminal, by a process that leads its session by now.
pub(super) fn take(arena: &mut Arena, script: &mut Script, image: &ProgramImage, transit: Transit) {
    let Some(of) = &image.terminal else { return };
    let Terminal { attributes, size, .. } = of;
    control(script, of.stream, transit, terminal::TAKE_CONTROL, 0);
    let (attributes, size) = (arena.data(attributes, 4), arena.data(size, 4));
    control(script, of.stream, transit, terminal::SET_ATTRIBUTES, attributes);
    control(script, of.stream, transit, terminal::SET_SIZE, size);
}

/// Adds the choice of the group in the foreground, when all groups are there.
pub(super) fn set_foreground(arena: &mut Arena, script: &mut Script, image: &ProgramImage, transit: Transit) {
    if let Some(of) = image.terminal.as_ref().filter(|of| of.foreground != 0) {
        let group = arena.words(&[of.foreground as u64]);
        control(script, of.stream, transit, terminal::SET_FOREGROUND, group);
    }
}

fn control(script: &mut Script, stream: Stream, transit: Transit, request: u64, argument: u64) {
    let stream = transit.streams() + stream.number() as i32;
    script.call(libc::SYS_ioctl, [stream.into(), request.into(), argument.into()], Check::Success);
}
