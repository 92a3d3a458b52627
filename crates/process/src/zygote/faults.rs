//! Pages that arrive when they are touched: the zygote registers its mappings with a userfaultfd and sends the descriptor away.
//!
//! The zygote itself must make the descriptor, which is bound to the address space of its maker. Copies inherit the registration. The holder of
//! the descriptor is told of each copy (userfaultfd(2), `UFFD_FEATURE_EVENT_FORK`), and of what copies unmap, move and give back.

use sys::remote::Range;

use crate::{
    script::{Arena, Arg, Check, Script},
    start::kind,
};

const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFD_API: u64 = 0xaa;
const EVENT_FORK: u64 = 1 << 1;
const EVENT_REMAP: u64 = 1 << 2;
const EVENT_REMOVE: u64 = 1 << 3;
const EVENT_UNMAP: u64 = 1 << 6;
const THREAD_ID: u64 = 1 << 8;
const REGISTER_MISSING: u64 = 1;

/// Adds the registration of `ranges` and the sending of the descriptor through the control socket. The zygote's own end of it is closed
/// with all else that is left from building.
pub(super) fn register(arena: &mut Arena, script: &mut Script, control: i32, ranges: &[Range]) {
    if ranges.is_empty() {
        return;
    }
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let made = script.call(libc::SYS_userfaultfd, [flags.into()], Check::Success);
    let api = arena.words(&[UFFD_API, EVENT_FORK | EVENT_REMAP | EVENT_REMOVE | EVENT_UNMAP | THREAD_ID, 0]);
    script.call(libc::SYS_ioctl, [Arg::Result(made), UFFDIO_API.into(), api.into()], Check::Success);
    for range in ranges {
        let place = arena.words(&[range.start, range.end - range.start, REGISTER_MISSING, 0]);
        script.call(libc::SYS_ioctl, [Arg::Result(made), UFFDIO_REGISTER.into(), place.into()], Check::Success);
    }
    // The message names the descriptor by number, which must therefore be known here.
    let number = control + 2;
    let args = [Arg::Result(made), number.into(), libc::O_CLOEXEC.into()];
    script.call(libc::SYS_dup3, args, Check::Success);
    // struct cmsghdr { len, level, type }, then the descriptor.
    let rights = (libc::SOL_SOCKET as u64) | (libc::SCM_RIGHTS as u64) << 32;
    let ancillary = arena.words(&[20, rights, number as u64]);
    let words = arena.words(&[0, kind::FAULTS, 0, 0]);
    let vector = arena.words(&[words, 32]);
    let message = arena.words(&[0, 0, vector, 1, ancillary, 24, 0]);
    script.call(libc::SYS_sendmsg, [control.into(), message.into(), libc::MSG_NOSIGNAL.into()], Check::Success);
}
