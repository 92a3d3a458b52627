//! Controlling terminals: the leader of a session takes the one that its sandbox has made for it, and sets it as it was.

use sys::terminal;

use super::Transit;
use crate::{
    image::{ProgramImage, Terminal},
    script::{Arena, Check, Script},
};

/// Adds the taking of its terminal, by a process that leads its session by now.
pub(super) fn take(arena: &mut Arena, script: &mut Script, image: &ProgramImage, transit: Transit) {
    let Some(of) = &image.terminal else { return };
    let Terminal { attributes, size, .. } = of;
    control(script, of, transit, terminal::TAKE_CONTROL, 0);
    let (attributes, size) = (arena.data(attributes, 4), arena.data(size, 4));
    control(script, of, transit, terminal::SET_ATTRIBUTES, attributes);
    control(script, of, transit, terminal::SET_SIZE, size);
}

/// Adds the choice of the group in the foreground, when all groups are there.
pub(super) fn set_foreground(arena: &mut Arena, script: &mut Script, image: &ProgramImage, transit: Transit) {
    if let Some(of) = image.terminal.as_ref().filter(|of| of.foreground != 0) {
        let group = arena.words(&[of.foreground as u64]);
        control(script, of, transit, terminal::SET_FOREGROUND, group);
    }
}

fn control(script: &mut Script, of: &Terminal, transit: Transit, request: u64, argument: u64) {
    let stream = transit.streams() + of.stream.number() as i32;
    script.call(libc::SYS_ioctl, [stream.into(), request.into(), argument.into()], Check::Success);
}
