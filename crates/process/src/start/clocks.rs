//! A copy's clocks: a time namespace of its own, in which `CLOCK_MONOTONIC` and `CLOCK_BOOTTIME` go on from the capture.
//!
//! Programs keep points of these clocks in their memory: deadlines, the next tick of a schedule. If the clocks had gone on while the zygote
//! waited, all of these would have passed at once.
//!
//! The kernel takes a namespace's offsets until the first process enters it. A process can enter it only with one thread and
//! `CAP_SYS_ADMIN`. So a copy makes the namespace first of all, and enters it before it has threads. A copy that parks enters it when its
//! gate opens: only then is it known how long the copy has waited.

use sys::namespace::{CLOCK_TEXT_BYTES, CLONE_NEWTIME};

use super::Transit;
use crate::script::{Arena, Check, Script};

/// Adds the making of the namespace, while no number below those in transit is in use. Both descriptors are opened with all privileges, which
/// is what the kernel looks at when the offsets are written.
pub(super) fn make(arena: &mut Arena, script: &mut Script, transit: Transit) {
    script.call(libc::SYS_unshare, [CLONE_NEWTIME.into()], Check::Success);
    let mut open = |path: &[u8], flags: i32, number: i32| {
        const LOWEST: i32 = 0;
        let path = arena.text(path);
        let args = [libc::AT_FDCWD.into(), path.into(), (flags | libc::O_CLOEXEC).into()];
        script.call(libc::SYS_openat, args, Check::Equal(i64::from(LOWEST)));
        script.call(libc::SYS_dup3, [LOWEST.into(), number.into(), libc::O_CLOEXEC.into()], Check::Success);
        script.call(libc::SYS_close, [LOWEST.into()], Check::Success);
    };
    open(b"/proc/self/timens_offsets", libc::O_WRONLY, transit.clock_offsets());
    open(b"/proc/self/ns/time_for_children", libc::O_RDONLY, transit.clocks());
}

/// Adds the entering, with the offsets whose text is at `offsets`.
pub(super) fn enter(script: &mut Script, transit: Transit, offsets: u64) {
    const BYTES: u64 = CLOCK_TEXT_BYTES as u64;
    let args = [transit.clock_offsets().into(), offsets.into(), BYTES.into()];
    script.call(libc::SYS_write, args, Check::Equal(BYTES as i64));
    script.call(libc::SYS_setns, [transit.clocks().into(), CLONE_NEWTIME.into()], Check::Success);
}
